"""Tools as Python functions: their names, signatures and stubs, for models that write programs."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from closeout.messages import ToolCall, ToolSpec

__all__ = [
    "FINAL_ANSWER",
    "MODULES",
    "RUN_PROGRAM",
    "answer_function",
    "answer_stub",
    "call_form",
    "call_source",
    "functions_of",
    "programs_in",
    "stubs",
    "takes_any",
    "with_functions",
]

RUN_PROGRAM = "run_program"  # the tool that runs programs
FINAL_ANSWER = "final_answer"  # the function that closes a run

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict",
          "null": "None"}  # fmt: skip
_ANY_ANSWER: dict[str, Any] = {"type": "object", "properties": {"answer": {}}, "required": ["answer"]}
_LONGEST_LITERAL = 200  # characters of an enumeration that a signature shows

MODULES = "collections, csv, datetime, decimal, functools, itertools, json, math, random, re, statistics"
"""The modules of the standard library that prompts name."""

DESCRIPTION = f"""Run a Python program in a sandbox and return what it prints, and the value of its last line.

Variables keep their values from one program to the next. There are the modules {MODULES};
no files, no network and no other packages. The program can call these functions, which return plain values:

"""


def functions_of(tools: Iterable[ToolSpec]) -> dict[str, ToolSpec]:
    """Return the tools that a program can call, by their names as Python functions."""
    found: dict[str, ToolSpec] = {}
    for tool in tools:
        if tool.name != RUN_PROGRAM:
            name = base = _identifier(tool.name)
            number = 2
            while name in found or name == FINAL_ANSWER:
                name, number = f"{base}_{number}", number + 1
            found[name] = tool
    return found


def _identifier(name: str) -> str:
    name = re.sub(r"\W", "_", name)
    if not name or name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    return name


def stubs(tools: Iterable[ToolSpec], *, documented: bool = True) -> str:
    """Return the functions as Python source, one after the other."""
    return "\n\n".join(stub_of(name, tool, documented=documented) for name, tool in functions_of(tools).items())


def stub_of(name: str, tool: ToolSpec, *, documented: bool = True) -> str:
    """Return one function as Python source: its signature and, if `documented`, its description.

    A parameter whose name Python does not allow is left out; a call can still pass it as `**{…}`.
    """
    properties = tool.parameters.get("properties") or {}
    required = set(tool.parameters.get("required") or ())
    parameters, descriptions = [], []
    # Parameters without a default come first, as Python wants it.
    for parameter in sorted(properties, key=lambda each: each not in required):
        schema = properties[parameter] if isinstance(properties[parameter], Mapping) else {}
        if not parameter.isidentifier() or keyword.iskeyword(parameter):
            continue
        text = f"{parameter}: {_type(schema)}"
        parameters.append(text if parameter in required else f"{text} = {_default(schema)}")
        if schema.get("description"):
            descriptions.append(f"    {parameter}: {' '.join(str(schema['description']).split())}")
    head = f"def {name}({', '.join(parameters)}) -> Any:"
    if not documented:
        return f"{head} ..."
    # A description may be a server's text: it must end neither the docstring nor the block.
    text = "\n".join((tool.description.strip(), *descriptions)).strip().replace('"""', "'''").replace("```", "'''")
    lines = [f"    {line}".rstrip() for line in text.replace("\\", "\\\\").split("\n")]
    body = "\n".join(lines).lstrip()
    return f'{head}\n    """{body}"""' if body else f"{head} ..."


def answer_function(schema: Mapping[str, Any] | None) -> ToolSpec:
    """Return the function that closes a run: it takes the fields of an answer that is an object, or the answer."""
    schema = schema or {}
    fields = schema.get("properties") if schema.get("type") == "object" else None
    named = isinstance(fields, Mapping) and all(name.isidentifier() and not keyword.iskeyword(name) for name in fields)
    return ToolSpec(FINAL_ANSWER, parameters=dict(schema) if fields and named else _ANY_ANSWER)


def takes_any(function: ToolSpec) -> bool:
    """Return whether the function that closes a run takes the answer as one value."""
    return function.parameters is _ANY_ANSWER


def answer_stub(function: ToolSpec) -> str:
    """Return the function that closes a run as Python source."""
    return stub_of(FINAL_ANSWER, function, documented=False).replace(") -> Any:", ") -> None:")


def call_form(function: ToolSpec) -> str:
    """Return how the function that closes a run is called: its signature without `def`."""
    return answer_stub(function).removeprefix("def ").removesuffix(" -> None: ...")


def _type(schema: Mapping[str, Any]) -> str:
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str | int | None) for value in values):
        text = f"Literal[{', '.join(map(repr, values))}]"
        if len(text) <= _LONGEST_LITERAL:
            return text
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(_TYPES.get(str(each), "Any") for each in kind)) or "Any"
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(dict.fromkeys(_type(each) if isinstance(each, Mapping) else "Any" for each in options))
    items = schema.get("items")
    if kind == "array" and isinstance(items, Mapping) and items.get("type") in _TYPES:
        return f"list[{_type(items)}]"
    return _TYPES.get(str(kind), "Any")


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return repr(default) if isinstance(default, str | int | float | bool | None) else "..."


def with_functions(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools; if one runs programs, its description lists the functions that a program can call."""
    if all(tool.name != RUN_PROGRAM for tool in tools):
        return tuple(tools)  # a tuple itself: what clients know of an agent's tools serves all of its runs
    return tuple(
        replace(tool, description=f"{DESCRIPTION}{stubs(tools)}") if tool.name == RUN_PROGRAM else tool
        for tool in tools
    )


def call_source(name: str, arguments: Mapping[str, Any] | str) -> str:
    """Return a call as Python source."""
    if isinstance(arguments, str):
        return f"{name}({arguments})"
    return f"{name}({', '.join(f'{key}={json.dumps(value, default=str)}' for key, value in arguments.items())})"


def programs_in(calls: Iterable[ToolCall]) -> list[str]:
    """Return the programs among the calls of a turn."""
    written = (
        call.arguments.get("code") for call in calls if call.name == RUN_PROGRAM and not isinstance(call.arguments, str)
    )
    return [program for program in written if isinstance(program, str)]
