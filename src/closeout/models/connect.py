"""Makes the client for what `model=` names: a name such as `openai:gpt-5`, or a client."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from closeout.codec import encode_json
from closeout.config import LLMSettings
from closeout.errors import ConfigError, ModelError, ModelUnavailable, ServerFailed, UsageError
from closeout.messages import SHOULD_BREAK, Capabilities, Message, ModelReply, ModelRequest, ToolCall, Usage
from closeout.models.base import (
    BaseClient,
    CreatedMessage,
    ErrorBox,
    OnDelta,
    OnRetry,
    ProcessedResponse,
    ResponseBox,
    RunRequest,
    run_request,
    tool_call_infos,
)
from closeout.models.fallback import Fallback, FallbackClient
from closeout.models.retry import RetryPolicy
from closeout.overrides import is_overridden, returned, shaped

__all__ = [
    "PROVIDERS",
    "CreateMessageClient",
    "connect",
    "is_embedded",
    "listed_calls",
    "named_model",
    "read_tool_call",
    "reply_by_methods",
    "system_and_history",
    "unboxed",
]

_REMOTE = ("openai", "anthropic")
PROVIDERS = (*_REMOTE, "local")
FORMS = "openai:NAME (any OpenAI-compatible server, with base_url), anthropic:NAME, local, local:small, FILE.gguf"
# Methods that a client of the message-history interface must have.
METHODS = ("create_message", "process_llm_response", "extract_tool_calls_info")


def connect(
    model: object = None,
    base_url: str | None = None,
    api_key: str | None = None,
    settings: LLMSettings | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    later: bool = False,
) -> BaseClient:
    """Return the client for a model. No request is sent.

    Args:
        model: A name, a client, or an object with `create_message`, which is wrapped in a CreateMessageClient; a
            Fallback, a list of these, or names with commas between them. None takes the name from the settings.
        base_url: The server's address. By default from the settings, then from `OPENAI_BASE_URL` or
            `ANTHROPIC_BASE_URL`.
        api_key: The server's key. By default from the settings, then from `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`.
        settings: The `llm` section of the configuration.
        environment: Instead of `os.environ`.
        later: Return a client also if the key is missing, with its `missing_key`.

    Raises:
        ConfigError: The name or the address is invalid, or a key is missing.
    """
    if isinstance(model, BaseClient):
        return model
    variables: Mapping[str, str] = os.environ if environment is None else environment
    if model is None and settings is not None and settings.fallback.models:
        model = _configured_fallback(settings, variables)
    if isinstance(model, str) and "," in model and not Path(model).is_file():
        model = [name.strip() for name in model.split(",")]
    if isinstance(model, list | tuple):
        model = Fallback(model)
    if isinstance(model, Fallback):
        return _fallback(model, base_url, api_key, settings or LLMSettings(), variables, later)
    if model is not None and not isinstance(model, str):
        return _wrapped(model)
    settings = settings or LLMSettings()
    name = model or _name_in(settings, variables)
    provider, _, model_name = name.partition(":")
    if is_embedded(name):
        return _local(name, settings)
    if provider not in _REMOTE or not model_name:
        raise ConfigError(f"'{name:.80}' is not a model name. {_suggestion(name)}Use one of: {FORMS}.")
    prefix = provider.upper()
    url = base_url or settings.base_url or variables.get(f"{prefix}_BASE_URL") or None
    key = api_key or settings.api_key or variables.get(f"{prefix}_API_KEY") or None
    missing_key = (
        f"No API key for {name}. Set {prefix}_API_KEY, or set base_url (--base-url) for your own server. "
        "The model 'local' needs neither: it runs on this machine."
    )
    if key is None and url is None and not later:
        raise ConfigError(missing_key)
    client = _remote(provider, model_name, url, key, settings)
    client.missing_key = missing_key if key is None and url is None else ""
    stated = {"max_context": settings.max_context_length, "images": settings.images}
    known: dict[str, Any] = {key: value for key, value in stated.items() if value is not None}
    client.capabilities = replace(client.capabilities, **known)
    return client


def _fallback(
    rules: Fallback,
    base_url: str | None,
    api_key: str | None,
    settings: LLMSettings,
    variables: Mapping[str, str],
    later: bool,
) -> FallbackClient:
    """Return the client for several models. Address and key are those of the first one's vendor."""
    entries: list[dict[str, Any]] = [
        dict(entry) if isinstance(entry, Mapping) else {"model": entry} for entry in rules.models
    ]
    vendor = _vendor(entries[0].get("model"))
    clients = []
    for entry in entries:
        if unknown := entry.keys() - {"model", "base_url", "api_key"}:
            raise ConfigError(f"A model of a Fallback has model, base_url and api_key, got {', '.join(unknown)}.")
        own: dict[str, Any] = {"max_retries": 0}  # the next model is asked at once
        url, key = entry.get("base_url"), entry.get("api_key")
        if _vendor(entry.get("model")) == vendor:
            url, key = url or base_url, key or api_key
        else:
            own |= {"base_url": None, "api_key": None}
        llm = settings.model_copy(update=own)
        client = connect(entry.get("model"), url, key, llm, environment=variables, later=later)
        for method in [method for method in METHODS if is_overridden(client, BaseClient, method)]:
            text = f"{type(client).__name__}.{method} is never called in a list of models. Override complete."
            warnings.warn(text, UserWarning, stacklevel=3)
        clients.append(client)
    return FallbackClient(
        clients,
        rules,
        RetryPolicy(retries=settings.max_retries, longest_server_wait=settings.max_wait),
        settings.prices,
    )


