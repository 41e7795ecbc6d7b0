"""The output of a tool: its result for the model, and its telemetry and metadata for the systems around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Self, TypeVar

from pydantic import BaseModel, Field, field_serializer

from closeout import codec
from closeout.messages import ToolPolicy
from closeout.results.budgets import read_call
from closeout.results.encoding import Encoding
from closeout.results.escape import escape_markers
from closeout.results.normal import compact_json, normalise, without_surrogates
from closeout.results.present import Presented, limit_of, present
from closeout.results.tokens import count_tokens

__all__ = [
    "BLANK_TELEMETRY",
    "REMOVED_FILES",
    "ResponseFormat",
    "ToolOutput",
    "ToolTelemetry",
    "WrappedOutput",
    "format_observation",
    "observation_of",
    "present_output",
    "unvalidated",
]


class ResponseFormat(StrEnum):
    """The detail of an observation: the summary; with type and status; everything; the bare result."""

    CONCISE = "concise"
    STANDARD = "standard"
    DETAILED = "detailed"
    RAW = "raw"


class ToolTelemetry(BaseModel):
    """The cost of one tool call. For people and systems; a model sees it only in a DETAILED observation.

    `latency_ms` is the tool's own time in its last try; `duration_ms` the whole call, with retries, waiting and
    writing the result. `memory_mb` is what the process' peak memory grew by, `cpu_percent` the CPU time of the thread
    that the tool ran in over `latency_ms`. `timestamp` is ISO 8601 with its zone, the start of the call.
    """

    tool_name: str = ""
    tool_version: str = "1.0.0"
    execution_id: str = ""
    timestamp: str = ""

    latency_ms: float = 0.0
    duration_ms: float = 0.0

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0

    cache_hit: bool = False
    cache_key: str | None = None

    success: bool = True
    error_code: str | None = None
    error_message: str | None = None
    retry_count: int = 0

    memory_mb: float = 0.0
    cpu_percent: float = 0.0

    metrics: dict[str, float] = Field(default_factory=dict)

    def count_tokens(self, given: int, shown: int) -> None:
        """Note the tokens of the call's arguments, and of what of its result the model is shown."""
        # Past pydantic's own assignment, which costs as much as the rest of the record.
        self.__dict__.update(input_tokens=given, output_tokens=shown, total_tokens=given + shown)
        self.__pydantic_fields_set__.update(("input_tokens", "output_tokens", "total_tokens"))


