"""Measure tool calls: one call, and the sums over many in constant memory. Models do not see any of it."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from operator import add
from typing import Any
from uuid import uuid4

from closeout.errors import UsageError
from closeout.results.tool_output import BLANK_TELEMETRY, ToolTelemetry, unvalidated

__all__ = ["CallMeter", "TelemetryCollector", "joined_telemetry"]

try:
    import resource
except ImportError:  # Windows has no getrusage; memory then stays 0
    resource = None  # type: ignore[assignment]

_RSS_PER_MB = 1024 * 1024 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KiB elsewhere


def _cpu_and_memory() -> tuple[float, int]:
    """Seconds of CPU of the calling thread, and the process' peak memory in the system's unit."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource is not None else 0
    return time.thread_time(), memory


class CallMeter:
    """Measures one call: created when it begins, notified when each try begins and ends, read at the end.

    CPU time is that of the thread the tool runs in: the one that is passed to `note_cpu_time`, else the calling
    thread's, which is an upper bound for a tool that awaits.
    """

    def __init__(self) -> None:
        self.timestamp = datetime.now(UTC).isoformat()
        self.latency_ms = self.cpu_percent = self.memory_mb = 0.0
        self._cpu, self._memory = _cpu_and_memory()
        self._thread_cpu: float | None = None
        self._begun = self._tried = time.perf_counter()

    def start(self) -> None:
        """Begin a try of the tool; the first begins with the meter."""
        self._tried = time.perf_counter()
        self._thread_cpu = None
        self._cpu, _ = _cpu_and_memory()

    def note_cpu_time(self, seconds: float) -> None:
        """Note the seconds of CPU that the current try took in another thread."""
        self._thread_cpu = seconds

    def stop(self) -> None:
        """End the try: measure latency, CPU and memory."""
        elapsed = time.perf_counter() - self._tried
        cpu, memory = _cpu_and_memory()
        cpu = cpu - self._cpu if self._thread_cpu is None else self._thread_cpu
        self.latency_ms = round(elapsed * 1000, 3)
        self.cpu_percent = min(100.0 * cpu / elapsed, 100.0) if elapsed > 0 and cpu > 0 else 0.0
        self.memory_mb = (memory - self._memory) / _RSS_PER_MB

    def telemetry(
        self, tool_name: str, *, input_tokens: int = 0, output_tokens: int = 0, **fields: Any
    ) -> ToolTelemetry:
        """Return the measured call; `fields` are further fields of ToolTelemetry."""
        record = unvalidated(
            ToolTelemetry,
            BLANK_TELEMETRY,
            tool_name=tool_name,
            execution_id=str(uuid4()),
            timestamp=self.timestamp,
            latency_ms=self.latency_ms,
            duration_ms=round((time.perf_counter() - self._begun) * 1000, 3),
            memory_mb=self.memory_mb,
            cpu_percent=self.cpu_percent,
            **{"metrics": {}, **fields},
        )
        if input_tokens or output_tokens:
            record.count_tokens(input_tokens, output_tokens)
        return record


def joined_telemetry(own: ToolTelemetry, measured: ToolTelemetry) -> ToolTelemetry:
    """Return what a tool reports of its call itself, completed by what was measured."""
    unset = {name: value for name, value in measured if name not in own.model_fields_set}
    if "total_tokens" in unset:
        unset["total_tokens"] = sum(unset.get(name, getattr(own, name)) for name in ("input_tokens", "output_tokens"))
    return own.model_copy(update=unset)


_LINES = {
    "en": ("Tool calls", "calls", "tokens", "mean latency", "error rate", "cache hit rate", "none yet"),
    "zh": ("工具执行统计", "总调用次数", "总 Token 使用", "平均延迟", "错误率", "缓存命中率", "暂无调用"),
}


