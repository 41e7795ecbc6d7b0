"""Results of an attempt, an agent and a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal

from closeout.answers.experience import FailureExperience
from closeout.answers.reading import Value
from closeout.compat.task_log import TaskLog
from closeout.dialects.protocol import HistoryView
from closeout.errors import Failure
from closeout.file_values import File
from closeout.journal.events import (
    AttemptStarted,
    Event,
    HandedOver,
    MessageReceived,
    ModelReplied,
    RunStarted,
    ToolFinished,
    TurnAccepted,
)
from closeout.journal.store import Row
from closeout.journal.story import AgentThought, CallStory, Story, agent_thoughts
from closeout.journal.totals import RequestUsage, usage_by_request
from closeout.messages import Capabilities, Message, ModelReply, Reading, Repair, Step, Usage
from closeout.models.base import assistant_message
from closeout.notebook import html_table
from closeout.results.normal import normalise
from closeout.results.telemetry import TelemetryCollector
from closeout.results.tool_output import ToolOutput
from closeout.run.waits.decisions import PendingDecision
from closeout.spelling import unknown_attribute

if TYPE_CHECKING:
    from closeout.answers.citations import Citation

__all__ = ["AgentResult", "RunResult", "Status", "Stop", "conversation_of", "outputs_of", "state_of"]

Status = Literal["answered", "unanswered", "failed", "cancelled", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why an attempt stopped acting.

    Attributes:
        reason: "answered" for a reply that satisfies the contract, "insisted" for one that neither acts nor answers
            although it was asked to, or the limit or failure that ended the attempt.
        reading: The reply, for "answered" and "insisted".
        failure: What failed.
        accepted: Whether the reply is a turn of the history: a program in it gave the answer.
    """

    reason: str
    reading: Reading | None = None
    failure: Failure | None = None
    accepted: bool = False

    @property
    def text(self) -> str:
        """The reply's text, empty if no reply ended the attempt."""
        if self.reading is None:
            return ""
        return self.reading.text if self.reading.answer is None else self.reading.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The result of an agent's attempt, or of its whole task. `answer` None: it has none.

    Attributes:
        answer: The answer as text, by the rules of the contract.
        stop_reason: "answered", or what ended the attempt.
        value: The answer in the contract's own type.
        text: The model's closing text.
        summary: The summary for people, with its three sections; empty until it is written.
        usage_log: The usage on one line, as the formatter or the generator states it.
        experience: What the next attempt can learn from this one.
        failure: What failed.
        candidates: Other answers seen, best first, each with its share of the vote.
        waiting: What a suspended agent waits for.
    """

    answer: str | None
    stop_reason: str
    value: Any = None
    text: str = ""
    summary: str = ""
    usage_log: str = ""
    experience: FailureExperience | None = None
    failure: Failure | None = None
    candidates: tuple[tuple[str, float], ...] = ()
    waiting: tuple[PendingDecision, ...] = ()


# Names that other frameworks use for what a result has.
_FAMILIAR = dict.fromkeys(
    ("output", "data", "final_output", "content", "text", "parsed"), "Use .value, which is typed, or .answer, its text."
)
_FAMILIAR |= dict.fromkeys(("all_messages", "new_messages", "to_input_list"), "Use .messages.")


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult(Generic[Value]):
    """The result of a run. It can be pickled, with its views of the journal but without the exception in `failure`.

    Attributes:
        answer: The answer as text, as its contract reads it, or None.
        status: "answered", "unanswered", "failed", "cancelled", or "waiting": the run is suspended until what is in
            `waiting` is decided; `Agent.resume` then continues it.
        stop_reason: "answered", or what ended the run: max_turns, max_tokens, max_cost, max_seconds, budget, rollbacks,
            loop, refused, no_answer, check_failed, context_overflow, model_failed, journal_failed, failed, cancelled,
            waiting.
        run_id: The run's id in the journal.
        value: The answer as the contract's own type (a number, an object); None without an answer.
        failure: What failed; for "refused" its message is what the model wrote.
        final_summary: The summary for people, however the run ended: final answer, extracted result, token usage and
            cost. It must not enter a prompt.
        closing_text: The model's own closing text: the reply that holds the answer, or its last reply. It may be empty.
        failure_experience_summary: What the agent learned, if it found no answer.
        turns: The number of replies that were acted on, and the one that answered.
        attempts: The number of attempts.
        rollbacks: The number of turns that were rolled back.
        repairs: What was repaired in the model's replies.
        warnings: What did not go as asked although the run continued: an optional MCP server that did not start, a
            budget that cannot be kept, a listener that raised. Also logged by the logger "closeout".
        usage: Tokens, requests and cost of all requests, failed ones included.
        seconds: Wall-clock seconds of the whole run.
        candidates: Other answers that appeared, best first, each with its share of the vote.
        waiting: What a suspended run waits for: calls to approve, questions to answer.
        labels: With flow rules, the labels of what the conversation has read: `("untrusted",)` means that the answer
            may depend on text that nobody vouches for.
        state: The state updates of the run's tools, merged by key.
        files: The files that the run left: what its scripts wrote and its tools returned, the latest version of each.
            The bytes are read from the journal when they are needed.
        work_files: The files that are there at the end: those that it began with, and those that it left. Pass them to
            the next run as `work_files`, and its scripts continue with them.
        handed_to: The agents that the conversation was handed over to, one after the other. The last one answered.
        telemetry: The tool calls of the run, those of sub-agents included: calls, latency, failures, tokens by tool.
        task: The task of the run.
        task_id: The name that graders know the task by, if it has one.
        ground_truth: The right answer, if it was passed for graders.
        read_rows: Reads the run's journal, for the views of it: `task_log`, `tool_outputs`, `messages`, …
    """

    answer: str | None
    status: Status
    stop_reason: str
    run_id: str
    value: Value | None = None
    failure: Failure | None = None
    final_summary: str = ""
    closing_text: str = ""
    failure_experience_summary: str | None = None
    turns: int = 0
    attempts: int = 0
    rollbacks: int = 0
    repairs: tuple[Repair, ...] = ()
    warnings: tuple[str, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage(cost_usd=0.0))
    seconds: float = 0.0
    candidates: tuple[tuple[str, float], ...] = ()
    waiting: tuple[PendingDecision, ...] = ()
    labels: tuple[str, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    work_files: tuple[File, ...] = field(default=(), compare=False)
    handed_to: tuple[str, ...] = ()
    telemetry: TelemetryCollector = field(default_factory=TelemetryCollector, compare=False)
    task: str = ""
    task_id: str = ""
    ground_truth: str | None = None
    read_rows: Callable[[], Sequence[Row]] = field(default=tuple, compare=False)

    @property
    def error(self) -> str:
        """The failure in one or two sentences; empty if nothing failed."""
        return self.failure.message if self.failure is not None else ""

    @property
    def error_kind(self) -> str:
        """The name of the exception that ended the run, most often one of `closeout.errors`; empty if none did."""
        return self.failure.kind if self.failure is not None else ""

    @property
    def permanent(self) -> bool:
        """True if the same run would fail again: a key, an address or a request must be corrected first."""
        return self.failure is not None and self.failure.permanent

    @cached_property
    def task_log(self) -> TaskLog:
        """The run as a log for people. It is read from the journal at the first access."""
        return TaskLog.of(self.read_rows())

    @cached_property
    def tool_outputs(self) -> tuple[ToolOutput, ...]:
        """The output of every tool call that ran, sub-agents' calls included, with telemetry and metadata.

        They are in the order in which they finished, and read from the journal at the first access.
        """
        return tuple(outputs_of(row.event for row in self.read_rows()))

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The conversation: earlier messages, the task, the steps of the last attempt, and the closing text.

        Pass it to the next run as `history`. It is read from the journal at the first access.
        """
        return conversation_of(self.read_rows(), self.closing_text or self.answer or "")

    @cached_property
    def usage_log(self) -> tuple[RequestUsage, ...]:
        """The usage of each request to a model, sub-agents included, read from the journal at the first access."""
        return tuple(usage_by_request(row.event for row in self.read_rows()))

    @cached_property
    def citations(self) -> tuple[Citation, ...]:
        """The quotes of the answer, each with the result that has it. Read from the journal at the first access.

        Citations by the provider's own search tool follow.
        """
        from closeout.answers.citations import citations_in

        return tuple(citations_in(self.read_rows(), self.answer or "", self.value))

    @cached_property
    def agent_thoughts(self) -> tuple[AgentThought, ...]:
        """The steps of the main agent: thought, action, input, observation, usage. Read at the first access."""
        return agent_thoughts(row.event for row in self.read_rows())

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name, _FAMILIAR)

    def __repr__(self) -> str:
        said = f"answer={self.answer!r:.200}" if self.answer is not None else f"stop_reason={self.stop_reason!r}"
        error = f", error={self.error!r:.300}" if self.error else ""
        return f"RunResult(status={self.status!r}, {said}{error}, turns={self.turns}, run_id={self.run_id!r})"

    def _repr_html_(self) -> str:
        usage = self.usage
        cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
        return html_table(
            f"{self.status}: {self.task[:200]}",
            (
                ("answer", "" if self.answer is None else self.answer),
                ("error", self.error or ("" if self.answer is not None else self.stop_reason)),
                ("waiting", "\n".join(f"{each.kind} {each.tool}: {each.id}" for each in self.waiting)),
                ("warnings", "\n".join(self.warnings)),
                ("files", ", ".join(file.name for file in self.files)),
                ("turns", f"{self.turns}, {usage.requests} requests, {usage.total_tokens:,} tokens{cost}"),
                ("run", f"{self.run_id} (closeout view {self.run_id})"),
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        names = ("task_log", "tool_outputs", "messages", "usage_log", "agent_thoughts", "citations")
        views = {name: getattr(self, name) for name in names}
        return {**self.__dict__, **views, "read_rows": tuple}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, with its calls but not their results, and without the other views."""
        from dataclasses import asdict, fields

        names = [f.name for f in fields(self) if f.name not in ("read_rows", "failure", "telemetry")]
        record = {name: getattr(self, name) for name in (*names, "error", "error_kind", "permanent")}
        record["value"] = normalise(self.value)
        record["files"] = [file.to_dict() for file in self.files]
        del record["work_files"]
        record["usage"] = asdict(self.usage)
        record["repairs"] = [asdict(repair) for repair in self.repairs]
        record["waiting"] = [asdict(pending) for pending in self.waiting]
        record["candidates"] = [{"answer": answer, "share": share} for answer, share in self.candidates]
        record["tool_outputs"] = list(map(_without_result, self.tool_outputs))
        return record


# What the metadata of an output has of the result itself: the parts of an MCP result, and pictures.
_OF_RESULT = ("content", "structured_content", "images")


def _without_result(output: ToolOutput) -> dict[str, Any]:
    record = output.lean_record()
    metadata = {name: value for name, value in record.pop("metadata", {}).items() if name not in _OF_RESULT}
    return {**record, "result": None, "metadata": metadata}


def outputs_of(events: Iterable[Event]) -> Iterator[ToolOutput]:
    """Yield the outputs of the calls that were executed, with the tokens that the model was shown of them."""
    calls, story = list[CallStory](), Story()
    for event in events:
        call = story.feed(event).call
        if call is not None and isinstance(event, ToolFinished):
            calls.append(call)
    for call in calls:
        assert call.finished is not None
        try:
            output = ToolOutput.from_record(json.loads(call.finished.record))
        except (ValueError, TypeError, RecursionError):  # written by hand, or by a later version
            continue
        if call.shown is not None:
            output.telemetry.count_tokens(output.telemetry.input_tokens, int(call.shown["tokens"]))
            output.compressed = output.compressed or bool(call.shown.get("compressed"))
        yield output


def state_of(events: Sequence[Event]) -> dict[str, Any]:
    """Return the state of a recorded run: what it began with, and the updates of the calls that succeeded."""
    started = events[0] if events else None
    state = dict(started.state) if isinstance(started, RunStarted) else {}
    for output in outputs_of(events):
        if output.success and output.state_update:
            state.update(normalise(output.state_update))
    return state


def conversation_of(rows: Sequence[Row], closing_text: str, *, with_earlier: bool = True) -> tuple[Message, ...]:
    """Return the main agent's conversation as a record holds it, in the form of native tool calls.

    It ends with the closing text, if there is one. `with_earlier`: it begins with the messages that the run began with.
    """
    from closeout.dialects.function_call import FunctionCall

    if not rows or not isinstance(rows[0].event, RunStarted):
        return ()
    started, steps, reply = rows[0].event, list[Step](), ModelReply()
    messages: tuple[str, ...] = ()  # of the user's to the running agent, before the first step
    path, taken_over = "main", list[Step]()  # the agent that has the conversation, and the steps that it began with
    for row in rows:
        event = row.event
        if event.agent != path:
            continue
        if isinstance(event, HandedOver):
            path, taken_over = event.to, [*steps]
        elif isinstance(event, AttemptStarted):
            messages += tuple(message for step in steps[len(taken_over) :] for message in step.messages)
            steps = [*taken_over]
        elif isinstance(event, MessageReceived) and steps:
            steps[-1] = steps[-1].followed_by(event.text)
        elif isinstance(event, MessageReceived):
            messages += (event.text,)
        elif isinstance(event, TurnAccepted):
            while len(steps) > len(taken_over) and steps[-1].turn >= event.turn:  # a changed agent repeats it
                steps.pop()
            steps.append(event.step())
        elif isinstance(event, ModelReplied):
            reply = event.reply()
    view = HistoryView(
        "",
        started.question or started.task,
        steps=tuple(steps),
        earlier=tuple(map(Message.of, json.loads(started.earlier))) if started.earlier and with_earlier else (),
        messages=messages,
        images=tuple(json.loads(started.images)) if started.images else (),
    )
    written = FunctionCall().render(view, Capabilities(images=True)).messages
    if not closing_text:
        return tuple(written)
    if closing_text not in reply.text or reply.tool_calls:  # the answer was given earlier, or put together
        reply = ModelReply()
    return (*written, assistant_message(replace(reply, text=closing_text)))
