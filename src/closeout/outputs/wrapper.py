"""Any function as a tool with the one output shape: `UnifiedToolWrapper.wrap_tool`, for loops that are not ours.

The agent's own loop governs calls in `tools` and shows results with `present`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, overload

from closeout.outputs.artifacts import Artifact, ArtifactStore
from closeout.outputs.escape import escape_markers
from closeout.outputs.models import ResponseFormat, ToolOutput, format_observation
from closeout.outputs.normal import compact_json, normalise
from closeout.outputs.summary import summarise
from closeout.outputs.telemetry import CallMeter, TelemetryCollector, joined_telemetry
from closeout.outputs.tokens import estimate_tokens

__all__ = ["UnifiedToolWrapper", "WrappedOutput"]


class WrappedOutput(str):
    """What a wrapped tool returns: the output as the model's JSON, without telemetry, which travels beside it.

    `output` is the whole ToolOutput; its fields are also attributes here (`out.telemetry`, `out.summary`).
    """

    output: ToolOutput

    def __new__(cls, output: ToolOutput) -> WrappedOutput:
        text = super().__new__(cls, output.model_dump_json())
        text.output = output
        return text

    def __getattr__(self, name: str) -> Any:
        if name == "output":  # not set yet: a copy or an unpickling in progress
            raise AttributeError(name)
        return getattr(self.output, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return WrappedOutput, (self.output,)


class UnifiedToolWrapper:
    """Wraps functions so that every call gives one ToolOutput, whatever it returns or raises."""

    @overload
    @staticmethod
    def wrap_tool(
        tool_func: Callable[..., Any],
        tool_name: str | None = None,
        response_format: ResponseFormat = ResponseFormat.CONCISE,
        *,
        language: str = "en",
        collector: TelemetryCollector | None = None,
        store: ArtifactStore | None = None,
    ) -> Callable[..., Any]: ...

    @overload
    @staticmethod
    def wrap_tool(
        tool_func: None = None,
        tool_name: str | None = None,
        response_format: ResponseFormat = ResponseFormat.CONCISE,
        *,
        language: str = "en",
        collector: TelemetryCollector | None = None,
        store: ArtifactStore | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...

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
        """The function as a tool; also a decorator, with or without arguments. `def` stays `def`, `async def` async.

        The wrapped function keeps name, docstring and signature and returns a `WrappedOutput`. An exception becomes an
        output with `telemetry.success` False and the exception's type as `error_code`; cancellation passes through.
        CONCISE keeps the data out of the output: with a `store` it is kept there, and the observation names its handle.
        A function that returns a ToolOutput speaks for itself, also with telemetry of its own (`cache_hit`, `metrics`).
        Each call is recorded in `collector`, if there is one. `tool_name` defaults to the function's name.
        """
        if tool_func is None:
            return functools.partial(
                UnifiedToolWrapper.wrap_tool,
                tool_name=tool_name,
                response_format=response_format,
                language=language,
                collector=collector,
                store=store,
            )
        name = tool_name or str(getattr(tool_func, "__name__", type(tool_func).__name__))
        calls = _Calls(name, ResponseFormat(response_format), language, collector, store)
        if inspect.iscoroutinefunction(tool_func) or inspect.iscoroutinefunction(getattr(tool_func, "__call__", None)):  # noqa: B004 - asks whether calling it gives a coroutine
            return calls.wrap_async(tool_func)
        return calls.wrap(tool_func)


class _Calls:
    """The calls of one wrapped tool."""

    def __init__(
        self,
        name: str,
        response_format: ResponseFormat,
        language: str,
        collector: TelemetryCollector | None,
        store: ArtifactStore | None,
    ) -> None:
        self.name = name
        self.response_format = response_format
        self.language = language
        self.collector = collector
        self.store = store
        self.stored = 0

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
        output = result.model_copy() if isinstance(result, ToolOutput) else self.made(result)
        return self.finished(output, meter, arguments, success=True)

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
        self.stored += 1
        while store.get(f"{self.name}-{self.stored}") is not None:
            self.stored += 1
        handle = f"{self.name}-{self.stored}"
        store.put(handle, Artifact(result, self.name))
        return handle

    def failed(self, meter: CallMeter, failure: Exception, arguments: Any) -> WrappedOutput:
        meter.stop()
        message = str(failure)
        output = ToolOutput(
            summary=f"Error: {message}",
            observation=f"Observation: Error - {escape_markers(message)}",
            response_format=self.response_format,
        )
        code = type(failure).__name__
        return self.finished(output, meter, arguments, success=False, error_code=code, error_message=message)

    def finished(self, output: ToolOutput, meter: CallMeter, arguments: Any, **fields: Any) -> WrappedOutput:
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
        output.observation = output.observation or format_observation(output)
        if self.collector is not None:
            self.collector.record(output.telemetry)
        return WrappedOutput(output)
