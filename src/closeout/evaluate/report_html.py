"""A report as one HTML file: tables and SVG plots, without scripts and without anything to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from closeout.evaluate.comparison import Comparison
from closeout.evaluate.report import EvalReport
from closeout.evaluate.wording import SLICE_COLUMNS, percent, span

__all__ = ["pareto_front", "write_html"]

_STYLE = """\
:root { --ink: #1d2733; --soft: #5b6b7c; --line: #d8dee6; --good: #2f7d4f; --bad: #c8553d;
  --none: #e3e7ec; --mark: #2b5c9e; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
th { color: var(--soft); font-weight: 500; } tr { border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--ink); }
.axis { stroke: var(--line); } .soft { fill: var(--soft) !important; } .scroll { overflow-x: auto; }
"""
_WIDTH, _HEIGHT, _MARGIN = 720, 320, 60
# The matrix shows each task up to this number.
_MOST_TASKS = 2_000
_COLUMNS = 50  # tasks in a row of the matrix


def write_html(
    report: EvalReport, path: str | Path, *, against: Sequence[Comparison] = (), slices: Sequence[str] = ()
) -> Path:
    """Write a report as one HTML file with plots, and return its path.

    Args:
        report: The report.
        path: The file.
        against: Comparisons of other evaluations with it, from `compare_all`.
        slices: Metadata fields by whose values the score is shown too.
    """
    file = Path(path)
    file.write_text(_page(report, against, slices), "utf-8")
    return file


def _page(main: EvalReport, comparisons: Sequence[Comparison], slices: Sequence[str]) -> str:
    reports = [main, *(comparison.second for comparison in comparisons)]
    names = " and ".join(report.name for report in reports)
    sections = [f"<h1>{escape(names)}</h1>", _table(("", "result"), main.lines())]
    if comparisons:
        sections += ["<h2>Score and cost</h2>", _pareto(reports)]
        sections += [_comparison(comparison) for comparison in comparisons]
    for name in slices:
        sections += [f"<h2>By {escape(name)}</h2>", _bars(main, name), _table(SLICE_COLUMNS, main.slice_lines(name))]
    sections += ["<h2>Tasks and epochs</h2>", _matrix(main), "<h2>Turns of a trial</h2>", _histogram(main)]
    sections += ["<h2>How to repeat it</h2>", _table(("", "value"), main.provenance())]
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(names)}</title>\n<style>\n{_STYLE}</style>\n<body>\n{body}\n</body></html>\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _comparison(found: Comparison) -> str:
    names = found.first.name, found.second.name
    table = _table(("", *names, "difference"), found.lines())
    warnings = "".join(f"<p>Warning: {escape(warning)}</p>" for warning in found.warnings)
    return f"<h2>{escape(names[1])} against {escape(names[0])}</h2>{table}{warnings}"


def _svg(parts: Sequence[str], height: float = _HEIGHT, title: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str = 'class="axis"') -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" {style}/>'


# ------------------------------------------------------------------------------------------------ plots


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the points (cost, score) that no other one beats in both, the cheapest first."""
    front: list[int] = []
    for position in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[position][1] > points[front[-1]][1]:
            front.append(position)
    return front


def _pareto(reports: Sequence[EvalReport]) -> str:
    """Plot score against cost a trial; against tokens a trial where the cost of one is unknown."""
    priced = all(report.totals.cost is not None for report in reports)
    label = "US dollars a trial" if priced else "tokens a trial"
    points = []
    for report in reports:
        totals = report.totals
        spent = (totals.cost or 0.0) if priced else totals.input_tokens + totals.output_tokens
        points.append((spent / max(totals.finished, 1), report.score.mean))
    most = max(cost for cost, _ in points) or 1.0
    left, right, top, bottom = _MARGIN, _WIDTH - 160, 20, _HEIGHT - 50

    def x(cost: float) -> float:
        return left + (right - left) * cost / (1.1 * most)

    def y(score: float) -> float:
        return bottom - (bottom - top) * (0.0 if math.isnan(score) else score)

    parts = [_line(left, bottom, right, bottom), _line(left, top, left, bottom)]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts += [_line(left, y(share), right, y(share)), _text(left - 6, y(share) + 4, percent(share), anchor="end")]
        parts.append(_text(x(share * most), bottom + 18, f"{share * most:,.4g}", anchor="middle", soft=True))
    parts.append(_text((left + right) / 2, bottom + 38, label, anchor="middle"))
    front = pareto_front(points)
    path = " ".join(f"{x(points[i][0]):g},{y(points[i][1]):g}" for i in front)
    parts.append(f'<polyline points="{path}" fill="none" stroke="var(--mark)" stroke-dasharray="4 3"/>')
    for position, (report, (cost, score)) in enumerate(zip(reports, points, strict=True)):
        style = 'stroke="var(--soft)"'
        if not math.isnan(report.score.low):
            parts.append(_line(x(cost), y(report.score.low), x(cost), y(report.score.high), style))
        fill = "var(--mark)" if position in front else "var(--soft)"
        parts.append(f'<circle cx="{x(cost):g}" cy="{y(score):g}" r="5" fill="{fill}"/>')
        parts.append(_text(x(cost) + 9, y(score) + 4, f"{report.name}, {percent(score)}"))
    return _svg(parts, title=f"score against {label}")


