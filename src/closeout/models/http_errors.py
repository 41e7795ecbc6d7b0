"""Error responses of servers as ModelErrors with a clear message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from json import JSONDecoder
from typing import Any

from closeout.codec import decode_json, encode_json
from closeout.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    PermanentModelError,
    RateLimited,
    ServerFailed,
)
from closeout.models.stated_waits import is_daily, stated_wait

__all__ = [
    "describes",
    "error_from_body",
    "error_from_response",
    "explain",
    "is_overflow",
    "json_or_none",
    "refusal",
    "refuses_tools",
    "rejected_text",
]

# How servers say that a prompt is too long: something of the prompt, and that it is too much. It only orders what is
# tried: a run whose request is refused in other words makes room as well.
_OF_PROMPT = re.compile(
    r"context|prompt|\binputs?\b(?! should)|messages\b|request (?:body|too large)|\btokens?\b|sequence"
    r"|at least 1, got -|上下文|输入|入力|コンテキスト|提示词|eingabe|kontext|contexte|contexto|entrada",
    re.IGNORECASE,
)
_TOO_MUCH = re.compile(
    r"too (?:long|large|many|big)|exceed|(?:long|larg|great|few)er than|(?:more|less) than|overflow|oversized|too_large"
    r"|超过|超出|超长|过长|超え|長すぎ|zu lang|zu groß|überschr|trop long|dépass|demasiado larg|supera|up to \d|only \d"
    r"|max(?:imum)? (?:allowed )?(?:\w+ )?(?:length|len\b|size|tokens)|is full|not enough|limit\b|range of|reduce"
    r"|but the|must be <=|must be at least 1, got -|size is smaller",
    re.IGNORECASE,
)
_OF_REPLY = re.compile(r"max_(?:completion_|output_|new_)?tokens", re.IGNORECASE)
# The path of a field that is not the prompt: 'tools[0].function.description', messages[1].tool_calls[0].id.
_OTHER_FIELD = re.compile(r"\btools?\b['\[.]|tool_calls|\.(?:id|name|description)\b|tool_choice|function\.")
# A limit of tokens a minute that is smaller than the request, which no wait helps.
_NEVER_FITS = re.compile(r"limit:?\s*(\d+)\D+(?:used:?\s*\d+\D+)?requested:?\s*(\d+)", re.IGNORECASE)
# A server or model without native tool calls. vLLM: '"auto" tool choice requires --enable-auto-tool-choice'; llama.cpp:
# "tools param requires --jinja flag"; Ollama: "does not support tools".
_NO_TOOLS = re.compile(
    r"tool choice requires|tools param requires|enable-auto-tool-choice|(?:does not|doesn't) support (?:tools|function)"
    r"|tools? (?:use |calling )?(?:is|are) not supported|no endpoints found that support tool",
    re.IGNORECASE,
)
# Servers' messages for unreadable output of their own model. llama.cpp: "Failed to parse input at pos 3: …",
# since b9656 "output that does not match the expected peg-native format"; Ollama: "error parsing tool call: raw='…',
# err=…", "XML syntax error on line 7"; vLLM: errors of Harmony, and "1 validation error for list[function-wrap[…]]" for
# tool_choice=required; LM Studio: "Failed to parse tool call"; SGLang: "Failed to parse fc related info"; Groq: "Failed
# to call a function", "tool call validation failed"; TGI: "Failed to parse generated text"; Bedrock: "Model produced
# invalid sequence as part of ToolUse"; OpenAI: "The model produced invalid content".
_REJECTED = re.compile(
    r"failed to parse (?:input at pos|(?:the )?tool call|fc related info|generated text)|error parsing tool call"
    r"|does not match the expected [\w-]+ format|xml syntax error on line|HarmonyError"
    r"|tokens remaining in message header|while expecting start token"
    r"|expected element type <\w+> but have <|validation errors? for list\[function-wrap|failed to call a function"
    r"|tool call validation failed|produced invalid (?:content|sequence)",
    re.IGNORECASE,
)
_REJECTED_CODES = frozenset({"tool_use_failed", "model_error", "tool_error"})
_REST = re.compile(r"Failed to parse input at pos (\d+): ?(.*)", re.DOTALL)  # llama.cpp: what follows the position
_RAW = re.compile(r"error parsing tool call: raw='(.*)', err=", re.DOTALL)  # Ollama
_LATER = frozenset({429, 503, 529})  # statuses whose body may say when to ask again
_REJECTING = frozenset({400, 422, 424, 500, 502, 503})  # statuses of such errors
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "tokens_limit_reached"})
_NO_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit_balance"})
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_SHOWN = 300  # characters of a server's own words that an error repeats
_READ = 4096  # characters of them that are looked at


def error_from_response(status: int, headers: Mapping[str, str], body: bytes, origin: str) -> ModelError:
    """Return the error for a status other than 2xx. Its text has the server's reason and what to do."""
    code, reason = explain(body)
    said = f": {reason}" if reason else ""
    wait = stated_wait(headers, body if status in _LATER else b"")
    told = f"{origin} answered {status}{_phrase(status)}{said}"
    told = told if told.endswith((".", "!", "?")) else f"{told}."
    if status == 413 or (status in {400, 422, 500} and is_overflow(*refusal(body))) or _never_fits(status, reason):
        return ContextOverflow(f"The prompt is longer than the model's context. {told}", status=status)
    if _NO_TOOLS.search(reason):
        return BadRequest(f"{told} Choose a text dialect, such as dialect='cot_chat'.", status=status)
    if status == 429 and code in _NO_CREDIT:
        return PermanentModelError(f"{told} The account has no credit left: look at its billing.", status=status)
    if status == 429:
        until = f"It answers again in {wait:,.0f} seconds. " if wait and wait >= 1 else ""
        what = "The quota of a day is used up. " if is_daily(body) else ""
        return RateLimited(f"{told} {what}{until}Ask less often, or raise the limit.", status=status, retry_after=wait)
    kind, step = _meaning(status)
    if issubclass(kind, ServerFailed | ModelTimeout) and headers.get("x-should-retry") == "false":
        kind = PermanentModelError
    return kind(f"{told} {step}", status=status, retry_after=wait)