def _configured_fallback(settings: LLMSettings, variables: Mapping[str, str]) -> Fallback:
    rules = settings.fallback.model_dump(exclude={"models"}, exclude_none=True)
    if "conditions" in rules:
        rules["on"] = rules.pop("conditions")
    try:
        return Fallback([_name_in(settings, variables), *settings.fallback.models], **rules)
    except UsageError as error:
        raise ConfigError(f"'llm.fallback': {error}") from error


def _vendor(model: object) -> str:
    return model.partition(":")[0] if isinstance(model, str) else ""


def named_model(settings: LLMSettings) -> str | None:
    """Return the model that the settings name, in the form that `connect` takes; None if they name none.

    A bare name is one of OpenAI's API.
    """
    provider, name = settings.provider, settings.model_name
    if provider is None:
        bare = name and name.partition(":")[0] not in PROVIDERS and not name.lower().endswith(".gguf")
        return f"openai:{name}" if bare and "," not in str(name) else name
    if provider == "local" and (name is None or name.partition(":")[0] == "local"):
        return name or "local"
    return f"{provider}:{name or ''}"


def _name_in(settings: LLMSettings, variables: Mapping[str, str]) -> str:
    name = named_model(settings)
    if name is None:
        raise ConfigError(
            f'No model is named. {_available(variables)} Name one, such as Agent("openai:gpt-5") or Agent("local"), or '
            "set llm.provider and llm.model_name in the settings."
        )
    return name


def _available(variables: Mapping[str, str]) -> str:
    """Say which models can be used here, by the keys and addresses in the environment and the weights on the disk."""
    from closeout.models.local.weights import KNOWN_WEIGHTS, find_weights

    found = []
    for provider in ("openai", "anthropic"):
        url, key = (variables.get(f"{provider.upper()}_{what}") for what in ("BASE_URL", "API_KEY"))
        if url:
            found.append(f"{provider}:NAME at {url}")
        elif key:
            found.append(f"{provider}:NAME ({provider.upper()}_API_KEY is set)")
    for name, weights in KNOWN_WEIGHTS.items():
        state = "downloaded" if find_weights(name) else f"{weights.megabytes:,} MB, downloaded on first use"
        found.append(f"{name} ({state})")
    return f"Available here: {'; '.join(found)}."


