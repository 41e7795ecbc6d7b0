"""Chain-of-thought and function-call runners: a conversation led question by question, in one dialect each.

The loop is the Orchestrator's and the prompts are the dialects'; a runner holds the conversation between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from closeout.dialects.cot_chat import CotChat
from closeout.dialects.cot_completion import CotCompletion
from closeout.dialects.function_call import FunctionCall
from closeout.dialects.protocol import HistoryView
from closeout.dialects.scratchpad import (
    AgentScratchpadUnit,
    conversation,
    fit_history,
    historic_prompt,
    scratchpad_text,
    step_units,
)
from closeout.errors import UsageError
from closeout.journal.events import TurnAccepted
from closeout.messages import Capabilities, Message, Step, ToolSpec
from closeout.orchestrator.subagents import as_tool
from closeout.outputs.tokens import count_tokens

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.journal.events import Event
    from closeout.journal.journal import Progress
    from closeout.orchestrator.result import RunResult

__all__ = [
    "BaseAgentRunner",
    "CotAgentRunner",
    "CotChatAgentRunner",
    "CotCompletionAgentRunner",
    "FunctionCallAgentRunner",
]

_LATER_SLOTS = ("historic_messages", "query", "agent_scratchpad")


class BaseAgentRunner(ABC):
    """A conversation with an agent in one dialect.

    model, tools, and any other argument of `Agent` by keyword. `instruction`: what the agent is to know. `history`:
    the conversation so far, messages in the OpenAI shape; runs of this runner are added to it, with every step and the
    answer. `history_budget`: tokens; whole oldest turns are left out to keep to it. `prompts`: templates by name, which
    replace the package's; `first_prompt` and `next_iteration` are those of the runner's own dialect. `agent`: use this
    agent, whose own settings then hold.
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
        self._result: RunResult | None = None

    @property
    def result(self) -> RunResult:
        """How the last run ended. Raises UsageError before that."""
        if self._result is None:
            raise UsageError("No run has ended yet: iterate over runner.run(…) first.")
        return self._result

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation so far, every step and answer in it."""
        return (*self._history, *self._last_turn)

    async def run(self, query: str, **options: Any) -> AsyncIterator[Event | Progress]:
        """Lead one question to its end, yielding the events of the run as they happen. Options are `Agent.run`'s.

        Afterwards `result` is there, and `history` has grown by the question, the steps and the answer.
        """
        self._history += self._last_turn
        self._query, self._agent_scratchpad, self._steps, self._last_turn = query, [], [], []
        stream = self._made_agent().stream(query, history=self._organize_historic_prompt_messages(), **options)
        async for event in stream:
            if isinstance(event, TurnAccepted) and event.agent == "main":
                self._accept(event)
            yield event
        self._result = stream.result
        self._remember(stream.result)

    def _accept(self, event: TurnAccepted) -> None:
        calls = event.tool_calls()
        if not calls:
            return  # the answer, which the result holds
        step = Step(event.turn, event.text, calls, event.tool_returns(calls), event.reasoning, event.raw)
        self._steps.append(step)
        self._agent_scratchpad += step_units(step)

    def _remember(self, result: RunResult) -> None:
        answer = result.final_summary or result.answer or ""
        self._agent_scratchpad.append(AgentScratchpadUnit(agent_response=answer))
        view = HistoryView("", self._query, steps=tuple(self._steps))
        self._last_turn = [
            *FunctionCall().render(view, Capabilities()).messages,
            Message(role="assistant", content=answer),
        ]

    def _made_agent(self) -> Agent:
        if self._agent is not None:
            return self._agent
        config = dict(self._options.get("config") or {})
        config["prompts"] = {**config.get("prompts", {}), **self._prompts, **self._own_prompts()}
        options = {**self._options, "config": config}
        # The front door is a layer above; it is looked up when a run begins, so that no module depends upwards.
        agent = import_module("closeout.agent").Agent
        made: Agent = agent(
            self._model, self._tools, dialect=self.dialect, instructions=self._instruction or None, **options
        )
        return made

    def _own_prompts(self) -> dict[str, str]:
        """Templates that a subclass's own methods stand for."""
        return {}

    def _organize_historic_prompt_messages(
        self, current_session_messages: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Message, ...]:
        """The conversation so far, or the one given, in whole turns, as many of the newest as the budget allows."""
        messages = self._history if current_session_messages is None else current_session_messages
        return fit_history(messages, self._history_budget, count_tokens)

    def _view(self, steps: Sequence[Step] = ()) -> HistoryView:
        return HistoryView(
            self._instruction,
            self._query,
            tuple(self._prompt_messages_tools),
            tuple(steps),
            self._organize_historic_prompt_messages(),
        )

    @abstractmethod
    def _organize_prompt_messages(self) -> list[Message]:
        """The messages of the next request."""


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
        """The conversation as text: `Question: …` for the user's part, the assistant's as it is; text parts only.

        `messages` instead of the conversation so far, by either name.
        """
        given = current_session_messages if messages is None else messages
        return historic_prompt(self._organize_historic_prompt_messages() if given is None else given)

    def _overrides(self, method: str) -> bool:
        """Whether a subclass outside this module has its own form of a method."""
        return bool(getattr(type(self), method).__module__ != __name__)

    def _own_prompts(self) -> dict[str, str]:
        if not self._overrides("_organize_instruction_prompt"):
            return {}
        return {self.dialect: _as_template(self._organize_instruction_prompt())}


