"""One short sentence for the model about a call that could not be put right: what is wrong, and what to send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeout.repair.schema import SchemaRules, short

__all__ = ["diagnose", "signature"]

_MAX_LENGTH = 400  # characters of a whole diagnostic
_MAX_MEMBERS = 12


def signature(rules: SchemaRules) -> str:
    """What a tool must be given, in few words: `{"q": string, …}`; the dots stand for optional arguments."""
    shape = rules.shape
    members = [f'"{name}": {_type_words(rules, shape.properties.get(name))}' for name in shape.required[:_MAX_MEMBERS]]
    if len(members) < len(shape.properties):
        members.append("…")
    return "{" + ", ".join(members) + "}"


def diagnose(arguments: Any, rules: SchemaRules) -> str:
    """What keeps arguments from being valid, one sentence that tells what to send."""
    return _bounded(f"{_problem(arguments, rules)}.")


def _problem(arguments: Any, rules: SchemaRules) -> str:
    if isinstance(arguments, Mapping):
        missing = [f'"{name}"' for name in rules.shape.required if name not in arguments]
        if missing:
            given = ", ".join(f'"{name}"' for name in list(arguments)[:_MAX_MEMBERS])
            plural = "s" if len(missing) > 1 else ""
            told = f" (given: {given})" if given else ""
            return f"Missing argument{plural} {', '.join(missing)}{told}; send {signature(rules)}"
    error = rules.first_error(arguments)
    if error is None:
        return "The arguments nest too deeply or hold text that is not valid Unicode"
    return _sentence(error, rules)


def _sentence(error: Any, rules: SchemaRules) -> str:
    where = _where(error.instance_path)
    value = short(error.instance)
    kind = error.kind.name
    if kind == "type":
        wanted = " or ".join(_article(str(name)) for name in _detail(error, "types") or ["value of another type"])
        send = "" if error.instance_path else f"; send {signature(rules)}"
        return f"{where} must be {wanted}, not {value}{send}"
    if kind == "enum":
        options = _detail(error, "options") or []
        listed = ", ".join(short(option, 30) for option in list(options)[:_MAX_MEMBERS])
        return f"{where} must be one of {listed}, not {value}"
    if kind == "required":
        return f'{where} lacks "{_detail(error, "property")}"'
    if kind == "additionalProperties":
        names = ", ".join(f'"{name}"' for name in list(_detail(error, "unexpected") or [])[:_MAX_MEMBERS])
        known = ", ".join(f'"{name}"' for name in list(rules.shape.properties)[:_MAX_MEMBERS])
        only = f"there is only {known}" if known else "send {}"
        return f"{where} may not have {names}" + ("" if error.instance_path else f"; {only}")
    if kind in ("anyOf", "oneOfNotValid"):
        part: Any = rules.schema
        for step in list(error.schema_path)[:-1]:
            part = part.get(step, {}) if isinstance(part, dict) else {}
        return f"{where} must be {_type_words(rules, part)}, not {value}"
    return f"{where} does not fit: {short(error.message, 160)[1:-1]}"


def _detail(error: Any, name: str) -> Any:
    return getattr(error.kind, name, None)


def _where(path: list[Any]) -> str:
    if not path:
        return "The arguments"
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f'Argument "{name.lstrip(".")}"'


def _article(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeio" else kind if kind == "null" else f"a {kind}"


def _type_words(rules: SchemaRules, schema: Any) -> str:
    part = rules.resolve(schema)
    options = part.get("enum")
    if isinstance(options, list) and len(options) <= 8:
        return "|".join(short(option, 30) for option in options)
    kinds = sorted(rules.types_of(part), key=lambda kind: kind == "null")
    if kinds == ["array"]:
        inner = sorted(rules.types_of(part.get("items", {})))
        return f"array of {'|'.join(inner)}" if inner else "array"
    return "|".join(kinds) or "any"


def _bounded(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= _MAX_LENGTH else clean[: _MAX_LENGTH - 2] + "…."
