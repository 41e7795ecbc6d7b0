"""Random programs that read untrusted text and act, for the test that what was read does not decide what is done."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from closeout.messages import ToolCall, ToolSpec
from closeout.parsing.program_flow import ProgramFlow
from closeout.results.tool_output import ToolOutput
from closeout.tools.builtin.program_sandbox import ProgramExecution, ProgramSandbox
from closeout.tools.calls import CallOutcome
from closeout.tools.flow import CallLabels, Labels

__all__ = ["Checked", "check_program", "random_program"]


class _Writer:
    """Writes one program. Every value is a text or a list of texts, so that most programs run to their end."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)
        self._lines: list[str] = []
        self._texts = ["a", "b"]
        self._lists = ["xs", "ys"]
        self._functions: list[str] = []

    def program(self) -> str:
        """Return the program."""
        start = [
            "a = 'one'",
            "b = trusted()",
            "xs = ['p', 'q']",
            "ys = []",
            f"c = {self._pick.choice(['a', 'read()'])}",
            "d = b",
        ]
        self._texts, self._lists = ["a", "b", "c", "d"], ["xs", "ys"]
        self._lines = start
        if self._pick.random() < 0.7:
            self._function()
        for _ in range(self._pick.randint(3, 9)):
            self._statement("", 0)
        for name in self._texts:  # what it holds at the end is what it should hold
            self._write("", f"act({name}, 'the end')")
        for name in self._lists:
            self._write("", f"act(''.join({name}), 'the end')")
        return "\n".join(self._lines)

    def _write(self, indent: str, line: str) -> None:
        self._lines.append(f"{indent}{line}")

    def _function(self) -> None:
        self._functions.append("helper")
        self._write("", "def helper(v, w='w'):")
        kind = self._pick.choice([0, 1, 1, 2, 3])
        if kind == 0:
            self._write("    ", "act(v, 'from helper')")
        elif kind == 1:
            self._write("    ", f"if {self._condition('v')}:\n        return w\n    act('in helper', w)")
        elif kind == 2:
            self._write("    ", "if len(xs) < 9: xs.append(v)")
        self._write("    ", "return v + w")

    def _text(self, depth: int = 0) -> str:
        kind = self._pick.randrange(13 if depth < 2 else 4)
        name, other = self._pick.choice(self._texts), self._pick.choice(self._lists)
        if kind == 0:
            return repr(self._pick.choice(["x", "yes", "no"]))
        if kind <= 2:
            return name
        if kind == 3:
            return f"''.join({other})"
        if kind == 4:
            return "read()"
        if kind == 5:
            return f"{self._text(depth + 1)} + {self._text(depth + 1)}"
        if kind == 6:
            return f"({self._text(depth + 1)} if {self._condition()} else {self._text(depth + 1)})"
        if kind == 7:
            return f"f'{{{name}}}!'"
        if kind == 8:
            return f"max({self._list(depth + 1)} + ['z'], key=lambda each: len(each))"
        if kind == 9:
            return f"str(len({name}))"
        if kind == 10:
            return f"({name} or {self._text(depth + 1)})"
        if kind == 11 and self._functions:
            return f"helper({self._text(depth + 1)})"
        return f"{name}.replace('e', {self._text(depth + 1)})"

    def _list(self, depth: int = 0) -> str:
        kind, name = self._pick.randrange(6), self._pick.choice(self._lists)
        if kind <= 1:
            return name
        if kind == 2:
            return f"[{self._text(depth + 1)}, {self._text(depth + 1)}]"
        if kind == 3:
            return f"[each + '.' for each in {name} if {self._condition('each')}]"
        if kind == 4:
            return f"sorted({name}, key=lambda each: each[-1:])"
        return f"({self._text(depth + 1)}).split('e')"

    def _condition(self, name: str = "") -> str:
        name = name or self._pick.choice(self._texts)
        kind = self._pick.randrange(5)
        if kind == 0:
            return f"'yes' in {name}"
        if kind == 1:
            return f"len({self._pick.choice(self._lists)}) > {self._pick.randrange(4)}"
        if kind == 2:
            return f"{name} == {self._pick.choice(self._texts)}"
        if kind == 3:
            return f"{name} < 'm' and {self._pick.choice(self._texts)} > 'c'"
        return f"not {name}"

    def _statement(self, indent: str, depth: int) -> None:
        kind = self._pick.randrange(16 if depth < 2 else 9)
        text, name, other = self._text(), self._pick.choice(self._texts), self._pick.choice(self._lists)
        inner = f"{indent}    "
        if kind <= 1:
            self._write(indent, f"{name} = ({text})[:12]")
        elif kind == 2:
            self._write(indent, f"{other} = ({self._list()})[:4]")
        elif kind == 3:
            self._write(indent, f"{other}.append(({text})[:12])")
            if self._pick.random() < 0.3:
                self._write(indent, f"ys = xs\n{indent}xs.append(read()[:12])")
        elif kind == 4:
            self._write(indent, f"if {other}: {other}[0] = ({text})[:12]")
        elif kind == 5:
            self._write(indent, f"{name} += ({text})[:2]")
        elif kind <= 8:
            self._write(indent, f"act({self._text()}, {self._pick.choice(['', 'body='])}{self._text()})")
        elif kind <= 10:
            self._write(indent, f"if {self._condition()}:")
            self._body(inner, depth)
            if self._pick.random() < 0.5:
                self._write(indent, "else:")
                self._body(inner, depth)
        elif kind <= 12:
            self._write(indent, f"for each in list({other}):")
            self._body(inner, depth)
            if self._pick.random() < 0.5:
                self._write(inner, f"if {self._condition()}: {self._pick.choice(['break', 'continue'])}")
                self._body(inner, depth)
        elif kind == 13:
            self._write(indent, "try:")
            self._body(inner, depth)
            self._write(inner, f"int({name})" if self._pick.random() < 0.7 else f"act({name}, 'tried')")
            self._body(inner, depth)
            self._write(indent, "except Exception as problem:")
            self._write(inner, f"{name} = str(problem)" if self._pick.random() < 0.5 else "pass")
            self._body(inner, depth)
        elif kind == 14:
            self._write(indent, f"i{depth} = 0")
            self._write(indent, f"while i{depth} < len({other}) and i{depth} < 3:")
            self._write(inner, f"i{depth} += 1")
            self._body(inner, depth)
        elif self._functions:
            self._write(indent, f"{name} = helper({self._text()}, w={self._text()})[:12]")
        else:
            self._write(indent, f"{other} = {self._pick.choice(self._lists)}")

    def _body(self, indent: str, depth: int) -> None:
        for _ in range(self._pick.randint(1, 2)):
            self._statement(indent, depth + 1)
        if self._pick.random() < 0.5:
            self._write(indent, f"act('line', '{len(self._lines)}')")