class ToolOutput(BaseModel):
    """The one shape of every tool result.

    An `observation` that a tool passes is what the model is shown. Otherwise it is written from the other fields: a
    tool that passes a `summary` and no `response_format` has its output shown as CONCISE.
    `model_dump` and `model_dump_json` are the model's side: `telemetry` and `metadata` are never in them. `to_record`
    is the whole, `lean_record` as much of it as tells it from a blank one; `from_record` reads both. `result` may be
    any Python value; in JSON it is written as `results.normal.normalise` defines. `files` (of `File`) become files of
    the run; no record here holds them.
    """

    result: Any | None = None
    summary: str = ""
    observation: str = ""

    response_format: ResponseFormat = ResponseFormat.CONCISE
    compressed: bool = False

    files: tuple[Any, ...] = Field(default=(), exclude=True)
    telemetry: ToolTelemetry = Field(default_factory=ToolTelemetry, exclude=True)
    metadata: dict[str, Any] = Field(default_factory=dict, exclude=True)

    state_update: dict[str, Any] | None = None
    checkpoint: str | None = None

    @field_serializer("result", "state_update", when_used="json")
    def _as_json_value(self, value: Any) -> Any:
        return codec.without_surrogates(normalise(value))

    @field_serializer("summary", "observation", when_used="json")
    def _as_text(self, value: str) -> str:
        return without_surrogates(value)

    @property
    def success(self) -> bool:
        return self.telemetry.success

    @property
    def value(self) -> Any:
        """The result; the summary of an output without one."""
        return self.summary or None if self.result is None else self.result

    @property
    def handle(self) -> str:
        """The name under which the whole result is stored, for `read_result`; "" where it is not."""
        return str(self.metadata.get("handle", ""))

    @property
    def own_observation(self) -> str:
        """The observation that the tool wrote itself, without its label; "" if it was written for it."""
        return self.observation.removeprefix(_LABEL) if "observation" in self.model_fields_set else ""

    def with_written(self, observation: str, **fields: Any) -> Self:
        """Return a copy with an observation that the tool did not write itself, nor its summary if one is passed."""
        copy = self.model_copy(update={"observation": observation, **fields})
        copy.__pydantic_fields_set__.difference_update(("observation", "summary" if "summary" in fields else ""))
        return copy

    @classmethod
    def of(cls, result: Any, summary: str, telemetry: ToolTelemetry) -> Self:
        """Return the output of a tool that returned a plain value."""
        written = {**_BLANK, "observation": observation_of(summary)}
        return unvalidated(cls, written, result=result, summary=summary, telemetry=telemetry, metadata={})

    @classmethod
    def model_validate_json(cls, json_data: Any, **options: Any) -> Self:
        """Return the output that a JSON text is of; of a `WrappedOutput` with the telemetry beside the text."""
        output = super().model_validate_json(json_data, **options)
        if isinstance(json_data, WrappedOutput):
            output.telemetry = json_data.output.telemetry
        return output

    def to_record(self) -> dict[str, Any]:
        """Everything as a JSON-able dict: the fields' names, `telemetry` and `metadata` too, values normalised."""
        return {"result": normalise(self.result), **self._record()}

    def _record(self) -> dict[str, Any]:
        own: dict[str, Any] = {"own_observation": True} if self.own_observation else {}
        if len(self.__dict__) > len(known := ToolOutput.model_fields):  # a subclass with fields of its own
            own["own_fields"] = {name: normalise(value) for name, value in self if name not in known}
        return own | {
            "summary": self.summary,
            "observation": self.observation,
            "response_format": str(self.response_format),
            "compressed": self.compressed,
            "telemetry": self.telemetry.__dict__ | {"metrics": normalise(self.telemetry.metrics)},
            "metadata": normalise(self.metadata),
            "state_update": normalise(self.state_update),
            "checkpoint": self.checkpoint,
        }

    def lean_record(self) -> dict[str, Any]:
        """`to_record` without what is as in a blank output: what the journal keeps. The result must be normal."""
        kept = {"summary", "observation"}
        if "response_format" in self.model_fields_set:  # whether it was chosen decides what the model is shown
            kept.add("response_format")
        whole = {"result": self.result, **self._record()}
        record = {name: value for name, value in whole.items() if name in kept or value != _BLANK_RECORD.get(name)}
        if isinstance(self.result, str) and self.summary == self.result:
            del record["summary"]
        if self.summary and self.observation == observation_of(self.summary):
            del record["observation"]
        measured = whole["telemetry"].items()
        record["telemetry"] = {name: value for name, value in measured if value != BLANK_TELEMETRY[name]}
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The output that a record is of. Fields that are missing get their defaults, unknown ones are ignored.

        Without a summary, a text as the result is its own. Without an observation, it is written from the summary.
        """
        fields = dict(record)
        if "summary" not in fields and isinstance(fields.get("result"), str):
            fields["summary"] = fields["result"]
        if "observation" not in fields and fields.get("summary"):
            fields["observation"] = observation_of(fields["summary"])
        output = cls.model_validate(fields)
        output.__dict__.update(record.get("own_fields", {}))  # attributes of a class that is not known here
        if not record.get("own_observation"):
            output.__pydantic_fields_set__.discard("observation")
        return output


_M = TypeVar("_M", bound=BaseModel)
_set = object.__setattr__


def unvalidated(kind: type[_M], blank: Mapping[str, Any], **fields: Any) -> _M:
    """A model of fields that are right by their making, over a `blank` one's: a tenth of `kind(**fields)`.

    What pydantic's `model_construct` does, without its look at each field. Mutable fields have to be among `fields`.
    """
    made = kind.__new__(kind)
    _set(made, "__dict__", {**blank, **fields})
    _set(made, "__pydantic_fields_set__", set(fields))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


# The key in the metadata of an output with the names of the files that the call removed.
REMOVED_FILES = "removed_files"
_LABEL = "Observation: "
_NO_POLICY = ToolPolicy()
BLANK_TELEMETRY = dict(ToolTelemetry())
_BLANK = dict(ToolOutput())
_BLANK_RECORD = ToolOutput().to_record()


class WrappedOutput(str):
    """The return value of a wrapped tool: the output as JSON for the model, with telemetry beside it.

    The fields of `output` are also attributes here (`out.telemetry`, `out.summary`).

    Attributes:
        output: The whole ToolOutput.
        whole: The function's own result, which CONCISE leaves out of the output.
    """

    output: ToolOutput
    whole: Any

    def __new__(cls, output: ToolOutput, whole: Any = None) -> WrappedOutput:
        text = super().__new__(cls, output.model_dump_json())
        text.output, text.whole = output, whole
        return text

    def __getattr__(self, name: str) -> Any:
        if name in ("output", "whole"):  # not set yet: a copy or an unpickling in progress
            raise AttributeError(name)
        return getattr(self.output, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return WrappedOutput, (self.output, self.whole)


def format_observation(output: ToolOutput) -> str:
    """The ReAct observation of an output, in its own response format. Text in it cannot forge a marker.

    >>> format_observation(ToolOutput(summary="3 rows updated"))
    'Observation: 3 rows updated'
    """
    if output.response_format is ResponseFormat.CONCISE:
        whole = f"\nThe whole result: {read_call(output.handle)}" if output.handle else ""
        return observation_of(output.summary) + whole
    summary = escape_markers(output.summary)
    if output.response_format is ResponseFormat.STANDARD:
        status = "Success" if output.telemetry.success else "Failed"
        return f"Observation: {summary}\n\nResult Type: {type(output.result).__name__}\nStatus: {status}\n"
    if output.response_format is ResponseFormat.DETAILED:
        return _LABEL + _detailed(output, output.telemetry.output_tokens)
    result = output.result
    return f"Observation: {escape_markers(result if isinstance(result, str) else compact_json(normalise(result)))}"


def observation_of(text: str) -> str:
    """A text as a ReAct observation."""
    return f"{_LABEL}{escape_markers(text)}"


def _detailed(output: ToolOutput, tokens: int = 0) -> str:
    telemetry = output.telemetry
    result = json.dumps(normalise(output.result), ensure_ascii=False, indent=2)
    # The traceback is for people only.
    metadata = {key: value for key, value in output.metadata.items() if key != "traceback"}
    return (
        f"{escape_markers(output.summary)}\n\n"
        f"Tool: {telemetry.tool_name}\n"
        f"Execution ID: {telemetry.execution_id}\n"
        f"Latency: {telemetry.latency_ms:.2f}ms\n"
        f"Tokens: {tokens}\n\n"
        f"Result: {escape_markers(result)}\n\n"
        f"Metadata: {escape_markers(str(metadata))}\n"
    )


def present_output(
    output: ToolOutput,
    *,
    tool_name: str = "",
    policy: ToolPolicy = _NO_POLICY,
    budget: int | None = None,
    handle: str = "",
    model: str | None = None,
    is_normal: bool = False,
    known: Mapping[str, Encoding] | None = None,
) -> Presented:
    """Return a tool's output as the model sees it: its result, or what its response format says.

    An output without a response format of its own shows its result as `present` does. CONCISE shows the summary and
    the handle that reads the result; STANDARD the summary, type, status and result; DETAILED everything; RAW the bare
    result. An observation of the tool's own takes the place of all but the result: an output without a response format
    is then CONCISE. The other arguments are those of `present`.
    """
    show = partial(
        present,
        tool_name=tool_name or output.telemetry.tool_name,
        latency_ms=output.telemetry.latency_ms,
        budget=budget,
        handle=handle,
        model=model,
        is_normal=is_normal,
        known=known,
    )
    own = output.own_observation
    if not output.telemetry.success:
        message = output.telemetry.error_message or output.summary
        words = message if message.startswith(tool_name) else f"{tool_name}: {message}"
        return show(own or f"Error: {words}", policy=policy)
    form = output.response_format if own or "response_format" in output.model_fields_set else None
    if output.result is None:
        return show(own or output.summary or None, policy=policy)
    if form is None:
        return show(output.result, policy=policy)
    if form is ResponseFormat.RAW:
        return show(output.result if isinstance(output.result, str) else compact_json(normalise(output.result)))
    if form is ResponseFormat.CONCISE:
        named = output.model_copy(
            update={"summary": own or output.summary, "metadata": {"handle": handle or output.handle}}
        )
        text = format_observation(named).removeprefix(_LABEL)
        if output.summary == output.result and not own:  # the summary is the whole result
            text = escape_markers(output.summary)
        whole = count_tokens(compact_json(normalise(output.result)), model)
        shown = present(text, budget=budget, model=model)
        return replace(shown, saved_tokens=max(whole - shown.tokens, 0), missing="the result")
    if form is ResponseFormat.DETAILED and not own:
        return show(_detailed(output, show(_detailed(output)).tokens))
    head = f"{escape_markers(own)}\n" if own else format_observation(output).removeprefix(_LABEL)
    rest = max(limit_of(policy, budget) - count_tokens(head, model) - 4, 1)
    data = show(output.result, policy=replace(policy, budget_tokens=None), budget=rest)
    text = without_surrogates(f"{head}\n{data.text}")
    return replace(data, text=text, tokens=count_tokens(text, model))
