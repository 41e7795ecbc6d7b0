"""Lessons of the proxy about its model server, each for the conversation that taught it."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Generic, TypeVar

from closeout.codec import encode_json
from closeout.server.upstream import kept

__all__ = ["LEARNED_SECONDS", "Lessons", "ProxiedConversation"]

# Seconds until what is learned of the server is tried again: it may have been restarted with other options.
LEARNED_SECONDS = 600.0
LESSONS_KEPT = 1024

V = TypeVar("V")


class ProxiedConversation:
    """The messages of a request, recognised in the requests that continue them.

    Args:
        model: The model that is asked.
        key: The client's key.
        messages: Returns the messages, when something was learned.
    """

    def __init__(self, model: str, key: str, messages: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._start = encode_json([model, key])
        self._messages = messages

    @cached_property
    def beginnings(self) -> tuple[bytes, ...]:
        """A digest of each beginning, the whole conversation last."""
        so_far = sha256(self._start)
        digests = [so_far.digest()]
        for message in self._messages():
            so_far.update(encode_json(dict(message)))
            digests.append(so_far.digest())
        return tuple(digests)


class Lessons(Generic[V]):
    """The lessons of the server's errors and replies, for conversations that continue the one that taught them.

    An error may repeat a client's words, and a reply may be one that a client asked for. So a lesson counts only in
    conversations that contain the messages that caused it, and only for a while.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[float, V]] = OrderedDict()  # until when, and what

    def find(self, conversation: ProxiedConversation) -> V | None:
        """Return what was learned in the conversation so far, the newest first."""
        for digest in reversed(conversation.beginnings) if self._kept else ():
            until, lesson = self._kept.get(digest, (-math.inf, None))
            if time.monotonic() < until:
                return lesson
        return None

    def keep(self, conversation: ProxiedConversation, lesson: V) -> None:
        """Remember what was learned in the conversation."""
        kept(self._kept, conversation.beginnings[-1], (time.monotonic() + LEARNED_SECONDS, lesson), LESSONS_KEPT)
