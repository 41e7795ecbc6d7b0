"""Run one tool call: its deadline, its retries, its exceptions as values. Cancellation passes through to the tool."""

from __future__ import annotations

import asyncio
import base64
import logging
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

from closeout.errors import Suspended, ToolError, UsageError
from closeout.file_values import File, FileView
from closeout.messages import ToolSpec
from closeout.redaction import redact
from closeout.results.normal import error_text, files_found, is_large, normalise
from closeout.results.summary import summarise
from closeout.results.telemetry import CallMeter, joined_telemetry
from closeout.results.tool_output import (
    ResponseFormat,
    ToolOutput,
    ToolTelemetry,
    WrappedOutput,
    format_observation,
    observation_of,
)
from closeout.tools.call_records import Progress, extensible_timeout
from closeout.tools.run_context import RunContext
from closeout.tools.threads import note_cpu_time, run_in_thread

__all__ = [
    "MAY_HAVE_EFFECT",
    "AnyCallSpent",
    "CallGuard",
    "CallSpent",
    "CallUnsure",
    "ToolSource",
    "failed_output",
    "images_of",
    "run_tool",
    "stopped_output",
    "succeeded",
]

# Failures that would recur: the tool refused, or the program is wrong. All others may be temporary.
_PERMANENT = (
    ToolError, UsageError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError,
)  # fmt: skip
# Their text is enough; no traceback is recorded.
_EXPECTED = (ToolError, UsageError, TimeoutError, asyncio.CancelledError)
TRACEBACK_FRAMES = 20  # innermost ones that the record keeps
_MAX_MESSAGE = 2_000  # Characters of an exception's text.
_MAX_DELAY = 8.0  # seconds
GRACE_SECONDS = 2.0  # Seconds that a cancelled call may take to clean up before the run continues without it.
MAY_HAVE_EFFECT = "It may or may not have taken effect; check before you make it again."
# The smallest limit of the large vendors; all of them scale a picture down to far less before the model sees it.
MAX_IMAGE_BYTES = 5_000_000

logger = logging.getLogger("closeout.tools")


class CallSpent(ToolError):
    """A tool reached a limit of its own. The same call would reach it again."""


class AnyCallSpent(ToolError):
    """A tool has used up its limit for all calls."""


class CallUnsure(ToolError):
    """Nobody knows if a call has taken effect: its server did not answer, or was lost."""


class ToolSource(Protocol):
    """The interface of a tool manager for ToolExecutor."""

    def specs(self) -> Any:
        """The tools on offer, a sequence of ToolSpec."""

    def call(self, spec: ToolSpec, arguments: Mapping[str, Any], /, *progress: Any) -> Coroutine[Any, Any, Any]:
        """Return the raw result; raise on failure.

        A source with a true attribute `takes_progress` also gets a callback for the call's progress.
        """


