"""`resolve_tool_name`: the tool that a model meant. Exact, then normalised, then a close name that takes the arguments.

Otherwise there is no such tool, and the message says which there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from closeout.errors import ToolDefinitionError
from closeout.messages import Repair, ToolSpec
from closeout.repair.argument_names import fold, words
from closeout.repair.arguments import repair_arguments

__all__ = ["ResolvedName", "resolve_tool_name"]

_MIN_SCORE = 75.0  # rapidfuzz, 0 to 100; the schema check behind it is the stronger guard
_MARGIN = 8.0
_MAX_NAME = 128
_LISTED = 20  # tools named in a message

_JUNK = re.compile(r"<\|.*|\(.*|[\s\"'`*]+")
_CALL_INDEX = re.compile(r":\d+$")
_PARTS = re.compile(r"__|[.:/]")


class ResolvedName(NamedTuple):
    """The tool meant and how its name was repaired; or no tool and a message for the model that lists what exists."""

    spec: ToolSpec | None
    repairs: tuple[Repair, ...] = ()
    message: str = ""


def resolve_tool_name(
    name: str,
    tools: Mapping[str, ToolSpec] | Sequence[ToolSpec],
    arguments: Any = None,
    server_name: str | None = None,
) -> ResolvedName:
    """The tool that `name` means among `tools`. `arguments` decide between a close name and none at all.

    `server_name` is the server that the model named beside the tool, if it did; it decides between tools of one name.
    A tool that destroys things is never chosen by likeness. Never raises.
    """
    if isinstance(tools, Mapping):
        exact = tools.get(name)
        if exact is not None and (server_name is None or exact.server_name in (None, server_name)):
            return ResolvedName(exact)
        specs: Iterable[ToolSpec] = tools.values()
    else:
        specs = tools
    return _resolve(name, list(specs), arguments, server_name)


def _resolve(name: str, specs: list[ToolSpec], arguments: Any, server_name: str | None) -> ResolvedName:
    same = [spec for spec in specs if spec.name == name]
    at_server = [spec for spec in same if server_name is None or spec.server_name in (None, server_name)]
    if at_server or len(same) == 1:
        spec = (at_server or same)[0]
        elsewhere = not at_server
        return ResolvedName(
            spec, (Repair("server_name", "name", str(server_name), str(spec.server_name)),) if elsewhere else ()
        )
    for form in _forms(name, server_name):
        matching = [spec for spec in specs if form in _names_of(spec)]
        if len(matching) == 1:
            return ResolvedName(matching[0], (Repair("tool_name", "name", name[:_MAX_NAME], matching[0].name),))
    close = _close(name, specs)
    chosen = close[0] if len(close) == 1 else None
    if chosen is not None and not chosen.policy.destructive and _takes(chosen, arguments):
        return ResolvedName(chosen, (Repair("tool_name_spelling", "name", name[:_MAX_NAME], chosen.name),))
    return ResolvedName(None, (), _message(name, specs, close))


def _forms(name: str, server_name: str | None) -> Iterator[str]:
    """Folded forms of a name, from the whole of it to its last part: namespaces come off from the left."""
    clean = _CALL_INDEX.sub("", _JUNK.sub("", name[:_MAX_NAME]))
    if server_name:
        yield fold(server_name) + fold(clean)
    yield fold(clean)
    parts = [part for part in _PARTS.split(clean) if part]
    for first in range(1, len(parts)):
        yield "".join(fold(part) for part in parts[first:])


def _names_of(spec: ToolSpec) -> tuple[str, ...]:
    own = fold(spec.name)
    return (own, fold(spec.server_name) + own) if spec.server_name else (own,)


def _close(name: str, specs: list[ToolSpec]) -> list[ToolSpec]:
    """Tools with a name like this one, likeliest first; a single one only if it leads by the margin."""
    mine = " ".join(words(_JUNK.sub("", name[:_MAX_NAME])))
    if not mine:
        return []
    scored = sorted(
        ((_likeness(mine, " ".join(words(spec.name))), index) for index, spec in enumerate(specs)),
        key=lambda pair: (-pair[0], pair[1]),
    )
    near = [pair for pair in scored if pair[0] >= _MIN_SCORE]
    if len(near) > 1 and near[0][0] - near[1][0] >= _MARGIN:
        near = near[:1]
    return [specs[index] for _, index in near[:3]]


def _likeness(mine: str, other: str) -> float:
    from rapidfuzz import fuzz

    return max(fuzz.ratio(mine, other), fuzz.token_sort_ratio(mine, other))


def _takes(spec: ToolSpec, arguments: Any) -> bool:
    try:
        return repair_arguments(
            arguments if arguments is not None else {},
            spec.parameters,
            spec.policy.aliases,
            defaults=spec.policy.defaults,
        ).ok
    except ToolDefinitionError:
        return False


def _message(name: str, specs: list[ToolSpec], close: list[ToolSpec]) -> str:
    shown = name[:60].encode("utf-8", "replace").decode("utf-8")
    if not specs:
        return f'There is no tool "{shown}", and no other tools are available: answer without tools.'
    guess = " or ".join(f'"{spec.name}"' for spec in close)
    names = sorted({spec.name for spec in specs})
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
    return (
        f'There is no tool "{shown}"' + (f", did you mean {guess}?" if guess else ".") + f" Available tools: {listed}."
    )