class TelemetryCollector:
    """Sums over the calls of one run. A record costs the same however many came before; only the last `keep` are kept.

    Each record also goes to `forward`, for example to an exporter's `record`. `Agent(telemetry=…)` passes the calls of
    all runs of an agent to a collector; `RunResult.telemetry` has those of one run.

    Attributes:
        aggregated: `total_calls`, `total_tokens` (of outputs), `total_latency_ms`, `error_rate` and `cache_hit_rate`
            (0 to 1).

    >>> collector = TelemetryCollector()
    >>> collector.record(ToolTelemetry(tool_name="search", output_tokens=40, latency_ms=12.0))
    >>> collector.aggregated["total_tokens"]
    40
    """

    def __init__(self, keep: int = 1_000, forward: Callable[[ToolTelemetry], None] | None = None) -> None:
        self._forward = forward
        self._kept: deque[ToolTelemetry] = deque(maxlen=keep)
        self._lock = threading.Lock()
        self._sums: list[float] = [0, 0, 0.0, 0, 0]  # calls, errors, latency_ms, tokens, cache hits
        self._tools: dict[str, list[float]] = {}
        self.aggregated: dict[str, Any] = {
            "total_calls": 0,
            "total_tokens": 0,
            "total_latency_ms": 0.0,
            "error_rate": 0.0,
            "cache_hit_rate": 0.0,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_forward": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def record(self, telemetry: ToolTelemetry) -> None:
        """Add one call."""
        with self._lock:
            self._kept.append(telemetry)
            one = (1, not telemetry.success, telemetry.latency_ms, telemetry.output_tokens, telemetry.cache_hit)
            for sums in (self._sums, self._tools.setdefault(telemetry.tool_name, [0, 0, 0.0, 0, 0])):
                sums[:] = map(add, sums, one)
            self._update_aggregated()
        if self._forward is not None:
            self._forward(telemetry)

    @property
    def metrics(self) -> list[ToolTelemetry]:
        """The last calls, oldest first, at most `keep` of them. A subclass may set a list of its own."""
        own: list[ToolTelemetry] | None = self.__dict__.get("metrics")
        return list(self._kept) if own is None else own

    @metrics.setter
    def metrics(self, calls: list[ToolTelemetry]) -> None:
        self.__dict__["metrics"] = calls

    def _update_aggregated(self) -> None:
        """Update `aggregated` after a call. A subclass may add values of its own."""
        calls, errors, latency_ms, tokens, hits = self._sums
        self.aggregated.update(
            total_calls=calls,
            total_tokens=tokens,
            total_latency_ms=latency_ms,
            error_rate=errors / calls,
            cache_hit_rate=hits / calls,
        )

    @property
    def by_tool(self) -> dict[str, Any]:
        """For each tool's name `calls`, `errors`, `latency_ms` (sum) and `tokens` (of outputs), or a subclass's own."""
        if "by_tool" in self.__dict__:
            return self.__dict__["by_tool"]  # type: ignore[no-any-return]
        names = ("calls", "errors", "latency_ms", "tokens")
        return {tool: dict(zip(names, sums, strict=False)) for tool, sums in self._tools.items()}

    @by_tool.setter
    def by_tool(self, sums: dict[str, Any]) -> None:
        self.__dict__["by_tool"] = sums

    def get_report(self, language: str = "zh") -> str:
        """The sums as a few lines for people, in "zh" or "en"; a report on no calls says so."""
        if language not in _LINES:
            raise UsageError(f"Reports are not available in {language!r}. Use {' or '.join(_LINES)}.")
        title, calls, tokens, latency, errors, hits, none = _LINES[language]
        if not self._sums[0]:
            return f"\n{title}:\n- {none}\n"
        sums = self.aggregated
        return (
            f"\n{title}:\n- {calls}: {sums['total_calls']}\n- {tokens}: {sums['total_tokens']}\n"
            f"- {latency}: {sums['total_latency_ms'] / sums['total_calls']:.2f}ms\n"
            f"- {errors}: {sums['error_rate']:.2%}\n- {hits}: {sums['cache_hit_rate']:.2%}\n"
        )