class CotChatAgentRunner(CotAgentRunner):
    """The runner for chat models."""

    dialect = "cot_chat"

    def _organize_instruction_prompt(self) -> str:
        return CotChat(self._prompts).system_text(self._view(), weak=False)

    def _organize_prompt_messages(self) -> list[Message]:
        """System, history, the question; then the scratchpad as an assistant message and a short one to go on."""
        messages = [Message(role="system", content=self._organize_instruction_prompt())]
        messages += conversation(self._organize_historic_prompt_messages())
        messages.append(Message(role="user", content=self._query))
        if self._agent_scratchpad:
            messages.append(Message(role="assistant", content=scratchpad_text(self._agent_scratchpad).rstrip()))
            messages.append(Message(role="user", content=CotChat(self._prompts).go_on()))
        return messages


class CotCompletionAgentRunner(CotAgentRunner):
    """The runner for completion endpoints."""

    dialect = "cot_completion"

    def _organize_instruction_prompt(self) -> str:
        return CotCompletion(self._prompts).instruction_prompt(self._view())

    def _organize_prompt_messages(self) -> list[Message]:
        """One user message: instruction, history, question and scratchpad, ending in `Thought:`."""
        dialect = CotCompletion({**self._prompts, **self._own_prompts()})
        prompt = dialect.prompt(self._view(), scratchpad_text(self._agent_scratchpad or ()))
        return [Message(role="user", content=prompt)]

    def _own_prompts(self) -> dict[str, str]:
        prompts = super()._own_prompts()
        if self._overrides("_organize_historic_prompt"):
            text = prompts.get(self.dialect) or _as_template(self._organize_instruction_prompt())
            prompts[self.dialect] = text.replace("{{historic_messages}}", _literal(self._organize_historic_prompt()))
        return prompts


class FunctionCallAgentRunner(BaseAgentRunner):
    """The runner for models with native tool calls."""

    dialect = "function_call"

    def _organize_prompt_messages(self) -> list[Message]:
        """System, history, the question, and the steps as calls with their results."""
        return list(FunctionCall(self._prompts).render(self._view(self._steps), Capabilities()).messages)


def _as_template(text: str) -> str:
    """Text as a template that renders to it; slots that are filled later stay slots."""
    parts = [text]
    for slot in _LATER_SLOTS:
        mark = f"{{{{{slot}}}}}"
        head, found, tail = parts[-1].partition(mark)
        if found:
            parts[-1:] = [head, mark, tail]
    return "".join(part if part[2:-2] in _LATER_SLOTS else _literal(part) for part in parts)


def _literal(text: str) -> str:
    """A Jinja expression for exactly this text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"{{{{ '{escaped}' }}}}" if text else ""