def _bars(report: EvalReport, name: str) -> str:
    found = report.slices(name)[:20]
    left, right = 200, _WIDTH - 180
    parts = []
    for row, each in enumerate(found):
        y = 10 + 26 * row
        mean = 0.0 if math.isnan(each.score.mean) else each.score.mean
        parts.append(_text(left - 8, y + 14, each.value[:28], anchor="end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{(right - left) * mean:g}" height="18" fill="var(--mark)"/>')
        if not math.isnan(each.score.low):
            low, high = (left + (right - left) * end for end in (each.score.low, each.score.high))
            parts.append(_line(low, y + 9, high, y + 9, 'stroke="var(--ink)" stroke-width="1.5"'))
        interval = f"{percent(mean)} ({span(each.score.low, each.score.high)}) of {each.score.trials:,}"
        parts.append(_text(right + 6, y + 14, interval, soft=True))
    return _svg(parts, 20 + 26 * len(found), f"score by {name}")


def _matrix(report: EvalReport) -> str:
    """Draw each trial as a square: a task is a column of squares, one for each epoch."""
    tasks = list(report.by_task.items())[:_MOST_TASKS]
    most = max((len(trials) for _, trials in tasks), default=1)
    size, gap = (_WIDTH - 10) / _COLUMNS, 6
    block = most * size * 0.7 + gap
    parts = []
    for position, (task, trials) in enumerate(tasks):
        row, column = divmod(position, _COLUMNS)
        for epoch, trial in enumerate(trials):
            value = report.value_of(trial)
            style = 'fill="var(--none)"' if trial.state != "finished" else 'fill="var(--bad)"'
            if value > 0:
                style = f'fill="var(--good)" fill-opacity="{0.3 + 0.7 * value:.2g}"'
            title = escape(f"{task}, epoch {trial.epoch}: {trial.state}, score {value:g}, run {trial.run_id}")
            x, y = 5 + column * size, row * block + epoch * size * 0.7
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{size - 2:.1f}" height="{size * 0.7 - 1:.1f}" {style}>'
                f"<title>{title}</title></rect>"
            )
    rows = -(-len(tasks) // _COLUMNS)
    rest = len(report.by_task) - len(tasks)
    note = f"<p>{rest:,} more tasks are not drawn.</p>" if rest > 0 else ""
    legend = "<p>Green: right, red: wrong, grey: not finished. Point at a square to see its task and run.</p>"
    return legend + _svg(parts, max(rows * block, 10), "tasks and epochs") + note


def _histogram(report: EvalReport) -> str:
    turns = [trial.outcome.turns for trial in report.trials if trial.outcome is not None]
    if not turns:
        return "<p>No trial is finished.</p>"
    width = max(1, math.ceil((max(turns) + 1) / 24))
    counts = [0] * (max(turns) // width + 1)
    for number in turns:
        counts[number // width] += 1
    left, bottom, top = _MARGIN, 200, 15
    step = (_WIDTH - 2 * _MARGIN) / len(counts)
    parts = [_line(left, bottom, _WIDTH - _MARGIN, bottom)]
    for position, count in enumerate(counts):
        height = (bottom - top) * count / max(counts)
        x = left + position * step
        label = f"{position * width}" if width == 1 else f"{position * width}–{(position + 1) * width - 1}"
        parts.append(
            f'<rect x="{x + 1:g}" y="{bottom - height:g}" width="{max(step - 2, 1):g}" height="{height:g}" '
            'fill="var(--mark)"/>'
        )
        parts.append(_text(x + step / 2, bottom + 16, label, anchor="middle", soft=True))
        if count:
            parts.append(_text(x + step / 2, bottom - height - 3, f"{count:,}", anchor="middle", soft=True))
    return _svg(parts, 225, "turns of a trial")
