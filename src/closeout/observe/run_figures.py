"""Figures of the runs that a process executes, by agent, model and tool, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from closeout.journal.events import (
    AgentStarted,
    DecisionRequested,
    Event,
    ModelFailed,
    ModelReplied,
    Repaired,
    ToolFinished,
    TurnRolledBack,
)
from closeout.journal.subscribers import Progress, RunInfo

__all__ = ["Family", "RunFigures", "exposition"]

Labels: TypeAlias = tuple[tuple[str, str], ...]
Family: TypeAlias = tuple[str, str, str, Sequence[tuple[str, Labels, float]]]
"""A metric: its name, its type, what it is, and its samples: the suffix of the name, labels, value."""

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # the upper bounds of the buckets
_NUMBERS = len(SECONDS) + 2  # a bucket for each bound, one for longer times, and the sum
_TOKENS = {"input": "input_tokens", "cached": "cache_read_tokens", "output": "output_tokens"}
_COUNTERS = {
    "closeout_model_requests": "Requests to models.",
    "closeout_tokens": "Tokens by kind; cached ones are part of the input.",
    "closeout_cost_dollars": "Cost of the requests whose price is known.",
    "closeout_tool_calls": "Calls of tools.",
    "closeout_repairs": "Repairs of replies.",
    "closeout_rollbacks": "Replies that were rolled back.",
    "closeout_waits": "Waits that suspended a run, by what it waits for.",
}
_HISTOGRAMS = {
    "closeout_model_seconds": "Seconds that a request to a model took.",
    "closeout_tool_seconds": "Seconds that a call of a tool took.",
}


class RunFigures:
    """Counts what happens in runs: `Agent(listeners=[figures])`. Recorded events of a resumed run count once."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Labels], float] = {}
        self._seconds: dict[tuple[str, Labels], list[float]] = {}

    def for_run(self, run: RunInfo) -> _OneRun:
        """Return the function that counts the events of one run."""
        return _OneRun(self, run)

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        key = f"closeout_{name}", tuple(sorted(labels.items()))
        self._counts[key] = self._counts.get(key, 0) + value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        buckets = self._seconds.setdefault((f"closeout_{name}", tuple(sorted(labels.items()))), [0.0] * _NUMBERS)
        buckets[next((at for at, bound in enumerate(SECONDS) if seconds <= bound), len(SECONDS))] += 1
        buckets[-1] += seconds

    def text(self) -> str:
        """Return the figures in Prometheus's text format."""
        return exposition(self.families())

    def families(self) -> list[Family]:
        """Return the figures as metrics."""
        found: list[Family] = []
        for name, about in _COUNTERS.items():
            samples = [("", labels, value) for (each, labels), value in self._counts.items() if each == name]
            found.append((f"{name}_total", "counter", about, samples))
        for name, about in _HISTOGRAMS.items():
            samples = []
            for (each, labels), (*buckets, total) in self._seconds.items():
                if each != name:
                    continue
                for at, bound in enumerate((*map(str, SECONDS), "+Inf")):
                    samples.append(("_bucket", (*labels, ("le", bound)), sum(buckets[: at + 1])))
                samples += [("_sum", labels, total), ("_count", labels, sum(buckets))]
            found.append((name, "histogram", about, samples))
        return found


class _OneRun:
    def __init__(self, figures: RunFigures, run: RunInfo) -> None:
        self._figures, self._run = figures, run
        started = run.started
        self._names = {"main": "" if started is None else started.name}
        self._models = {"main": "" if started is None else str(started.fingerprint.get("model", ""))}

    def __call__(self, event: Event | Progress) -> None:
        if isinstance(event, AgentStarted):
            self._names[event.agent], self._models[event.agent] = event.name, event.model
        if isinstance(event, Progress) or self._run.from_record:
            return
        figures, path = self._figures, event.agent
        agent = self._names.get(path) or path.rpartition(":")[2]
        match event:
            case ModelReplied() | ModelFailed():
                model = self._models.get(path) or self._models["main"]
                outcome = "ok" if isinstance(event, ModelReplied) else event.kind
                figures.add("model_requests", agent=agent, model=model, outcome=outcome)
                figures.observe("model_seconds", event.ms / 1000, agent=agent, model=model)
                for kind, name in _TOKENS.items():
                    figures.add("tokens", event.usage.get(name) or 0, agent=agent, model=model, kind=kind)
                figures.add("cost_dollars", event.usage.get("cost_usd") or 0, agent=agent, model=model)
            case ToolFinished():
                figures.add("tool_calls", agent=agent, tool=event.name, outcome="ok" if event.ok else "failed")
                figures.observe("tool_seconds", event.ms / 1000, agent=agent, tool=event.name)
            case Repaired():
                figures.add("repairs", agent=agent, kind=event.kind)
            case TurnRolledBack():
                figures.add("rollbacks", agent=agent, reason=event.reason)
            case DecisionRequested():
                figures.add("waits", agent=agent, kind=event.kind)


def exposition(families: Iterable[Family]) -> str:
    """Return metrics in Prometheus's text format."""
    lines = []
    for name, kind, about, samples in families:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for suffix, labels, value in samples:
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            lines.append(f"{name}{suffix}{f'{{{shown}}}' if shown else ''} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
