"""Play a script: Player decides which turn comes next, ScriptedClient is a model client that plays in process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from closeout.codec import shared_items
from closeout.errors import ModelTimeout, PermanentModelError, RateLimited, ServerFailed, StreamDropped
from closeout.messages import Capabilities, Message, ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry
from closeout.models.retry import RetryPolicy
from closeout.models.streaming import ReplyBuilder
from closeout.testing.misbehaviour import CONNECTION_FAULTS, MAY_STILL_ACT, Misbehaviour, misbehaviours, spoil
from closeout.testing.odd_forms import ODD_FORMS
from closeout.testing.script import RequestView, Script, ScriptItem, Turn, as_deltas, as_turn, one_call_each, write

__all__ = ["ALL_CAPABILITIES", "ConversationKey", "Performance", "Player", "ScriptedClient"]

ALL_CAPABILITIES = Capabilities(completions=True, json_schema=True, grammar=True, images=True, known=True)

ConversationKey = Literal["key", "question"] | Callable[[RequestView], str]


@dataclass(frozen=True, slots=True)
class Performance:
    """The outcome of one request: a reply, and the fault that was injected, if any."""

    reply: ModelReply
    turn: int
    conversation: str
    fault: Misbehaviour | None = None

    @property
    def connection_fault(self) -> Misbehaviour | None:
        return self.fault if self.fault is not None and self.fault.kind in CONNECTION_FAULTS else None


@dataclass(slots=True)
class _ScriptedConversation:
    turn: int = 0  # index of the next turn
    call: int = 0  # index of its next call, if a reply holds one call only
    requests: int = 0
    faults: dict[int, int] = field(default_factory=dict)  # index of a misbehaviour → how often it happened
    doubtful: tuple[int, int] | None = None  # set after a spoilt turn: the outcomes seen before it, its calls


class Player:
    """Play one script in any number of conversations, separated by API key, by question, or by a function.

    A turn with a fault is played again at the next request, unless that request shows that its call was run all the
    same. After the last turn an answer is repeated; any other script is at its end, which is an error.
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
        self._misbehaviours = misbehaviours(misbehave)
        self._by = by
        self._stop_words = stop_words
        self._conversations: dict[str, _ScriptedConversation] = {}

    def play(self, view: RequestView) -> Performance:
        """Return the outcome of a request.

        Raises:
            PermanentModelError: The script is at its end.
            BaseException: An exception that is in the script.
        """
        turns, name = self._turns(view)
        name += view.question if self._by == "question" else view.key if self._by == "key" else self._by(view)
        conversation = self._conversations.setdefault(name, _ScriptedConversation())
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
        elif fault.kind == "slow" or fault.kind in ODD_FORMS:
            _advance(conversation, whole, turn)
        return Performance(self._stopped(spoil(fault.kind, turn, view, seed=fault.seed), view), view.turn, name, fault)

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

    def _fault(
        self, turn: Turn, view: RequestView, name: str, conversation: _ScriptedConversation
    ) -> Misbehaviour | None:
        for number, misbehaviour in enumerate(self._misbehaviours):
            so_far = conversation.faults.get(number, 0)
            if misbehaviour.happens(turn, view, name, so_far):
                conversation.faults[number] = so_far + 1
                return misbehaviour
        return None

    def _settle(self, conversation: _ScriptedConversation, view: RequestView) -> None:
        """Advance past a spoilt turn whose call the agent has run nevertheless."""
        if conversation.doubtful is None:
            return
        before, calls = conversation.doubtful
        conversation.doubtful = None
        if _acts(view) > before:
            conversation.call += 1
            if conversation.call >= calls:
                conversation.turn, conversation.call = conversation.turn + 1, 0

    def _stopped(self, reply: ModelReply, view: RequestView) -> ModelReply:
        """Return the reply up to the first stop word, if the server knows stop words."""
        if not self._stop_words:
            return reply
        ends = [at for word in view.stop if word and (at := reply.text.find(word)) >= 0]
        return replace(reply, text=reply.text[: min(ends)], finish_reason="stop") if ends else reply


def _single(turn: Turn, call: int) -> Turn:
    return replace(turn, calls=turn.calls[call : call + 1]) if len(turn.calls) > 1 else turn


