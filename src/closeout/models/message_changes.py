"""Changes that the messages of a refused request may need at servers that speak OpenAI's protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.messages import Message
from closeout.models.openai_messages import REASONING_FIELDS, SHORT_ID, MessageEncoder, attached_names
from closeout.models.refusals import RequestChange, ServerRefusal
from closeout.models.server_rules import ServerRules

__all__ = ["message_changes"]

# A server that wants reasoning back instead of refusing it, as DeepSeek and Kimi do.
_DEMANDS = re.compile(r"must be (?:passed|provided|sent|included)|missing|is required|passed back", re.IGNORECASE)


def message_changes(messages: Sequence[Message], encode: MessageEncoder, refusal: ServerRefusal) -> list[RequestChange]:
    """Return the changes, the cheapest first.

    Args:
        messages: The messages of the request.
        encode: How they were written.
        refusal: The server's answer.
    """
    about_reasoning = refusal.names("reasoning_content", "reasoning")
    demanded = about_reasoning and _DEMANDS.search(refusal.reason) is not None
    attached = sorted(attached_names(messages, encode.server) - encode.refused)
    named = [name for name in attached if refusal.names(name)]
    signed = refusal.names("thought_signature")
    changes = [
        _change("ids of calls have nine letters", short_ids=True, named=SHORT_ID in refusal.numbers, alone=True),
        _change("calls are signed as of another model", sign=True, named=signed, alone=True),
    ]
    if not demanded and not encode.always:
        fields = [name for name in REASONING_FIELDS if refusal.names(name)] or REASONING_FIELDS
        changes.append(_leaving_out(fields, named=about_reasoning))
    if attached:
        changes.append(_leaving_out(named or attached, named=bool(named)))
    # If some reasoning was sent and more is wanted, it is missing in messages that have none.
    more: dict[str, Any] = {"always": True} if encode.reasoning else {"reasoning": REASONING_FIELDS[0]}
    changes.append(_change("reasoning is sent back", **more, named=demanded, alone=True))
    return changes


def _change(told: str, *, named: bool, alone: bool = False, **fields: Any) -> RequestChange:
    def rewrite(rules: ServerRules) -> ServerRules:
        return replace(rules, encode=replace(rules.encode, **fields))

    return RequestChange(told, "messages", rewrite, named, alone)


def _leaving_out(names: Sequence[str], *, named: bool) -> RequestChange:
    return RequestChange(
        f"{', '.join(names)} of earlier replies are left out", "messages", partial(_without, names), named
    )


def _without(names: Sequence[str], rules: ServerRules) -> ServerRules:
    return replace(rules, encode=replace(rules.encode, refused=rules.encode.refused | set(names)))
