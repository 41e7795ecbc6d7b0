"""Changes that the messages of a refused request may need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.messages import Message
from closeout.models.openai_messages import REASONING_FIELDS, SHORT_ID, MessageEncoder, added_names
from closeout.models.refusals import RequestChange, ServerRefusal
from closeout.models.server_rules import ServerRules

__all__ = ["form_change", "message_changes", "reasoning_changes"]

# A server that wants reasoning back instead of refusing it, as DeepSeek and Kimi do.
_DEMANDS = re.compile(r"must be (?:passed|provided|sent|included)|missing|is required|passed back", re.IGNORECASE)


# Words of refusals of a conversation's form: they order what is tried.
_ABOUT_FORM = (
    "role", "roles", "system", "user", "assistant", "alternate", "alternating", "content", "empty", "null", "nil",
    "None", "name", "function_response",
)  # fmt: skip


def message_changes(messages: Sequence[Message], rules: ServerRules, refusal: ServerRefusal) -> list[RequestChange]:
    """Return the changes for servers that speak OpenAI's protocol, to messages written by these rules."""
    encode = rules.encode
    attached = sorted(added_names(messages, encode.server) - encode.refused)
    named = [name for name in attached if refusal.names(name)]
    thought = [name for name in REASONING_FIELDS if refusal.names(name)]
    signed = refusal.names("thought_signature")
    left_out = [_leaving_out(named or attached, named=bool(named))] if attached else []
    return [
        _change("ids of calls have nine letters", short_ids=True, named=SHORT_ID in refusal.numbers, alone=True),
        _change("calls are signed as of another model", sign=True, named=signed, alone=True),
        *([_leaving_out([*thought, *named], named=True)] if thought and named else []),
        form_change(refusal),
        *reasoning_changes(REASONING_FIELDS, encode, refusal),
        *left_out,
    ]


def form_change(refusal: ServerRefusal) -> RequestChange:
    """Return the change to the form of the strictest servers."""
    told = "messages are sent in a stricter form: none is empty, roles alternate, and results have names"
    return RequestChange(told, "forms", partial(replace, strict=True), refusal.names(*_ABOUT_FORM))


def reasoning_changes(
    fields: Sequence[str], encode: MessageEncoder, refusal: ServerRefusal, *more: str
) -> list[RequestChange]:
    """Return the changes to the reasoning of earlier replies: it is left out, or sent with all of them.

    `fields` are the names that it may have in a message, `more` other words that are about it.
    """
    named = [name for name in fields if refusal.names(name)]
    about = bool(named) or refusal.names(*more)
    left_out = _leaving_out(named or fields, named=about)
    name = named[0] if named else encode.reasoning or fields[0]
    sent = _change("reasoning is sent back", always=True, reasoning=name, named=about, alone=True)
    if encode.always:
        return [sent]
    return [sent, left_out] if about and _DEMANDS.search(refusal.text) else [left_out, sent]


def _change(told: str, *, named: bool, alone: bool = False, **fields: Any) -> RequestChange:
    def rewrite(rules: ServerRules) -> ServerRules:
        return replace(rules, encode=replace(rules.encode, **fields))

    return RequestChange(told, "messages", rewrite, named, alone)


def _leaving_out(names: Sequence[str], *, named: bool) -> RequestChange:
    def rewrite(rules: ServerRules) -> ServerRules:
        return replace(rules, encode=replace(rules.encode, refused=rules.encode.refused | set(names)))

    return RequestChange(f"{', '.join(names)} of earlier replies are left out", "messages", rewrite, named)
