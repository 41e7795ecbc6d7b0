"""Search for tools: `find_tools` and `call_tool` take the place of definitions that would fill the prompt."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from closeout.errors import ToolError
from closeout.language.words import split_characters, stem, telling_words, words
from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.parsing.json_text import repair_json
from closeout.results.tokens import estimate_tokens
from closeout.spelling import split_names
from closeout.tools.tool import Tool

__all__ = ["CALL_TOOL", "FIND_TOOLS", "ToolIndex", "as_written", "definition_tokens", "inner_call", "make_search_tools"]

FIND_TOOLS, CALL_TOOL = "find_tools", "call_tool"
FOUND = 5  # definitions in one result
_NAME_KEYS = ("name", "tool_name", "tool")
_ARGUMENT_KEYS = ("arguments", "args", "parameters", "input")


# ------------------------------------------------------------------------------------------------ the two tools


def make_search_tools(specs: Callable[[], Sequence[ToolSpec]]) -> tuple[Tool[..., Any], Tool[..., Any]]:
    """Return `find_tools` and `call_tool` for the tools that `specs` returns at the moment of a call."""
    indexed: list[tuple[Sequence[ToolSpec], ToolIndex]] = []

    def index() -> ToolIndex:
        now = specs()
        if not indexed or indexed[0][0] is not now:
            indexed[:] = [(now, ToolIndex(now))]
        return indexed[0][1]

    def find_tools(query: str) -> str:
        found = index().find(query)
        if not found:
            return "No tool fits these words. Describe in other words what the tool should do."
        return "\n".join(map(definition, found))

    def call_tool(name: str, arguments: dict[str, Any]) -> str:
        raise ToolError(f"{CALL_TOOL} needs the name of a tool that {FIND_TOOLS} has shown, and its arguments.")

    find = Tool(
        find_tools,
        description=(
            "Find tools by what they do. Most tools are not listed here: search before you say that something cannot "
            f"be done, once for each thing you need. Returns the definitions of up to {FOUND} tools for {CALL_TOOL}."
        ),
        parameters=_object(query={"type": "string", "description": "what the tool should do, in a few words"}),
        policy=ToolPolicy(read_only=True, accept_empty=True, returns="trusted"),
    )
    call = Tool(
        call_tool,
        description=f"Call a tool that {FIND_TOOLS} has shown.",
        parameters=_object(
            name={"type": "string", "description": "its name"},
            arguments={"type": "object", "description": "its arguments, as its definition says"},
        ),
    )
    return find, call


def _object(**properties: Mapping[str, str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def definition(spec: ToolSpec) -> str:
    """Return a tool's definition as JSON on one line."""
    fields = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return json.dumps(fields, ensure_ascii=False, default=str, separators=(",", ":"))


def definition_tokens(specs: Iterable[ToolSpec]) -> int:
    """Estimate the tokens of tools' definitions in a prompt."""
    return sum(estimate_tokens(definition(spec)) for spec in specs)


# ------------------------------------------------------------------------------------------------ calls through it


def inner_call(call: ToolCall) -> ToolCall:
    """Return the call that a call of `call_tool` makes; the call itself if it calls another tool, or names none.

    The arguments may be written beside the name instead of inside `arguments`, or as a JSON text.
    """
    if call.name != CALL_TOOL:
        return call
    given = repair_json(call.arguments).value if isinstance(call.arguments, str) else call.arguments
    if not isinstance(given, Mapping):
        return call
    key = next((key for key in _NAME_KEYS if isinstance(given.get(key), str) and given[key]), None)
    if key is None or given[key] == CALL_TOOL:
        return call
    rest = {name: value for name, value in given.items() if name != key}
    inside = next((name for name in _ARGUMENT_KEYS if len(rest) == 1 and name in rest), None)
    arguments = rest if inside is None else rest[inside]
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict | str):
        return call
    return ToolCall(given[key], arguments, call.id)


