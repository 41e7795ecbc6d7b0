"""A picture of an agent, as Mermaid or SVG: its tools, sub-agents, handoffs and flow rules."""

from __future__ import annotations

import html
from dataclasses import dataclass

from closeout.messages import ToolSpec
from closeout.run.agent_tool import SubAgentTool, team_of
from closeout.run.handoff import Handoff
from closeout.run.plan import AgentPlan
from closeout.tools.flow import Flow

__all__ = ["AgentBox", "as_mermaid", "as_svg", "picture_of"]

WIDTH, ROW, GAP, PAD = 300, 22, 90, 12  # pixels: of a box, of a line in it, between columns, around texts
LONGEST = 38  # characters of a line
_LIGHT = {"card": "#ffffff", "line": "#c5cad4", "text": "#1b2130", "quiet": "#5d677a", "arrow": "#4f46e5"}
_DARK = {"card": "#171c26", "line": "#3a4356", "text": "#e6e9f0", "quiet": "#98a3b6", "arrow": "#9d97ff"}


@dataclass(frozen=True, slots=True)
class AgentBox:
    """One agent of a picture.

    Attributes:
        name: Its name.
        model: Its model.
        tools: Each tool with what its calls may do, and the number of the agent that it calls, None if it calls none.
        hands_over: Which of the tools hand the conversation over.
        rules: The flow rules, a line each.
        column: How many calls or handoffs lie between it and the first agent.
    """

    name: str
    model: str
    tools: tuple[tuple[str, str, int | None], ...]
    hands_over: frozenset[str]
    rules: tuple[str, ...]
    column: int


def picture_of(plan: AgentPlan) -> list[AgentBox]:
    """Return an agent, followed by those that may work in its runs. Only servers that are open show their tools."""
    plans = team_of(plan)[0]
    columns = {0: 0}
    boxes = []
    for number, each in enumerate(plans):
        local = {tool.spec.name: tool for tool in each.manager.local_tools}
        specs = [*each.manager.specs()]
        tools: list[tuple[str, str, int | None]] = []
        for spec in specs:
            below = local.get(spec.name)
            target = _number_of(below, plans) if isinstance(below, SubAgentTool) else None
            if target is not None:
                columns.setdefault(target, columns.get(number, 0) + 1)
            tools.append((spec.name, "" if target is not None else _marks(spec), target))
        shown = {spec.server_name for spec in specs}
        tools += [(server.name, "MCP server", None) for server in each.manager.servers if server.name not in shown]
        handoffs = frozenset(name for name, tool in local.items() if isinstance(tool, Handoff))
        rules = () if each.spec.flow is None else tuple(_rules(each.spec.flow))
        boxes.append(
            AgentBox(each.name, each.client.name, tuple(tools), handoffs, rules=rules, column=columns.get(number, 0))
        )
    return boxes


def _number_of(tool: SubAgentTool, plans: list[AgentPlan]) -> int | None:
    try:
        made = tool.plan_of(False)
    except Exception:  # of the user's function
        return None
    return next((number for number, plan in enumerate(plans) if plan is made or plan.spec == made.spec), None)


def _marks(spec: ToolSpec) -> str:
    policy = spec.policy
    marks = ["destroys" if policy.destructive else "reads" if policy.read_only else "has effects"]
    if policy.approval not in (None, "never"):
        marks.append("asks first")
    return ", ".join(marks)


def _rules(flow: Flow) -> list[str]:
    guard = (
        flow.guard if isinstance(flow.guard, str) else ", ".join(f"{name}: {how}" for name, how in flow.guard.items())
    )
    lines = [f"after untrusted text: {guard}"]
    lines += [f"trusted: {', '.join(flow.trusted)}"] if flow.trusted else []
    lines += [f"{name} may have: {', '.join(labels)}" for name, labels in flow.accepts.items()]
    return lines + [f"{name} is labelled: {', '.join(labels)}" for name, labels in flow.labels.items()]


def as_mermaid(boxes: list[AgentBox]) -> str:
    """Return a picture as a flowchart of Mermaid."""

    def text(value: str) -> str:
        return html.escape(value, quote=False).replace('"', "#quot;")

    lines = ["flowchart LR"]
    for number, box in enumerate(boxes):
        rules = "".join(f"<br/><i>{text(rule)}</i>" for rule in box.rules)
        lines.append(f'  a{number}["<b>{text(box.name)}</b><br/>{text(box.model)}{rules}"]')
        for index, (name, marks, target) in enumerate(box.tools):
            if target is None:
                lines.append(f'  a{number} --- a{number}t{index}(["{text(name)}<br/>{text(marks)}"])')
            else:
                arrow = "-.->" if name in box.hands_over else "-->"
                lines.append(f'  a{number} {arrow}|"{text(name)}"| a{target}')
    return "\n".join(lines) + "\n"


def as_svg(boxes: list[AgentBox], *, dark: bool = False) -> str:
    """Return a picture as an SVG document."""
    colour = _DARK if dark else _LIGHT
    bottoms: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    for box in boxes:
        top = bottoms.get(box.column, 4)
        places.append((4 + box.column * (WIDTH + GAP), top))
        bottoms[box.column] = top + _height(box) + 28
    parts: list[str] = []

    def write(x: float, y: float, value: str, *, quiet: bool = False, bold: bool = False, end: bool = False) -> None:
        shown = value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
        style = f'fill="{colour["quiet" if quiet else "text"]}"' + (' font-weight="600"' if bold else "")
        anchor = ' text-anchor="end"' if end else ""
        parts.append(f'<text x="{x}" y="{y}" {style}{anchor}>{html.escape(shown)}</text>')

    for box, (x, y) in zip(boxes, places, strict=True):
        frame = f'fill="{colour["card"]}" stroke="{colour["line"]}"'
        parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{_height(box)}" rx="10" {frame}/>')
        write(x + PAD, y + 24, box.name, bold=True)
        write(x + WIDTH - PAD, y + 24, box.model, quiet=True, end=True)
        line = y + 24 + PAD
        for name, marks, target in box.tools:
            line += ROW
            write(x + PAD, line, name)
            if target is None:
                write(x + WIDTH - PAD, line, marks, quiet=True, end=True)
                continue
            to_x, to_y = places[target][0], places[target][1] + 20
            start, dash = x + WIDTH, ' stroke-dasharray="5 4"' if name in box.hands_over else ""
            bend = f"M{start} {line - 4} C{start + GAP / 2} {line - 4} {to_x - GAP / 2} {to_y} {to_x - 6} {to_y}"
            parts.append(f'<path d="{bend}" fill="none" stroke="{colour["arrow"]}"{dash} marker-end="url(#head)"/>')
        for rule in box.rules:
            line += ROW
            write(x + PAD, line, rule, quiet=True)
    width = max(x for x, _ in places) + WIDTH + GAP // 2
    head = f'<path d="M0 0L7 3.5L0 7z" fill="{colour["arrow"]}"/>'
    marker = f'<marker id="head" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">{head}</marker>'
    size = f'width="{width}" height="{max(bottoms.values())}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}><defs>{marker}</defs>{"".join(parts)}</svg>\n'


def _height(box: AgentBox) -> int:
    return 24 + 2 * PAD + ROW * (len(box.tools) + len(box.rules))