def _suggestion(name: str) -> str:
    """Say what a name without its provider most likely means."""
    model = name.rpartition("/")[2].strip()
    provider, colon, rest = name.partition(":")
    if colon and rest and (near := difflib.get_close_matches(provider, PROVIDERS, n=1)):
        return f"Did you mean '{near[0]}:{rest}'? "
    if not model or ":" in name.partition("/")[0]:
        return ""
    if name.startswith(("openai/", "anthropic/")):
        return f"Did you mean '{name.replace('/', ':', 1)}'? "
    provider = "anthropic" if model.startswith("claude") else "openai"
    return f"Did you mean '{provider}:{name}'? "


def _remote(provider: str, name: str, url: str | None, key: str | None, settings: LLMSettings) -> BaseClient:
    options: dict[str, Any] = {
        "extra_body": settings.extra_body,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "timeout": settings.timeout,
        "prices": settings.prices,
        "retry": RetryPolicy(retries=settings.max_retries, longest_server_wait=settings.max_wait),
    }
    if provider == "openai":
        from closeout.models.openai import OpenAIClient

        # Pictures need a chat.
        small = False if settings.small is None and settings.images else settings.small
        return OpenAIClient(name, url, key, small=small, **options)
    from closeout.models.anthropic import AnthropicClient

    return AnthropicClient(name, url, key, **options)


def _local(name: str, settings: LLMSettings) -> BaseClient:
    from closeout.models.local.embedded import LocalClient

    try:
        return LocalClient(
            name,
            max_context=settings.max_context_length,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
        )
    except ModelUnavailable as error:  # no such name
        raise ConfigError(str(error)) from error


def is_embedded(name: str) -> bool:
    """Return whether a model name is that of an embedded model: `local`, `local:small` or a `.gguf` file."""
    provider = name.partition(":")[0]
    return provider == "local" or (provider not in _REMOTE and name.lower().endswith(".gguf"))


def _wrapped(model: object) -> BaseClient:
    missing = [name for name in METHODS if not callable(getattr(model, name, None))]
    if not missing:
        return CreateMessageClient(model)
    if len(missing) < len(METHODS):
        raise ConfigError(
            f"{type(model).__name__} cannot be used as a model: it has no {' and no '.join(missing)}. "
            "CreateMessageClient adapts clients that have all three methods; or derive from BaseClient."
        )
    raise ConfigError(
        f"model must be a name or a client, got {model!r:.80}. Names: {FORMS}. Clients derive from BaseClient, or have "
        f"the methods {', '.join(METHODS)}."
    )


