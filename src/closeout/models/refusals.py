"""Find out what a server refuses in a request: change one thing at a time, and keep what passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from closeout.models.http_errors import describes, is_overflow, refusal
from closeout.models.server_rules import ServerRules
from closeout.records import record

__all__ = ["Part", "RefusalSearch", "RequestChange", "ServerRefusal"]

MOST_TRIES = 3  # further requests until one passes; a run may try one more, with less of the conversation or as text
Part = Literal["options", "tools", "forms", "messages", "limit"]
# The parts that are changed together, the cheapest first.
GROUPS: Sequence[Sequence[Part]] = (("options", "limit", "forms"), ("tools",), ("messages",))
_STATUSES = frozenset({400, 413, 422, 500})
# Refusals of what the request says, of the account or of the model. No other form of it would pass.
_FINAL = frozenset({
    "content_filter", "content_policy_violation", "DataInspectionFailed", "data_inspection_failed", "invalid_api_key",
    "model_not_found", "insufficient_quota", "billing_hard_limit_reached", "billing_not_active",
})  # fmt: skip
_NUMBER = re.compile(r"\d[\d,_]*")
_WORD = re.compile(r"[$\w]+")
_TOOL_PLACE = re.compile(r"(?:tools|functions|function_declarations)[.\[](\d+)")


class ServerRefusal:
    """A response with which a server refuses a request. Its words only decide what is tried first.

    Attributes:
        status: Its status.
        reason: Its text; `text` is with the parameter that it names.
        overflow: Whether its words say that the prompt is too long.
        numbers: The numbers in its text.
        same: Its text without numbers: the same for refusals of the same thing.
    """

    def __init__(self, status: int, body: bytes) -> None:
        code, reason, param = refusal(body)
        self.status, self.reason = status, reason
        self.overflow = is_overflow(code, reason, param) or status == 413
        self.numbers = [int(re.sub(r"\D", "", each)[:18]) for each in _NUMBER.findall(reason)]
        self.same = _NUMBER.sub("", f"{status} {code} {param} {reason}")
        self.is_final = status not in _STATUSES or code in _FINAL or (status == 500 and not describes(body))
        self.text = f"{param} {reason}"
        self._words = frozenset(_WORD.findall(self.text))
        self._folded = _folded(self.text)

    def names(self, *words: str) -> bool:
        """Return whether its words name one of these, also in another spelling: toolChoice is tool_choice."""
        return any(word in self._words or ("_" in word and _folded(word) in self._folded) for word in words)

    def tool_places(self) -> frozenset[int]:
        """The places of the tools that it names, counted from 0."""
        return frozenset(int(found[:6]) for found in _TOOL_PLACE.findall(self.text))


def _folded(text: str) -> str:
    return text.replace("_", "").lower()


@record
class RequestChange:
    """One change to how requests are written for a server.

    Attributes:
        told: What is changed, for a warning: "temperature is left out".
        part: The part of a request that it changes.
        rewrite: Returns the rules with the change.
        named: Whether the refusal names what it changes.
        alone: Whether it is tried only if the refusal names it.
    """

    told: str
    part: Part
    rewrite: Callable[[ServerRules], ServerRules]
    named: bool = False
    alone: bool = False


@dataclass(slots=True)
class _Level:
    """A refusal, the rules by which the refused request was written, and what is left to try."""

    same: str
    rules: ServerRules
    told: tuple[str, ...]
    queue: Iterator[Sequence[RequestChange]]


@dataclass(slots=True)
class RefusalSearch:
    """The search for what a server refuses in one request.

    One change is tried at a time: those that the refusal names, then each part of the request that has not passed
    before, then all. If the server refuses something else after a change, the change is kept and the search continues
    from there.

    Attributes:
        changes: Returns the changes that a request may need, given the rules so far and a refusal.
        accepted: Whether the server has accepted a part of the request before.
        known: Status and body of a refusal of the request that was received before it is sent.
        refused: The text of the first refusal, without numbers.
        reason: The same for people.
        may_have_passed: Whether the server first failed at the request: what follows may have passed unchanged, too.
        is_over: Whether there was nothing left to try after the last refusal.
        told: What the rules that were returned last change.
        failed: The text of the last refusal without numbers, if the server failed at the request.
    """

    changes: Callable[[ServerRules, ServerRefusal], Sequence[RequestChange]]
    accepted: Callable[[Part], bool]
    known: tuple[int, bytes] | None = None
    refused: str = ""
    reason: str = ""
    may_have_passed: bool = False
    is_over: bool = False
    told: tuple[str, ...] = ()
    failed: str = ""
    _tries: int = MOST_TRIES
    _levels: list[_Level] = field(default_factory=list)

    def next_rules(
        self, refusal: ServerRefusal, rules: ServerRules, is_new: Callable[[ServerRules], bool]
    ) -> ServerRules:
        """Return the rules to try after a refusal of a request by `rules`; the same ones if nothing is left to try.

        `is_new` returns whether a request by some rules differs from all that were sent.
        """
        self.is_over = False
        self.refused = self.refused or refusal.same
        if refusal.is_final or self._may_pass(refusal):
            return rules
        if all(level.same != refusal.same for level in self._levels):
            self._levels.append(_Level(refusal.same, rules, self.told, iter(self._order(rules, refusal, is_new))))
        while self._levels and self._tries:
            level = self._levels[-1]
            for changes in level.queue:
                found = level.rules
                for change in changes:
                    found = change.rewrite(found)
                if is_new(found):
                    self.told = (*level.told, *(change.told for change in changes))
                    self._tries -= 1
                    return found
            self._levels.pop()
        self.is_over = True
        return rules

    def _may_pass(self, refusal: ServerRefusal) -> bool:
        """Return True if the server failed at the request for the first time: it is sent again unchanged."""
        before, self.failed = self.failed, refusal.same if refusal.status == 500 else ""
        may = refusal.status == 500 and before != refusal.same and not self._levels
        self._tries -= may
        self.may_have_passed = self.may_have_passed or may
        return may

    def _order(
        self, rules: ServerRules, refusal: ServerRefusal, is_new: Callable[[ServerRules], bool]
    ) -> list[Sequence[RequestChange]]:
        possible = [
            each
            for each in self.changes(rules, refusal)
            if (not self.accepted(each.part) or (each.named and each.part == "limit")) and is_new(each.rewrite(rules))
        ]
        named = [(each,) for each in possible if each.named]
        shared = [each for each in possible if not each.alone]
        if refusal.overflow:  # the run makes room: see ContextOverflow
            return [*named, *((each,) for each in shared if each.part == "limit" and not each.named)]
        groups = [group for parts in GROUPS if (group := tuple(each for each in shared if each.part in parts))]
        return [*named[: max(2, self._tries - len(groups))], *groups, tuple(shared)]