def _never_fits(status: int, reason: str) -> bool:
    found = _NEVER_FITS.search(reason) if status == 429 else None
    return found is not None and int(found[2]) > int(found[1])


def describes(body: bytes) -> bool:
    """Return whether a body is an error object that says what failed."""
    value = json_or_none(body)
    return isinstance(value, dict | list) and any(_from_json(value))


def _meaning(status: int) -> tuple[type[ModelError], str]:
    if status in {401, 403}:
        return AuthenticationFailed, "Check the API key and its permissions."
    if status == 404:
        return ModelNotFound, "Check the model's name, and base_url, which usually ends in /v1."
    if status in {408, 504, 524}:
        return ModelTimeout, "The server took too long."
    if status in {409, 425, 499, 529} or (status >= 500 and status not in {501, 505}):
        return ServerFailed, "The server's own log says more."
    if 300 <= status < 400:
        return BadRequest, "The server redirects: set base_url to the address that it redirects to."
    return BadRequest, "The server rejects this request."


def is_overflow(code: str, reason: str, param: str = "") -> bool:
    """Tell whether a server's error code or text says that the prompt is too long."""
    if code in _OVERFLOW_CODES:
        return True
    text = reason[:_READ]
    if _OTHER_FIELD.search(f"{param} {text}") is not None:
        return False
    about = _OF_REPLY.sub("", text)
    if about != text:  # a limit of the reply, unless the text adds the prompt
        about = re.sub(r"\btokens?\b", "", about)
    return _OF_PROMPT.search(about) is not None and _TOO_MUCH.search(text) is not None


def refuses_tools(body: bytes, sent: bytes) -> bool:
    """Tell whether an error says that the server does not support tools. A text dialect works nevertheless.

    Few servers name the parameter, so the message counts too. It may repeat words of the request, such as a tool's
    name or result: if the request says the same, nothing is learned.
    """
    code, reason, parameter = refusal(body)
    if code == "unsupported_parameter" and parameter in ("tools", "tool_choice"):
        return True
    return _NO_TOOLS.search(reason) is not None and _NO_TOOLS.search(sent.decode("utf-8", "replace")) is None


def rejected_text(status: int, body: bytes) -> str | None:
    """Return what the model wrote, if an error says that the server could not read it.

    Returns:
        The text; empty if the error does not hold it, or not from its beginning. None for any other error.
    """
    if status not in _REJECTING:
        return None
    code, reason = explain(body)
    if code not in _REJECTED_CODES and _REJECTED.search(f"{code} {reason}") is None:
        return None
    if (value := json_or_none(body)) is None:  # plain text, or too long to be read whole
        value = "" if body.lstrip().startswith(b"{") else body.decode("utf-8", "replace")
    generated = _find(value, "failed_generation")  # Groq, also behind a proxy
    if isinstance(generated, dict | list):
        return encode_json(generated).decode()
    if isinstance(generated, str):
        return generated
    message = next(filter(None, map(_message_of, (_field(value, "error"), value))), "")
    if rest := _REST.search(message):
        # A call after the position is whole if it begins there.
        return rest[2] if rest[1] == "0" or rest[2].lstrip().startswith(("<", "[", "{")) else ""
    raw = _RAW.search(message)
    return raw[1] if raw else ""