class CallGuard(Protocol):
    """Stands between a call and its tool, in each try."""

    async def fill(self, spec: ToolSpec, arguments: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return the arguments for the tool. Raises ToolError to refuse the call."""

    async def clean(self, output: ToolOutput, /) -> ToolOutput:
        """Return the output as it may be recorded and shown."""


async def run_tool(
    source: ToolSource,
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    *,
    retry_delay: float,
    progress: Progress | None = None,
    guard: CallGuard | None = None,
) -> ToolOutput:
    """Call a tool. Raises only cancellation and `Suspended`: a failure is in the output's telemetry.

    Read-only and idempotent tools are tried again `policy.retries` times.

    Args:
        source: The tool manager.
        spec: The tool.
        arguments: Arguments that fit the tool's schema.
        retry_delay: Seconds before the first retry; doubled for each later one.
        progress: Receives the progress that the tool reports, which also extends its deadline.
        guard: Changes the arguments before the tool gets them, and the output before anybody sees it.

    Returns:
        The output. Its result is normalised: values that JSON can hold.
    """
    meter = CallMeter()
    tries = 1 + (spec.policy.retries if spec.policy.read_only or spec.policy.idempotent else 0)
    for number in range(tries):
        deadline, report = extensible_timeout(spec.policy.timeout, progress)
        try:
            async with deadline if spec.policy.timeout is not None else nullcontext():
                extra = (report,) if getattr(source, "takes_progress", False) else ()
                measuring = note_cpu_time.set(meter.note_cpu_time)
                try:
                    given = arguments if guard is None else await guard.fill(spec, arguments)
                    call = source.call(spec, _own(given), *extra)
                    # A tool without a timeout has limits of its own.
                    value = await (call if spec.policy.timeout is None else _stoppable(call, spec.name, deadline))
                finally:
                    note_cpu_time.reset(measuring)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            failure: BaseException = error  # the tool cancelled something of its own
        except (KeyboardInterrupt, Suspended):
            raise  # the program is being stopped, or the run suspended
        except BaseException as error:
            failure = error
            if isinstance(error, TimeoutError) and deadline.expired():
                late = f"{spec.name} did not finish within {spec.policy.timeout:g} seconds"
                failure = TimeoutError(late if spec.policy.crash_rule == "rerun" else f"{late}. {MAY_HAVE_EFFECT}")
        else:
            meter.stop()
            value, result = _bare_result(value)
            files: list[File] = []
            token = files_found.set(files)
            try:
                normal = partial(_normal_output, spec, value, result, meter, number)
                output = await run_in_thread(normal) if is_large(result) else normal()
            finally:
                files_found.reset(token)
            if files or output.files:
                output = await run_in_thread(partial(_with_files, output, files, RunContext.current().files))
            return output if guard is None else await guard.clean(output)
        meter.stop()
        if number + 1 < tries and not isinstance(failure, _PERMANENT):
            await asyncio.sleep(min(retry_delay * 2**number, _MAX_DELAY))
            meter.start()
        else:
            break
    output = failed_output(spec.name, _message(failure), type(failure).__name__, meter, retry_count=number)
    if not isinstance(failure, _EXPECTED):
        output.metadata["traceback"] = redact("".join(traceback.format_exception(failure, limit=-TRACEBACK_FRAMES)))
        if guard is None:  # the exception's own text may hold what it hides
            logger.debug("Tool %s raised an exception.", spec.name, exc_info=failure)
    return output if guard is None else await guard.clean(output)


async def _stoppable(call: Coroutine[Any, Any, Any], name: str, deadline: asyncio.Timeout) -> Any:
    """Await a call in a task of its own, which is left behind if it does not stop soon after it is cancelled."""
    task = asyncio.create_task(_caught(call), name=f"tool {name}")
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE_SECONDS)
        if not task.done():
            logger.warning("Tool %s still runs %g seconds after it was cancelled.", name, GRACE_SECONDS)
            asyncio._unregister_task(task)  # asyncio.run() would wait for it
        if not task.done() or task.cancelled() or not deadline.expired():
            raise
    value, error = task.result()
    if error is not None:
        raise error
    return value


async def _caught(call: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return the value and the exception of a call. A task that raises SystemExit would stop the event loop."""
    try:
        return await call, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def failed_output(
    tool_name: str, message: str, code: str, meter: CallMeter | None = None, *, retry_count: int = 0
) -> ToolOutput:
    """Return the output of a call without a result; `meter` measured it, if it ran at all."""
    failure: dict[str, Any] = {"success": False, "error_code": code, "error_message": message}
    telemetry = (meter or CallMeter()).telemetry(tool_name, retry_count=retry_count, **failure)
    observation = observation_of(f"Error - {message}")
    return ToolOutput(summary=f"Error: {message}", telemetry=telemetry).with_written(observation)


def stopped_output(tool_name: str, text: str, code: str) -> ToolOutput:
    """Return the output of a call that was not made, or not to its end. The model is shown the text as it is."""
    telemetry = ToolTelemetry(tool_name=tool_name, success=False, error_code=code, error_message=text)
    return ToolOutput(summary=text, telemetry=telemetry)


def images_of(output: ToolOutput) -> tuple[Mapping[str, Any], ...]:
    """Return the images that a tool put beside its result: OpenAI `image_url` parts, with a `name` if they have one."""
    images = output.metadata.get("images")
    return tuple(image for image in images if isinstance(image, Mapping)) if isinstance(images, list | tuple) else ()


def _with_files(output: ToolOutput, found: Sequence[File], view: FileView) -> ToolOutput:
    """Return the output with the files that its result holds, or a failed one if the run does not keep them."""
    files = {file.name: file for file in (*output.files, *found)}
    added = 0
    for file in files.values():
        if file.hidden:  # `run_python` has checked it
            continue
        if problem := view.refusal(file.name, file.size, files.keys() - {file.name}, added):
            text = f"The file {file.name!r} is not kept: {problem}."
            return failed_output(output.telemetry.tool_name, text, "FileRefused")
        file.sha256  # noqa: B018  # computed here, beside the event loop
        added += file.size
    shown = [_image_part(file) for file in found if file.is_image and file.size <= MAX_IMAGE_BYTES]
    metadata = {**output.metadata, "images": [*images_of(output), *shown]} if shown else output.metadata
    return output.model_copy(update={"files": tuple(files.values()), "metadata": metadata})


def _image_part(file: File) -> dict[str, Any]:
    data = base64.b64encode(file.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{file.media_type};base64,{data}"}, "name": file.name}


def _own(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A copy for the tool to change as it likes: the call's own arguments go into the history unchanged."""
    own = dict(arguments)
    try:
        for name, value in own.items():
            if isinstance(value, list | dict):
                own[name] = _copied(value)
    except RecursionError:  # deeper than anything that is copied by hand
        pass
    return own


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _bare_result(value: Any) -> tuple[Any, Any]:
    """Return a tool's value without its wrapper, and its result."""
    whole = None
    if issubclass(type(value), WrappedOutput):  # isinstance asks the value, which may raise
        value, whole = value.output, value.whole
    if issubclass(type(value), ToolOutput):
        return value, whole if value.result is None else value.result
    return value, value


def _normal_output(spec: ToolSpec, value: Any, result: Any, meter: CallMeter, retries: int) -> ToolOutput:
    output = succeeded(spec, value, normalise(result), meter, retries)
    if value is result and result is not None and output.result is None:  # NaN, or another value for what is missing
        output.summary = "null"
    return output


def succeeded(spec: ToolSpec, value: Any, result: Any, meter: CallMeter, retries: int) -> ToolOutput:
    """Return the output of a call that returned `value`, whose normal `result` is without the tool's wrapper."""
    telemetry = meter.telemetry(spec.name, retry_count=retries, tool_version=spec.policy.version)
    if issubclass(type(value), ToolOutput):  # what the tool reports of itself wins over what was measured from outside
        own = joined_telemetry(value.telemetry, telemetry)
        output: ToolOutput = value.model_copy(update={"telemetry": own, "result": result})
        is_summed_up = result is not None and value.summary and "summary" in value.model_fields_set
    else:
        output, is_summed_up = ToolOutput.of(result, summarise(result), telemetry), False
    form = spec.policy.response_format or (ResponseFormat.CONCISE if is_summed_up else None)
    if form is not None and "response_format" not in output.model_fields_set:
        output.response_format = ResponseFormat(form)
        if not output.own_observation:
            output = output.with_written(format_observation(output))
    return output


def _message(error: BaseException) -> str:
    """The text for the model: a ToolError's own; for other exceptions their type and their text."""
    words = error_text(error)
    if isinstance(error, ToolError | TimeoutError) and words:
        return words[:_MAX_MESSAGE]
    if isinstance(error, BaseExceptionGroup):  # its own text is only a count
        words = "; ".join(_message(each) for each in error.exceptions)
    return f"{type(error).__name__}: {words}"[:_MAX_MESSAGE].rstrip(": ")
