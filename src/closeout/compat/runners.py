"""Chain-of-thought and function-call runners: a conversation over several questions, in one dialect each.

The Orchestrator runs the loop and the dialects write the prompts; a runner keeps the conversation between questions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from closeout.agent import Agent
from closeout.dialects.cot import AgentScratchpadUnit, CotChat, CotCompletion, scratchpad_text, step_units
from closeout.dialects.function_call import FunctionCall
from closeout.dialects.prompts import PartlyFilled
from closeout.dialects.protocol import Dialect, HistoryView, get_dialect
from closeout.dialects.text_chat import conversation, fit_history, historic_prompt
from closeout.errors import UsageError
from closeout.journal.events import TurnAccepted
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolSpec
from closeout.parsing.readers import Reader
from closeout.results.tokens import count_tokens
from closeout.run.subagents import as_tool

if TYPE_CHECKING:
    from closeout.journal.events import Event
    from closeout.journal.subscribers import Progress
    from closeout.run.result import RunResult

__all__ = [
    "AppRunner",
    "BaseAgentRunner",
    "CotAgentRunner",
    "CotChatAgentRunner",
    "CotCompletionAgentRunner",
    "FunctionCallAgentRunner",
]

_LATER_SLOTS = ("historic_messages", "query", "agent_scratchpad")
_HOOKS = ("_organize_prompt_messages", "_organize_instruction_prompt", "_organize_historic_prompt")


class AppRunner(ABC):
    """The root of the runners: it takes a query and yields the events of its run."""

    _result: RunResult | None = None

    @abstractmethod
    def run(self, query: str, **options: Any) -> AsyncIterator[Event | Progress]:
        """Run one query and yield the events of the run as they happen. Afterwards `result` is set."""

    @property
    def result(self) -> RunResult:
        """The result of the last run.

        Raises:
            UsageError: No run has ended yet.
        """
        if self._result is None:
            raise UsageError("No run has ended yet: iterate over runner.run(…) first.")
        return self._result


class BaseAgentRunner(AppRunner):
    """A conversation with an agent in one dialect.

    A subclass may override `_organize_prompt_messages`, and a chain-of-thought runner also
    `_organize_instruction_prompt` and `_organize_historic_prompt`: what they return is sent to the model. `super()`
    keeps the answer's form and all tools in the prompt.

    Args:
        model: As for `Agent`.
        tools: As for `Agent`.
        instruction: What the agent should know.
        history: The conversation so far, messages in the OpenAI shape. Every question is added to it, with its steps
            and its answer.
        history_budget: Tokens of history in a prompt; whole oldest turns are left out to keep to it.
        prompts: Templates by name, in place of the package's. `first_prompt` and `next_iteration` are those of the
            runner's own dialect.
        agent: Use this agent. Its own settings and prompts hold, and the methods above are not called.
        options: Other arguments of `Agent`.
    """

    dialect: ClassVar[str]

    def __init__(
        self,
        model: Any = "local",
        tools: Sequence[Callable[..., Any]] = (),
        instruction: str = "",
        *,
        history: Sequence[Mapping[str, Any]] = (),
        history_budget: int | None = None,
        prompts: Mapping[str, str] | None = None,
        agent: Agent | None = None,
        **options: Any,
    ) -> None:
        self._model = model
        self._tools = [as_tool(each) for each in tools]
        self._instruction = instruction
        self._history: list[Message] = list(map(Message.of, history))
        self._history_budget = history_budget
        self._prompts = {
            self.dialect if name == "first_prompt" else name: text for name, text in (prompts or {}).items()
        }
        self._agent = agent
        self._options = options
        self._query = ""
        self._agent_scratchpad: list[AgentScratchpadUnit] = []
        self._prompt_messages_tools: list[ToolSpec] = sorted((each.spec for each in self._tools), key=lambda s: s.name)
        self._steps: list[Step] = []
        self._last_turn: list[Message] = []  # of the run that ended last; history once the next one begins
        self._request: tuple[HistoryView, Capabilities] | None = None  # the request that is being organized

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation so far, with every step and answer."""
        return (*self._history, *self._last_turn)

    async def run(self, query: str, **options: Any) -> AsyncIterator[Event | Progress]:
        """Run one question and yield the events of the run as they happen. The options are those of `Agent.run`.

        Afterwards `result` is set, and `history` has grown by the question, the steps and the answer.
        """
        self._history += self._last_turn
        self._query, self._agent_scratchpad, self._steps, self._last_turn = query, [], [], []
        stream = self._make_agent().stream(query, history=self._organize_historic_prompt_messages(), **options)
        async for event in stream:
            if isinstance(event, TurnAccepted) and event.agent == "main":
                self._accept(event)
            yield event
        self._result = stream.result
        self._remember(stream.result)

    def _accept(self, event: TurnAccepted) -> None:
        if not event.calls:
            return  # the answer, which the result holds
        self._steps.append(event.step())
        self._agent_scratchpad = _units(self._steps)

    def _remember(self, result: RunResult) -> None:
        answer = result.closing_text or result.answer or ""
        self._agent_scratchpad.append(AgentScratchpadUnit(agent_response=answer))
        view = HistoryView("", self._query, steps=tuple(self._steps))
        self._last_turn = [
            *FunctionCall().render(view, Capabilities()).messages,
            Message(role="assistant", content=answer),
        ]

    def _make_agent(self) -> Agent:
        if self._agent is not None:
            return self._agent
        config = dict(self._options.get("config") or {})
        config["prompts"] = {**config.get("prompts", {}), **self._prompts}
        options = {"dialect": self._own_dialect(), **self._options, "config": config}
        return Agent(self._model, self._tools, instructions=self._instruction or None, **options)

    def _own_dialect(self) -> str | Dialect:
        """The dialect's name, or if a subclass overrides a method, a dialect that calls it."""
        return _RunnerDialect(self) if any(map(self._overrides, _HOOKS)) else self.dialect

    def _overrides(self, method: str) -> bool:
        """True if a subclass outside this module has its own form of a method."""
        return bool(getattr(getattr(type(self), method, None), "__module__", __name__) != __name__)

    # ------------------------------------------------------------------------------------------ prompts

    def _organize_historic_prompt_messages(
        self, current_session_messages: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Message, ...]:
        """The conversation so far, or the one given, in whole turns: as many of the newest as the budget allows."""
        messages = self._history if current_session_messages is None else current_session_messages
        return fit_history(messages, self._history_budget, count_tokens)

    @abstractmethod
    def _organize_prompt_messages(self) -> list[Message]:
        """The messages of the next request."""

    def _own_prompts(self) -> dict[str, str]:
        """Templates that the overridden methods of a subclass replace."""
        return {}

    def _organize_request(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        """Write a request of a run with the runner's methods."""
        self._request = view, capabilities
        self._agent_scratchpad = _units(view.steps)
        try:
            messages = self._organize_prompt_messages()
            request = self._render()
        finally:
            self._request = None
        hint = "\n\n".join(text for text in (view.note, view.closing) if text)
        if hint and hint not in "\n\n".join(message.text for message in messages[-2:]):
            messages = [*messages, Message(role="user", content=hint)]  # a rollback must change the request
        if request.prompt is not None:
            return replace(request, prompt="\n\n".join(message.text for message in messages))
        if messages == request.messages:
            return request
        return replace(request, messages=messages, breakpoints=())

    def _render(self) -> ModelRequest:
        """The request of a run as the dialect writes it with the runner's prompts."""
        assert self._request is not None
        return get_dialect(self.dialect, {**self._prompts, **self._own_prompts()}).render(*self._request)

    def _rendered_messages(self) -> list[Message]:
        request = self._render()
        if request.prompt is not None:
            return [Message(role="user", content=request.prompt)]
        return list(request.messages)

    def _view(self, steps: Sequence[Step] = ()) -> HistoryView:
        """The model's view: in a run its own, with the answer's form and all tools; else what is known."""
        if self._request is not None:
            return self._request[0]
        return HistoryView(
            self._instruction,
            self._query,
            tools=tuple(self._prompt_messages_tools),
            steps=tuple(steps),
            earlier=self._organize_historic_prompt_messages(),
        )

    @property
    def _weak(self) -> bool:
        """True if the model needs worked examples."""
        return self._request is not None and self._request[1].weak


class CotAgentRunner(BaseAgentRunner):
    """A runner for models that write `Thought / Action / Final Answer`. Subclasses say how prompts are put together."""

    @abstractmethod
    def _organize_instruction_prompt(self) -> str:
        """The first prompt with `{{instruction}}`, `{{tools}}` and `{{tool_names}}` filled."""

    def _organize_historic_prompt(
        self,
        messages: Sequence[Mapping[str, Any]] | None = None,
        *,
        current_session_messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as text: `Question: …` for the user's part, `Final Answer: …` for the assistant's answers.

        `messages` replaces the conversation so far, under either name.
        """
        replaced = current_session_messages if messages is None else messages
        return historic_prompt(self._organize_historic_prompt_messages() if replaced is None else replaced)

    def _own_prompts(self) -> dict[str, str]:
        if not self._overrides("_organize_instruction_prompt"):
            return {}
        return {self.dialect: _as_template(self._organize_instruction_prompt())}


class CotChatAgentRunner(CotAgentRunner):
    """The runner for chat models."""

    dialect = "cot_chat"

    def _organize_instruction_prompt(self) -> str:
        return CotChat(self._prompts).system_text(self._view(), weak=self._weak)

    def _organize_prompt_messages(self) -> list[Message]:
        """In a run, what the dialect writes. Else system, history, question, and the scratchpad as one message."""
        if self._request is not None:
            return self._rendered_messages()
        messages = [Message(role="system", content=self._organize_instruction_prompt())]
        messages += conversation(self._organize_historic_prompt_messages())
        messages.append(Message(role="user", content=self._query))
        if self._agent_scratchpad:
            messages.append(Message(role="assistant", content=scratchpad_text(self._agent_scratchpad).rstrip()))
            messages.append(Message(role="user", content=CotChat(self._prompts).continue_text()))
        return messages


class CotCompletionAgentRunner(CotAgentRunner):
    """The runner for completion endpoints."""

    dialect = "cot_completion"

    def _organize_instruction_prompt(self) -> str:
        return CotCompletion(self._prompts).instruction_prompt(self._view(), weak=self._weak)

    def _organize_prompt_messages(self) -> list[Message]:
        """One user message: instruction, history, question and scratchpad, ending in `Thought:`."""
        if self._request is not None:
            return self._rendered_messages()
        dialect = CotCompletion({**self._prompts, **self._own_prompts()})
        prompt = dialect.prompt(self._view(), scratchpad_text(self._agent_scratchpad or ()))
        return [Message(role="user", content=prompt)]

    def _own_prompts(self) -> dict[str, str]:
        prompts = super()._own_prompts()
        if self._overrides("_organize_historic_prompt"):
            text = prompts.get(self.dialect) or _as_template(self._organize_instruction_prompt())
            history = _literal(self._organize_historic_prompt())
            prompts[self.dialect] = PartlyFilled(text.replace("{{historic_messages}}", history))
        return prompts


class FunctionCallAgentRunner(BaseAgentRunner):
    """The runner for models with native tool calls."""

    dialect = "function_call"

    def _organize_prompt_messages(self) -> list[Message]:
        """System, history, the question, and the steps as calls with their results."""
        if self._request is not None:
            return self._rendered_messages()
        return list(FunctionCall(self._prompts).render(self._view(self._steps), Capabilities()).messages)


class _RunnerDialect:
    """A runner's dialect with the prompts that the runner's methods organize."""

    def __init__(self, runner: BaseAgentRunner) -> None:
        self._runner = runner
        self._dialect = get_dialect(runner.dialect)

    @property
    def name(self) -> str:
        return self._dialect.name

    @property
    def parallel_calls(self) -> bool:
        return self._dialect.parallel_calls

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        return self._runner._organize_request(view, capabilities)

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        return self._dialect.reader(tools)


def _units(steps: Sequence[Step]) -> list[AgentScratchpadUnit]:
    return [unit for step in steps for unit in step_units(step)]


def _as_template(text: str) -> str:
    """Return a template that renders to a text; slots that are filled later stay slots."""
    parts = [text]
    for slot in _LATER_SLOTS:
        mark = f"{{{{{slot}}}}}"
        head, found, tail = parts[-1].partition(mark)
        if found:
            parts[-1:] = [head, mark, tail]
    return PartlyFilled("".join(part if part[2:-2] in _LATER_SLOTS else _literal(part) for part in parts))


def _literal(text: str) -> str:
    """Return a Jinja expression for exactly this text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"{{{{ '{escaped}' }}}}" if text else ""
