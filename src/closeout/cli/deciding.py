"""Show at the terminal what a run waits for, and ask a person to decide."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.errors import UsageError
from closeout.parsing.numbers import exact_json
from closeout.run.waits.decisions import Decision, PendingDecision, awaited
from closeout.visible import visible

__all__ = ["ask_at_terminal", "can_ask", "describe_pending", "read_arguments", "read_json"]


def describe_pending(run_id: str, pending: Sequence[PendingDecision], agent: str = "") -> str:
    """Return what a run waits for, and the commands that decide it.

    Args:
        run_id: The run.
        pending: What it waits for; empty if all is decided.
        agent: The option that names its agent; see `agent_option`.
    """
    lines = [] if pending else [f"All is decided. Resume it: closeout resume {run_id}{agent}"]
    for each in pending:
        command = f"closeout approve {run_id} {each.id}"
        if each.kind == "timer":
            lines += [f"{each.id} waits until {awaited(each)}", f"  closeout resume --due{agent}"]
            lines += [f"  closeout resume {run_id} --now{agent}"] * each.may_end_early
        elif each.kind == "signal":
            lines.append(f"{each.id} waits for {awaited(each)}")
            lines += [f"  closeout runs signal {run_id} {shlex.quote(name)} '\"PAYLOAD\"'" for name in each.signals]
        elif each.kind == "login":
            scope = each.arguments.get("scope")
            rights = f" --scope {shlex.quote(str(scope))}" if scope else ""
            lines.append(f"{each.id} waits for {awaited(each)}")
            lines.append(f"  closeout mcp login {each.arguments.get('url')}{rights}")
            lines += [f"  closeout resume {run_id}"]
        elif each.kind == "question":
            lines += [f"{each.id} asks: {_question(each)}", f'  {command} --answer "…"']
        else:
            lines += [f"{each.id} waits for approval: {_call(each)}", f"  {each.reason}", f"  {command}"]
            lines += [f'  {command} --deny "…"']
    calls = [each for each in pending if each.kind == "approval"]
    if len(calls) > 1:
        lines.append(f"All {len(calls)} calls together\n  closeout approve {run_id} --all")
    return visible("\n".join(lines), keep="\n")


def can_ask(as_json: bool) -> bool:
    """True if there is a person to ask."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask_at_terminal(pending: Sequence[PendingDecision]) -> dict[str, Decision]:
    """Ask a person for each decision; first about several calls together.

    Decisions that are postponed are not in the result; Ctrl-D postpones the rest.
    """
    decisions: dict[str, Decision] = {}
    calls = [each for each in pending if each.kind == "approval"]
    try:
        if len(calls) > 1:
            decisions = _ask_together(calls)
    except EOFError:
        return {}
    for each in (each for each in pending if each.by_person and each.id not in decisions):
        try:
            if isinstance(each.arguments.get("form"), Mapping):
                decision = _ask_form(each, each.arguments["form"])
            else:
                decision = _ask_answer(each) if each.kind == "question" else _ask_approval(each)
        except EOFError:
            break
        if decision is not None:
            decisions[each.id] = decision
    return decisions


def _ask_together(calls: Sequence[PendingDecision]) -> dict[str, Decision]:
    """Ask about several calls in one question. Empty if a person wants to decide on each."""
    for number, each in enumerate(calls, 1):
        _say(f"\n{number}. {_call(each)}\n{each.reason}")
    while True:
        reply = _read_line(f"Approve all {len(calls)}? [y]es, [n]o, [e]ach by itself: ").lower()
        if reply in ("y", "yes"):
            return {each.id: Decision(verdict="approve", hash=each.hash) for each in calls}
        if reply in ("n", "no"):
            why = _read_line("Why not? (the model reads it) ")
            return {each.id: Decision(verdict="deny", text=why, hash=each.hash) for each in calls}
        if reply in ("e", "each"):
            return {}


def _ask_approval(pending: PendingDecision) -> Decision | None:
    _say(f"\n{_call(pending)}\n{pending.reason}")
    while True:
        reply = _read_line("Approve? [y]es, [n]o, [e]dit, [l]ater: ").lower()
        if reply in ("y", "yes"):
            return Decision(verdict="approve", hash=pending.hash)
        if reply in ("n", "no"):
            return Decision(verdict="deny", text=_read_line("Why not? (the model reads it) "), hash=pending.hash)
        if reply in ("l", "later"):
            return None
        if reply in ("e", "edit"):
            try:
                arguments = read_arguments(_read_line("All arguments as JSON: "))
            except UsageError as error:
                _say(str(error))
                continue
            return Decision(verdict="approve", arguments=arguments, hash=pending.hash)


def _ask_answer(pending: PendingDecision) -> Decision | None:
    _say(f"\n{_question(pending)}")
    options = pending.arguments.get("options") or ()
    reply = _read_line("Answer (empty: later): ")
    if reply.isdecimal() and 1 <= int(reply) <= len(options):
        reply = str(options[int(reply) - 1])
    return Decision(verdict="answer", text=reply, hash=pending.hash) if reply else None


def _ask_form(pending: PendingDecision, form: Mapping[str, Any]) -> Decision | None:
    """Ask for a form field by field, until the values fit."""
    from closeout.tools.mcp.mcp_questions import field_value, read_form

    _say(f"\n{_question(pending)}")
    while True:
        reply = _read_line("Answer? [y]es, [n]o, [l]ater: ").lower()
        if reply in ("n", "no"):
            return Decision(verdict="deny", hash=pending.hash)
        if reply in ("l", "later"):
            return None
        if reply not in ("y", "yes"):
            continue
        given: dict[str, Any] = {}
        for name, field in form["properties"].items():
            text = _read_line(visible(f"{name} (empty: {_empty(field)}): "))
            if text:
                given[name] = field_value(field, text)
        answer = json.dumps(given)
        try:
            read_form(form, answer)
        except ValueError as error:
            _say(str(error))
            continue
        return Decision(verdict="answer", text=answer, hash=pending.hash)


def _empty(field: Mapping[str, Any]) -> str:
    return json.dumps(field["default"], ensure_ascii=False) if "default" in field else "left out"


def _call(pending: PendingDecision) -> str:
    values = ", ".join(f"{name}={json.dumps(v, ensure_ascii=False)}" for name, v in pending.arguments.items())
    return f"{pending.tool}({values})"


def _question(pending: PendingDecision) -> str:
    options = pending.arguments.get("options") or ()
    listed = "".join(f"\n  {number}. {option}" for number, option in enumerate(options, 1))
    return f"{pending.arguments.get('question', '')}{listed}"


def _say(text: str) -> None:
    # Escaped, not left out: people must see all that they approve, even a character that reverses the line.
    print(visible(text, keep="\n"), file=sys.stderr, flush=True)


def _read_line(prompt: str) -> str:
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def read_json(name: str, text: str) -> Any:
    """Return the value of a JSON argument. Raises UsageError with the name of the argument."""
    try:
        return exact_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}. A text needs quotes of its own: '\"a text\"'.") from None


def read_arguments(text: str) -> dict[str, Any]:
    value = read_json("--edit", text)
    if not isinstance(value, dict):
        raise UsageError('--edit must be a JSON object with all arguments of the call, such as {"amount": 5}.')
    return value
