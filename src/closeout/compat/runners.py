"""Chain-of-thought and function-call runners: a conversation over several questions, in one dialect each.

The loop of a run asks the model and the dialects write the prompts; a runner keeps the conversation between questions.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from closeout.agent import Agent
from closeout.codec import shared_items
from closeout.compat import HOOKS, REPLY, REQUEST, check_methods
from closeout.compat.tool_executor import SingleCall, ToolExecutor
from closeout.config import load_config
from closeout.dialects.cot import (
    PRIMER,
    AgentScratchpadUnit,
    CotChat,
    CotCompletion,
    MakeParser,
    scratchpad_text,
    step_units,
)
from closeout.dialects.function_call import FunctionCall
from closeout.dialects.prompts import PartlyFilled, Prompts, tools_json
from closeout.dialects.protocol import Dialect, HistoryView, get_dialect
from closeout.dialects.text_chat import conversation, fit_history, historic_prompt
from closeout.errors import ConfigError, Suspended, UsageError
from closeout.journal.events import TurnAccepted
from closeout.messages import Capabilities, Message, ModelReply, ModelRequest, Reading, Step, ToolCall, ToolSpec
from closeout.overrides import failure_of, method_of, returned, text_from
from closeout.parsing.readers import Reader
from closeout.results.tokens import count_tokens
from closeout.run.subagents import as_tool
from closeout.tools.foreign import tool_manager
from closeout.tools.manager import ToolManager

if TYPE_CHECKING:
    from closeout.journal.events import Event
    from closeout.journal.subscribers import Progress
    from closeout.run.result import RunResult

__all__ = [
    "AppRunner",
    "AssistantPromptMessage",
    "BaseAgentRunner",
    "CotAgentRunner",
    "CotChatAgentRunner",
    "CotCompletionAgentRunner",
    "FunctionCallAgentRunner",
    "PromptMessage",
    "SystemPromptMessage",
    "TextPromptMessageContent",
    "UserPromptMessage",
]

S = TypeVar("S")
T = TypeVar("T")

_LATER_SLOTS = ("historic_messages", "query", "agent_scratchpad")
_SLOT = re.compile(r"\{\{\s*(?:instruction|tools|tool_names|historic_messages|query|agent_scratchpad)\s*\}\}")
# Hooks that a run calls through the runner as its dialect.
_OF_DIALECT = tuple(
    name
    for kind in ("BaseAgentRunner", "CotAgentRunner", "CotChatAgentRunner")
    for name, called_for in HOOKS[kind].items()
    if called_for in (REQUEST, REPLY)
)
_OF_AGENT = frozenset(("stream", "resume", "session", "map", "submit", "fork", "as_tool"))
# Calls a tool by its name from the thread of `_handle_invoke_action`.
_invoke: ContextVar[Callable[[str, Any], Any]] = ContextVar("closeout_invoke")


class TextPromptMessageContent(dict[str, Any]):
    """A text part of a message's content: `TextPromptMessageContent(data="…")`."""

    def __init__(self, data: str) -> None:
        super().__init__(type="text", text=data)

    @property
    def data(self) -> str:
        return str(self["text"])


class PromptMessage(Message):
    """A message of a prompt. In a content that is a list, text parts are `TextPromptMessageContent`."""

    __slots__ = ()
    role_of_class: ClassVar[str] = ""

    def __init__(self, *args: Any, **keys: Any) -> None:
        role = {"role": self.role_of_class} if self.role_of_class else {}
        super().__init__(*args, **{**role, **keys})

    @classmethod
    def typed(cls, message: Mapping[str, Any]) -> PromptMessage:
        """Return a message as the class of its role."""
        if isinstance(message, PromptMessage):
            return message
        return _OF_ROLE.get(str(message.get("role", "")), PromptMessage)(message)

    @property
    def content(self) -> Any:
        content = self.get("content")
        return list(map(_typed_part, content)) if isinstance(content, list) else content


def _typed_part(part: Any) -> Any:
    is_text = isinstance(part, dict) and part.get("type") == "text"
    return TextPromptMessageContent(str(part.get("text") or "")) if is_text else part


class SystemPromptMessage(PromptMessage):
    """A message of the role `system`: `SystemPromptMessage(content="…")`."""

    __slots__ = ()
    role_of_class = "system"


class UserPromptMessage(PromptMessage):
    """A message of the role `user`: `UserPromptMessage(content="…")`."""

    __slots__ = ()
    role_of_class = "user"


