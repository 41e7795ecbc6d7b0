"""Wrap any function as a tool that returns a ToolOutput: `UnifiedToolWrapper.wrap_tool`, for any agent loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from closeout.results.artifacts import Artifact, ArtifactStore
from closeout.results.escape import escape_markers
from closeout.results.normal import compact_json, normalise
from closeout.results.summary import summarise
from closeout.results.telemetry import CallMeter, TelemetryCollector, joined_telemetry
from closeout.results.tokens import estimate_tokens
from closeout.results.tool_output import ResponseFormat, ToolOutput, WrappedOutput, format_observation

__all__ = ["UnifiedToolWrapper"]


class UnifiedToolWrapper:
    """Wraps functions so that every call returns a ToolOutput, whatever the function returns or raises."""

    @staticmethod
    def wrap_tool(
        tool_func: Callable[..., Any] | None = None,
        tool_name: str | None = None,
        response_format: ResponseFormat = ResponseFormat.CONCISE,
        *,
        language: str = "en",
        collector: TelemetryCollector | None = None,
        store: ArtifactStore | None = None,
    ) -> Callable[..., Any]:
        """Wrap a function as a tool; also a decorator, with or without arguments.

        The wrapped function keeps docstring and signature, is called `tool_name`, and returns a `WrappedOutput`. An
        exception becomes an output with `telemetry.success` False and the exception's type as `error_code`;
        cancellation passes through. A function that returns a ToolOutput decides for itself, also about telemetry.

        Args:
            tool_func: The function, `def` or `async def`.
            tool_name: The tool's name; default: the function's.
            response_format: What the observation shows. CONCISE shows the summary; an `Agent` and the LangGraph node
                keep the result and name the handle that reads it.
            language: Of summaries: "en" or "zh".
            collector: Records every call.
            store: Keeps results that CONCISE leaves out; the observation names the handle.
        """

        def wrap(function: Callable[..., Any]) -> Any:
            name = tool_name or str(getattr(function, "__name__", type(function).__name__))
            calls = _Calls(name, ResponseFormat(response_format), language, collector, store)
            is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
                getattr(function, "__call__", None)  # noqa: B004 - asks whether calling it gives a coroutine
            )
            wrapped: Any = calls.wrap_async(function) if is_async else calls.wrap(function)
            wrapped.__name__ = name
            wrapped.tool_response_format = calls.response_format
            return wrapped

        return wrap if tool_func is None else wrap(tool_func)


@dataclass(slots=True)
class _Calls:
    """The calls of one wrapped tool."""

    name: str
    response_format: ResponseFormat
    language: str
    collector: TelemetryCollector | None
    store: ArtifactStore | None
    stored: Iterator[int] = field(default_factory=partial(count, 1))

    def wrap(self, function: Callable[..., Any]) -> Callable[..., WrappedOutput]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> WrappedOutput:
            meter = CallMeter()
            try:
                result = function(*args, **kwargs)
            except Exception as failure:
                return self.failed(meter, failure, (args, kwargs))
            return self.succeeded(meter, result, (args, kwargs))

        return wrapped

    def wrap_async(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[WrappedOutput]]:
        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> WrappedOutput:
            meter = CallMeter()
            try:
                result = await function(*args, **kwargs)
            except Exception as failure:
                return self.failed(meter, failure, (args, kwargs))
            return self.succeeded(meter, result, (args, kwargs))

        return wrapped

    def succeeded(self, meter: CallMeter, result: Any, arguments: Any) -> WrappedOutput:
        meter.stop()
        output = result.model_copy() if issubclass(type(result), ToolOutput) else self.made(result)
        return self.finished(output, meter, arguments, result, success=True)

    def made(self, result: Any) -> ToolOutput:
        concise = self.response_format is ResponseFormat.CONCISE
        metadata = {}
        if concise and self.store is not None:
            metadata["handle"] = self.kept(result, self.store)
        return ToolOutput(
            result=None if concise else result,
            summary=summarise(result, self.language),
            response_format=self.response_format,
            metadata=metadata,
        )

    def kept(self, result: Any, store: ArtifactStore) -> str:
        handles = (f"{self.name}-{number}" for number in self.stored)
        handle = next(handle for handle in handles if store.get(handle) is None)
        store.put(handle, Artifact(result, self.name))
        return handle

    def failed(self, meter: CallMeter, failure: Exception, arguments: Any) -> WrappedOutput:
        meter.stop()
        message = str(failure)
        observation = f"Observation: Error - {escape_markers(message)}"
        output = ToolOutput(summary=f"Error: {message}", response_format=self.response_format).with_written(observation)
        code = type(failure).__name__
        return self.finished(output, meter, arguments, None, success=False, error_code=code, error_message=message)

    def finished(
        self, output: ToolOutput, meter: CallMeter, arguments: Any, whole: Any, **fields: Any
    ) -> WrappedOutput:
        shown = output.observation or output.summary
        if output.response_format in (ResponseFormat.STANDARD, ResponseFormat.RAW) and output.result is not None:
            shown += compact_json(normalise(output.result))
        measured = meter.telemetry(
            self.name,
            input_tokens=estimate_tokens(compact_json(normalise(arguments))),
            output_tokens=estimate_tokens(shown),
            **fields,
        )
        output.telemetry = joined_telemetry(output.telemetry, measured)
        if not output.observation:
            output = output.with_written(format_observation(output))
        if self.collector is not None:
            self.collector.record(output.telemetry)
        return WrappedOutput(output, None if issubclass(type(whole), ToolOutput) else whole)
