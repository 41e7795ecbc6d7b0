"""Strategies: how the model is asked in a turn. The default asks once.

A strategy gets the turn's request as the dialect wrote it. It may send it, send others, or act without asking, and
returns one reading, on which the loop then acts. Its requests are journaled and charged like any other, so a strategy
must decide only by what the turn gives it: then a resumed run repeats its decisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from closeout.answers.normal_form import normalised
from closeout.answers.reading import ContractReading
from closeout.dialects.prompts import only_text
from closeout.dialects.protocol import HistoryView
from closeout.errors import LimitReached, ModelError, UsageError
from closeout.messages import Capabilities, Defect, ModelReply, ModelRequest, Reading, RequestInfo, ToolCall
from closeout.run.reply_listener import ReplyListener

__all__ = ["AskOnce", "CallFirst", "Majority", "ModelTurn", "RequireCall", "Strategy"]


@runtime_checkable
class Strategy(Protocol):
    """A way to ask the model in each turn. Pass an instance as `Agent(strategy=…)`.

    One instance serves all runs of an agent, so it keeps nothing of a run: what it needs is in the turn.
    """

    @property
    def name(self) -> str:
        """The name under which runs record it."""
        ...

    @property
    def version(self) -> str:
        """Changes when it would decide otherwise. A run that another version began is not resumed silently."""
        ...

    async def ask(self, turn: ModelTurn) -> Reading:
        """Return what to do in this turn: calls, an answer, or the defects of a reply.

        Raises:
            ModelError: A request failed, and the turn cannot do without it.
        """
        ...


class ModelTurn:
    """One turn, for a strategy: what the model would be shown, and the means to ask it.

    Attributes:
        view: What the model sees of the run: instructions, task, tools, steps with their results.
        task: The task without the texts of its files.
        request: The request as the dialect wrote it.
        capabilities: What the model's server can do.
        reply: The reply to the turn's own request, None before it was sent.
    """

    def __init__(
        self,
        *,
        view: HistoryView,
        task: str,
        request: ModelRequest,
        capabilities: Capabilities,
        info: RequestInfo,
        send: Callable[..., Awaitable[ModelReply]],
        read: Callable[[ModelReply], Reading],
        read_answer: Callable[[str], ContractReading],
        listener: ReplyListener | None,
    ) -> None:
        self.view = view
        self.task = task
        self.request = request
        self.capabilities = capabilities
        self.reply: ModelReply | None = None
        self._info = info
        self._send = send
        self._read = read
        self._read_answer = read_answer
        self._listener = listener
        self._shown: Reading | None = None  # the reading of what was streamed

    async def send(self, request: ModelRequest | None = None, *, purpose: str = "") -> ModelReply:
        """Send a request. It is journaled and charged.

        Args:
            request: Another request than the turn's own. Settings that it leaves open are those of the agent.
            purpose: A word for it in the record. Needed for all but the turn's own request, which is streamed.

        Raises:
            ModelError: The request failed.
            LimitReached: A request beside the turn's own would exceed a limit of the run.
        """
        if request is None and not purpose:
            self.reply = await self._send(self.request, self._info, on_delta=self._listener)
            return self.reply
        if not purpose or purpose == self._info.purpose:
            raise UsageError("A strategy's request needs a purpose of its own, such as purpose='vote'.")
        sent = self.request if request is None else with_settings_of(self.request, request)
        return await self._send(sent, replace(self._info, purpose=purpose, note=""))

    def read(self, reply: ModelReply) -> Reading:
        """Read calls, answer and defects in a reply by the dialect in use."""
        reading = self._read(reply)
        if reply is self.reply:
            self._shown = reading
        return reading

    def read_answer(self, text: str) -> ContractReading:
        """Read an answer by the agent's contract."""
        return self._read_answer(text)

    def publish(self, reading: Reading) -> None:
        """Show subscribers the reading that counts, if another one was streamed."""
        if self._listener is not None and self._listener.published and reading is not self._shown:
            self._listener.discard()
            if reading.answer is not None:
                self._listener.replace(reading.answer)


def with_settings_of(own: ModelRequest, request: ModelRequest) -> ModelRequest:
    """Return a request with the settings of another one for what it leaves open."""
    names = ("temperature", "top_p", "max_tokens", "timeout")
    missing = {name: getattr(own, name) for name in names if getattr(request, name) is None}
    return replace(request, **missing, extra_body={**own.extra_body, **request.extra_body})


