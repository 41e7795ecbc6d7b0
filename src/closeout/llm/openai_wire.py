"""Messages, tools and options as OpenAI-compatible servers take them. What comes back: `openai_replies`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from closeout.codec import encode_json
from closeout.messages import Constraint, Message, ToolSpec

__all__ = ["ServerKind", "constraint_options", "message_encoder", "tools_json"]

ServerKind = Literal["openai", "vllm", "sglang", "llama.cpp"]

# Ours, not the protocol's: how reasoning goes back is the encoder's choice.
_PRIVATE = frozenset({"reasoning_content", "reasoning", "reasoning_details"})


def message_encoder(reasoning: str | None) -> tuple[str, Callable[[Message], bytes]]:
    """The name and the encoder of one wire form; `reasoning` is the field that reasoning goes back in, None: it stays.

    The name is the key under which a message keeps its bytes.
    """
    if reasoning is None:
        return "openai-chat", _encode
    return f"openai-chat+{reasoning}", partial(_encode, reasoning=reasoning)


def _encode(message: Message, reasoning: str | None = None) -> bytes:
    if _PRIVATE.isdisjoint(message):
        return encode_json(dict(message))
    shown = {key: value for key, value in message.items() if key not in _PRIVATE}
    if reasoning is not None:
        if message.get("reasoning_content"):
            shown[reasoning] = message["reasoning_content"]
        if isinstance(message.get("reasoning_details"), list):
            shown["reasoning_details"] = message["reasoning_details"]
    return encode_json(shown)


def tools_json(tools: tuple[ToolSpec, ...]) -> bytes:
    """The `tools` list of a request."""
    return encode_json(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in tools
        ]
    )


def constraint_options(constraint: Constraint, kind: ServerKind) -> dict[str, Any]:
    """The options that make a server hold its reply to a constraint; none where it cannot.

    JSON schemas go by OpenAI's `response_format`, which vLLM, SGLang and llama.cpp take as well. Grammars and regular
    expressions: vLLM's `structured_outputs` (since 0.12; the `guided_grammar` and `guided_regex` of older versions can
    be given as `extra_body`), SGLang's `ebnf` and `regex`, llama.cpp's `grammar`.
    """
    if constraint.kind == "json_schema":
        schema = dict(constraint.value) if isinstance(constraint.value, Mapping) else {}
        wanted = {"name": constraint.name, "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    if kind == "vllm":
        return {"structured_outputs": {constraint.kind: constraint.value}}
    if kind == "sglang":
        return {"ebnf" if constraint.kind == "grammar" else "regex": constraint.value}
    if kind == "llama.cpp" and constraint.kind == "grammar":
        return {"grammar": constraint.value}
    return {}
