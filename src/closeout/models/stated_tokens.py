"""Read the token ids and log-probabilities that an OpenAI-compatible server states if a request asks for them.

OpenAI's `logprobs=true` gives texts and log-probabilities; vLLM's `return_token_ids=true` the ids of prompt and reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from closeout.messages import ReplyTokens

__all__ = ["TokenReader"]

HIGHEST_ID = 2**31


@dataclass(slots=True)
class TokenReader:
    """Collects the tokens of a reply from its body, or from the events of its stream."""

    _prompt: list[Any] = field(default_factory=list)
    _ids: list[Any] = field(default_factory=list)
    _logprobs: list[Any] = field(default_factory=list)
    _texts: list[Any] = field(default_factory=list)

    def take(self, value: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Read a body or an event, and its first choice."""
        prompt = value.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if isinstance(prompt, list):
            self._prompt = prompt
        if isinstance(ids := choice.get("token_ids"), list):
            self._ids += ids
        if isinstance(logprobs := choice.get("logprobs"), dict):
            self._take_logprobs(logprobs)

    def _take_logprobs(self, logprobs: Mapping[str, Any]) -> None:
        content = logprobs.get("content")
        if isinstance(content, list):  # a chat completion
            entries = [entry for entry in content if isinstance(entry, dict)]
            self._texts += [entry.get("token") for entry in entries]
            self._logprobs += [entry.get("logprob") for entry in entries]
        elif isinstance(texts := logprobs.get("tokens"), list):  # a text completion
            values = logprobs.get("token_logprobs")
            self._texts += texts
            self._logprobs += values if isinstance(values, list) else []

    def tokens(self) -> ReplyTokens | None:
        """Return the tokens, None if the server did not state any. What does not fit together is left out."""
        ids = _ids(self._ids) if self._ids else ()
        number = len(ids) or len(self._texts)
        if not number:
            return None
        logprobs = tuple(map(float, self._logprobs)) if all(map(_is_logprob, self._logprobs)) else ()
        texts = () if ids or not all(isinstance(text, str) for text in self._texts) else tuple(self._texts)
        return ReplyTokens(
            ids=ids,
            prompt=_ids(self._prompt) if ids else (),
            logprobs=logprobs if len(logprobs) == number else (),
            texts=texts,
        )


def _ids(values: list[Any]) -> tuple[int, ...]:
    return tuple(values) if all(type(value) is int and 0 <= value < HIGHEST_ID for value in values) else ()


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