class AskOnce:
    """Send the turn's request, and take the reply. The default."""

    name = "once"
    version = "1"

    async def ask(self, turn: ModelTurn) -> Reading:
        return turn.read(await turn.send())


@dataclass(frozen=True)
class Majority:
    """Ask several times, and take what most replies say.

    Answers count as the same if the contract reads the same value in them. All replies with calls count as one choice,
    to act, and then the calls of the first one are made. The requests are sent one after the other, so that a server's
    prompt cache serves all but the first; they end once a majority is certain. A request that fails, or for which the
    budget has no room, is left out.

    Args:
        n: How many replies at most.
        temperature: Temperature of all requests but the first. None: as the agent's, or 0.7 if that is 0.

    Raises:
        UsageError: `n` is less than 1.
    """

    n: int = 3
    temperature: float | None = None

    name = "majority"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"Majority needs at least 1 reply, got n={self.n}.")

    @property
    def version(self) -> str:
        return f"1 n={self.n} temperature={self.temperature}"

    async def ask(self, turn: ModelTurn) -> Reading:
        groups: list[list[Reading]] = []
        _count(groups, turn.read(await turn.send()), turn)
        again = turn.request
        if self.temperature is not None or again.temperature == 0:
            again = replace(again, temperature=0.7 if self.temperature is None else self.temperature)
        for left in range(self.n - 1, 0, -1):
            largest, *others = sorted(map(len, groups), reverse=True)
            if largest > max(others, default=0) + left:
                break
            try:
                _count(groups, turn.read(await turn.send(again, purpose="vote")), turn)
            except (ModelError, LimitReached):
                break
        return max(groups, key=len)[0]


def _count(groups: list[list[Reading]], reading: Reading, turn: ModelTurn) -> None:
    """Add a reading to those that say the same."""
    for group in groups:
        if _same(group[0], reading, turn):
            group.append(reading)
            return
    groups.append([reading])


def _same(first: Reading, second: Reading, turn: ModelTurn) -> bool:
    if first.calls or second.calls:
        return bool(first.calls and second.calls)
    if first.answer is None or second.answer is None:
        return first.answer is second.answer
    one, other = turn.read_answer(first.answer), turn.read_answer(second.answer)
    if not (one.ok and other.ok):
        return one.ok == other.ok
    return one.value == other.value or normalised(one.text) == normalised(other.text)


@dataclass(frozen=True)
class CallFirst:
    """Call a tool with the task before the model is asked for the first time: a retrieval with the task's own words.

    Args:
        tool: The name of a tool of the agent that needs one text, such as `"search_documents"`.
        then: The strategy of all further turns.
    """

    tool: str
    then: Strategy = field(default_factory=AskOnce)

    name = "call-first"

    @property
    def version(self) -> str:
        return f"1 {self.tool} {self.then.name} {self.then.version}"

    async def ask(self, turn: ModelTurn) -> Reading:
        view = turn.view
        if view.steps or view.note:
            return await self.then.ask(turn)
        tool = next((tool for tool in view.tools if tool.name == self.tool), None)
        if tool is None:
            names = ", ".join(tool.name for tool in view.tools) or "none"
            raise UsageError(f"CallFirst({self.tool!r}): the agent has no such tool. Its tools: {names}.")
        parameter = only_text(tool)
        if parameter is None:
            raise UsageError(f"CallFirst needs a tool with one required text, but {self.tool} takes other arguments.")
        return Reading(calls=(ToolCall(self.tool, {parameter: turn.task}),))


@dataclass(frozen=True)
class RequireCall:
    """Accept no answer before the model has made a tool call.

    Requests with native tools demand a call (`tool_choice="required"`). If the reply is still an answer, the model is
    asked again. After the first turn with calls, the model may answer.

    Args:
        then: The strategy that sends the requests.
    """

    then: Strategy = field(default_factory=AskOnce)

    name = "require-call"

    @property
    def version(self) -> str:
        return f"1 {self.then.name} {self.then.version}"

    async def ask(self, turn: ModelTurn) -> Reading:
        if turn.view.steps or not turn.view.tools:
            return await self.then.ask(turn)
        if turn.request.tools:
            turn.request = replace(turn.request, tool_choice="required")
        reading = await self.then.ask(turn)
        if reading.calls or reading.defects or reading.ends:
            return reading
        return replace(reading, defects=(Defect("no_call", "Call a tool before you answer."),))
