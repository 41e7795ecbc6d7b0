"""One agent's conversation with its model: render the history, send the request, read the reply."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from closeout.answers.contracts import Boxed, Text
from closeout.compat.history_methods import UpdatedHistory, owner_of
from closeout.context.history import History
from closeout.context.keeper import ContextKeeper
from closeout.context.policy import COMPACTION_PROMPT, summary_in
from closeout.dialects.cot import PRIMER
from closeout.dialects.prompts import examples_slots
from closeout.dialects.protocol import ConstrainedDialect, Dialect, HistoryView, serves
from closeout.dialects.text_chat import said_by_user
from closeout.errors import (
    BadRequest,
    ContextOverflow,
    LimitReached,
    ModelError,
    ModelNotFound,
    RequestFailed,
    ServerFailed,
    TransientModelError,
)
from closeout.journal.events import DecisionRequested
from closeout.messages import (
    Constraint,
    Message,
    ModelReply,
    ModelRequest,
    Reading,
    RequestInfo,
    ToolCall,
    ToolSpec,
    is_picture,
)
from closeout.models.retry import RetryPolicy
from closeout.parsing.read_reply import read_reply, salvaged_form
from closeout.parsing.readers import Reader
from closeout.run.offered_tools import OfferedTools
from closeout.run.plan import AgentPlan, Scope
from closeout.run.reply_listener import ReplyListener
from closeout.run.requests import ModelCalls
from closeout.run.review import Answers, RollbackPolicy
from closeout.run.strategy import ModelTurn, Strategy
from closeout.run.waits.decisions import wait_until

__all__ = ["ModelSession", "with_draft"]

SALVAGES_BEFORE_SWITCH = 2  # replies in a row in another dialect before the run switches to it
REJECTIONS_BEFORE_SWITCH = 2  # calls in a row that the server could not read before the run asks past its parser
# The dialect that writes the form of a salvaged call. Other forms are native calls that the server passed on as text.
DIALECT_OF_FORM = {"react": "cot_chat", "mcp_xml": "mcp_xml"}

PICTURE_LEFT_OUT = {"type": "text", "text": "[a picture, left out]"}

NO_ENDPOINT = (404, 405, 501)  # Statuses of a server for an address that it does not have.


class ModelSession:
    """Asks one agent's model. Holds the dialect in use, which may change once in a run.

    `task` is the task without the texts of its files.
    """

    def __init__(
        self,
        plan: AgentPlan,
        scope: Scope,
        task: str,
        offered: OfferedTools,
        keeper: ContextKeeper,
        answers: Answers,
    ) -> None:
        self._task = task
        self._answers = answers
        self.calls = ModelCalls(
            plan.client,
            scope,
            keeper,
            retry=RetryPolicy(retries=plan.llm.max_retries, longest_server_wait=plan.llm.max_wait),
            keep_tool_result=plan.settings.keep_tool_result,
        )
        # Sends the request of a turn. A user's AnswerGenerator may take it over.
        self.ask: Callable[..., Awaitable[ModelReply]] = self.calls.request
        self.dialect: Dialect = plan.made_dialect(plan.dialect)
        self.capabilities = plan.client.capabilities
        self._plan = plan
        self._scope = scope
        self._offered = offered
        self._keeper = keeper
        self._salvaged_in_a_row = 0
        self._rejected_in_a_row = 0
        self.calls.gives_up = self._has_other_form
        self._switched = False
        self._native: Dialect | None = None  # the dialect to return to, if the server fails at tools as text, too
        self._failed_as_text = False
        self._constraint_refused = False
        self._pictures_refused = False
        self._earlier: Sequence[Message] = ()  # the messages before the task, and as a model without pictures sees them
        self._shown_earlier: tuple[Message, ...] = ()
        self._texts_taken = False  # the server has completed a text
        self._tools_taken: tuple[ToolSpec, ...] = ()  # the native tools that the server has taken last
        self._to_remember = ""  # the dialect to remember for this endpoint if the next request is accepted
        self._listener: ReplyListener | None = None  # the listener of the last reply, if it was streamed
        self._last_request = ModelRequest()
        owner = owner_of(plan.client, "update_message_history")
        self._updated_history = None if owner is None else UpdatedHistory(owner)
        llm = plan.llm
        names = llm.model_fields_set & {"temperature", "top_p", "max_tokens", "extra_body", "timeout"}
        self._options: Mapping[str, Any] = {name: getattr(llm, name) for name in names}

    # ------------------------------------------------------------------------------------------ a turn's request

    async def query(self, history: History, info: RequestInfo, rollbacks: RollbackPolicy) -> Reading:
        """Have the strategy ask for the next action or the answer.

        A prompt that is too long is shortened; what the server does not take is left out.

        Raises:
            ModelError: The request failed.
        """
        self.calls.rolled_back(rollbacks.consecutive)
        while True:
            request = self.render(history, info.note, draft=rollbacks.draft, withheld=rollbacks.withheld)
            listener = self._new_listener(info.turn) if self._streams else None
            self._listener = listener
            request = rollbacks.adjust(request)
            try:
                if self._plan.strategy is None:
                    reading = self.read(await self.ask(request, info, on_delta=listener))
                else:
                    reading = await self._by_strategy(self._plan.strategy, request, history, info)
            except ContextOverflow:
                shrunk = self._keeper.shrink(history, info.attempt, "overflow", turns=True)
                if not (shrunk or self._leave_out_pictures()):
                    raise
            except (BadRequest, ModelNotFound, ServerFailed) as error:
                changed = self._try_as_text(error) or self._leave_out(error)
                if not (changed or self._makes_room(error, history, info)):
                    await self._wait_for_server(error)
            except TransientModelError as error:
                await self._wait_for_server(error)
            else:
                self._note_accepted(request)
                self._texts_taken = self._texts_taken or request.prompt is not None
                # The client has learned what the server takes.
                if self.capabilities.grammar and not self._plan.client.capabilities.grammar:
                    self.capabilities = replace(self.capabilities, grammar=False)
                return reading

    async def _by_strategy(
        self, strategy: Strategy, request: ModelRequest, history: History, info: RequestInfo
    ) -> Reading:
        turn = ModelTurn(
            view=history.view(info.note),
            task=self._task,
            request=request,
            capabilities=self.capabilities,
            info=info,
            send=self.ask,
            read=self.read,
            read_answer=self._answers.read,
            listener=self._listener,
        )
        reading = await strategy.ask(turn)
        turn.publish(reading)
        return reading

    def _has_other_form(self, error: ModelError) -> bool:
        """Return whether a server that fails at a request is asked otherwise before it is waited for."""
        if self._native is not None:
            return isinstance(error, ServerFailed)
        return isinstance(error, RequestFailed) and self._may_write_as_text() and not self._constrains

    def _may_write_as_text(self) -> bool:
        """Return whether tools may be written as text: the server has not taken them, or not all of them."""
        may = self._plan.may_switch_dialect and not (self._switched or self._failed_as_text)
        return may and self._last_request.tools not in ((), self._tools_taken)

    def _write_as_text(self) -> None:
        """Write the tools as text: none has to be left out, whichever of them the server refuses."""
        self._switch_dialect("cot_chat", "The server may not take these tools", remember=False)
        # For a day: it may have refused one of the tools only.
        self._to_remember = "" if self._tools_taken else f"cot_chat until {time.time() + 86_400:.0f}"

    def _try_as_text(self, error: ModelError) -> bool:
        """Write the tools as text for a server that fails at them; or natively again, if it fails at the text, too."""
        if not self._has_other_form(error):
            return False
        if self._native is None:
            self._native = self.dialect
            self._write_as_text()
        else:
            self._scope.warn("Dialect", f"The server fails at text, too; the run continues in {self._native.name}.")
            self.dialect, self._native, self._to_remember = self._native, None, ""
            self._switched, self._failed_as_text = False, True
        return True

    def _leave_out(self, error: ModelError) -> bool:
        """Do without what a server refused, each thing once. Returns whether there was anything."""
        if isinstance(error, BadRequest | RequestFailed) and error.status not in NO_ENDPOINT:
            if self._constrains:
                self._constraint_refused = True
                self.capabilities = replace(self.capabilities, grammar=False)
                text = "The server does not take the constraint on replies; the run continues without."
                self._scope.warn("Constraint", text)
                return True
            if self._leave_out_pictures():
                return True
            if self._tools_refused:
                self._switch_dialect("cot_chat", "The server does not take tools")
                return True
            if self._may_write_as_text():
                self._write_as_text()
                return True
        if self._last_request.prompt is None or self._texts_taken or not self.capabilities.chat:
            return False
        without = replace(self.capabilities, completions=False)
        if not serves(self.dialect.name, without):
            self.capabilities = without
            self._scope.warn("Dialect", "The server does not complete texts; the run continues as a chat.")
            return True
        if self._plan.may_switch_dialect and not self._switched:
            self._switch_dialect("cot_chat", "The server does not complete texts")
            return True
        return False

    def _leave_out_pictures(self) -> bool:
        if not (self.capabilities.images and any(message.pictures for message in self._last_request.messages)):
            return False
        self._pictures_refused = True
        self.capabilities = replace(self.capabilities, images=False)
        self._scope.warn("Pictures", "The server may not take these pictures; the run continues without them.")
        return True

    def _makes_room(self, error: ModelError, history: History, info: RequestInfo) -> bool:
        """Leave out old results after a refusal whose reason is not known: it may be the length."""
        may_be_length = isinstance(error, BadRequest | RequestFailed) and error.status not in NO_ENDPOINT
        return may_be_length and self._keeper.shrink(history, info.attempt, "refused", turns=True)

    async def _wait_for_server(self, error: ModelError) -> None:
        """Suspend the run until the time that the server has stated, if that is too long to wait for in the process.

        Raises the error if no time is stated or the run is not kept.
        """
        journal, key = self._scope.journal, f"model{self.calls.sent}"
        known = journal.recorded(DecisionRequested, self._scope.path, key)
        if isinstance(known, DecisionRequested) and known.expires is not None:
            expires = known.expires
        elif error.retry_after is None or error.retry_after <= self._plan.llm.max_wait or journal.store is None:
            raise error
        else:
            expires = self._scope.run.clock() + error.retry_after
        await wait_until(self._scope, key, expires, str(error))

    def _note_accepted(self, request: ModelRequest) -> None:
        """Remember what the server has turned out to take."""
        self._tools_taken = request.tools or self._tools_taken
        self._native = None
        if self._plan.remember_dialect is not None and self._to_remember:
            self._plan.remember_dialect(self._to_remember)
        self._to_remember = ""
        if self._plan.remember_rules is not None:
            self._plan.remember_rules()

    def render(
        self,
        history: History,
        note: str = "",
        *,
        closing: str = "",
        draft: str = "",
        withheld: frozenset[str] = frozenset(),
    ) -> ModelRequest:
        """Write the request for a history, with the settings of the plan.

        Args:
            history: What the agent has done.
            note: A hint after the conversation.
            closing: An instruction that ends the conversation; tools must not be called.
            draft: A reply that was not accepted and that the hint is about.
            withheld: Names of tools that are not offered this time.
        """
        writes_messages = getattr(self.dialect, "writes_messages", False) or not history.messages
        if not writes_messages:
            note = "\n\n".join((*map(said_by_user, history.messages), *filter(None, (note,))))
        view = history.view("" if draft else note, closing, withheld=withheld)
        if not writes_messages:
            view = _without_messages(view)
        if (view.earlier or view.images) and not self.capabilities.images:
            view = self._without_pictures(view)
        request = self.dialect.render(view, self.capabilities)
        if draft:
            request = with_draft(request, draft, note)
        options = self._options
        if not closing and self._constrains:
            constraint = self._constraint(view, withheld)
            if constraint is not None:
                options = {**options, "constraint": constraint}
        if options:
            request = replace(request, **options)
        if self._updated_history is not None and request.prompt is None:
            request = replace(request, messages=self._updated(self._updated_history, request.messages, history))
        self._last_request = request
        return request

    def _without_pictures(self, view: HistoryView) -> HistoryView:
        """Return a view without pictures before its steps, for a model that takes none, and say once what is lost."""
        if view.earlier is not self._earlier:
            self._earlier = view.earlier
            self._shown_earlier = tuple(_without_pictures(each) for each in view.earlier)
            found = [str(number) for number, each in enumerate(view.earlier, 1) if each.pictures]
            if found and not self._pictures_refused:
                text = (
                    f"The pictures in message{'s' * (len(found) > 1)} {', '.join(found)} of the history were left out: "
                    "this model is not known to take images. If it does, set llm.images to true."
                )
                self._scope.warn("Pictures", text)
        return replace(view, earlier=self._shown_earlier, images=())

    def _updated(self, updated: UpdatedHistory, messages: Sequence[Message], history: History) -> Sequence[Message]:
        """Return the messages as the client's own `update_message_history` adds the results to them."""
        try:
            return updated.write(messages, history.steps)
        except Exception as error:
            self._updated_history = None
            name = f"{type(updated.owner).__name__}.update_message_history"
            self._scope.warn("Model", f"{name} raised {type(error).__name__}: {error}. It is not used.")
            return messages

    @property
    def _constrains(self) -> bool:
        """True if replies are held to the form of the dialect: the settings want it, and no server has refused it."""
        wanted = self._plan.settings.constrain
        if wanted == "auto":
            wanted = "on" if self.capabilities.weak else "off"
        return wanted == "on" and not self._constraint_refused and isinstance(self.dialect, ConstrainedDialect)

    def _constraint(self, view: HistoryView, withheld: frozenset[str]) -> Constraint | None:
        """The constraint of the dialect on the next reply."""
        can = self.capabilities
        if not (can.grammar or can.json_schema):
            if self._plan.settings.constrain == "on":
                self._constraint_refused = True
                name = self._plan.client.name
                text = f"{name} is not known to enforce a grammar or a schema: replies are not constrained."
                self._scope.warn("Constraint", text)
            return None
        if withheld:
            view = replace(view, tools=tuple(tool for tool in view.tools if tool.name not in withheld))
        assert isinstance(self.dialect, ConstrainedDialect)
        return self.dialect.constraint(view, can, self._answer_constraint())

    def _answer_constraint(self) -> Constraint | None:
        """The constraint on the final answer. Without a contract, a small model is held to the box of its examples."""
        contract = self._plan.contract
        if isinstance(contract, Text) and self.capabilities.weak and examples_slots(self._offered.specs):
            return Boxed().constraint()
        return contract.constraint()

    # ------------------------------------------------------------------------------------------ streaming

    @property
    def watched(self) -> bool:
        """True if subscribers receive replies while they are written."""
        return self._plan.stream and self.capabilities.streaming

    @property
    def _streams(self) -> bool:
        """Streaming serves subscribers, and ends a one-action reply where the server takes no stop words."""
        if not self.capabilities.streaming:
            return False
        return self.watched or not (self.dialect.parallel_calls or self.capabilities.stop)

    def _new_listener(self, turn: int) -> ReplyListener:
        return ReplyListener(self._scope.subscribers, self._scope.path, turn, self._reader)

    def closing_listener(self, turn: int) -> ReplyListener:
        """Return the listener of closing replies: the one of that turn's last reply, if it was streamed."""
        last = self._listener
        listener = last if last is not None and last.turn == turn else self._new_listener(turn)
        listener.closing = True
        return listener

    def publish_answer(self, text: str) -> None:
        """Replace what was published of the last reply by the text that it completes."""
        if self._listener is not None:
            self._listener.replace(text)

    def rolled_back(self) -> None:
        """Note that subscribers learn of a rollback by its event."""
        if self._listener is not None:
            self._listener.published = False

    # ------------------------------------------------------------------------------------------ reading

    def _reader(self) -> Reader:
        return self.dialect.reader(self._offered.specs)

    def read(self, reply: ModelReply) -> Reading:
        """Read calls, answer and defects in a reply, and learn from its form how to ask next time."""
        specs, parallel = self._offered.specs, self.dialect.parallel_calls
        reading = read_reply(
            reply,
            self._reader(),
            specs,
            parallel=parallel,
            is_answer=self._is_marked_answer,
            forms=self._plan.spec.forms,
        )
        self._note_form(salvaged_form(reading), acted=bool(reading.calls))
        self._note_rejection(reply.finish_reason == "rejected" and not reading.calls)
        return reading

    def _is_marked_answer(self, text: str) -> bool:
        found = self._answers.read(text)
        return found.ok and found.marked

    def calls_in(self, reply: ModelReply) -> tuple[ToolCall, ...]:
        """Return the calls that the dialect reads in a reply."""
        return self._reader().close(reply).calls

    # ------------------------------------------------------------------------------------------ another dialect

    def _note_rejection(self, rejected: bool) -> None:
        """Ask past a server that cannot read its own model's calls: in a text dialect it has none to read."""
        self._rejected_in_a_row = self._rejected_in_a_row + 1 if rejected else 0
        may = self._plan.may_switch_dialect and not self._switched and self.dialect.name == "function_call"
        if self._rejected_in_a_row >= REJECTIONS_BEFORE_SWITCH and may:
            self._switch_dialect("cot_chat", "The server cannot read its model's calls", remember=False)

    def _note_form(self, form: str, *, acted: bool) -> None:
        """Switch to the dialect that a model keeps writing, once in a run."""
        if not form:
            self._salvaged_in_a_row = 0 if acted else self._salvaged_in_a_row
            return
        self._salvaged_in_a_row += 1
        name = DIALECT_OF_FORM.get(form)
        if name is None or name == self.dialect.name or self._salvaged_in_a_row < SALVAGES_BEFORE_SWITCH:
            return
        if self._plan.may_switch_dialect and not self._switched:
            self._switch_dialect(name, f"The model keeps writing {name}")

    @property
    def _tools_refused(self) -> bool:
        """True if the server has turned out not to take native tools, and the run may do without them."""
        may = self._plan.may_switch_dialect and not self._switched and bool(self._last_request.tools)
        # A record that continues after such a refusal switched then, and so does its replay.
        return may and (not self._plan.client.capabilities.native_tools or self._scope.journal.replaying)

    def _switch_dialect(self, name: str, why: str, *, remember: bool = True) -> None:
        """Continue in another dialect, and remember it for this endpoint and model unless the cause may pass."""
        self._switched = True
        self._scope.warn("Dialect", f"{why}; the run continues in the dialect {name} instead of {self.dialect.name}.")
        self.capabilities = self._plan.client.capabilities
        if self._pictures_refused:
            self.capabilities = replace(self.capabilities, images=False)
        self.dialect = self._plan.made_dialect(name)
        if remember and self._plan.remember_dialect is not None:
            self._plan.remember_dialect(name)

    # ------------------------------------------------------------------------------------------ other requests

    async def summarise(self, history: History, info: RequestInfo) -> str:
        """Have the model sum up the oldest turns. Returns an empty text if it did not."""
        request = self.render(history, closing=COMPACTION_PROMPT)
        try:
            reply = await self.calls.request(request, replace(info, purpose="compact", note=""))
        except (ModelError, LimitReached) as error:
            self._scope.warn("Compaction", str(error))
            return ""
        if not reply.finished:
            self._scope.warn("Compaction", f"The model did not finish its summary: {reply.finish_reason}.")
            return ""
        return summary_in(reply.text)

    def messages(self, history: History) -> list[Message]:
        """Return the conversation so far as messages; a text prompt becomes one user message."""
        return self.render(history).as_messages

    def in_form(self, request: ModelRequest) -> ModelRequest:
        """Return a request of messages in the form of the agent's other requests, which may be one text.

        Its reply may be as long as theirs.
        """
        if request.max_tokens is None and (longest := self._options.get("max_tokens")) is not None:
            request = replace(request, max_tokens=longest)
        if request.prompt is not None or self._last_request.prompt is None:
            return request
        return replace(request, prompt=_as_prompt(request.messages), messages=(), tools=(), tool_choice=None)

    def answer_or_text(self, reply: ModelReply) -> str:
        """Return what the dialect reads as the answer if that satisfies the contract, otherwise the reply's text."""
        answer = self._reader().close(reply).answer
        return answer if answer is not None and self._answers.read(answer).ok else reply.text

    def shrunk_messages(self, history: History, attempt: int, reason: str = "overflow") -> list[Message] | None:
        """Return the conversation with all results but the last left out, None if there were none to leave out."""
        return self.messages(history) if self._keeper.shrink(history, attempt, reason) else None

    @property
    def native_tools(self) -> Sequence[ToolSpec]:
        """The tools that go into the request itself; text dialects write theirs into the prompt."""
        return self._offered.shown if self._last_request.tools else ()


