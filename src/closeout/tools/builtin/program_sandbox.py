"""Execute a program that a model writes in a sandbox, with tools as functions.

The sandbox repairs what is certain to fail before it runs a program. Clock, sleep and randomness are fixed, so that a
second execution does the same.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from closeout.dialects.functions import FINAL_ANSWER, MODULES, RUN_PROGRAM, answer_function, call_form, stubs, takes_any
from closeout.errors import UsageError
from closeout.file_values import NO_FILES, FileView
from closeout.messages import Repair, ToolSpec
from closeout.parsing.python_source import MAX_PROGRAM, parse_python
from closeout.repair.argument_repair import repair_arguments
from closeout.repair.names import resolve_tool_name
from closeout.results.normal import normalise
from closeout.results.tool_output import REMOVED_FILES, ToolOutput
from closeout.tools.builtin.program_flow import CallSite, ProgramFlow
from closeout.tools.builtin.program_modules import MODULE_FUNCTIONS, external_modules, host_function, value_of
from closeout.tools.builtin.work_folder import FilesLeft
from closeout.tools.executor import CallOutcome
from closeout.tools.flow import CallLabels
from closeout.tools.running import failed_output

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, AsyncSnapshot, MontyRuntimeError

    from closeout.tools.builtin.program_files import ProgramFiles

__all__ = [
    "ANSWER_KEY",
    "LOST_KEY",
    "Call",
    "ProgramExecution",
    "ProgramSandbox",
    "labels_at",
    "require_sandbox",
    "sandbox_installed",
]

LOST_KEY = "variables_lost"
ANSWER_KEY = "final_answer"  # The key of a program's answer in the metadata of its output.

MAX_SECONDS = 10.0  # Seconds that a program may compute, without its calls.
MAX_MEMORY = 200_000_000  # bytes
MAX_DEPTH = 300  # Levels of recursion.
MAX_CALLS = 1_000  # Function calls in one program.
MAX_FILE_STEPS = 100_000  # steps with files in one program: each write of a line is one
MAX_PRINTED = 200_000  # characters of output, an answer, a last value or arguments that are kept
MAX_TRACEBACK = 2_000  # characters of an error
MAX_FRAMES = 3  # Frames of an error's traceback that are shown.
MAX_LINE = 160
_DELIVERY_SECONDS = 2.0  # Seconds that threads of the sandbox may take to hand over a result.
MAX_CORRECTIONS = 8  # rounds of repairing what the type checker finds
MAX_FINDINGS = 6  # Findings of the type checker that an error lists.

# Findings of the type checker that are certain to fail when the program runs; others may be right in Python.
_CERTAIN = frozenset({
    "unresolved-reference", "missing-argument", "unknown-argument", "too-many-positional-arguments",
    "parameter-already-assigned", "invalid-syntax",
})  # fmt: skip
_DIAGNOSTIC = re.compile(r"^[^:\n]*:(\d+):(\d+): error\[([\w-]+)\] (.*)$", re.MULTILINE)
_BUILTINS = frozenset(dir(builtins))
_BLOCKED = re.compile(r"external function '(\w+)' cannot suspend in this synchronous context")
TOO_MANY = f"A program may make at most {MAX_CALLS:,} calls. Split the work into several programs."
_TOO_LONG = f"may have at most {MAX_PRINTED:,} characters. Select what matters."
NOTHING_PRINTED = "The program printed nothing. Print what you need to see."
# What `final_answer` takes is checked when it is called: an object may be given whole or by its fields.
_STUB_HEAD = f"from typing import Any, Literal\n\ndef {FINAL_ANSWER}(*answer: Any, **fields: Any) -> None: ...\n\n"

Call: TypeAlias = Callable[[ToolSpec, dict[str, Any], "CallLabels | None"], Awaitable[CallOutcome]]
"""Makes a call, with the labels of what it depends on if they are kept."""


def sandbox_installed() -> bool:
    """Return True if the extra `code` is installed."""
    from importlib.util import find_spec

    return find_spec("pydantic_monty") is not None


def require_sandbox() -> None:
    """Raise `UsageError` if the extra `code` is not installed."""
    if not sandbox_installed():
        raise UsageError("Programs need the extra 'code': pip install 'closeout[code]'.")


class ProgramExecution:
    """One execution of one program.

    Args:
        sandbox: Where it runs.
        functions: What it can call.
        call: Makes a call.
        accept: Returns the text of the answer that a value is. Raises `ValueError` to refuse it.
        answer: The function that takes the answer.
        view: The files that it can open.
        flow: Finds what its calls depend on, from this program and those before it.
    """

    def __init__(
        self,
        sandbox: ProgramSandbox,
        functions: Mapping[str, ToolSpec],
        call: Call,
        accept: Callable[[Any], str],
        answer: ToolSpec | None = None,
        *,
        view: FileView = NO_FILES,
        flow: ProgramFlow | None = None,
    ) -> None:
        self.repairs: list[Repair] = []
        self.began = False  # False if it was refused before it ran
        self._sandbox = sandbox
        self._functions = functions
        self._call = call
        self._accept = accept
        self._answer_function = answer or answer_function(None)
        self._printed = _Printed()
        self._value: str | None = None
        self._answer: str | None = None
        self._error = ""
        self._lost = False  # the variables of all programs are gone
        self._steps = 0  # steps of the host
        self._view = view
        self._flow = flow
        self._files: ProgramFiles | None = None  # made when the program uses files
        self._file_steps = 0

    async def run(self, code: str) -> None:
        """Execute the program. Its errors are in `output`."""
        from pydantic_monty import MontyCrashedError, MontyError, MontyRuntimeError

        if len(code) > MAX_PROGRAM:
            self._error = f"A program may have at most {MAX_PROGRAM:,} characters, this one has {len(code):,}."
            return
        code = self._answer_repaired(self._indentation_repaired(code))
        session = await self._sandbox.session(self._functions)
        try:
            complete = await self._drive(await self._start(session, code))
            self._value = _shown(complete)
        except _Refused as refused:
            self._error = str(refused)
        except _TooMany:
            self._error, self._lost = TOO_MANY, True
        except MontyCrashedError:
            self._error, self._lost = "The sandbox broke down.", True
        except MontyRuntimeError as error:
            self._error = _traceback(error)
            self._lost = isinstance(error.exception(), TimeoutError) and "time limit" in str(error)
            if isinstance(error.exception(), MemoryError):
                self._lost = await self._sandbox.is_gone()
            if not self._lost:
                self._error += _advice(error.exception(), code)
        except MontyError as error:
            self._error = _cut(str(error), MAX_TRACEBACK)
        finally:
            self._sandbox.names |= _bound_names(code)
            if self._lost:
                await self._sandbox.discard()

    @property
    def failed(self) -> bool:
        """True if an error ended the program, or it was not run."""
        return bool(self._error)

    @property
    def shows(self) -> bool:
        """True if the output has anything from the program."""
        return bool(self._error or self._printed.text() or self._value is not None or self._answer is not None)

    def output(self) -> ToolOutput:
        """Return the result of the program for the model."""
        printed = self._printed.text()
        if self._error:
            lost = "\nAll variables are lost." if self._lost else ""
            text = "\n".join(filter(None, (printed.rstrip("\n"), f"{self._error}{lost}")))
            failed = failed_output(RUN_PROGRAM, text, "ProgramError")
            if self._lost:
                failed.metadata[LOST_KEY] = True
            return failed
        text, metadata = f"{printed}{self._value or ''}", dict[str, Any]()
        if self._answer is not None:
            text, metadata = f"{printed}{self._answer}", {ANSWER_KEY: self._answer}
        if self._files is None:
            return ToolOutput(result=text or NOTHING_PRINTED, metadata=metadata)
        left = FilesLeft(files=self._files.left(), removed=self._files.removed())
        if left.removed:
            metadata[REMOVED_FILES] = list(left.removed)
        said = "\n".join(filter(None, (text.rstrip("\n"), left.text())))
        return ToolOutput(result=said or NOTHING_PRINTED, files=left.files, metadata=metadata)

    # ------------------------------------------------------------------------------------------ before it runs

    def _indentation_repaired(self, code: str) -> str:
        """The program without an indentation of its first line that makes it invalid."""
        if code[:1] not in (" ", "\t") or parse_python(code) is not None:
            return code
        for repaired in (textwrap.dedent(code), code.lstrip(" \t")):
            if parse_python(repaired) is not None:
                before, after = code.partition("\n")[0], repaired.partition("\n")[0]
                self.repairs.append(Repair("program_indentation", "line 1", before, after=after))
                return repaired
        return code

    def _answer_repaired(self, code: str) -> str:
        """The program with all of its last line's calculation inside `final_answer(…)`, which returns nothing."""
        tree = parse_python(code)
        last = tree.body[-1] if tree is not None and tree.body else None
        if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.BinOp):
            return code
        call: ast.expr = last.value
        while isinstance(call, ast.BinOp):
            call = call.left
        whole, called = ast.get_source_segment(code, last.value), ast.get_source_segment(code, call)
        if not isinstance(call, ast.Call) or not whole or not called or not whole.startswith(called):
            return code
        if not isinstance(call.func, ast.Name) or call.func.id != FINAL_ANSWER or len(call.args) != 1 or call.keywords:
            return code
        argument = ast.get_source_segment(code, call.args[0])
        after = f"{FINAL_ANSWER}(({argument}){whole.removeprefix(called)})"
        self.repairs.append(Repair("program_answer", f"line {last.lineno}", whole, after=after))
        before, _, end = code.rpartition(whole)
        return f"{before}{after}{end}"

    async def _start(self, session: AsyncMontySession, code: str) -> AsyncSnapshot:
        """Begin the program, with certain near misses repaired. Raises `_Refused` for what is certain to fail."""
        from pydantic_monty import MontyTypingError

        unchecked = False
        for _ in range(MAX_CORRECTIONS):
            try:
                return await self._fed(session, code, unchecked)
            except MontyTypingError as error:
                findings = self._certain(error.display())
                if not findings:  # the rest may be right in Python
                    unchecked = True
                    continue
                corrected = self._corrected(code, findings)
                if corrected is None:
                    shown = [*map(str, findings[:MAX_FINDINGS]), *["…"] * (len(findings) > MAX_FINDINGS)]
                    raise _Refused("\n".join(("The program was not run.", *shown))) from None
                code = corrected
        return await self._fed(session, code, unchecked=True)

    async def _fed(self, session: AsyncMontySession, code: str, unchecked: bool) -> AsyncSnapshot:
        from pydantic_monty import MontyRuntimeError

        try:
            snapshot: Any = await session.feed_start(code, print_callback=self._printed, skip_type_check=unchecked)
        except MontyRuntimeError:  # before its first call
            self._note_flow(code)
            raise
        while getattr(snapshot, "function_name", "") == "import_stubs":  # the type checker asks for other modules
            snapshot = await snapshot.resume_auto()
        self._note_flow(code)
        return snapshot

    def _note_flow(self, code: str) -> None:
        self.began = True
        if self._flow is not None:
            self._flow.feed(code)

    def _certain(self, diagnostics: str) -> list[_Finding]:
        listed = _DIAGNOSTIC.findall(diagnostics)
        found = [_Finding(int(line), rule, text) for line, _, rule, text in listed if rule in _CERTAIN]
        known = self._sandbox.names | self._functions.keys() | _BUILTINS
        return [each for each in found if each.rule != "unresolved-reference" or each.name not in known]

    def _corrected(self, code: str, findings: list[_Finding]) -> str | None:
        """The program with the names of functions, parameters and variables repaired that the findings are about."""
        tree = parse_python(code)
        if tree is None:
            return None
        edits: dict[tuple[int, int], tuple[str, str]] = {}  # line and byte column: old, new
        variables = self._sandbox.names | _bound_names(code)
        for finding in findings:
            unknown = finding.rule == "unresolved-reference"
            meant = [each for each in variables if unknown and each.casefold() == finding.name.casefold()]
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and node.id == finding.name and len(meant) == 1:
                    edits.setdefault((node.lineno, node.col_offset), (finding.name, meant[0]))
                if not isinstance(node, ast.Call):
                    continue
                if unknown and getattr(node.func, "id", None) == finding.name:
                    new = self._function_for(finding.name)
                    if new is not None:
                        edits.setdefault((node.lineno, node.col_offset), (finding.name, new))
                elif finding.rule == "unknown-argument":
                    for keyword in node.keywords:
                        new = self._parameter_for(node, keyword) if keyword.arg == finding.name else None
                        if new is not None:
                            edits.setdefault((keyword.lineno, keyword.col_offset), (finding.name, new))
        lines = code.encode().split(b"\n")
        for (line, column), (old, new) in sorted(edits.items(), reverse=True):
            text = lines[line - 1]
            lines[line - 1] = text[:column] + new.encode() + text[column + len(old.encode()) :]
            self.repairs.append(Repair("program_name", f"line {line}", old, after=new))
        return b"\n".join(lines).decode() if edits else None

    def _function_for(self, name: str) -> str | None:
        """The function that a name means, by the rules for names of tools."""
        meant = resolve_tool_name(name, list(self._functions.values())).spec
        return next((function for function, spec in self._functions.items() if spec is meant), None)

    def _parameter_for(self, call: ast.Call, keyword: ast.keyword) -> str | None:
        """The parameter that a keyword is a near miss of, by the rules for arguments of calls."""
        spec = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if spec is None or spec.policy.repair == "none" or keyword.arg is None:
            return None
        names = _parameters(spec)
        marks = {name: f"<{name}>" for name in names[: len(call.args)]}
        marks |= {each.arg: f"<{each.arg}>" for each in call.keywords if each.arg is not None}
        texts = {name: {"type": "string"} for name in names}
        loose = {"type": "object", "properties": texts, "additionalProperties": False}
        repaired = repair_arguments(marks, loose, spec.policy.aliases)
        if not repaired.ok:
            return None
        return next((name for name, mark in repaired.arguments.items() if mark == f"<{keyword.arg}>"), None)

    # ------------------------------------------------------------------------------------------ while it runs

    async def _drive(self, snapshot: AsyncSnapshot) -> Any:
        """Answer what the program asks of the host, until it is complete. Returns the value of its last line."""
        from pydantic_monty import AsyncFunctionSnapshot, AsyncNameLookupSnapshot, MontyComplete

        while not isinstance(snapshot, MontyComplete):
            self._steps += not getattr(snapshot, "is_os_function", False)
            if self._steps > MAX_CALLS:
                raise _TooMany
            if isinstance(snapshot, AsyncNameLookupSnapshot):
                snapshot = await self._look_up(snapshot)
            elif not isinstance(snapshot, AsyncFunctionSnapshot):
                raise _TooMany  # nothing here is asynchronous, so no future is ever awaited
            elif snapshot.is_os_function:
                snapshot = await self._with_files(snapshot)
            else:
                snapshot = await snapshot.resume(await self._called(snapshot))
        return snapshot.output

    async def _with_files(self, snapshot: Any) -> AsyncSnapshot:
        """Do what the program wants of its files. It gets nothing else of a system."""
        name = str(snapshot.function_name)
        if name == "import":
            return await snapshot.resume_auto()
        if name != "open" and not name.startswith("Path."):
            return await snapshot.resume_not_handled()
        self._file_steps += 1
        if self._file_steps > MAX_FILE_STEPS:
            raise _TooMany
        try:
            value = self._own_files().dispatch(snapshot.function_name, snapshot.args, snapshot.kwargs)
            result = {"return_value": value}
        except (OSError, ValueError) as error:
            result = {"exception": error}
        except NotImplementedError:
            return await snapshot.resume_not_handled()
        return await snapshot.resume(result)

    def _own_files(self) -> ProgramFiles:
        if self._files is None:
            from closeout.tools.builtin.program_files import ProgramFiles

            self._files = ProgramFiles(self._view)
        return self._files

    async def _look_up(self, snapshot: Any) -> AsyncSnapshot:
        name = snapshot.variable_name
        if snapshot.object_id is not None or name not in {*self._functions, FINAL_ANSWER}:
            return await snapshot.resume()
        return await snapshot.resume(value=host_function(name))

    async def _called(self, snapshot: Any) -> Any:
        name = snapshot.function_name
        if name == FINAL_ANSWER:
            return self._take_answer(snapshot.args, snapshot.kwargs)
        if name in MODULE_FUNCTIONS:
            if _is_huge([*snapshot.args, snapshot.kwargs]):
                return {"exception": ValueError(f"The arguments of {name}() {_TOO_LONG}")}
            return value_of(name, snapshot.args, snapshot.kwargs)
        name = name if name in self._functions else self._function_for(name)
        if name is None:
            listed = ", ".join(self._functions) or "none"
            return {"exception": NameError(f"name '{snapshot.function_name}' is not defined. Functions: {listed}.")}
        spec = self._functions[name]
        names = _parameters(spec)
        if len(snapshot.args) > len(names):
            text = f"{name}() takes at most {len(names)} arguments, got {len(snapshot.args)}"
            return {"exception": TypeError(text)}
        arguments = dict(zip(names, snapshot.args, strict=False))
        if twice := [each for each in snapshot.kwargs if each in arguments]:
            return {"exception": TypeError(f"{name}() got multiple values for argument '{twice[0]}'")}
        if _is_huge(arguments | snapshot.kwargs):
            return {"exception": ValueError(f"The arguments of {name}() {_TOO_LONG}")}
        labels = None
        if self._flow is not None:
            site = self._flow.site(snapshot.function_name, snapshot.position.start, snapshot.position.end)
            labels = labels_at(site, spec, snapshot.kwargs)
        outcome = await self._call(spec, normalise(arguments | snapshot.kwargs), labels)
        self.repairs += outcome.repairs
        if outcome.output.files:
            self._own_files().add(outcome.output.files)
        if not outcome.ok:
            return {"exception": RuntimeError(f"{name}: {outcome.reason or outcome.text}")}
        result = outcome.output.value
        return {"return_value": outcome.text if result is None else result}

    def _take_answer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if _is_huge([*args, dict(kwargs)]):
            return {"exception": ValueError(f"The answer {_TOO_LONG}")}
        refusals = []
        for value in self._answers_meant(args, kwargs):
            try:
                self._answer = self._accept(normalise(value))
            except ValueError as refused:
                refusals.append(refused)
            else:
                return {"return_value": None}
        wrong = f"Call {call_form(self._answer_function)}, got {len(args) + len(kwargs)} arguments"
        return {"exception": refusals[-1] if refusals else TypeError(wrong)}

    def _answers_meant(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the answers that arguments can mean: the object of the named fields, or the only one as it is."""
        fields = self._answer_function.parameters["properties"]
        names, required = _parameters(self._answer_function), self._answer_function.parameters.get("required") or ()
        if len(args) + len(kwargs) == 1 and (args or "answer" in kwargs):
            yield next(iter([*args, *kwargs.values()]))
        if takes_any(self._answer_function):
            return
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        whole = len(args) <= len(names) and len(given) == len(args) + len(kwargs)
        if whole and not {*required}.difference(given) and {*given}.issubset(fields):
            yield given


def _shown(value: Any) -> str | None:
    """Return the value of a program's last line as text, within the limit of what it prints. None: it has none."""
    if value is None:
        return None
    if isinstance(value, str):
        printed = _Printed()
        printed("stdout", value)
        return printed.text()
    return f"The value of the last line {_TOO_LONG} Print what you need." if _is_huge(value) else repr(value)


def _is_huge(value: Any) -> bool:
    """Return whether a value takes more than MAX_PRINTED characters as text. It is not walked further than that."""
    left, stack = MAX_PRINTED, [value]
    while stack and left >= 0:
        each = stack.pop()
        left -= 1
        if isinstance(each, str | bytes):
            left -= len(each)
        elif isinstance(each, int):
            left -= each.bit_length() // 3  # a digit has more than three bits
        elif isinstance(each, dict | list | tuple | set | frozenset):
            left -= len(each)
            if left >= 0:
                stack += [*each.keys(), *each.values()] if isinstance(each, dict) else each
    return left < 0


def labels_at(site: CallSite, spec: ToolSpec, keywords: Iterable[str] = ()) -> CallLabels:
    """Return the labels of a call of a tool at a place of a program.

    Args:
        site: The place.
        spec: The tool.
        keywords: The arguments that the call names.
    """
    parameters = _parameters(spec)
    given = dict(zip(parameters, site.positional, strict=False)) | site.keywords
    names = (*parameters, *keywords) if site.rest else (*given, *keywords)
    arguments = {name: given.get(name, site.rest) | site.rest for name in names}
    return CallLabels(tool=spec, decided=site.decided, arguments=arguments)


def _parameters(spec: ToolSpec) -> list[str]:
    """The parameters of a tool in the order in which its function takes them: the required ones first."""
    required = set(spec.parameters.get("required") or ())
    return sorted(spec.parameters.get("properties") or (), key=lambda name: name not in required)


def _bound_names(code: str) -> set[str]:
    """The names that a program may define."""
    tree = parse_python(code)
    found: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def _traceback(error: MontyRuntimeError) -> str:
    """An error as the model is shown it: the lines of its program that led there (the last ones), and the error."""
    exception = error.exception()
    name, text = type(exception).__name__, str(exception)
    if blocked := _BLOCKED.fullmatch(text):
        text = (
            f"{blocked[1]}() cannot be called by a function that min, max, sorted, map or filter calls. Call it "
            "before, and keep the results in a variable."
        )
    frames = error.traceback()[-MAX_FRAMES:]
    lines = [_cut(f"Line {frame.line}: {(frame.source_line or '').strip()}", MAX_LINE) for frame in frames]
    return "\n".join((*lines, _cut(f"{name}: {text}" if text else name, MAX_TRACEBACK)))


def _advice(error: BaseException, code: str) -> str:
    """Return what the model can do about an error that Python would not raise."""
    if isinstance(error, ModuleNotFoundError):
        return f"\nThere are the modules {MODULES}."
    tree = parse_python(code)
    deletes = tree is not None and any(isinstance(node, ast.Delete) for node in ast.walk(tree))
    if isinstance(error, MemoryError) or (isinstance(error, NotImplementedError) and deletes):
        return "\nTo free memory, set variables that you no longer need to None: rows = None."
    return ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]} … {text[-length // 2 :]}"


class _Refused(Exception):
    """The program is certain to fail and was not run. The text is for the model."""


class _TooMany(Exception):
    """The program asks more of the host than it may."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """A finding of the type checker."""

    line: int
    rule: str
    text: str

    @property
    def name(self) -> str:
        """The first name that the text is about."""
        quoted = re.search(r"`(\w+)`", self.text)
        return quoted[1] if quoted else ""

    def __str__(self) -> str:
        return f"Line {self.line}: {self.text}"


class _Printed:
    """Collects what a program prints, up to a limit."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kept = self._left_out = 0

    def __call__(self, stream: str, text: str) -> None:
        room = max(MAX_PRINTED - self._kept, 0)
        if kept := text[:room]:
            self._parts.append(kept)
            self._kept += len(kept)
        self._left_out += len(text) - len(kept)

    def text(self) -> str:
        whole = "".join(self._parts)
        return f"{whole}\n… {self._left_out:,} more characters\n" if self._left_out else whole


# ------------------------------------------------------------------------------------------------ the sandbox


class ProgramSandbox:
    """A worker process that keeps the variables of an agent's programs. It is started when the first one runs.

    Args:
        started_at: The time that programs see, in seconds since the epoch.
        seed: Of the random numbers that programs get.
    """

    def __init__(self, started_at: float, seed: str) -> None:
        self.names: set[str] = set()  # names that programs have defined
        self._moment = datetime.fromtimestamp(started_at, UTC)
        self._seed = seed
        self._pool = AsyncExitStack()
        self._checkout: Callable[..., AsyncMontySession] | None = None
        self._session: AsyncMontySession | None = None
        self._worker = AsyncExitStack()
        self._stale = False

    def forget(self) -> None:
        """Begin with no variables at the next program."""
        self._stale = True

    async def session(self, functions: Mapping[str, ToolSpec]) -> AsyncMontySession:
        """Return the session that keeps the variables."""
        from pydantic_monty import AsyncMonty

        if self._stale:
            await self.discard()
        if self._checkout is None:
            self._checkout = (await self._pool.enter_async_context(AsyncMonty())).checkout
        if self._session is None:
            session = self._checkout(
                script_name="program",
                limits={
                    "max_feed_duration_secs": MAX_SECONDS,
                    "max_memory": MAX_MEMORY,
                    "max_recursion_depth": MAX_DEPTH,
                    "max_suspensions": 1_000_000_000,  # `ProgramExecution` counts those of a program
                },
                type_check=True,
                type_check_stubs=_STUB_HEAD + stubs(functions.values(), documented=False),
                type_check_format="concise",
                external_modules=external_modules(),
                # The same at every execution, so that a program that was interrupted does the same again.
                os_policy={"datetime": self._moment, "sleep": "zero", "random_start": {"seed": self._seed}},
            )
            self._session = await self._worker.enter_async_context(session)
        return self._session

    async def is_gone(self) -> bool:
        """Return True if the session can run no more programs: its worker has ended or is out of memory."""
        from pydantic_monty import MontyError

        try:
            if self._session is not None:
                await self._session.feed_start("None", skip_type_check=True)
        except (MontyError, RuntimeError):
            return True
        return False

    async def discard(self) -> None:
        """End the session, with its variables."""
        self._stale, self._session = False, None
        self.names.clear()
        await self._worker.aclose()

    async def aclose(self) -> None:
        await self.discard()
        await self._pool.aclose()
        if self._checkout is not None:
            await _results_delivered()


async def _results_delivered() -> None:
    """Wait until no thread of the sandbox is in the code of an event loop.

    A thread that has handed over a result needs the GIL once more. If the interpreter shuts down before that, Python
    3.13 and earlier end the thread, and ending a thread inside Rust aborts the process.
    """
    give_up = time.monotonic() + _DELIVERY_SECONDS
    while _delivering() and time.monotonic() < give_up:  # noqa: ASYNC110 - nothing announces their end
        await asyncio.sleep(0.001)


def _delivering() -> bool:
    """Return True if a thread that Python did not start is in the code of an event loop."""
    started = {thread.ident for thread in threading.enumerate()}
    foreign: list[FrameType | None] = [frame for ident, frame in sys._current_frames().items() if ident not in started]
    for frame in foreign:
        while frame is not None:
            if str(frame.f_globals.get("__name__")).startswith("asyncio."):
                return True
            frame = frame.f_back
    return False