class AssistantPromptMessage(PromptMessage):
    """A message of the role `assistant`: `AssistantPromptMessage(content="…")`."""

    __slots__ = ()
    role_of_class = "assistant"


_OF_ROLE = {kind.role_of_class: kind for kind in (SystemPromptMessage, UserPromptMessage, AssistantPromptMessage)}


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

    A subclass may override `_organize_prompt_messages` and `_organize_historic_prompt_messages`, and a chain-of-thought
    runner also `_organize_instruction_prompt` and `_organize_historic_prompt`: what they return is sent to the model.
    While they are called, `_query`, `_instruction`, `_prompt_messages_tools` and `_agent_scratchpad` are those of the
    request: with the texts of files, the answer's form, and all tools.

    `agent` runs the same prompts without the runner's conversation: `runner.resume(…)`, `.session(…)`, `.map(…)` and
    `.as_tool(…)` are those of `runner.agent`. A runner is also a `Dialect`, so another agent can use its prompts:
    `Agent(dialect=MyRunner())`.

    Args:
        model: As for `Agent`.
        tools: As for `Agent`.
        instruction: What the agent should know.
        history: The conversation so far, messages in the OpenAI shape. Every question is added to it, with its steps
            and its answer.
        history_budget: Tokens of history in a prompt; whole oldest turns are left out to keep to it.
        prompts: Templates by name, in place of the package's. `first_prompt` and `next_iteration` are those of the
            runner's own dialect.
        markers: Words that are read as markers beside the English ones: `{"action": ["行动"]}`.
        output_parser: A subclass of `CotAgentOutputParser`, which reads the replies.
        agent: Use this agent, with its own model, tools and settings. What the runner changes (overridden methods,
            `prompts`, `markers`, `output_parser`) holds, and then so does the runner's dialect.
        options: Other arguments of `Agent`.
    """

    dialect: ClassVar[str] = "function_call"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_methods(cls)

    def __init__(
        self,
        model: Any = "local",
        tools: Any = (),
        instruction: str = "",
        *,
        history: Sequence[Mapping[str, Any]] = (),
        history_budget: int | None = None,
        prompts: Mapping[str, str] | None = None,
        markers: Mapping[str, Sequence[str]] | None = None,
        output_parser: MakeParser | None = None,
        agent: Agent | None = None,
        **options: Any,
    ) -> None:
        self._model = model
        self._tools = tool_manager(tools) or [as_tool(each) for each in tools]
        self._instruction = instruction
        self._history: list[Message] = list(map(Message.of, history))
        self._history_budget = history_budget
        self._given_agent = agent
        self._changes_agent = bool(prompts or markers or output_parser)
        self._config = load_config(options.pop("config", None)) if agent is None else agent.config
        given = {**self._config.prompts, **(prompts or {})}
        self._prompts = {self.dialect if name == "first_prompt" else name: text for name, text in given.items()}
        self._markers: dict[str, Sequence[str]] = {**self._config.markers, **(markers or {})}  # type: ignore[dict-item]
        self._output_parser = output_parser
        self._options = options
        self._template, self._inputs = instruction, dict[str, Any]()
        self._query = ""
        self._agent_scratchpad: list[AgentScratchpadUnit] = []
        specs = self._tools.specs() if isinstance(self._tools, ToolManager) else [each.spec for each in self._tools]
        self._prompt_messages_tools: list[ToolSpec] = sorted(specs, key=lambda spec: spec.name)
        self._steps: list[Step] = []
        self._last_turn: list[Message] = []  # what the previous run ended with; history in the next run
        self._request: tuple[HistoryView, Capabilities] | None = None  # the request that is being organized
        self._rendered: ModelRequest | None = None  # the request that the dialect wrote
        self._writer: tuple[Mapping[str, str], Dialect] | None = None  # the dialect, and the templates that it has
        self._units: _MadeOnce[Step, list[AgentScratchpadUnit]] = _MadeOnce(lambda step: [*step_units(step)])
        self._typed: _MadeOnce[Message, PromptMessage] = _MadeOnce(PromptMessage.typed)

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation so far, with every step and answer."""
        return (*self._history, *self._last_turn)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_AGENT:
            return getattr(self.agent, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def run(
        self, query: str, *, inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Event | Progress]:
        """Run one question and yield the events of the run as they happen. The options are those of `Agent.run`.

        `inputs` replace `{{name}}` in the instruction. Afterwards `result` is set, and `history` has grown by the
        question, the steps and the answer.
        """
        self._history += self._last_turn
        self._steps, self._last_turn, self._inputs = [], [], dict(inputs or {})
        self._init_react_state(query)
        stream = self.agent.stream(query, history=self._fitting(self._history), **options)
        async for event in stream:
            if isinstance(event, TurnAccepted) and event.agent == "main":
                self._accept(event)
            yield event
        self._result = stream.result
        self._remember(query, stream.result)

    def run_sync(self, query: str, **options: Any) -> RunResult:
        """Run one question from code that is not async. The options are those of `Agent.run`."""

        async def whole() -> None:
            async for _ in self.run(query, **options):
                pass

        asyncio.run(whole())
        return self.result

    def _init_react_state(self, query: str) -> None:
        """Begin a question."""
        self._query, self._agent_scratchpad = query, []

    def _fill_in_inputs_from_external_data_tools(self, instruction: str, inputs: Mapping[str, Any]) -> str:
        """The instruction of a run, with its inputs."""
        for name, value in inputs.items():
            instruction = instruction.replace(f"{{{{{name}}}}}", str(value))
        return instruction

    def _handle_invoke_action(
        self, action: AgentScratchpadUnit.Action, tool_instances: Any, message_file_ids: Any, trace_manager: Any = None
    ) -> tuple[Any, Any]:
        """The observation of an action, and what is known of the call. An override is called in a thread."""
        found = _invoke.get()(action.action_name, action.action_input)
        return found.get("result", found.get("error")), found

    def _accept(self, event: TurnAccepted) -> None:
        if not event.calls:
            return  # the answer, which the result holds
        self._steps.append(event.step())
        self._agent_scratchpad = [*chain.from_iterable(self._units.of(self._steps))]

    def _remember(self, query: str, result: RunResult) -> None:
        answer = result.closing_text or result.answer or ""
        self._agent_scratchpad.append(AgentScratchpadUnit(agent_response=answer))
        view = HistoryView("", query, steps=tuple(self._steps))
        self._last_turn = [
            *FunctionCall().render(view, Capabilities()).messages,
            Message(role="assistant", content=answer),
        ]

    @cached_property
    def agent(self) -> Agent:
        """The agent that the runner runs. What it runs by itself is not part of the runner's conversation."""
        given, calls_methods = self._given_agent, any(map(self._overrides, _OF_DIALECT))
        if given is not None:
            for name in ("_fill_in_inputs_from_external_data_tools", "_handle_invoke_action"):
                if self._overrides(name):
                    raise UsageError(f"{type(self).__name__}.{name} is not called with agent=. Pass its parts.")
            if not (calls_methods or self._changes_agent):
                return given
            self._output_parser = self._output_parser or given.plan().spec.output_parser
            return given.with_dialect(self)
        reading: dict[str, Any] = {"dialect": self.dialect, "output_parser": self._output_parser}
        if calls_methods:
            reading = {"dialect": self}
        config = self._config.model_copy(update={"prompts": self._prompts, "markers": self._markers})
        instructions: Any = self._template or None
        if "{{" in self._template or self._overrides("_fill_in_inputs_from_external_data_tools"):
            instructions = self._filled
        options = {**reading, **self._options}
        if self._overrides("_handle_invoke_action"):
            options["tool_executor"] = self._invoking(options.get("tool_executor") or ToolExecutor)
        return Agent(self._model, self._tools, instructions=instructions, **options, config=config)

    def _invoking(self, kind: Any) -> Callable[..., ToolExecutor]:
        """An executor class whose calls `_handle_invoke_action` makes."""
        if not isinstance(kind, type):
            raise UsageError(f"With _handle_invoke_action, tool_executor must be a class, got {kind!r:.80}.")
        return type(kind.__name__, (_Invoking, kind), {"runner": self})

    def _filled(self, _: Any) -> str:
        return self._fill_in_inputs_from_external_data_tools(self._template, self._inputs)

    def _overrides(self, method: str) -> bool:
        """True if a subclass outside this module has its own form of a method."""
        return bool(getattr(getattr(type(self), method, None), "__module__", __name__) != __name__)

    # ------------------------------------------------------------------------------------------ prompts

    @property
    def app_config(self) -> SimpleNamespace:
        """The prompts, as `app_config.agent.prompt.first_prompt` and `.next_iteration`.

        `first_prompt` is text with the slots `{{instruction}}`, `{{tools}}` and so on, to be replaced.
        """
        prompt = SimpleNamespace(
            first_prompt=self._first_prompt(), next_iteration=Prompts(self._prompts).source("next_iteration")
        )
        return SimpleNamespace(agent=SimpleNamespace(prompt=prompt))

    def _first_prompt(self) -> str:
        """The dialect's template, rendered so that only its slots are left."""
        return Prompts(self._prompts).render(self.dialect, instruction="{{instruction}}")

    def _organize_historic_prompt_messages(
        self, current_session_messages: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Message, ...]:
        """The conversation so far, or the one given, in whole turns: as many of the newest as the budget allows."""
        messages = current_session_messages
        if messages is None:
            messages = self._history if self._request is None else self._request[0].earlier
        return tuple(map(PromptMessage.typed, self._fitting(messages)))

    def _fitting(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        return fit_history(messages, self._history_budget, count_tokens)

    @abstractmethod
    def _organize_prompt_messages(self) -> list[PromptMessage]:
        """The messages of the next request."""

    def _own_prompts(self) -> dict[str, str]:
        """Templates that the overridden methods of a subclass replace."""
        return {}

    def _own_earlier(self) -> Sequence[Mapping[str, Any]] | None:
        """The earlier messages that the overridden methods of a subclass write."""
        own = self._overrides("_organize_historic_prompt_messages")
        return self._organize_historic_prompt_messages() if own else None

    # ------------------------------------------------------------------------------------------ the dialect

    @property
    def name(self) -> str:
        """The name of the runner's dialect."""
        return self.dialect

    @property
    def parallel_calls(self) -> bool:
        """True if one reply may hold several calls."""
        return self._make_dialect().parallel_calls

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Make a reader for one reply."""
        reader = self._make_dialect().reader(tools)
        return _Converting(reader, self) if self._overrides("_convert_dict_to_action") else reader

    def _convert_dict_to_action(self, action: dict[str, Any]) -> AgentScratchpadUnit.Action:
        """The action of an object that the model wrote: `{"action": …, "action_input": …}`."""
        return AgentScratchpadUnit.Action(action["action"], action["action_input"])

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        """Write a request of a run with the runner's methods."""
        self._query, self._instruction = view.question, view.instructions
        self._prompt_messages_tools = list(view.tools)
        self._agent_scratchpad = [*chain.from_iterable(self._units.of(view.steps))]
        self._request, self._rendered = (view, capabilities), None
        try:
            messages = self._organize_prompt_messages()
            is_list = isinstance(messages, list | tuple)
            if not is_list or not all(issubclass(kind, Message) for kind in set(map(type, messages))):
                name = f"{type(self).__name__}._organize_prompt_messages"
                raise UsageError(f"{name} must return a list of PromptMessages, got {messages!r:.80}.")
            messages = [*messages]
            request = self._rendered or self._writing(self._prompts).render(view, capabilities)
            if not view.steps:
                self._check_prompt(messages, view)
        except Exception as error:
            error.add_note(f"{method_of(self, '_organize_prompt_messages', error)} raised it.")
            raise
        finally:
            self._request = None
        hint = "\n\n".join(text for text in (view.note, view.closing) if text)
        if hint and hint not in "\n\n".join(message.text for message in messages[-2:]):
            messages = [*messages, UserPromptMessage(content=hint)]  # a rollback must change the request
        if request.prompt is not None:
            return replace(request, prompt="\n\n".join(message.text for message in messages))
        if request.messages == messages:
            return request
        return replace(request, messages=messages, breakpoints=())

    def _check_prompt(self, messages: Sequence[Message], view: HistoryView) -> None:
        """Raise ConfigError for a first request that a subclass has left incomplete."""
        if not any(map(self._overrides, _OF_DIALECT)):
            return
        text, name = "\n".join(message.text for message in messages), type(self).__name__
        known = "\n".join((view.instructions, view.question, *(Message.of(each).text for each in view.earlier)))
        known += tools_json(view.tools)
        if slot := next((each for each in _SLOT.findall(text) if each not in known), None):
            raise ConfigError(f"The prompt of {name} still holds the slot {slot}. Replace it with its value.")
        if " ".join(view.question.split()) not in " ".join(text.split()):
            raise ConfigError(f"The prompt of {name} lacks the question. Put self._query into it.")

    def _make_dialect(self, prompts: Mapping[str, str] | None = None) -> Dialect:
        return get_dialect(self.dialect, prompts, markers=self._markers, parser=self._output_parser)

    def _rendered_messages(self) -> list[PromptMessage]:
        """The messages of the request of a run, as the dialect writes it with the runner's prompts."""
        assert self._request is not None
        view, capabilities = self._request
        if (earlier := self._own_earlier()) is not None:
            view = replace(view, earlier=tuple(map(Message.of, earlier)))
        request = self._rendered = self._writing({**self._prompts, **self._own_prompts()}).render(view, capabilities)
        return [*self._typed.of(request.as_messages)]

    def _writing(self, prompts: Mapping[str, str]) -> Dialect:
        """The dialect with these templates: the last one if they are the same, which has written what came before."""
        if self._writer is None or self._writer[0] != prompts:
            self._writer = prompts, self._make_dialect(prompts)
        return self._writer[1]

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
    def _with_examples(self) -> bool:
        """True if the model needs worked examples."""
        return self._request is not None and self._request[1].weak


class CotAgentRunner(BaseAgentRunner):
    """A runner for models that write `Thought / Action / Final Answer`. Subclasses say how prompts are put together."""

    dialect = "cot_chat"

    def _organize_instruction_prompt(self) -> str:
        """The first prompt with `{{instruction}}`, `{{tools}}` and `{{tool_names}}` filled."""
        return CotChat(self._prompts).system_text(self._view(), examples=self._with_examples)

    def _organize_historic_prompt(self, current_session_messages: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The conversation so far, or the one given, as text: `Question: …` and `Final Answer: …`."""
        return historic_prompt(
            self._organize_historic_prompt_messages() if current_session_messages is None else current_session_messages
        )

    def _format_assistant_message(self, agent_scratchpad: list[AgentScratchpadUnit]) -> str:
        """The steps as text. With an override, they are one message or part of a prompt."""
        return scratchpad_text(agent_scratchpad)

    def _first_prompt(self) -> str:
        slots = {name: f"{{{{{name}}}}}" for name in ("instruction", "tools", "tool_names", *_LATER_SLOTS)}
        if not self._prompt_messages_tools:
            slots["tool_names"] = ""  # the templates ask by it whether there are tools
        return Prompts(self._prompts).render(self.dialect, **slots, examples="")

    def _own_prompts(self) -> dict[str, str]:
        if not self._overrides("_organize_instruction_prompt"):
            return {}
        return {self.dialect: _as_template(self._text("_organize_instruction_prompt"))}

    def _text(self, name: str, *arguments: Any) -> str:
        """Return the string that a method returns. Raises UsageError for anything else."""
        return text_from(getattr(self, name)(*arguments), self, name)


class CotChatAgentRunner(CotAgentRunner):
    """The runner for chat models."""

    def _own_earlier(self) -> Sequence[Mapping[str, Any]] | None:
        if not self._overrides("_organize_historic_prompt"):
            return super()._own_earlier()
        text = self._text("_organize_historic_prompt")
        return [UserPromptMessage(content=text)] if text else []

    def _organize_prompt_messages(self) -> list[PromptMessage]:
        """In a run, what the dialect writes. Else, or with an override of a part, the parts one after the other."""
        parts = ("_organize_system_prompt", "_organize_user_query", "_format_assistant_message")
        if self._request is not None and not any(map(self._overrides, parts)):
            return self._rendered_messages()
        messages: list[PromptMessage] = [self._organize_system_prompt()]
        own = self._own_earlier()
        earlier = conversation(self._organize_historic_prompt_messages() if own is None else own)
        messages += map(PromptMessage.typed, earlier)
        messages = self._organize_user_query(self._query, messages)
        if self._agent_scratchpad:
            said = self._text("_format_assistant_message", self._agent_scratchpad).rstrip()
            messages.append(AssistantPromptMessage(content=said))
            messages.append(UserPromptMessage(content=CotChat(self._prompts).continue_text()))
        return messages

    def _organize_system_prompt(self) -> SystemPromptMessage:
        return SystemPromptMessage(content=self._text("_organize_instruction_prompt"))

    def _organize_user_query(self, query: str, prompt_messages: list[PromptMessage]) -> list[PromptMessage]:
        """The messages with the question, and its pictures, at their end."""
        images = [*self._request[0].images] if self._request is not None else []
        content = [{"type": "text", "text": query}, *images] if images else query
        return [*prompt_messages, UserPromptMessage(content=content)]


class CotCompletionAgentRunner(CotAgentRunner):
    """The runner for completion endpoints."""

    dialect = "cot_completion"

    def _first_prompt(self) -> str:
        """The template with its slots. It has no label `Question:`: the text for `{{query}}` begins with it."""
        text = super()._first_prompt()
        if Prompts(self._prompts).is_own(self.dialect):
            return text
        return text.replace("Question: {{query}}", "{{query}}").rstrip() + f"\n{PRIMER}"

    def _organize_instruction_prompt(self) -> str:
        return CotCompletion(self._prompts).instruction_prompt(self._view(), examples=self._with_examples)

    def _organize_prompt_messages(self) -> list[PromptMessage]:
        """One user message: instruction, history, question and scratchpad, ending in `Thought:`."""
        if self._request is not None and not self._overrides("_format_assistant_message"):
            return self._rendered_messages()
        dialect = CotCompletion({**self._prompts, **self._own_prompts()})
        steps = self._text("_format_assistant_message", self._agent_scratchpad or [])
        prompt = dialect.prompt(self._view(), steps)
        return [UserPromptMessage(content=prompt)]

    def _own_prompts(self) -> dict[str, str]:
        prompts = super()._own_prompts()
        if self._overrides("_organize_historic_prompt"):
            text = prompts.get(self.dialect) or _as_template(self._text("_organize_instruction_prompt"))
            history = _literal(self._text("_organize_historic_prompt"))
            prompts[self.dialect] = PartlyFilled(text.replace("{{historic_messages}}", history))
        return prompts


class FunctionCallAgentRunner(BaseAgentRunner):
    """The runner for models with native tool calls."""

    def _organize_prompt_messages(self) -> list[PromptMessage]:
        """System, history, the question, and the steps as calls with their results."""
        if self._request is not None:
            return self._rendered_messages()
        messages = FunctionCall(self._prompts).render(self._view(self._steps), Capabilities()).messages
        return list(map(PromptMessage.typed, messages))


class _Invoking(ToolExecutor):
    """Calls a runner's `_handle_invoke_action` in a thread: it is not async, and tools may be."""

    runner: ClassVar[BaseAgentRunner]

    async def execute_single_tool_call(self, *call: Any) -> SingleCall:
        tool_manager, server_name, tool_name, arguments, *more = call
        loop, above = asyncio.get_running_loop(), super().execute_single_tool_call

        def invoke(name: str, given: Any) -> Any:
            made = returned(above(tool_manager, server_name, name, given, *more))
            return asyncio.run_coroutine_threadsafe(made, loop).result()[0]

        action, tools = AgentScratchpadUnit.Action(tool_name, arguments), self.runner._prompt_messages_tools
        token = _invoke.set(invoke)
        try:
            made: Any = await asyncio.to_thread(self.runner._handle_invoke_action, action, tools, [], None)
            if not isinstance(made, list | tuple) or len(made) != 2:
                name = f"{type(self.runner).__name__}._handle_invoke_action"
                raise UsageError(f"{name} must return (observation, what is known of the call), got {made!r:.80}.")
            observation, found = made
        except Suspended:
            raise
        except Exception as error:
            raise UsageError(failure_of(self.runner, "_handle_invoke_action", error)) from error
        finally:
            _invoke.reset(token)
        failed = isinstance(found, Mapping) and "error" in found and observation == found["error"]
        return SingleCall({"error" if failed else "result": observation}, 0, [])


class _Converting:
    """A reader of replies whose actions a runner's `_convert_dict_to_action` makes."""

    def __init__(self, reader: Reader, runner: BaseAgentRunner) -> None:
        self._reader, self._runner = reader, runner
        self.feed = reader.feed

    @property
    def complete(self) -> bool:
        return self._reader.complete

    def close(self, reply: ModelReply) -> Reading:
        reading = self._reader.close(reply)
        return replace(reading, calls=tuple(map(self._converted, reading.calls)))

    def _converted(self, call: ToolCall) -> ToolCall:
        made = self._runner._convert_dict_to_action({"action": call.name, "action_input": call.arguments})
        if (made.action_name, made.action_input) == (call.name, call.arguments):
            return call
        return replace(call, name=made.action_name, arguments=made.action_input, text="")


class _MadeOnce(Generic[S, T]):
    """Items made of those of a sequence that grows from call to call; each is made once."""

    def __init__(self, make: Callable[[S], T]) -> None:
        self._make = make
        self._seen: Sequence[S] = ()
        self._made: list[T] = []

    def of(self, items: Sequence[S]) -> list[T]:
        same = shared_items(self._seen, items)
        self._made = [*self._made[:same], *map(self._make, items[same:])]
        self._seen = items
        return self._made


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