class CreateMessageClient(BaseClient):
    """Adapts a client with `create_message` to the one method that the run calls, `complete`.

    The adapted client needs three methods; each may be a coroutine function:

    - `create_message(system_prompt=, message_history=, tool_definitions=, keep_tool_result=, step_id=, task_log=,
      agent_type=)` returns the response (or an ErrorBox, a ResponseBox, None) and the history.
    - `process_llm_response(response, message_history, agent_type)` returns the text, whether to stop, and the history.
    - `extract_tool_calls_info(response, text)` returns the calls as dicts with `server_name`, `tool_name`,
      `arguments` and `id`.

    Replies are not streamed. Tokens are estimated by length unless the response is a ModelReply.
    """

    def __init__(self, client: Any, *, name: str = "", capabilities: Capabilities | None = None) -> None:
        self.client = client
        self.name = name or str(getattr(client, "name", "") or type(client).__name__)
        self.capabilities = capabilities or Capabilities(streaming=False)
        self._requests = 0

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        system, history = system_and_history(request)
        self._requests += 1
        run = run_request.get() or RunRequest(on_delta=on_delta, on_retry=on_retry, step_id=self._requests)
        usage = Usage(len(encode_json([system, *history])) // 4, requests=1)
        try:
            shown = [{key: message[key] for key in message if key != "attached"} for message in history]
            reply = await reply_by_methods(
                self.client, self.name, run, system=system, history=shown, tools=_definitions(request)
            )
            if reply.usage == Usage():  # the client does not know it
                size = len(reply.text) + sum(len(call.text) for call in reply.tool_calls)
                reply = replace(reply, usage=replace(usage, output_tokens=size // 4 + 1))
            usage = reply.usage
            return reply
        except ModelError as error:
            error.usage = error.usage or usage
            raise
        finally:
            self.charge(usage)


def _definitions(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the tools by their servers, as the message-history interface takes them."""
    servers: dict[str, list[dict[str, Any]]] = {}
    for tool in request.tools:
        shown = {"name": tool.name, "description": tool.description, "schema": dict(tool.parameters)}
        servers.setdefault(tool.server_name or "tools", []).append(shown)
    return [{"name": server, "tools": tools} for server, tools in servers.items()]


def unboxed(response: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the response without its box, and its warnings. Raises ModelError for an ErrorBox or no response."""
    if ErrorBox.is_error_box(response):
        raise response.error if isinstance(response.error, ModelError) else ServerFailed(str(response))
    warnings: tuple[str, ...] = ()
    if ResponseBox.is_response_box(response):
        warning = response.get_extra_info().get("warning_msg")
        response, warnings = response.get_response(), (str(warning),) if warning else ()
    if response is None:
        raise ServerFailed(f"{name} returned no response.")
    return response, warnings


def system_and_history(request: ModelRequest) -> tuple[str, list[Message]]:
    """Return the system prompt of a request, and its other messages."""
    history = request.as_messages
    return history.pop(0).text if history and history[0].role == "system" else "", history


async def reply_by_methods(
    client: Any, name: str, run: RunRequest, *, system: str, history: Sequence[Any], tools: Sequence[Any]
) -> ModelReply:
    """Return the reply to a request that the three methods of a client send and read."""
    asked = client.create_message(
        system_prompt=system,
        message_history=history,
        tool_definitions=tools,
        keep_tool_result=run.keep_tool_result,
        step_id=run.step_id,
        task_log=run.task_log,
        agent_type=run.agent_type,
    )
    created = await returned(asked)
    created = CreatedMessage(None, []) if created is None else created
    response, after = shaped(created, CreatedMessage, client, "create_message")
    response, warnings = unboxed(response, name)
    processed = await returned(client.process_llm_response(response, after, run.agent_type))
    text, should_break, _ = shaped(processed, ProcessedResponse, client, "process_llm_response")
    infos = listed_calls(await returned(client.extract_tool_calls_info(response, text)))
    reply = response if isinstance(response, ModelReply) else ModelReply("", model=name)
    if text != reply.text:
        reply = replace(reply, text=text or "")
    if infos != tool_call_infos(reply.tool_calls):
        reply = replace(reply, tool_calls=tuple(map(read_tool_call, infos)))
    if should_break and reply.finished:
        reply = replace(reply, finish_reason=SHOULD_BREAK)
    return replace(reply, warnings=(*reply.warnings, *warnings)) if warnings else reply


def listed_calls(infos: Any) -> list[Mapping[str, Any]]:
    """Return the calls that `extract_tool_calls_info` found: a list of them, or a tuple that begins with one."""
    if isinstance(infos, tuple):
        infos = infos[0] if infos else ()
    listed: list[Any] = [infos] if isinstance(infos, str) else list(infos or ())
    if not all(isinstance(each, Mapping) for each in listed):
        raise UsageError(f"extract_tool_calls_info must return a list of dicts with tool_name, got {infos!r:.80}.")
    return listed


def read_tool_call(info: Mapping[str, Any]) -> ToolCall:
    """Return a call that `extract_tool_calls_info` describes."""
    arguments = info.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
    return ToolCall(
        str(info.get("tool_name") or ""),
        text,
        str(info.get("id") or ""),
        server_name=info.get("server_name"),
        text=text,
    )