def as_written(outer: ToolCall, made: ToolCall) -> ToolCall:
    """Return a call as the history shows it: as the model wrote it through `call_tool`, with what was repaired."""
    inner = inner_call(outer)
    if inner is outer or outer.name == made.name:
        return made
    if (inner.name, inner.arguments) == (made.name, made.arguments):
        return outer
    return replace(outer, arguments={"name": made.name, "arguments": made.arguments}, text="")


# ------------------------------------------------------------------------------------------------ ranking

# Chosen on the functions of the Berkeley Function-Calling Leaderboard: see bench/tool_search.py.
# The constants of BM25.
_K1, _B = 1.2, 0.9
_OF_NAME, _OF_DESCRIPTION, _OF_PARAMETER, _OF_TEXT = 1.5, 1.0, 1.0, 0.7  # weights of a word by where it is
_COVERED = 0.5  # The gain of a tool if the query holds every word of its name.
_UNSEEN = 3.0  # rarity of a word that no tool has


class ToolIndex:
    """An index of tools by their words, ranked by BM25.

    Args:
        specs: The tools.
    """

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs = [spec for spec in specs if spec.name not in (FIND_TOOLS, CALL_TOOL)]
        self._names = [frozenset(_words(spec.name, stop=False)) for spec in self._specs]
        documents = [_words_of(spec) for spec in self._specs]
        lengths = [sum(weights.values()) for weights in documents]
        average = (sum(lengths) / len(lengths) if lengths else 0.0) or 1.0
        places: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, weights in enumerate(documents):
            norm = _K1 * (1 - _B + _B * lengths[number] / average)
            for word, weight in weights.items():
                places[word].append((number, weight * (_K1 + 1) / (weight + norm)))
        total = len(documents)
        self._places = dict(places)  # word → the tools that have it, with its weight there
        self._rarity = {
            word: math.log(1 + (total - len(found) + 0.5) / (len(found) + 0.5)) for word, found in places.items()
        }

    def find(self, query: str, limit: int = FOUND) -> list[ToolSpec]:
        """Return the tools that fit a query best, the best first."""
        words = set(_words(query))
        scores: defaultdict[int, float] = defaultdict(float)
        for word in words:
            for number, weight in self._places.get(word, ()):
                scores[number] += self._rarity[word] * weight
        ranked = sorted(scores, key=lambda number: (-scores[number] * self._coverage(number, words), number))
        return [self._specs[number] for number in ranked[:limit]]

    def _coverage(self, number: int, words: set[str]) -> float:
        """Return the factor for how much of a tool's name the query holds."""
        rarities = {word: self._rarity.get(word, _UNSEEN) for word in self._names[number]}
        covered = sum(rarity for word, rarity in rarities.items() if word in words)
        return 1 + _COVERED * covered / (sum(rarities.values()) or 1.0)


def _words_of(spec: ToolSpec) -> dict[str, float]:
    """The words of a tool with their weights."""
    weights: defaultdict[str, float] = defaultdict(float)
    for word in _words(f"{spec.name} {spec.server_name or ''}", stop=False):
        weights[word] += _OF_NAME
    parts = [(spec.description, _OF_DESCRIPTION)]
    properties = spec.parameters.get("properties")
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        parts.append((str(name), _OF_PARAMETER))
        if isinstance(schema, Mapping):
            parts.append((str(schema.get("description") or ""), _OF_TEXT))
            options = schema.get("enum")
            parts.append((" ".join(map(str, options)) if isinstance(options, list | tuple) else "", _OF_TEXT))
    for text, weight in parts:
        for word in _words(text):
            weights[word] += weight
    return weights


def _words(text: str, *, stop: bool = True) -> list[str]:
    """Return the stems of the words of names and texts; the characters of scripts without spaces."""
    text = split_names(text)
    found = split_characters(telling_words(text) if stop else words(text))
    return [stem(word) for word in found if len(word) > 1 or not word.isascii() or word.isdecimal()]
