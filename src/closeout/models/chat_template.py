"""Write conversations with a model's own chat template, and what a conversation gains after a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.codec import shared_prefix, value_or_text
from closeout.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["ChatTemplate"]

# Marks the end of a reply. No template and no tokenizer knows it, and no template changes it.
_END = "closeout-end-of-reply"
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A chat template as Hugging Face models have one.

    Args:
        source: The template's text; a `.jinja` file; a `tokenizer_config.json`; or a model's folder that has them.
        tokens: The texts of special tokens for the template, such as `bos_token`. Those of a `tokenizer_config.json`
            are known.

    Raises:
        ConfigError: There is no such file, or it is not a template.
    """

    def __init__(self, source: str | Path, tokens: Mapping[str, str] | None = None) -> None:
        text, found = _load(source)
        self._template = _compiled(text)
        self._tokens = {**found, **(tokens or {})}

    def write(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, generate: bool = True
    ) -> str:
        """Return a conversation as the model reads it; with `generate` up to where its reply begins.

        Raises:
            ConfigError: The template refuses the conversation.
        """
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=[_as_template(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=generate,
                **self._tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"The chat template cannot write this conversation: {error}") from error

    def after_reply(
        self, reply: Mapping[str, Any], later: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str | None:
        """Return the text from the end of a reply to where the next one begins; None if it cannot be told.

        The reply's own text is not written: a short conversation with a reply of the same kind stands for it, because
        templates leave thinking out, trim texts and write calls in a way of their own.
        """
        head = {"role": "user", "content": "."}
        called = _with_calls(reply)
        try:
            end = _after(self.write([head, _ENDED], tools, generate=False))
            whole = _after(self.write([head, called, *later], tools))
            alone = _after(self.write([head, called], tools, generate=False))
        except ConfigError:
            return None
        if end is None or whole is None or alone is None:
            return None
        if not reply.get("tool_calls"):
            return whole
        shared = shared_prefix(end[::-1], alone[::-1])  # what ends the reply, without what closes its last call
        written = alone[: len(alone) - shared]
        return whole.removeprefix(written) if whole.startswith(written) else None


_ENDED: dict[str, Any] = {"role": "assistant", "content": _END}


def _with_calls(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message that has the reply's calls, so that results find them, and ends with the mark."""
    calls = reply.get("tool_calls")
    if not calls:
        return _ENDED
    made = [{**call, "function": {**call["function"], "arguments": {"x": "."}}} for call in calls]
    made[-1]["function"]["arguments"] = {"x": _END}
    return {"role": "assistant", "content": "", "tool_calls": made}


def _after(text: str) -> str | None:
    _, found, after = text.rpartition(_END)
    return after if found else None


def _as_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as templates expect it: arguments as objects, texts for a list of texts."""
    shown = {name: value for name, value in message.items() if name != "attached"}
    if isinstance(content := shown.get("content"), list):
        shown["content"] = "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    if shown.get("content") is None:
        shown["content"] = ""
    if calls := shown.get("tool_calls"):
        shown["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": value_or_text(call["function"].get("arguments"))}}
            for call in calls
        ]
    return shown


def _load(source: str | Path) -> tuple[str, dict[str, str]]:
    """Return a template's text, and the special tokens beside it."""
    if isinstance(source, str) and ("{{" in source or "{%" in source):
        return source, {}
    path = Path(source)
    try:
        folder = path if path.is_dir() else path.parent
        settings = folder / "tokenizer_config.json"
        config = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
        if not isinstance(config, dict):
            raise ValueError(f"{settings.name} is not an object")
        file = path if path.is_file() else folder / "chat_template.jinja"
        text = file.read_text("utf-8") if file.suffix == ".jinja" and file.is_file() else config.get("chat_template")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from error
    if isinstance(text, list):  # several by name
        named = {each.get("name"): each.get("template") for each in text if isinstance(each, dict)}
        text = named.get("tool_use") or named.get("default")
    if not isinstance(text, str):
        raise ConfigError(
            f"{source} has no chat template. Name a .jinja file, or a model's folder with tokenizer_config.json."
        )
    tokens = {name: str(value.get("content", "")) if isinstance(value, dict) else str(value)
              for name, value in config.items() if name in _SPECIAL and value}  # fmt: skip
    return text, tokens


@lru_cache(maxsize=8)
def _compiled(text: str) -> Template:
    """Compile a template in the environment that Hugging Face's tokenizers document."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> str:
        raise TemplateError(message)

    def as_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise ConfigError(f"The chat template is not valid Jinja: {error}") from error
