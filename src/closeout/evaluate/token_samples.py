"""Export a run as sequences of token ids with a loss mask: what the model wrote against what was inserted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from closeout.codec import shared_items
from closeout.errors import UsageError
from closeout.journal.events import (
    AttemptStarted,
    ModelReplied,
    RunEnded,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.store import Row
from closeout.journal.story import Story, TurnStory
from closeout.journal.token_record import load_tokens
from closeout.messages import ReplyTokens

__all__ = ["SampleCount", "token_samples"]

LEARNT = ("act", "close")  # purposes of the requests whose replies are learned


def token_samples(rows: Iterable[Row], *, rolled_back: bool = False) -> list[dict[str, Any]]:
    """Return the token sequences of a run's last attempt: `input_ids`, `loss_mask` and `logprobs` of the same length.

    A prompt that extends the sequence continues it. Otherwise another sequence begins: results were evicted, or the
    server writes a reply differently from the model. `loss_mask` is 1 for tokens that the
    model wrote in turns that were accepted and not repaired. `logprobs` is 0 elsewhere; it is left out if the server
    did not state it.

    Args:
        rows: The record of the run.
        rolled_back: Include each rolled-back reply with its prompt, as a sequence marked `rolled_back` without loss.

    Raises:
        UsageError: The record has no token ids.
    """
    samples: list[dict[str, Any]] = []
    sequence = _Sequence()
    before: tuple[int, ...] = ()  # ids of the last prompt and its reply
    story, seen = Story(), False
    for event in (row.event for row in rows if row.event.agent == "main"):
        place = story.feed(event)
        if isinstance(event, AttemptStarted):
            samples, sequence = [], _Sequence()
        elif isinstance(event, ModelReplied) and event.tokens and place.request is not None:
            tokens = load_tokens(event.tokens, before)
            before = (*tokens.prompt, *tokens.ids)
            if place.request.purpose in LEARNT and tokens.prompt:
                seen = True
                if not sequence.continues(tokens.prompt):
                    samples += sequence.sample()
                    sequence = _Sequence()
                sequence.add(tokens, truncated=event.finish_reason == "length")
        elif isinstance(event, TurnAccepted):
            sequence.accept(learn=place.turn is not None and _is_own(place.turn, by_ids=sequence.by_ids))
        elif isinstance(event, TurnRolledBack):
            if rolled_back:
                samples += sequence.rolled_back_sample(event.reason)
            sequence.drop_reply()
        elif isinstance(event, RunEnded):
            sequence.accept(learn=bool(event.closing_text))
    if not seen:
        raise UsageError(
            "The record has no token ids. Servers such as vLLM state them if they are asked: "
            "--config 'llm.extra_body={return_token_ids: true, logprobs: true}'."
        )
    return [*samples, *sequence.sample()]


def _is_own(turn: TurnStory, *, by_ids: bool) -> bool:
    """Return whether nothing of a turn was repaired. Behind a chat server, a call in another form is a repair."""
    return all(by_ids and each.kind.startswith("dialect:") for each in turn.repairs)


@dataclass(slots=True)
class _Sequence:
    """A sequence that grows from request to request. `reply` is the index of a reply not settled yet."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reply: int | None = None
    complete: bool = True  # every reply has log-probabilities
    versions: list[str] = field(default_factory=list)  # versions of the weights, one for each reply
    by_ids: bool = False  # the prompts were sent as ids
    truncated: bool = False  # the last reply reached the limit of tokens

    def continues(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt contains all tokens that are learned so far."""
        return not any(self.mask[shared_items(self.ids, prompt) :])

    def add(self, tokens: ReplyTokens, *, truncated: bool = False) -> None:
        """Add a prompt and its reply. Tokens of the sequence that the prompt does not have are removed."""
        kept = shared_items(self.ids, tokens.prompt)
        self._cut(kept)
        inserted = tokens.prompt[kept:]
        self.ids += (*inserted, *tokens.ids)
        self.mask += [0] * (len(inserted) + len(tokens.ids))
        self.logprobs += (*[0.0] * len(inserted), *(tokens.logprobs or [0.0] * len(tokens.ids)))
        self.complete = self.complete and bool(tokens.logprobs)
        self.reply = len(tokens.prompt)
        self.versions.append(tokens.version)
        self.truncated, self.by_ids = truncated, tokens.by_ids

    def _cut(self, length: int) -> None:
        del self.ids[length:], self.mask[length:], self.logprobs[length:]

    def accept(self, *, learn: bool) -> None:
        """Settle the last reply."""
        if self.reply is not None and learn:
            self.mask[self.reply :] = [1] * (len(self.ids) - self.reply)
        self.reply = None

    def drop_reply(self) -> None:
        """Remove the last reply."""
        if self.reply is not None:
            self._cut(self.reply)
            self.versions.pop()
        self.reply = None

    def sample(self) -> list[dict[str, Any]]:
        """Return the sequence as a record, nothing if there is nothing to learn in it."""
        return [self._record()] if any(self.mask) else []

    def rolled_back_sample(self, reason: str) -> list[dict[str, Any]]:
        """Return the sequence with its last reply, without loss."""
        if self.reply is None:
            return []
        found = {**self._record(), "loss_mask": [0] * len(self.ids)}
        return [{**found, "rolled_back": True, "reason": reason, "reply_at": self.reply}]

    def _record(self) -> dict[str, Any]:
        found: dict[str, Any] = {"input_ids": list(self.ids), "loss_mask": list(self.mask), "truncated": self.truncated}
        if any(self.versions):
            found["versions"] = list(self.versions)
        return {**found, "logprobs": list(self.logprobs)} if self.complete else found


class SampleCount:
    """Counts exported sequences as they pass: per trial, truncated ones, and tokens."""

    def __init__(self) -> None:
        self.trials: dict[str, int] = {}  # sequences by run, rolled-back ones excepted
        self.tokens = self.learned = self.truncated = self.without_logprobs = 0
        self.versions: set[str] = set()

    def of(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records, counted."""
        for record in records:
            if not record.get("rolled_back"):
                self.trials[record["run_id"]] = self.trials.get(record["run_id"], 0) + 1
                self.tokens += len(record["input_ids"])
                self.learned += sum(record["loss_mask"])
                self.truncated += record["truncated"]
                self.without_logprobs += "logprobs" not in record
                self.versions.update(record.get("versions", ()))
            yield record

    @property
    def split_rate(self) -> float:
        """Sequences a trial; 1 if every trial is one sequence."""
        return sum(self.trials.values()) / len(self.trials) if self.trials else 0.0

    def __str__(self) -> str:
        number = sum(self.trials.values())
        parts = [
            f"{number:,} sequences of {len(self.trials):,} trials (split rate {self.split_rate:.2f})",
            f"{self.learned:,} of {self.tokens:,} tokens learned",
            f"{self.truncated:,} truncated",
            f"{self.without_logprobs:,} without log-probabilities",
        ]
        if self.versions:
            parts.append(f"weights {', '.join(sorted(self.versions))}")
        return "; ".join(parts)
