"""Text of one parameter → a JSON value, by the tool's schema where it is declared. Pure; never raises."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from closeout.dialects.forms.json_text import load

__all__ = ["Untyped", "decode_entities", "kinds", "typed"]

Untyped = Literal["json", "scalars", "text"]
"""How a parameter that the schema does not declare is read: as JSON if it is some, as JSON only if it is a scalar
(a format whose own reference reader keeps undeclared containers as text), or as the text it is."""

_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "int": "integer", "long": "integer", "short": "integer", "float": "number", "double": "number",
    "bool": "boolean", "dict": "object", "map": "object", "list": "array", "tuple": "array", "none": "null",
}  # fmt: skip
_KIND_OF = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
_INTEGER = re.compile(r"[+-]?\d{1,400}\Z")
_NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,5})?\Z")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_MAX_DEPTH = 16  # of references and unions in a schema


def kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON Schema types that a schema allows; empty when it does not say. `root` resolves local references."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    found: set[str] = set()
    declared = schema.get("type")
    for name in declared if isinstance(declared, list) else [declared]:
        if isinstance(name, str):
            found.add(_ALIASES.get(name.lower(), name.lower()))
    if not found:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            found.update(_KIND_OF.get(type(value), "null") for value in values)
    for word in ("anyOf", "oneOf", "allOf"):
        for member in schema.get(word) or () if isinstance(schema.get(word), list) else ():
            found |= kinds(member, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found |= kinds(_resolve(reference, root), root, depth + 1)
    if not found and isinstance(schema.get("properties"), Mapping):
        found.add("object")
    return frozenset(found)


def _resolve(reference: str, root: Any) -> Any:
    for part in reference[2:].split("/"):
        root = root.get(part) if isinstance(root, Mapping) else None
    return root


def typed(text: str, schema: Any, root: Mapping[str, Any], untyped: Untyped = "json") -> Any:
    """The value that the text stands for. What fits no declared type stays text, for the tool's schema to judge."""
    allowed = kinds(schema, root)
    if not allowed:
        return _undeclared(text, untyped)
    if allowed == {"string"}:
        return text
    word = text.strip()
    if "string" not in allowed and word.lower() in ("null", "none"):
        return None
    for kind in ("null", "boolean", "integer", "number", "object", "array"):
        if kind in allowed:
            fits, value = _as_kind(word, kind)
            if fits:
                return value
    return text


def _as_kind(word: str, kind: str) -> tuple[bool, Any]:
    if kind == "null":
        return word.lower() in ("null", "none"), None
    if kind == "boolean":
        lower = word.lower()
        return lower in ("true", "false", "1", "0"), lower in ("true", "1")
    if kind == "integer":
        return _integer(word)
    if kind == "number":
        return _number(word)
    loaded = load(word) if word[:1] in "{[" else None
    if loaded is None:
        return False, None
    return isinstance(loaded.value, dict if kind == "object" else list), loaded.value


def _integer(word: str) -> tuple[bool, Any]:
    if _INTEGER.match(word):
        return True, int(word)
    fits, value = _number(word)
    return (True, int(value)) if fits and isinstance(value, float) and value.is_integer() else (False, None)


def _number(word: str) -> tuple[bool, Any]:
    if not _NUMBER.match(word):
        return False, None
    value: Any = int(word) if _INTEGER.match(word) else float(word)
    return value not in (float("inf"), float("-inf")), value


def _undeclared(text: str, untyped: Untyped) -> Any:
    word = text.strip()
    if untyped == "text":
        return text
    if word in _WORDS:
        return _WORDS[word]
    if word[:1] in "{[":
        loaded = load(word) if untyped == "json" else None
        return loaded.value if loaded and isinstance(loaded.value, dict | list) else text
    if word[:1] == '"' and untyped == "json":
        loaded = load(word, mend=False)
        return loaded.value if loaded else text
    if _NUMBER.match(word) and not re.match(r"[+-]?0\d", word):  # 007 is a code, not a number
        try:
            return json.loads(word)
        except ValueError:
            return text
    return text


def decode_entities(text: str) -> tuple[str, bool]:
    """(text, whether it was XML-escaped). Only a text that is escaped throughout is decoded.

    A raw `<` or a bare `&` shows that the writer did not escape, and then `&amp;` is meant literally.
    """
    if "&" not in text or "<" in text:
        return text, False
    if text.count("&") != len(_ENTITY.findall(text)):
        return text, False
    return html.unescape(text), True
