"""One request to the model and the reading of its reply: render, ask, listen while it is written, read, salvage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from closeout.answers.reading import ContractReading
from closeout.answers.replies import invents_result
from closeout.context.eviction import EvictionPolicy
from closeout.context.history import History
from closeout.dialects.constrain import action_constraint
from closeout.dialects.protocol import Dialect, Reader, get_dialect
from closeout.dialects.salvage import salvage
from closeout.errors import BadRequest, ContextOverflow
from closeout.journal.events import Evicted, Noted
from closeout.messages import Constraint, Defect, Message, ModelReply, ModelRequest, Reading, ToolSpec
from closeout.orchestrator.loops import repeated_tail
from closeout.orchestrator.model_door import JournaledClient
from closeout.orchestrator.plan import AgentPlan
from closeout.orchestrator.rollback import RollbackPolicy
from closeout.orchestrator.scope import Scope
from closeout.orchestrator.streaming import ReplyListener
from closeout.outputs.tokens import estimate_tokens

__all__ = ["Asking"]

CONSTRAIN_WEAK = True  # what "auto" means for weak models: docs/design/local-model.md has the measurement
SALVAGES_BEFORE_SWITCH = 2  # replies in a row in another dialect, until the run goes over to it
# Which dialect writes the form in which a salvaged call stood; other forms are native ones that the server lost.
DIALECT_OF_FORM = {"react": "cot_chat", "mcp_xml": "mcp_xml"}

INVENTED_DEFECT = Defect(
    "invented_observation",
    "You wrote a tool result yourself. Results come only from tools: make the call and wait for what it brings.",
)


class Asking:
    """Asks one agent's model. Holds the dialect in use and the journaled client."""

    def __init__(self, plan: AgentPlan, scope: Scope, tools: tuple[ToolSpec, ...]) -> None:
        self.client = JournaledClient(plan.client, scope.journal, scope.path, scope.budget)
        self.dialect: Dialect = get_dialect(plan.dialect, plan.prompts)
        if plan.dialect == "cot_completion":
            self.client.to_prompt = _as_prompt  # the closing turn goes to the same endpoint
        self._plan = plan
        self._scope = scope
        self._tools = tools
        self._foreign = 0
        self._switched = False
        self._answer: tuple[str, ContractReading] | None = None
        llm = plan.llm
        names = llm.model_fields_set & {"temperature", "top_p", "max_tokens", "extra_body", "timeout"}
        self._options: Mapping[str, Any] = {name: getattr(llm, name) for name in names}
        self._constraints: dict[tuple[str, frozenset[str]], Constraint | None] = {}
        self._unbound = False
        self._listener: ReplyListener | None = None  # to the last reply, where it was streamed

    def reader(self) -> Reader:
        return self.dialect.reader(self._tools)

    def render(
        self, history: History, note: str = "", closing: str = "", withheld: frozenset[str] = frozenset()
    ) -> ModelRequest:
        """The request for a history, with the settings of the plan."""
        request = self.dialect.render(history.view(note, closing, withheld), self.client.capabilities)
        options = self._options
        if not closing and self._binds and (constraint := self._constraint(request, withheld)) is not None:
            options = {**options, "constraint": constraint}
        return replace(request, **options) if options else request

    @property
    def _binds(self) -> bool:
        """Whether replies are held to an action's form: settings say so, the dialect has it, no server refused."""
        wanted = self._plan.settings.constrain
        if wanted == "auto":
            wanted = "on" if self.client.capabilities.weak and CONSTRAIN_WEAK else "off"
        return wanted == "on" and not self._unbound and self.dialect.name in ("cot_chat", "cot_completion")

    def _constraint(self, request: ModelRequest, withheld: frozenset[str]) -> Constraint | None:
        """What a reply to this request must match, on this server; made once for each choice of tools."""
        # A small model begins with `read_result` if it may, before there is anything to be read on.
        left_out = withheld if _names_stored(request) else withheld | {"read_result"}
        key = (self.dialect.name, left_out)
        if key not in self._constraints:
            tools = [tool for tool in self._tools if tool.name not in left_out]
            self._constraints[key] = action_constraint(
                tools,
                self.client.capabilities,
                primed=self.dialect.name == "cot_completion",
                answer=self._plan.contract.constraint(),
            )
        return self._constraints[key]

    def _unbind(self) -> None:
        """Go on without a constraint: servers know more or less of what a tool's schema may ask for."""
        self._unbound = True
        text = "The server does not take the constraint on the form of replies; the run goes on without it."
        self._scope.journal.append(Noted(self._scope.path, "warning", "Constraint", text))

    async def ask(self, history: History, rollbacks: RollbackPolicy, attempt: int, turn: int) -> Reading:
        """What the model says next. Raises ModelError; a context overflow is met once by shrinking the view."""
        client = self.client
        client.purpose, client.attempt, client.turn, client.note = "act", attempt, turn, rollbacks.note
        try:
            return await self._ask(history, rollbacks, turn)
        except ContextOverflow as error:
            if self.shrunk(history, attempt) is None:
                raise error from None
        except BadRequest:
            if self._binds:
                self._unbind()
            elif self._tools_refused():
                self._switch("cot_chat", "The server does not take tools")
            else:
                raise
        return await self._ask(history, rollbacks, turn)

    async def _ask(self, history: History, rollbacks: RollbackPolicy, turn: int) -> Reading:
        request = rollbacks.adjust(self.render(history, rollbacks.note, withheld=rollbacks.withheld))
        if self._streams:
            self._listener = self._new_listener(turn)
            reply = await self.client.complete(request, on_delta=self._listener)
        else:
            reply = await self.client.complete(request)
        return self._read(reply)

    @property
    def watched(self) -> bool:
        """Whether somebody watches replies while they are written."""
        return self._plan.stream and self.client.capabilities.streaming

    @property
    def _streams(self) -> bool:
        """Streaming serves whoever watches, and ends a one-action reply where the server knows no stop words."""
        capabilities = self.client.capabilities
        if not capabilities.streaming:
            return False
        return self.watched or not (self.dialect.parallel_calls or capabilities.stop)

    def _new_listener(self, turn: int) -> ReplyListener:
        return ReplyListener(self._scope.journal, self._scope.path, turn, self.reader)

    def closing_listener(self, turn: int) -> ReplyListener:
        """Who listens to closing replies: whoever heard the last reply of that turn, if anybody did."""
        last = self._listener
        listener = last if last is not None and last.turn == turn else self._new_listener(turn)
        listener.closing = True
        return listener

    def taken_back(self) -> None:
        """The last reply's turn was rolled back, and whoever heard of it was told so."""
        if self._listener is not None:
            self._listener.heard = False

    def shrunk(self, history: History, attempt: int, reason: str = "overflow") -> list[Message] | None:
        """The conversation with all tool results but the last left out; None where nothing is left to leave out."""
        eviction = EvictionPolicy().shrink(history.steps, history.evicted_before)
        if eviction is None:
            return None
        self._scope.journal.append(
            Evicted(self._scope.path, attempt, eviction.before, eviction.results, eviction.tokens, reason)
        )
        return self.messages(history)

    # ------------------------------------------------------------------------------------------------- reading

    def _read(self, reply: ModelReply) -> Reading:
        if reply.finish_reason in ("cut", "length") and (start := repeated_tail(reply.text)) >= 0:
            hint = "Your last reply repeated itself. Be brief: call one tool or give the answer."
            return Reading(reply.text[:start], reply.reasoning, defects=(Defect("repeating", hint),))
        reading = self.reader().close(reply)
        if reading.calls:
            self._foreign = 0
            return reading
        reading = self._salvaged(reading, reply) or reading
        if not reading.calls and invents_result(reading.answer or ""):
            return replace(reading, answer=None, defects=(INVENTED_DEFECT, *reading.defects))
        return reading

    def answer_in(self, text: str) -> ContractReading:
        """What the contract reads in a text. The last one is kept: a reply is asked about in several places."""
        if self._answer is None or self._answer[0] != text:
            self._answer = text, self._plan.contract.read(text)
        return self._answer[1]

    def _salvaged(self, reading: Reading, reply: ModelReply) -> Reading | None:
        """The calls of a reply in which the dialect found none, if it holds any in another form."""
        if not self._tools or (reading.answer and self.answer_in(reading.answer).ok):
            return None
        if any(defect.code in ("truncated", "invented_observation") for defect in reading.defects):
            return None
        found = salvage(reply.text, reply.reasoning, self._tools)
        if found is None or not found.calls:
            return None
        self._consider_switch(found.repairs[0].kind if found.repairs else "")
        calls = found.calls if self.dialect.parallel_calls else found.calls[:1]
        return Reading(found.content, reading.reasoning, tuple(calls), repairs=(*reading.repairs, *found.repairs))

    def _consider_switch(self, kind: str) -> None:
        """A model that keeps to another dialect than it was asked for gets its way, once a run."""
        self._foreign += 1
        name = DIALECT_OF_FORM.get(kind.removeprefix("dialect:"))
        if (
            not self._plan.may_switch_dialect
            or self._switched
            or name in (None, self.dialect.name)
            or self._foreign < SALVAGES_BEFORE_SWITCH
        ):
            return
        assert name is not None
        self._switch(name, f"The model keeps writing {name}")

    def _tools_refused(self) -> bool:
        """Whether the server has just turned out not to take native tools, and the run may do without."""
        may = self._plan.may_switch_dialect and not self._switched and self.dialect.name == "function_call"
        # A record that goes on behind a refusal went over to text then, and so does its replay.
        return may and (not self._plan.client.capabilities.native_tools or self._scope.journal.replaying)

    def _switch(self, name: str, why: str) -> None:
        """Go over to another dialect, and remember it for this endpoint and model."""
        self._switched = True
        text = f"{why}; the run goes on in the dialect {name} instead of {self.dialect.name}."
        self._scope.journal.append(Noted(self._scope.path, "warning", "Dialect", text))
        self.client.capabilities = self._plan.client.capabilities
        self.dialect = get_dialect(name, self._plan.prompts)
        if self._plan.remember_dialect is not None:
            self._plan.remember_dialect(name)

    def first_prompt_tokens(self, history: History) -> int:
        """About how many tokens the first request of an attempt has; counted by the server from then on."""
        request = self.render(history)
        text = request.prompt if request.prompt is not None else "\n".join(m.text for m in request.messages)
        offered = [[tool.name, tool.description, dict(tool.parameters)] for tool in request.tools]
        return estimate_tokens(text) + estimate_tokens(json.dumps(offered, default=str))

    def messages(self, history: History) -> list[Message]:
        """The conversation so far as messages, for the closing turn; a text prompt becomes one user message."""
        request = self.render(history)
        if request.prompt is not None:
            return [Message(role="user", content=request.prompt)]
        return list(request.messages)

    @property
    def offered(self) -> Sequence[ToolSpec]:
        """Tools that go into the request itself; text dialects write theirs into the prompt."""
        return self._tools if self.dialect.name == "function_call" else ()


def _names_stored(request: ModelRequest) -> bool:
    """Whether a text in view was cut or left out and says how to read on."""
    texts = [request.prompt] if request.prompt is not None else [message.text for message in request.messages]
    return any('read_result("' in text or "read_result shows" in text for text in texts)


def _as_prompt(messages: Sequence[Message]) -> str:
    """A conversation that began as a text prompt, with what was said since, as one text prompt again."""
    first, *rest = messages
    # Without a label, as hints stand in it: a second "Question:" would be another task.
    parts = [first.text.rstrip().removesuffix("Thought:").rstrip(), *(message.text for message in rest)]
    return "\n\n".join(parts) + "\n\nThought:"
