"""Which turn is due in which conversation, and whether it goes wrong. Used by the client and the server alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from closeout.errors import PermanentModelError
from closeout.messages import ModelReply
from closeout.testing.misbehaviour import CONNECTION_FAULTS, MAY_STILL_ACT, Misbehaviour, plan, spoil
from closeout.testing.script import RequestView, Script, ScriptItem, Turn, as_turn
from closeout.testing.writing import one_call_each, write

__all__ = ["ConversationKey", "Performance", "Player"]

ConversationKey = Literal["key", "question"] | Callable[[RequestView], str]


@dataclass(frozen=True, slots=True)
class Performance:
    """What the model does with one request: a reply, and the connection's fault if there is one."""

    reply: ModelReply
    turn: int
    conversation: str
    fault: Misbehaviour | None = None  # of the reply or of the connection

    @property
    def connection_fault(self) -> Misbehaviour | None:
        return self.fault if self.fault is not None and self.fault.kind in CONNECTION_FAULTS else None


@dataclass(slots=True)
class _Conversation:
    turn: int = 0  # index of the turn that is due
    call: int = 0  # of its calls, where a reply carries one only
    requests: int = 0
    faults: dict[int, int] = field(default_factory=dict)  # misbehaviour's number → how often
    doubtful: tuple[int, int] | None = None  # acts seen before a spoilt turn that may have been run; its calls


class Player:
    """Plays one script in any number of conversations, told apart by API key, by question, or by your own function.

    A turn that went wrong is still due at the next request, unless that request shows that its call was run after
    all. After its last turn an answer is given again; any other script then has no more to say and that is an error.
    """

    def __init__(
        self,
        script: Script,
        *,
        misbehave: Iterable[Misbehaviour | str] | Misbehaviour | str = (),
        by: ConversationKey = "key",
        stop_words: bool = True,
    ) -> None:
        self._script = script
        self._plan = plan(misbehave)
        self._by = by
        self._stop_words = stop_words
        self._conversations: dict[str, _Conversation] = {}

    def play(self, view: RequestView) -> Performance:
        """The performance for a request. Raises what the script says to raise, or PermanentModelError at its end."""
        turns, name = self._turns(view)
        name += view.question if self._by == "question" else view.key if self._by == "key" else self._by(view)
        conversation = self._conversations.setdefault(name, _Conversation())
        self._settle(conversation, view)
        conversation.requests += 1
        view = replace(view, number=conversation.requests, turn=conversation.turn + 1)
        whole = self._due(turns, view)
        turn = _single(whole, conversation.call) if one_call_each(view.dialect) else whole
        fault = self._fault(turn, view, name, conversation)
        if fault is None:
            _advance(conversation, whole, turn)
            return Performance(self._stopped(write(turn, view), view), view.turn, name)
        if fault.kind in MAY_STILL_ACT:
            conversation.doubtful = (_acts(view), len(whole.calls) if turn is not whole else 1)
        elif fault.kind == "slow":
            _advance(conversation, whole, turn)
        return Performance(self._stopped(spoil(fault.kind, turn, view), view), view.turn, name, fault)

    def _turns(self, view: RequestView) -> tuple[Sequence[ScriptItem] | Callable[[RequestView], Any], str]:
        if not isinstance(self._script, Mapping):
            return self._script, ""
        text = view.text
        for question, turns in self._script.items():
            if question in text:
                return turns, f"{question}/"
        raise PermanentModelError("The script has no turns for this question.")

    def _due(self, turns: Sequence[ScriptItem] | Callable[[RequestView], Any], view: RequestView) -> Turn:
        item: Any = turns
        if not callable(turns):
            position = view.turn - 1
            if position >= len(turns):
                item = turns[-1] if turns else None
                if not isinstance(item, Turn) or item.answer is None:
                    raise PermanentModelError(f"The script ends after {len(turns)} turns; this is one more.")
            else:
                item = turns[position]
        while callable(item) and not isinstance(item, type):
            item = item(view)
        if isinstance(item, BaseException):
            raise item
        return as_turn(item)

    def _fault(self, turn: Turn, view: RequestView, name: str, conversation: _Conversation) -> Misbehaviour | None:
        for number, misbehaviour in enumerate(self._plan):
            so_far = conversation.faults.get(number, 0)
            if misbehaviour.happens(turn, view, name, so_far):
                conversation.faults[number] = so_far + 1
                return misbehaviour
        return None

    def _settle(self, conversation: _Conversation, view: RequestView) -> None:
        """Moves on from a spoilt turn whose call the agent has run all the same."""
        if conversation.doubtful is None:
            return
        before, calls = conversation.doubtful
        conversation.doubtful = None
        if _acts(view) > before:
            conversation.call += 1
            if conversation.call >= calls:
                conversation.turn, conversation.call = conversation.turn + 1, 0

    def _stopped(self, reply: ModelReply, view: RequestView) -> ModelReply:
        """The reply up to the first stop word, as a server that knows them sends it."""
        if not self._stop_words:
            return reply
        ends = [at for word in view.stop if word and (at := reply.text.find(word)) >= 0]
        return replace(reply, text=reply.text[: min(ends)], finish_reason="stop") if ends else reply


def _single(turn: Turn, call: int) -> Turn:
    return replace(turn, calls=turn.calls[call : call + 1]) if len(turn.calls) > 1 else turn


def _advance(conversation: _Conversation, whole: Turn, played: Turn) -> None:
    conversation.call += 1
    if played is whole or conversation.call >= len(whole.calls):
        conversation.turn, conversation.call = conversation.turn + 1, 0


def _acts(view: RequestView) -> int:
    """How many outcomes of calls the request shows: tool messages, observations, replies with a call in tags."""
    if view.prompt is not None:
        return view.prompt.count("\nObservation:")
    text = "\n" + view.text
    roles = {"tool", "assistant"} if view.dialect == "mcp_xml" else {"tool"}
    return sum(message.get("role") in roles for message in view.messages) + text.count("\nObservation:")
