"""Find the tool that a model meant by a name.

A name is repaired only in its form: case, separators, a namespace, a call index, quotes around it (see
`closeout.spelling`). Everything else is refused with the likely tool: a request is cheaper than the wrong tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from closeout.messages import Repair, ToolSpec
from closeout.spelling import fold, words

__all__ = ["ResolvedName", "resolve_tool_name"]

_MAX_NAME = 128  # characters
_LISTED = 20  # tools named in a message
_MIN_LIKENESS = 75.0  # rapidfuzz, 0 to 100; for a suggestion only, never for a choice
_SUGGESTED = 3

# Control tokens after a name, empty parentheses and quotes. What is in parentheses may be arguments: it stays.
_JUNK = re.compile(r"(?:<\|[\w/]{1,40}\|>\w*)+\s*\Z|\(\s*\)?\s*\Z|\A[\s\"'`*]+|[\s\"'`*]+\Z")
_CALL_INDEX = re.compile(r":\d+\Z")
_NAMESPACE_END = re.compile(r"__|(?<!\d)[.:/]|[.:/](?!\d)")
# Namespaces that models write before the name of any tool.
_CALLING = re.compile(
    r"functions?|tools?|defaultapi|api|mcp|namespace|multitooluse|default|client|assistant|commentary"
)


class ResolvedName(NamedTuple):
    """The tool that was meant and how its name was repaired; or no tool, and a message for the model."""

    spec: ToolSpec | None
    repairs: tuple[Repair, ...] = ()
    message: str = ""


def resolve_tool_name(
    name: str,
    tools: Mapping[str, ToolSpec] | Sequence[ToolSpec],
    server_name: str | None = None,
) -> ResolvedName:
    """Return the tool that `name` means among `tools`. Never raises.

    Tools with `policy.strict_names` (destructive ones, MCP tools whose server gives no hints) are never chosen under
    the name of another server.

    Args:
        name: The name as the model wrote it.
        tools: The tools that exist.
        server_name: The server that the model named beside the tool.
    """
    if isinstance(tools, Mapping):
        exact = tools.get(name)
        if exact is not None and (server_name is None or exact.server_name in (None, server_name)):
            return ResolvedName(exact)
    specs = list(tools.values() if isinstance(tools, Mapping) else tools)
    servers = frozenset(fold(spec.server_name) for spec in specs if spec.server_name)
    same = [spec for spec in specs if spec.name == name]
    at_server = [spec for spec in same if server_name is None or spec.server_name in (None, server_name)]
    if at_server:
        return ResolvedName(at_server[0])
    if len(same) == 1 and _may_be_at(same[0], server_name, servers):
        server = Repair("server_name", "name", str(server_name), after=str(same[0].server_name))
        return ResolvedName(same[0], (server,))
    for namespace, written in () if same else _readings(name):
        found = [spec for spec in specs if _is_named(spec, namespace, written, server_name, servers)]
        if len(found) > 1:
            found = [spec for spec in found if spec.server_name == server_name]
        if len(found) != 1:
            found = _called(specs, written, namespace, server_name, servers)
        if len(found) == 1:
            return ResolvedName(found[0], (Repair("tool_name", "name", name[:_MAX_NAME], after=found[0].name),))
    return ResolvedName(None, (), _message(name, specs, server_name if same else None))


def _readings(name: str) -> Iterator[tuple[list[str], str]]:
    """Yield (namespace, name) for each way to divide a name, without the junk around it; the whole name first."""
    clean = _CALL_INDEX.sub("", _JUNK.sub("", name[:_MAX_NAME]))
    yield [], clean
    for end in _NAMESPACE_END.finditer(clean):
        namespace = [fold(part) for part in _NAMESPACE_END.split(clean[: end.start()]) if part]
        if fold(clean[end.end() :]):
            yield namespace, clean[end.end() :]


def _is_named(
    spec: ToolSpec, namespace: list[str], written: str, server_name: str | None, servers: frozenset[str]
) -> bool:
    form = fold(written)
    if not form or not _may_be_at(spec, server_name, servers) or not _may_be_in(spec, namespace, servers):
        return False
    own = fold(spec.name)
    server = fold(spec.server_name or "")
    forms = {own, server + own, own.removeprefix("mcp").removeprefix(server)} if server else {own}
    return form in forms or (server_name is not None and fold(server_name) + form == own)


def _called(
    specs: list[ToolSpec], written: str, namespace: list[str], server_name: str | None, servers: frozenset[str]
) -> list[ToolSpec]:
    """Return the tools that declare a name as one of their other names; none if a tool has it as its own."""
    form = fold(written)
    if not form or any(form == fold(spec.name) for spec in specs):
        return []
    return [
        spec
        for spec in specs
        if any(form == fold(other) for other in spec.policy.all_other_names)
        and _may_be_at(spec, server_name, servers)
        and _may_be_in(spec, namespace, servers)
    ]


def _may_be_at(spec: ToolSpec, server_name: str | None, servers: frozenset[str]) -> bool:
    """Tell whether a tool may be meant by a call that names a server. Models often invent the server."""
    if not server_name or spec.server_name is None or fold(server_name) == fold(spec.server_name):
        return True
    return not (spec.policy.strict_names and fold(server_name) in servers)


def _may_be_in(spec: ToolSpec, namespace: list[str], servers: frozenset[str]) -> bool:
    """Tell whether a namespace may be dropped: it says nothing, is the tool's server, or (not strict) is made up."""
    server = fold(spec.server_name or "")
    unknown = [part for part in namespace if not _CALLING.fullmatch(part) and part != server]
    if not unknown or (server and "".join(unknown) == server):
        return True
    return not spec.policy.strict_names and not servers.intersection([*unknown, "".join(unknown)])


def _message(name: str, specs: list[ToolSpec], server_name: str | None) -> str:
    shown = name[:60].encode("utf-8", "replace").decode("utf-8")
    if not specs:
        return f'No tool is named "{shown}", and no other tools are available: answer without tools.'
    where = f' at the server "{server_name[:60]}"' if server_name else ""
    likely = _likely(name, specs)
    guess = f"; did you mean {' or '.join(likely)}?" if likely else "."
    names = sorted({spec.name for spec in specs})
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
    return f'No tool is named "{shown}"{where}{guess} Available tools: {listed}.'


def _likely(name: str, specs: list[ToolSpec]) -> list[str]:
    """Return the tools with names like this one, quoted, the likeliest first."""
    from rapidfuzz import fuzz

    mine = " ".join(words(_JUNK.sub("", name[:_MAX_NAME])))
    scored = []
    for index, spec in enumerate(specs):
        theirs = " ".join(words(spec.name))
        scored.append((-max(fuzz.ratio(mine, theirs), fuzz.token_sort_ratio(mine, theirs)), index))
    near = [index for score, index in sorted(scored) if mine and -score >= _MIN_LIKENESS]
    return [
        f'"{specs[index].name}"' + (f' at "{specs[index].server_name}"' if specs[index].name == name else "")
        for index in near[:_SUGGESTED]
    ]
