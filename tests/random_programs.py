"""Random programs that read untrusted text and act, for the test that what was read does not decide what is done."""

from __future__ import annotations

import ast
import io
import random
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from closeout.errors import ToolError
from closeout.messages import ToolCall, ToolSpec
from closeout.parsing.program_flow import ProgramFlow
from closeout.results.tool_output import ToolOutput
from closeout.tools.builtin.program_sandbox import ProgramExecution, ProgramSandbox, labels_at
from closeout.tools.calls import CallOutcome
from closeout.tools.flow import CallLabels, Labels
from closeout.tools.running import failed_output

__all__ = ["Checked", "check_program", "random_program"]

_HELPERS = (
    "act(v, 'from helper')",
    "if {test}:\n        return w\n    act('in helper', w)",
    "if len({list}) < 9: {list}.append(v)",
    "for part in [v, w, 'last']:\n        if {test}:\n            return part\n        note(part)",
    "try:\n        int(v)\n        note('number')\n    except ValueError as problem:\n        w = str(problem)[:12]",
    "if len(v) > 2:\n        return {name}(v[1:], w + v[:1])",
    "{table}[v[:2]] = w\n    note(w)",
    "while len(w) < 4:\n        w += v[:1] or '.'\n        if {test}: break\n    else:\n        note('long')",
    "parts = [w]\n    try:\n        int(v)\n        parts.append('int')\n    finally:\n        note(parts[-1])",
    "assert {test} or len(w) < 9\n    note('held')",
)


@dataclass(frozen=True)
class _Group:
    """Variables that are used together: what is done with one group leaves the others as they were."""

    texts: Sequence[str]
    lists: Sequence[str]
    table: str
    function: str


_GROUPS = (
    _Group(("a", "b"), ("xs", "ys"), "table", "first"),
    _Group(("c", "d"), ("zs",), "other", "second"),
    _Group(("e", "f"), ("us", "vs"), "more", "third"),
)


_START = {
    "a": "'one'", "b": "'two'", "c": "'three'", "d": "trusted()", "e": "trusted()", "f": "e", "xs": "['x', 'y']",
    "zs": "['z']", "us": "[]", "table": "{'k': a, 'e': b}", "other": "{'k': c}", "more": "{}",
}  # fmt: skip