def _without_pictures(message: Message) -> Message:
    if not message.pictures:
        return message
    parts = (PICTURE_LEFT_OUT if is_picture(part) else part for part in message["content"])
    return Message({**message, "content": [*parts]})


def _without_messages(view: HistoryView) -> HistoryView:
    """Return a view without the user's messages, for a dialect that shows them in its note."""
    steps = tuple(replace(step, messages=()) if step.messages else step for step in view.steps)
    return replace(view, steps=steps, messages=())


def _as_prompt(messages: Sequence[Message]) -> str:
    """Write a conversation that began as a text prompt as one text prompt again."""
    first, *rest = messages
    # The text has no label, because hints are written in it: a second "Question:" would be another task.
    parts = [first.text.rstrip().removesuffix(PRIMER).rstrip(), *(message.text for message in rest)]
    return "\n\n".join(parts) + f"\n\n{PRIMER}"


def with_draft(request: ModelRequest, draft: str, note: str) -> ModelRequest:
    """Return the request with a reply that was not accepted, and the hint that answers it, at its end."""
    if request.prompt is not None:
        primer = PRIMER if request.prompt.endswith(PRIMER) else ""
        return replace(request, prompt=f"{request.prompt}{' ' * bool(primer)}{draft}\n{note}\n{primer}")
    answered = (Message(role="assistant", content=draft), Message(role="user", content=note))
    return replace(request, messages=[*request.messages, *answered])