def _advance(conversation: _ScriptedConversation, whole: Turn, played: Turn) -> None:
    conversation.call += 1
    if played is whole or conversation.call >= len(whole.calls):
        conversation.turn, conversation.call = conversation.turn + 1, 0


def _acts(view: RequestView) -> int:
    """Return how many outcomes of calls the request shows: tool messages, observations, calls in tags."""
    if view.prompt is not None:
        return view.prompt.count("\nObservation:")
    text = "\n" + view.text
    roles = {"tool", "assistant"} if view.dialect == "mcp_xml" else {"tool"}
    return sum(message.get("role") in roles for message in view.messages) + text.count("\nObservation:")


class ScriptedClient(BaseClient):
    """A model client that plays a script.

    Attributes:
        requests: Every request that it received.

    Args:
        script: The turns; see `Script`.
        misbehave: Which faults happen, and when. A connection fault is raised as the error that a real client raises
            after its retries.
        by: How conversations are told apart.
        name: The name of the model.
        capabilities: What the model can do; by default everything.
        chunks: Lengths, in characters, of the pieces in which a reply is streamed.
    """

    scripted = True
    retry = RetryPolicy(retries=0)  # its errors are those after the retries

    def __init__(
        self,
        script: Script,
        *,
        misbehave: Iterable[Misbehaviour | str] | Misbehaviour | str = (),
        by: ConversationKey = "key",
        name: str = "scripted",
        capabilities: Capabilities = ALL_CAPABILITIES,
        chunks: Sequence[int] = (7, 3, 11),
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.requests: list[ModelRequest] = []
        self._chunks = chunks
        self._player = Player(script, misbehave=misbehave, by=by, stop_words=capabilities.stop)
        self._last: Sequence[Message] = ()
        self._ends: list[int] = []  # where the text of each message of the last request ends

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        self.requests.append(request)
        await asyncio.sleep(0)
        performance = self._player.play(
            RequestView(
                request.messages,
                request.prompt,
                tuple(tool.name for tool in request.tools),
                request.stop,
                size=self._characters(request.messages),
            )
        )
        reply, fault = performance.reply, performance.connection_fault
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        elif fault is not None:
            self.charge(Usage(requests=1))
            await self._fail(fault, request, reply, on_delta)
        self.charge(reply.usage)
        if on_delta is None:
            return reply
        return self._stream(reply, on_delta)

    def _characters(self, messages: Sequence[Message]) -> int:
        """The length of `RequestView.text`. Only messages that the last request did not have are measured."""
        del self._ends[shared_items(self._last, messages) :]
        self._last = messages
        for message in messages[len(self._ends) :]:
            self._ends.append((self._ends[-1] + 1 if self._ends else 0) + len(message.text))
        return self._ends[-1] if self._ends else 0

    def _stream(self, reply: ModelReply, on_delta: OnDelta, *, share: float = 1.0) -> ModelReply:
        deltas = list(as_deltas(reply, self._chunks))
        builder = ReplyBuilder(on_delta)
        for delta in deltas[: int(len(deltas) * share)]:
            if delta.kind == "text":
                builder.add_text(delta.text)
            elif delta.kind == "reasoning":
                builder.add_reasoning(delta.text)
            elif delta.kind == "tool_name":
                builder.add_call(delta.index, call_id=reply.tool_calls[delta.index].id, name=delta.text)
            else:
                builder.add_call(delta.index, arguments=delta.text)
            if builder.enough:
                return builder.reply(usage=reply.usage)
        return reply

    async def _fail(
        self, fault: Misbehaviour, request: ModelRequest, reply: ModelReply, on_delta: OnDelta | None
    ) -> NoReturn:
        spent = Usage(requests=1)
        if fault.kind == "hang":
            await asyncio.sleep(request.timeout if request.timeout is not None else float("inf"))
            raise ModelTimeout("The scripted model sent no reply in time.", usage=spent)
        if fault.kind == "rate_limited":
            raise RateLimited("The scripted model gets too many requests.", status=429, retry_after=fault.seconds)
        if fault.kind == "dropped":
            if on_delta is not None:
                self._stream(reply, on_delta, share=0.5)
            raise StreamDropped("The scripted model's stream broke off.", usage=spent)
        raise ServerFailed(f"The scripted model failed: {CONNECTION_FAULTS[fault.kind]}.", status=500, usage=spent)