class _Writer:
    """Writes programs. Every value is a text, a list of texts or a table of texts, so that most run to their end."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)
        self._lines: list[str] = []
        self._group = _GROUPS[0]
        self._functions: set[int] = set()  # the groups that have one
        # What was read decides often, and is a value rarely, so that most values and calls would be free without it.
        self._reads = self._pick.choice((0.003, 0.01, 0.05))

    def programs(self) -> list[str]:
        """Return one program, or two of which the second has the variables of the first."""
        pick = self._pick
        self._lines = ["import json, re", "p = read()", "q = read()"]
        self._lines += [f"{name} = {value}" for name, value in _START.items()]  # one a line: a tuple would join them
        self._lines += [pick.choice(("ys = xs", "ys = ['y']")), pick.choice(("vs = us", "vs = []"))]
        self._functions = set(pick.sample(range(len(_GROUPS)), pick.choice((0, 1, 1, 2))))
        for number in self._functions:
            self._group = _GROUPS[number]
            self._function(self._group.function)
        programs = []
        for last in (False, True) if pick.random() < 0.2 else (True,):
            for _ in range(pick.randint(2, 7)):
                self._group = pick.choice(_GROUPS)
                self._statement("", 0)
            for group in _GROUPS if last else ():  # what they hold at the end is what they should hold
                for value in (*group.texts, *(f"''.join({name})" for name in group.lists), f"str({group.table})"):
                    self._write("", f"act({value}, 'the end')")
            if pick.random() < 0.4:
                self._write("", f"print({self._text()})")
            programs.append("\n".join(self._lines))
            self._lines = []
        return programs

    @property
    def _has_function(self) -> bool:
        return _GROUPS.index(self._group) in self._functions

    @property
    def _texts(self) -> Sequence[str]:
        return self._group.texts

    @property
    def _lists(self) -> Sequence[str]:
        return self._group.lists

    def _write(self, indent: str, line: str) -> None:
        self._lines.append(f"{indent}{line}")

    def _function(self, name: str) -> None:
        self._write("", f"def {name}(v, w='w'):")
        body, group = self._pick.choice(_HELPERS), self._group
        names = {"name": name, "list": group.lists[0], "table": group.table}
        self._write("    ", body.format(test=self._condition("v"), **names))
        self._write("    ", self._pick.choice(("return v + w", "return w", "return [v, w][len(v) > 1]")))

    # -------------------------------------------------------------------------------------------- expressions

    def _text(self, depth: int = 0) -> str:
        pick = self._pick
        name, other = pick.choice(self._texts), pick.choice(self._lists)
        if pick.random() < self._reads:
            return pick.choice(("read()", "p", "q[:2]", "ask('what')"))
        if depth > 1 or pick.random() < 0.3:
            return pick.choice(
                (name, name, f"''.join({other})", "'x'", "'yes'", "''", f"{self._group.table}.get('k', '')")
            )
        text, more = self._text(depth + 1), self._text(depth + 1)
        forms = [
            f"{text} + {more}",
            f"({text} if {self._condition()} else {more})",
            f"f'{{{name}}}!{{{name}:>4}}{{len({other})}}'",
            f"'%s-{{}}'.format({name}) % {name}",
            f"max({self._list(depth + 1)} + ['z'], key=lambda each: {pick.choice(['len(each)', f'each + {name}'])})",
            f"min({self._list(depth + 1)}, default={name})",
            f"str(len({text}))",
            f"({text} or {more})",
            f"({self._condition()} and {text} or {more})",
            f"{name}.replace('e', {text})",
            f"({text}).upper().strip()",
            f"({text}).partition('e')[{pick.randrange(3)}]",
            f"json.dumps([{text}])[1:9]",
            f"re.sub('e|n', {text}, {name})",
            f"note({text})",
            f"trusted_of({text})",
            f"str(any({self._condition('each')} for each in {other}))",
            f"''.join(each[:2] for each in {other} if {self._condition('each')})",
            f"[{text}, {more}][{self._condition()}]",
            f"{self._group.table}.get({name}, {text})",
            f"str(sum(len(each) for each in {other}))",
            f"({name} := ({text})[:9])",
            f"''.join(sorted(set({text})))",
        ]
        if self._has_function:
            forms += [f"{self._group.function}({text}, w={more})", f"{self._group.function}({text})"]
        return f"({pick.choice(forms)})"

    def _list(self, depth: int = 0) -> str:
        pick, name, other = self._pick, self._pick.choice(self._texts), self._pick.choice(self._lists)
        forms = (
            other,
            f"[{self._text(depth + 1)}, {self._text(depth + 1)}]",
            f"[each + '.' for each in {other} if {self._condition('each')}]",
            f"[one + two for one in {other} for two in [{name}, 'w'] if {self._condition('two')}]",
            f"sorted({other}, key=lambda each: each[-1:] + {name})",
            f"list(map(lambda each: each + {name}, {other}))",
            f"list(filter(lambda each: {self._condition('each')}, {other}))",
            f"({self._text(depth + 1)}).split('e')",
            f"list(reversed({other}))",
            f"[key + value for key, value in {self._group.table}.items()]",
            f"list({{each: {name} for each in {other}}}.values())",
            f"[x + y for x, y in zip({other}, [{name}, 'r'])]",
            f"[str(at) + each for at, each in enumerate({other})]",
            f"{other}[1:] + {other}[:1]",
        )
        return pick.choice(forms)

    def _condition(self, name: str = "") -> str:
        pick = self._pick
        name = name or pick.choice(self._texts)
        name = pick.choice(("p", "q")) if pick.random() < 0.35 else name
        other, some = pick.choice(self._texts), pick.choice(self._lists)
        forms = (
            f"'yes' in {name}",
            f"len({some}) > {pick.randrange(4)}",
            f"{name} == {other}",
            f"{name} < 'm' and {other} > 'c'",
            f"'' < {name} <= {other}",
            f"not {name}",
            f"{name} in {self._group.table}",
            f"{name} not in {some} or {other} == 'x'",
            f"all(each < {name} for each in {some})",
            f"len({name}) % 2 == 0",
        )
        return f"({pick.choice(forms)})"

    # -------------------------------------------------------------------------------------------- statements

    def _statement(self, indent: str, depth: int) -> None:
        if depth < 2 and self._pick.random() < 0.4:
            self._compound(indent, depth)
            return
        pick = self._pick
        text, name, other = self._text(), pick.choice(self._texts), pick.choice(self._lists)
        second, table = pick.choice(self._texts), self._group.table
        forms = (
            f"{name} = ({text})[:12]",
            f"{name} = ({text})[:12]",
            f"{name} += ({text})[:2]",
            f"{name}, {second} = {second}, ({text})[:9]",
            f"[{name}, *{other}] = [({text})[:9], {second}, 'r']",
            f"{name} = {second} = ({text})[:5]",
            f"{other} = [each[:12] for each in {self._list()}[:4]]",
            f"{other} = {pick.choice(self._lists)}",
            f"{other}.append(({text})[:12])",
            f"{other}.extend([each[:12] for each in {self._list()}[:2]])",
            f"{other}.insert(0, ({text})[:12])",
            f"{other} += [({text})[:3]]",
            f"if {other}: {other}[0] = ({text})[:12]",
            f"if {other}: {name} = {other}.pop()",
            f"{other}.sort(key=lambda each: each + {name})",
            f"{other}[0:1] = [({text})[:4]]",
            f"{table}[({text})[:3]] = {name}",
            f"{table}['k'] = ({text})[:12]",
            f"{table}.setdefault(({text})[:2], {name})",
            f"{table}.update({{'e': ({text})[:6], {name}: 'u'}})",
            f"{name} = {table}.pop('e', ({text})[:6])",
            f"{name} = act({text}, 'for its result')[:12]",
            f"act({self._text()}, {pick.choice(['', 'body='])}{self._text()})",
            f"act({self._text()}, {pick.choice(['', 'body='])}{self._text()})",
            f"act(body={self._text()}, to={self._text()})",
            f"note({self._text()})",
            f"note({self._text()})",
            f"{text}",
        )
        self._write(indent, pick.choice(forms))
        if pick.random() < 0.04:
            self._write(indent, f"{other}.append(read()[:12])")
        if self._has_function and pick.random() < 0.2:
            self._write(indent, f"{self._group.function}({self._text(1)}, w='{len(self._lines)}')")

    def _compound(self, indent: str, depth: int) -> None:
        pick = self._pick
        name, other, inner = pick.choice(self._texts), pick.choice(self._lists), f"{indent}    "
        kind = pick.randrange(6)
        if kind <= 1:
            test = self._condition() if pick.random() < 0.8 else f"({name} := ({self._text()})[:7]) > 'm'"
            self._write(indent, f"if {test}:")
            self._body(inner, depth)
            if pick.random() < 0.5:
                self._write(indent, pick.choice(("else:", f"elif {self._condition()}:")))
                self._body(inner, depth)
        elif kind == 2:
            heads = (
                f"each in list({other})",
                f"at, each in enumerate({other}[:3])",
                f"each, word in list({self._group.table}.items())",
            )
            self._write(indent, f"for {pick.choice(heads)}:")
            self._loop(indent, inner, depth)
        elif kind == 3:
            self._write(indent, f"i{depth} = 0")
            test = pick.choice((f"i{depth} < len({other}) and i{depth} < 3", f"i{depth} < 3 and {self._condition()}"))
            self._write(indent, f"while {test}:")
            self._write(inner, f"i{depth} += 1")
            self._loop(indent, inner, depth)
        else:
            self._try(indent, inner, depth)

    def _loop(self, indent: str, inner: str, depth: int) -> None:
        pick = self._pick
        self._body(inner, depth)
        if pick.random() < 0.5:
            self._write(inner, f"if {self._condition()}: {pick.choice(['break', 'continue'])}")
            self._body(inner, depth)
        if pick.random() < 0.3:
            self._write(indent, "else:")
            self._body(inner, depth)

    def _try(self, indent: str, inner: str, depth: int) -> None:
        pick, name = self._pick, self._pick.choice(self._texts)
        self._write(indent, "try:")
        self._body(inner, depth)
        raising = (
            f"int({name})",
            f"if {self._condition()}: raise ValueError({self._text()})",
            f"{name} = {pick.choice(self._lists)}[2]",
            f"{name} = {self._group.table}[{name}]",
            f"ask({self._text()})",
            f"assert {self._condition()}",
            f"act({name}, 'tried')",
        )
        self._write(inner, pick.choice(raising))
        self._body(inner, depth)
        self._write(indent, pick.choice(("except Exception as problem:", "except (ValueError, KeyError) as problem:")))
        self._write(inner, f"{name} = str(problem)[:12]" if pick.random() < 0.5 else "pass")
        self._body(inner, depth)
        for word in ("else:", "finally:"):
            if pick.random() < 0.25:
                self._write(indent, word)
                self._body(inner, depth)

    def _body(self, indent: str, depth: int) -> None:
        for _ in range(self._pick.randint(1, 2)):
            self._statement(indent, depth + 1)
        if self._pick.random() < 0.3:
            self._write(indent, f"act('line', '{len(self._lines)}')")


def random_program(seed: int) -> list[str]:
    """Return programs that call `read()` and `ask(…)` (untrusted), `trusted()`, `trusted_of(…)`, `act` and `note`."""
    return _Writer(seed).programs()


# ------------------------------------------------------------------------------------------------ the check

UNTRUSTED: Labels = frozenset({"untrusted"})
TEXTS = (("",), ("yes, zee me 3",), ("b", "7", "eee"))


def _tool(name: str, *parameters: str) -> ToolSpec:
    properties: dict[str, Any] = {each: {} for each in parameters}
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": [*parameters]})


TOOLS = {
    each.name: each
    for each in (
        _tool("read"),
        _tool("ask", "what"),
        _tool("trusted"),
        _tool("trusted_of", "text"),
        _tool("note", "text"),
        _tool("act", "to", "body"),
    )
}
LABELS: dict[str, Labels] = dict.fromkeys(("trusted", "trusted_of", "note", "final_answer"), frozenset())
LABELS |= dict.fromkeys(("read", "ask", "act"), UNTRUSTED)


@dataclass
class Checked:
    """The check of programs: how many calls were free and guarded, and how two runs differ; empty if they do not."""

    free: int
    guarded: int
    difference: str


@dataclass
class _Run:
    """One run of the programs, with one set of untrusted texts.

    Attributes:
        texts: What is read, in turn.
        free: What must not depend on the texts: calls that were decided freely with their free arguments, and outputs.
        guarded: The number of other calls with effects.
        failed: An error ended it.
    """

    texts: Sequence[str]
    free: list[Any] = field(default_factory=list)
    guarded: int = 0
    failed: bool = False
    calls: int = 0

    def make(self, name: str, arguments: Mapping[str, Any], labels: CallLabels) -> str:
        """Make a call. What reading returns, or whether it fails, depends on the texts."""
        self.calls += 1
        if name in ("act", "note"):
            if labels.decided:
                self.guarded += 1
            else:
                kept = {key: value for key, value in arguments.items() if not labels.arguments.get(key)}
                self.free.append((name, kept))
                self.guarded += len(kept) < len(arguments)
        if name == "trusted":
            return "base"
        if name in ("trusted_of", "note"):
            return f"<{arguments['text']}>"[:12]
        text = self.texts[self.calls % len(self.texts)]
        if name == "ask" and text == "":
            raise ToolError("Nobody knows.")
        return text

    def shows(self, flow: ProgramFlow, output: str) -> bool:
        """Note what a program has shown. Return True if the next one is as free as it was."""
        if self.failed or flow.shown:
            return False
        self.free.append(output)
        return True


async def check_program(seed: int, sandbox: ProgramSandbox | None = None) -> Checked:
    """Run random programs with several sets of untrusted texts, and compare what may not depend on these.

    Without a sandbox Python itself runs them, which is faster and knows more of the language.
    """
    programs = random_program(seed)
    runs = [_Run(texts) for texts in TEXTS]
    flows = [] if sandbox is not None else [_flow(programs[: number + 1]) for number in range(len(programs))]
    for run in runs:
        if sandbox is None:
            _run_in_python(programs, flows, run)
        else:
            sandbox.forget()
            await _run_in_sandbox(sandbox, programs, run)
    one = runs[0]
    for other in runs[1:]:
        shared = min(len(one.free), len(other.free))
        is_cut = one.failed if len(one.free) < len(other.free) else other.failed
        if one.free[:shared] != other.free[:shared] or not (len(one.free) == len(other.free) or is_cut):
            code = "\n---\n".join(programs)
            return Checked(len(one.free), one.guarded, f"{one.free} and {other.free} in\n{code}")
    return Checked(len(one.free), one.guarded, "")


def _flow(programs: Sequence[str] = ()) -> ProgramFlow:
    flow = ProgramFlow(LABELS.get, lambda: UNTRUSTED, ("final_answer",))
    for code in programs:
        flow.feed(code)
    return flow


async def _run_in_sandbox(sandbox: ProgramSandbox, programs: Sequence[str], run: _Run) -> None:
    flow = _flow()

    async def make(spec: ToolSpec, arguments: dict[str, Any], labels: CallLabels | None) -> CallOutcome:
        assert labels is not None
        call = ToolCall(spec.name, arguments)
        try:
            result = run.make(spec.name, arguments, labels)
        except ToolError as error:
            output = failed_output(spec.name, str(error), "ToolError")
            return CallOutcome(call=call, spec=spec, output=output, text=str(error), status="error", reason=str(error))
        return CallOutcome(call=call, spec=spec, output=ToolOutput(result=result), text=result)

    for code in programs:
        execution = ProgramExecution(sandbox, TOOLS, make, str, flow=flow)
        await execution.run(code)
        run.failed = execution.failed
        if not run.shows(flow, str(execution.output().result)):
            return


def _run_in_python(programs: Sequence[str], flows: Sequence[ProgramFlow], run: _Run) -> None:
    """Run the programs in Python. `flows` are the analyses up to each of them."""
    names: dict[str, Any] = {}

    def make(start: int, end: int, name: str, *values: Any, **named: Any) -> str:
        labels = labels_at(flow.site(name, start, end), TOOLS[name], named)
        return run.make(name, {**dict(zip(labels.arguments, values, strict=False)), **named}, labels)

    names["_make"] = make
    for code, flow in zip(programs, flows, strict=True):
        output = io.StringIO()
        try:
            with redirect_stdout(output):
                exec(compile(_Instrumented(code).tree, "program", "exec"), names)
        except Exception:
            run.failed = True
        if not run.shows(flow, output.getvalue()):
            return


class _Instrumented(ast.NodeTransformer):
    """A program whose calls of the host say at which bytes they stand."""

    def __init__(self, code: str) -> None:
        lines = code.encode().split(b"\n")
        self._starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
        self.tree = ast.fix_missing_locations(self.visit(ast.parse(code)))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id not in TOOLS:
            return node
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        place = [ast.Constant(start), ast.Constant(end), ast.Constant(node.func.id)]
        return ast.Call(ast.Name("_make", ast.Load()), [*place, *node.args], node.keywords)
