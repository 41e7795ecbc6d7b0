"""Use the valid parts of what an MCP server answers, and name the rule that the rest breaks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from closeout.visible import visible

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.types import CallToolResult

__all__ = ["broken_rule", "end_request", "first_error", "use_valid_parts"]

_RULE = "closeout/broken_rule"  # The key in a result's `_meta`.
_WHOLE = ("JSONRPCRequest",)  # The place of an error about a whole message.
# The id of a message that is nested too deeply, before or after everything else.
_ID = re.compile(r'\A\s*\{[^][{}]*?"id"\s*:\s*(-?\d+|"[^"\\]*")|"id"\s*:\s*(-?\d+|"[^"\\]*")\s*\}\s*\Z')
MAX_QUOTED = 300  # characters of an answer that cannot be read


def use_valid_parts(session: ClientSession, refused: list[str]) -> None:
    """Let a session read lists and results that break the protocol in part, or a result its output schema.

    The library raises for the whole answer: one bad entry would lose all tools, and the result of a call that has taken
    effect would be lost. What is wrong with an entry of the list of tools is added to `refused`. A server that does not
    say who it is or what it can do, or names a version that nobody knows, is taken for one of the newest.
    """
    dispatcher = session._dispatcher
    send, validate = dispatcher.send_raw_request, session.validate_tool_result

    async def sent(method: str, *args: Any, **options: Any) -> dict[str, Any]:
        raw = await send(method, *args, **options)
        if method == "initialize":
            return _whole_greeting(raw)
        version = session.protocol_version or "2025-11-25"
        if method == "tools/list":
            return _valid_tools(raw, version, refused)
        return _valid_result(raw, version) if method == "tools/call" else raw

    async def validated(name: str, result: CallToolResult) -> None:
        try:
            await validate(name, result)
        except RuntimeError as error:
            result.meta = {_RULE: first_error(error), **(result.meta or {})}

    dispatcher.send_raw_request = sent  # type: ignore[method-assign]
    session.validate_tool_result = validated  # type: ignore[method-assign]


def end_request(session: ClientSession, unread: Exception) -> None:
    """End the request that a message answers which is not valid: the library would wait for another answer."""
    from mcp.types import PARSE_ERROR, ErrorData

    for answer in _answers(unread):
        number, text = answer.get("id"), json.dumps(answer, ensure_ascii=False)
        if isinstance(number, int | float | str) and "method" not in answer:
            about = f"its answer breaks the protocol: {visible(text[:MAX_QUOTED])}{' …' if text[MAX_QUOTED:] else ''}"
            session._dispatcher._resolve_pending(number, ErrorData(code=PARSE_ERROR, message=about))  # type: ignore[attr-defined]


def _answers(unread: Exception) -> list[dict[str, Any]]:
    """The messages that the library could not read, as far as they can be: an id is enough."""
    problems = unread.errors(include_url=False) if isinstance(unread, ValidationError) else []
    found: list[Any] = [each["input"] for each in problems if each["loc"] in (_WHOLE, (*_WHOLE, "method"))]
    if problems and problems[0]["type"] == "json_invalid":
        text = problems[0]["input"]
        try:
            found = [json.loads(text)]  # reads half of a surrogate pair
            json.dumps(found)
        except (ValueError, RecursionError):
            found = [{"id": json.loads(match[1] or match[2])} for match in [_ID.search(text)] if match]
    messages = found[0] if found and isinstance(found[0], list) else found[:1]
    return [each for each in messages if isinstance(each, dict)]


def broken_rule(result: CallToolResult) -> str:
    """Return the rule that a result breaks; "" if it is valid."""
    return str((result.meta or {}).get(_RULE, ""))


def first_error(error: Exception) -> str:
    """The first error of a validation; the first line of any other error's text."""
    complaints = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    if not complaints:
        return next(iter(str(error).splitlines()), "")
    return f"{'.'.join(map(str, complaints[0]['loc']))}: {complaints[0]['msg']}"


def _problem(method: str, version: str, answer: Mapping[str, Any]) -> str:
    from mcp_types import methods

    try:
        methods.validate_server_result(method, version, answer)
    except KeyError:  # the library does not check this method in this version
        return ""
    except ValueError as error:
        return first_error(error)
    return ""


def _whole_greeting(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid parts of an answer to `initialize`, with what it must have."""
    from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

    newest = {"protocolVersion": LATEST_HANDSHAKE_VERSION}
    least = {**newest, "capabilities": {"tools": {}}, "serverInfo": {"name": "unknown", "version": "unknown"}}
    parts = {
        key: value
        for key, value in raw.items()
        if not _problem("initialize", LATEST_HANDSHAKE_VERSION, {**least, key: value})
    }
    return {**least, **parts, **({} if raw.get("protocolVersion") in HANDSHAKE_PROTOCOL_VERSIONS else newest)}


def _valid_tools(raw: dict[str, Any], version: str, refused: list[str]) -> dict[str, Any]:
    listed = raw.get("tools")
    if not isinstance(listed, list) or not _problem("tools/list", version, raw):
        return raw
    frame = {key: value for key, value in raw.items() if key != "nextCursor"}
    valid = []
    for tool in listed:
        if isinstance(tool, dict):
            tool = _usable(tool, lambda tool: not _problem("tools/list", version, {**frame, "tools": [tool]}))
        if problem := _problem("tools/list", version, {**frame, "tools": [tool]}):
            name = tool.get("name") if isinstance(tool, dict) else None
            refused.append(f"the tool {visible(str(name))[:100]!r} breaks the protocol: {problem}")
        else:
            valid.append(tool)
    return {**raw, "tools": valid}


def _usable(tool: dict[str, Any], valid: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return a tool without the fields that break the protocol and that its calls can do without."""
    given, least = tool.get("inputSchema"), {"name": "x", "inputSchema": {"type": "object"}}
    if isinstance(given, dict) and "object" not in str(given.get("type") or "object"):
        return tool  # its arguments are something else
    schema = {
        key: value
        for key, value in (given.items() if isinstance(given, dict) else ())
        if valid({**least, "inputSchema": {"type": "object", key: value}})
    }
    more = {key: value for key, value in tool.items() if key in least or valid({**least, key: value})}
    return {**more, "inputSchema": {**schema, "type": "object"}}


def _valid_result(raw: dict[str, Any], version: str) -> dict[str, Any]:
    raw = {key: value for key, value in raw.items() if value is not None}
    rule = _problem("tools/call", version, raw)
    if not rule or raw.get("resultType") not in (None, "complete"):  # it asks for input, or became a task
        return raw
    parts = raw.get("content")
    found = parts if isinstance(parts, list) else [] if parts is None else [parts]
    named = [key for key in ("isError", "resultType", "structuredContent") if key in raw]
    kept: dict[str, Any] = {
        key: raw[key] for key in named if not _problem("tools/call", version, {"content": [], key: raw[key]})
    }
    rest = {key: raw[key] for key in raw if key not in (*kept, "content", "_meta")}
    found = [*found, rest] if rest else found
    content = [part if not _problem("tools/call", version, {"content": [part]}) else _as_text(part) for part in found]
    mended: dict[str, Any] = {**kept, "content": content, "_meta": {_RULE: rule}}
    return raw if _problem("tools/call", version, mended) else mended


def _as_text(part: Any) -> dict[str, Any]:
    return {"type": "text", "text": part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)}
