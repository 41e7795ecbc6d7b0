"""Runs one call: its deadline, its retries, its exceptions as values. Cancellation passes through to the tool.

Whether a call is run at all is decided in `executor`; what its result is worth, in `judge`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from closeout.errors import ToolError, UsageError
from closeout.messages import ToolPolicy, ToolSpec
from closeout.outputs.models import ToolOutput, observation_of
from closeout.outputs.summary import summarise
from closeout.outputs.telemetry import CallMeter, joined_telemetry
from closeout.outputs.wrapper import WrappedOutput
from closeout.tools.scrape import is_demo_cut, shorten_scrape

__all__ = ["ToolSource", "failed_output", "images_of", "run_tool"]

# Failures that would come again: the tool said no, or the program is wrong. All others may pass.
_LASTING = (ToolError, UsageError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
_MAX_MESSAGE = 2_000  # characters of an exception's text that are kept
_MAX_DELAY = 8.0  # seconds


class ToolSource(Protocol):
    """What a ToolExecutor needs of a tool manager."""

    def specs(self) -> Any:
        """The tools on offer, a sequence of ToolSpec."""

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        """The raw result; raises on failure."""


async def run_tool(
    source: ToolSource, spec: ToolSpec, arguments: Mapping[str, Any], *, retry_delay: float
) -> ToolOutput:
    """Calls the tool and never raises but for cancellation: what went wrong is in the output's telemetry.

    Only tools that are read-only or idempotent are tried again, `policy.retries` times, after `retry_delay` seconds
    and then twice as long each time.
    """
    meter = CallMeter()
    tries = 1 + (spec.policy.retries if _may_repeat(spec.policy) else 0)
    for number in range(tries):
        try:
            if spec.policy.timeout is None:
                value = await source.call(spec, _own(arguments))
            else:
                value = await _within_deadline(source, spec, _own(arguments), spec.policy.timeout)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            failure: BaseException = error  # the tool cancelled something of its own
        except (KeyboardInterrupt, GeneratorExit):
            raise  # whoever runs the program stops it, or this coroutine is being put away
        except BaseException as error:
            failure = error
        else:
            meter.stop()
            return _succeeded(spec, value, meter, number)
        meter.stop()
        if number + 1 < tries and not isinstance(failure, _LASTING):
            await asyncio.sleep(min(retry_delay * 2**number, _MAX_DELAY))
            meter.start()
        else:
            break
    return failed_output(spec.name, _message(failure), type(failure).__name__, meter, retry_count=number)


def failed_output(
    tool_name: str, message: str, code: str, meter: CallMeter | None = None, *, retry_count: int = 0
) -> ToolOutput:
    """The output of a call that brought no result; `meter` measured it, where it was run at all."""
    failure: dict[str, Any] = {"success": False, "error_code": code, "error_message": message}
    telemetry = (meter or CallMeter()).telemetry(tool_name, retry_count=retry_count, **failure)
    observation = observation_of(f"Error - {message}")
    return ToolOutput(summary=f"Error: {message}", observation=observation, telemetry=telemetry)


def images_of(output: ToolOutput) -> tuple[Mapping[str, Any], ...]:
    """Images that a tool put beside its result, as OpenAI `image_url` parts."""
    images = output.metadata.get("images")
    return tuple(image for image in images if isinstance(image, Mapping)) if isinstance(images, list | tuple) else ()


async def _within_deadline(source: ToolSource, spec: ToolSpec, arguments: Mapping[str, Any], seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await source.call(spec, arguments)
    except TimeoutError as error:
        if deadline.expired():
            raise TimeoutError(f"{spec.name} did not finish within {seconds:g} seconds") from error
        raise


def _own(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for the tool to do with as it likes: those of the call go into the history as they were made."""
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


def _succeeded(spec: ToolSpec, value: Any, meter: CallMeter, retries: int) -> ToolOutput:
    telemetry = meter.telemetry(spec.name, retry_count=retries)
    if isinstance(value, WrappedOutput):
        value = value.output
    if isinstance(value, ToolOutput):  # the tool speaks for itself; what was measured here is the outside view
        result = (value.summary or None) if value.result is None else value.result
        own = joined_telemetry(value.telemetry, telemetry)
        output = value.model_copy(update={"telemetry": own, "result": result})
    else:
        output = ToolOutput.of(value, summarise(value), telemetry)
    if is_demo_cut(spec.name):
        output.result = shorten_scrape(output.result)
    return output


def _may_repeat(policy: ToolPolicy) -> bool:
    return policy.read_only or policy.idempotent


def _message(error: BaseException) -> str:
    """What the model reads: a ToolError's own words; other exceptions with their type, which says a lot."""
    try:
        words = str(error)
    except Exception:  # an exception whose __str__ raises
        words = ""
    if isinstance(error, ToolError | TimeoutError) and words:
        return words[:_MAX_MESSAGE]
    return f"{type(error).__name__}: {words}"[:_MAX_MESSAGE].rstrip(": ")
