"""Read and write what the request formats share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from closeout.messages import ToolSpec
from closeout.server.api_errors import ApiError
from closeout.server.formats.format import RequestTools

__all__ = [
    "list_of_objects",
    "new_id",
    "offered_tools",
    "output_text",
    "plain_text",
    "sampling",
    "text_or_parts",
    "tool_choice",
    "tool_spec",
    "untranslatable",
]


def sampling(body: Mapping[str, Any], limit: str) -> dict[str, Any]:
    """Return the sampling options of a request. `limit` is its name for the limit of tokens."""
    found: dict[str, Any] = {name: body.get(name) for name in ("temperature", "top_p")}
    found["max_tokens"] = body.get(limit)
    kinds: dict[str, Any] = {"temperature": int | float, "top_p": int | float, "max_tokens": int}
    return {name: value for name, value in found.items() if isinstance(value, kinds[name])}


def tool_choice(body: Mapping[str, Any]) -> Any:
    """Return the tool choice of a request in the words of Chat Completions; None if it has none that is known."""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    named = {"any": "required", "tool": "required", "function": "required"}
    found = named.get(str(kind), kind)
    return found if found in ("auto", "none", "required") else None


def list_of_objects(value: Any, name: str) -> list[dict[str, Any]]:
    """Return a field that must be a list of objects; an empty list if it is missing.

    Raises:
        ApiError: It is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ApiError(400, f"{name} must be a list of objects.", param=name)
    return value


def tool_spec(name: Any, description: Any, parameters: Any) -> ToolSpec | None:
    """Return a function tool; None if it has no name."""
    if not isinstance(name, str) or not name:
        return None
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return ToolSpec(name, description if isinstance(description, str) else "", schema)


def offered_tools(body: Mapping[str, Any], read: Callable[[dict[str, Any]], ToolSpec | str | None]) -> RequestTools:
    """Return the tools of a request. `read` returns a function tool, or the name of another tool if it has one."""
    found = [read(tool) for tool in list_of_objects(body.get("tools"), "tools")]
    functions = tuple(each for each in found if isinstance(each, ToolSpec))
    return RequestTools(functions, tuple(each for each in found if isinstance(each, str) and each))


def plain_text(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def text_or_parts(parts: list[dict[str, Any]]) -> Any:
    """Return parts as one text if they are nothing else, because not every server takes parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def output_text(text: str, annotations: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the content part of a message that Responses returns."""
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def untranslatable(kind: Any, param: str) -> ApiError:
    """Return the error for content that no other format has."""
    text = f"The proxy cannot translate content of the type {kind!r:.80} for the upstream server."
    return ApiError(400, text, param=param)


def new_id(prefix: str) -> str:
    """Return an id for a reply or an item of it."""
    return prefix + secrets.token_hex(12)