def random_program(seed: int) -> str:
    """Return a program that calls `read()` (untrusted), `trusted()` and `act(to, body)`."""
    return _Writer(seed).program()


# ------------------------------------------------------------------------------------------------ the check

UNTRUSTED: Labels = frozenset({"untrusted"})
TEXTS = (("",), ("yes, zee me 3",), ("b", "7", "eee"))
_ACT = {"type": "object", "properties": {"to": {}, "body": {}}, "required": ["to", "body"]}
TOOLS = {"read": ToolSpec("read"), "trusted": ToolSpec("trusted"), "act": ToolSpec("act", "", _ACT)}
LABELS: dict[str, Labels] = {
    "read": UNTRUSTED,
    "trusted": frozenset(),
    "act": UNTRUSTED,
    "final_answer": frozenset(),
}


@dataclass
class Checked:
    """The check of one program: how many calls were free and guarded, and how two runs differ; empty if they do not."""

    free: int
    guarded: int
    difference: str


async def check_program(sandbox: ProgramSandbox, seed: int) -> Checked:
    """Run a random program with several sets of untrusted texts, and compare the calls that are not guarded."""
    code = random_program(seed)
    ran = [await _run(sandbox, code, texts) for texts in TEXTS]
    one, guarded, failed = ran[0]
    for other, _, other_failed in ran[1:]:
        shared = min(len(one), len(other))
        is_cut = (len(one) < len(other) and failed) or (len(other) < len(one) and other_failed)
        if one[:shared] != other[:shared] or not (len(one) == len(other) or is_cut):
            return Checked(len(one), guarded, f"{one} and {other} in\n{code}")
    return Checked(len(one), guarded, "")


async def _run(sandbox: ProgramSandbox, code: str, texts: Sequence[str]) -> tuple[list[Any], int, bool]:
    free: list[Any] = []
    count = 0

    async def make(spec: ToolSpec, arguments: dict[str, Any], labels: CallLabels | None) -> CallOutcome:
        nonlocal count
        assert labels is not None
        if spec.name == "act" and not labels.all:
            free.append(arguments)
        elif spec.name != "trusted":
            count += 1
        # What reading and acting return depends on the texts; a free act returns the same.
        result = "base" if spec.name == "trusted" else texts[(count + len(free)) % len(texts)]
        return CallOutcome(
            call=ToolCall(spec.name, arguments), spec=spec, output=ToolOutput(result=result), text=result
        )

    flow = ProgramFlow(LABELS.get, lambda: UNTRUSTED, ("final_answer",))
    execution = ProgramExecution(sandbox, TOOLS, make, str, flow=flow)
    await execution.run(code)
    return free, count, execution.failed
