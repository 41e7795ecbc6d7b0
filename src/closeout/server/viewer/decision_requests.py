"""The pending decisions of a run, as its page shows them, and the decisions and messages that the page sends."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from closeout.codec import decode_json
from closeout.errors import UsageError
from closeout.parsing.numbers import exact_json
from closeout.run.waits.decisions import Decision, PendingDecision
from closeout.visible import visible

__all__ = [
    "BY",
    "TOKEN_HEADER",
    "check_own_page",
    "pending_shape",
    "read_decision",
    "read_message",
    "read_name",
    "read_rule",
]

TOKEN_HEADER = "X-Closeout-Token"  # noqa: S105 - the header's name
BY = "viewer"


def check_own_page(request: web.Request, token: str) -> None:
    """Refuse a request that no page of this server sent: other web pages can send requests to this computer, too.

    Raises:
        HTTPForbidden: It names another origin, or lacks the token that the server wrote into its page.
        HTTPUnsupportedMediaType: It is not JSON, which a page elsewhere may not send.
    """
    origin = request.headers.get("Origin")
    if (origin is not None and urlsplit(origin).netloc != request.host) or request.headers.get(
        "Sec-Fetch-Site", "same-origin"
    ) != "same-origin":
        raise web.HTTPForbidden(text="Decisions and messages are taken from the viewer's own page only.")
    if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), token.encode()):
        raise web.HTTPForbidden(text="This page is of an earlier start of the viewer. Reload it.")
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="Send it as application/json.")


def pending_shape(pending: PendingDecision, *, signed_in: bool = False, problem: str = "") -> dict[str, Any]:
    """Return what a run waits for. Values are texts: JavaScript would round the numbers that it cannot hold.

    Args:
        pending: What it waits for.
        signed_in: Somebody has signed in to the server whose login it is.
        problem: Why the last login failed.
    """
    options = pending.arguments.get("options") or ()
    form = pending.arguments.get("form")
    question = str(pending.arguments.get("question", ""))
    fields = _fields(form) if pending.kind == "question" and isinstance(form, Mapping) else []
    return {
        "id": pending.id,
        "kind": pending.kind,
        "tool": pending.tool,
        "hash": pending.hash,
        "reason": pending.reason,
        "default": pending.default,
        "expires": pending.expires,
        "arguments": [[name, _shown(value)] for name, value in pending.arguments.items()],
        "json": visible(json.dumps(pending.arguments, ensure_ascii=False, indent=2), keep="\n"),
        "signals": list(pending.signals),
        "question": _asked(question) if fields else question,
        "options": [str(option) for option in options] if isinstance(options, list | tuple) else [],
        "fields": fields,
        "url": str(pending.arguments.get("url", "")) if pending.kind in ("question", "login") else "",
        "scope": str(pending.arguments.get("scope", "")) if pending.kind == "login" else "",
        "may_end_early": pending.may_end_early,
        "signed_in": signed_in,
        "problem": visible(problem, keep="\n"),
    }


def _asked(question: str) -> str:
    """The part of a server's question that its form does not show: who asks, and the quoted message."""
    first, *lines = question.split("\n")
    return "\n".join((first, *takewhile(lambda line: line.startswith(">"), lines)))


def _fields(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of a form as inputs: names, hints and values are texts."""
    required = form.get("required")
    shapes = []
    for name, field in (form.get("properties") or {}).items():
        default = field.get("default")
        choices = field.get("enum") or (field.get("items") or {}).get("enum") or []
        titles = field.get("enumNames") or choices
        shapes.append(
            {
                "name": str(name),
                "title": str(field.get("title") or name),
                "description": str(field.get("description") or ""),
                "type": str(field.get("type", "string")),
                "format": str(field.get("format") or ""),
                "choices": [[str(value), str(title)] for value, title in zip(choices, titles, strict=False)],
                "default": default if isinstance(default, bool | list) else _bare(default),
                "required": isinstance(required, list) and name in required,
                **{key: _bare(field.get(key)) for key in ("minimum", "maximum", "minLength", "maxLength")},
            }
        )
    return shapes


def _bare(value: Any) -> str | None:
    """A value as a person types it; None without one."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    """Return a text unchanged unless it looks like another value; anything else as JSON."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, indent=2)
    try:
        decode_json(value)
    except ValueError:
        return value if value.strip() == value and value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def read_decision(body: bytes) -> tuple[str, Decision]:
    """Return the id of what is decided, and the decision.

    Raises:
        UsageError: The body is not a decision.
    """
    found = _object(body, "The decision")
    texts = {name: found.get(name, "") for name in ("id", "verdict", "hash", "text", "arguments")}
    if not all(isinstance(text, str) for text in texts.values()) or not texts["id"] or not texts["hash"]:
        raise UsageError("A decision has id, verdict and hash, and may have text and arguments; all are texts.")
    arguments = _object(texts["arguments"], "The arguments") if texts["arguments"] else None
    verdict, text, digest = texts["verdict"], texts["text"], texts["hash"]  # the verdict is checked when it is recorded
    return texts["id"], Decision(verdict=verdict, arguments=arguments, text=text, hash=digest, by=BY)


def read_name(body: bytes) -> str:
    """Return the id of the wait or the call that a request is about. Raises UsageError."""
    name = _object(body, "The request").get("id")
    if not isinstance(name, str):
        raise UsageError("Send the id of what the run waits for.")
    return name


def read_rule(body: bytes) -> tuple[str, str]:
    """Return the id of the call that a rule was shown beside, and the rule as it was shown. Raises UsageError."""
    found = _object(body, "The rule")
    if not isinstance(call := found.get("id"), str) or not isinstance(rule := found.get("rule"), str):
        raise UsageError("Send the id of the call, and the rule as it was shown; both are texts.")
    return call, rule


def read_message(body: bytes) -> tuple[str, bool]:
    """Return the text of a message to a run, and whether it interrupts the reply.

    Raises:
        UsageError: The body is not a message.
    """
    found = _object(body, "The message")
    text, interrupt = found.get("text"), found.get("interrupt", False)
    if not isinstance(text, str) or not isinstance(interrupt, bool):
        raise UsageError("A message has a text, and interrupt, which is true or false.")
    return text, interrupt


def _object(text: bytes | str, name: str) -> Mapping[str, Any]:
    try:
        value = exact_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} must be a JSON object, but it is not JSON: {str(error)[:200]}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a JSON object.")
    return value