def _message_of(error: Any) -> str:
    found = error if isinstance(error, str) else _field(error, "message")
    return found if isinstance(found, str) else ""


def _find(value: Any, name: str) -> Any:
    """Return a field of an error, also of one that a proxy quotes in its own message."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        return next((found for each in value.values() if (found := _find(each, name)) is not None), None)
    if isinstance(value, str) and f'"{name}"' in value:
        try:
            quoted, _ = JSONDecoder().raw_decode(value[value.index("{") :])
        except ValueError:
            return None
        return _find(quoted, name)
    return None


def error_from_body(value: Any, origin: str) -> ModelError | None:
    """Return the error in the body of a response with status 200, as proxies and broken streams send it."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if not error and value.get("object") != "error" and value.get("type") != "error":
        return None
    code, reason = _from_json(value)
    numbers = (str(number) for number in (_field(error, "code"), _field(error, "status"), value.get("code")))
    status = next((int(number) for number in numbers if _is_status(number)), 0)
    status = status or _STATUS_OF_TYPE.get(str(_field(error, "type") or ""), 500)
    if is_overflow(code, reason):
        return ContextOverflow(f"The prompt is longer than the model's context. {reason}", status=status)
    if status == 429:
        return RateLimited(f"{origin} sent an error instead of a reply: {reason}", status=status)
    family, step = _meaning(status)
    told = f"{origin} sent an error instead of a reply: {reason or code or 'no reason given'}. {step}"
    return family(told, status=status)


# Anthropic's error types and the statuses that they have when they come as one.
_STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def explain(body: bytes) -> tuple[str, str]:
    """Return the code and the text of an error body, as one short line, for a body of any form."""
    if not body.strip():
        return "", ""
    text = body[: 16 * _READ].decode("utf-8", "replace")
    if text.lstrip().startswith(("{", "[")) and (value := json_or_none(body)) is not None:
        return _from_json(value)
    if text.lstrip()[:1] == "<":
        title = _TITLE.search(text[:_READ])
        return "", _one_line(f"an HTML page, '{title[1].strip()}'" if title else "an HTML page")
    if text.count("�") * 10 > len(text) or "\x00" in text:
        return "", f"{len(body):,} bytes that are not text"
    return "", _one_line(text)


def _from_json(value: Any) -> tuple[str, str]:
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return "", _one_line(str(value))
    several = value.get("errors")  # watsonx, JSON:API
    if isinstance(several, list) and several and isinstance(several[0], dict):
        value = several[0]
    error = value.get("error", value)
    if isinstance(error, str):
        return str(value.get("code") or ""), _one_line(error)
    if not isinstance(error, dict):
        error = value
    reason = error.get("message") or error.get("detail") or error.get("msg") or value.get("message") or ""
    if isinstance(raw := _field(error.get("metadata"), "raw"), str):  # OpenRouter: what the provider says
        reason = f"{reason}: {raw}"
    if isinstance(reason, list):  # FastAPI: a list of {"loc": […], "msg": …}
        reason = "; ".join(str(_field(item, "msg") or item) for item in reason[:3])
    # vLLM and llama.cpp repeat the status as the code; the name is in the type then.
    names = (name for name in (error.get("code"), error.get("type")) if isinstance(name, str) and not name.isdigit())
    return next(names, ""), _one_line(str(reason))


def refusal(body: bytes) -> tuple[str, str, str]:
    """Return the code of an error, its text, and the parameter or field that it names; empty if it lacks them."""
    return *explain(body), _refused_parameter(json_or_none(body))


def _refused_parameter(value: Any) -> str:
    """Return the parameter or field that an error names: OpenAI's `param`, or the end of FastAPI's `loc`."""
    value = value[0] if isinstance(value, list) and value else value
    error = _field(value, "error") or value
    named = _field(error, "param")
    details = _field(error, "detail") or _field(error, "message")
    if not named and isinstance(details, list) and details:
        place = _field(details[0], "loc")
        named = place[-1] if isinstance(place, list) and place else ""
    return named if isinstance(named, str) else ""


def json_or_none(body: bytes | str) -> Any:
    """Return the value of a JSON text, None if it is not JSON."""
    try:
        return decode_json(body)
    except ValueError:
        return None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _is_status(text: str) -> bool:
    return text.isascii() and text.isdigit() and 400 <= int(text[:4]) <= 599


def _one_line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:_READ]).split())
    return line if len(line) <= _SHOWN else line[:_SHOWN].rstrip() + " …"


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""
