"""The questions that an MCP server asks during a call: a form to fill in, or an address to open.

All of it is untrusted text: sizes are bounded, of a form's schema only the keywords that the protocol has are kept, and
what a person is shown has every character plainly seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from closeout.codec import decode_json
from closeout.errors import ConfigError
from closeout.overrides import returned
from closeout.visible import visible

__all__ = [
    "AnswerQuestion",
    "Elicitation",
    "McpQuestion",
    "QuestionRefused",
    "check_elicitation",
    "field_value",
    "read_form",
    "ruled_answer",
]

MAX_MESSAGE = 4_000  # characters of what a server asks
MAX_FORM = 50_000  # characters of a form's schema
MAX_FIELDS = 50
MAX_OPTIONS = 200
MAX_URL = 2_000  # characters
_RULES = ("refuse", "ask", "accept", "decline")
_TYPES = ("string", "number", "integer", "boolean", "array")
# The keywords of the protocol's primitive schemas. Others, such as patterns, are left out: the server checks its own.
_TEXTS = ("title", "description", "format")
_NUMBERS = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")
_FORMATS = ("email", "uri", "date", "date-time")


class QuestionRefused(Exception):
    """A question cannot be asked. The text says why, for the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpQuestion:
    """A question of an MCP server.

    Attributes:
        server: The server's name.
        message: What it asks, as it wrote it.
        form: A JSON Schema object whose properties are plain values, or None.
        url: The address to open, if there is no form.
    """

    server: str
    message: str
    form: Mapping[str, Any] | None = None
    url: str = ""

    @classmethod
    def of(cls, server: str, params: Any) -> McpQuestion:
        """Read the parameters of `elicitation/create`. Raises QuestionRefused."""
        message = str(params.message)
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]} …"
        if params.mode == "url":
            parts = urlsplit(params.url) if len(params.url) <= MAX_URL else None
            if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
                raise QuestionRefused(f"The url must be an http(s) address of at most {MAX_URL:,} characters.")
            return cls(server=server, message=message, url=params.url)
        return cls(server=server, message=message, form=_narrowed(params.requested_schema))

    def arguments(self) -> dict[str, Any]:
        """Return the question as it is recorded and shown: see `PendingDecision.arguments`."""
        quoted = "\n".join(f"> {line}" for line in visible(self.message, keep="\n").splitlines())
        lines = [f"The MCP server {self.server!r} asks:", quoted]
        options: list[str] = []
        if self.form is None:
            host = urlsplit(self.url).hostname or ""
            lines += [f"It wants you to open this address, at {visible(host)}:", visible(self.url)]
            lines.append('Open it only if you trust that host. When you are done, answer "done".')
            options = ["done"]
        else:
            fields: Mapping[str, Any] = self.form["properties"]
            lines += [
                visible(_described(name, schema, name in self.form["required"])) for name, schema in fields.items()
            ]
            if len(fields) == 1:
                options = [str(each) for each in _choices(next(iter(fields.values())))]
                lines.append("Answer with the value.")
            else:
                lines.append("Answer with a JSON object of these fields.")
        given: dict[str, Any] = {"question": "\n".join(lines), "options": options}
        return {**given, "url": self.url} if self.form is None else {**given, "form": dict(self.form)}


def read_form(form: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the fields that an answer gives: a JSON object, or the value of the only field.

    Defaults fill the others; null leaves a field out.

    Raises:
        ValueError: They do not fit the form. The text says what to write.
    """
    fields: Mapping[str, Any] = form["properties"]
    text = text.strip()
    try:
        value = decode_json(text) if text else {}
    except ValueError:
        value = text
    if not isinstance(value, dict):
        if len(fields) != 1:
            raise ValueError(f"Answer with a JSON object of these fields: {', '.join(fields) or 'none'}.")
        name, schema = next(iter(fields.items()))
        value = {name: field_value(schema, text)}
    defaults = {name: schema["default"] for name, schema in fields.items() if "default" in schema}
    given = {name: each for name, each in {**defaults, **value}.items() if each is not None}
    if problem := _problem(form, given):
        raise ValueError(problem)
    return given


def field_value(field: Mapping[str, Any], text: str) -> Any:
    """Return the value of a field as a person writes it: a text as it is, another value as JSON."""
    if field["type"] == "string":
        return text
    try:
        return decode_json(text)
    except ValueError:  # the check of the form says what is wrong
        return text


def _problem(form: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    import jsonschema_rs

    closed = {**form, "additionalProperties": False}
    validator = jsonschema_rs.validator_for(closed, offline=True, validate_formats=True)
    try:
        error = next(iter(validator.iter_errors(given)), None)
    except ValueError:  # lone surrogates
        return "The answer is not JSON."
    if error is None:
        return ""
    where = ".".join(str(each) for each in error.instance_path)
    return f"The answer does not fit the form: {where + ': ' if where else ''}{error.message[:300]}."


# ------------------------------------------------------------------------------------------------ the schema of a form


def _narrowed(schema: Any) -> dict[str, Any]:
    """The schema of a form with what the protocol knows. Raises QuestionRefused."""
    fields = schema.get("properties", {}) if isinstance(schema, Mapping) else None
    if not isinstance(fields, Mapping):
        raise QuestionRefused("requestedSchema must be an object with properties.")
    try:
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        raise QuestionRefused("requestedSchema is not JSON.") from None
    if size > MAX_FORM or len(fields) > MAX_FIELDS:
        raise QuestionRefused(f"requestedSchema has more than {MAX_FORM:,} characters or {MAX_FIELDS} fields.")
    required = schema.get("required") or []
    kept = {str(name): _narrowed_field(str(name), field) for name, field in fields.items()}
    for name, field in kept.items():
        if "default" in field and _problem({"type": "object", "properties": {name: field}}, {name: field["default"]}):
            del field["default"]
    wanted = [name for name in kept if isinstance(required, list) and name in required]
    return {"type": "object", "properties": kept, "required": wanted}


def _narrowed_field(name: str, field: Any) -> dict[str, Any]:
    kind = field.get("type", "string" if _choices(field) else None) if isinstance(field, Mapping) else None
    if kind not in _TYPES:
        raise QuestionRefused(f"requestedSchema: {name[:80]!r} is not a plain value or a list of choices.")
    kept: dict[str, Any] = {"type": kind}
    kept |= {key: field[key] for key in _TEXTS if isinstance(field.get(key), str)}
    kept |= {key: field[key] for key in _NUMBERS if type(field.get(key)) in (int, float)}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    if "default" in field:
        kept["default"] = field["default"]
    options = _choices(field)
    if len(options) > MAX_OPTIONS or not all(isinstance(each, str) for each in options):
        raise QuestionRefused(f"requestedSchema: {name[:80]!r} must have at most {MAX_OPTIONS} choices, all texts.")
    if kind == "array":
        if not options:
            raise QuestionRefused(f"requestedSchema: {name[:80]!r} is a list without choices.")
        kept["items"] = {"type": "string", "enum": options}
    elif options:
        kept["enum"] = options
    titles = _titles(field)
    return {**kept, "enumNames": titles} if len(titles) == len(options) > 0 else kept


def _choices(field: Any) -> list[Any]:
    """The values of a field that are allowed, as any of the protocol's forms writes them; empty if all are."""
    if not isinstance(field, Mapping):
        return []
    if isinstance(field.get("enum"), list):
        return list(field["enum"])
    for key in ("oneOf", "anyOf"):
        if isinstance(field.get(key), list):
            return [each.get("const") if isinstance(each, Mapping) else None for each in field[key]]
    return _choices(field["items"]) if isinstance(field.get("items"), Mapping) else []


def _titles(field: Any) -> list[str]:
    """The names of the allowed values; empty if they have none."""
    if not isinstance(field, Mapping):
        return []
    for key in ("oneOf", "anyOf"):
        if isinstance(field.get(key), list):
            return [str(each.get("title", "")) if isinstance(each, Mapping) else "" for each in field[key]]
    if isinstance(field.get("enumNames"), list):
        return [str(each) for each in field["enumNames"]]
    return _titles(field.get("items"))


def _described(name: str, field: Mapping[str, Any], required: bool) -> str:
    kind = "any of" if field["type"] == "array" else "one of"
    titles = _titles(field)
    options = [f"{each!r} ({titles[at]})" if titles else repr(each) for at, each in enumerate(_choices(field))]
    notes = [f"{kind} {', '.join(options)}" if options else field["type"]]
    notes += [f"{key} {field[key]}" for key in ("format", *_NUMBERS) if key in field]
    if "default" in field:
        notes.append(f"default {json.dumps(field['default'], ensure_ascii=False)}")
    elif required:
        notes.append("required")
    about = " ".join(str(field.get("description") or field.get("title") or "").split())
    return f"- {name} ({', '.join(notes)}){': ' if about else ''}{about}"


# ------------------------------------------------------------------------------------------------ who answers

AnswerQuestion: TypeAlias = Callable[[McpQuestion], Any]
"""Answers a question: returns the fields of its form, True to accept it with its defaults, anything else to decline.

It may be async.
"""

Elicitation: TypeAlias = Literal["refuse", "ask", "accept", "decline"] | AnswerQuestion


def check_elicitation(value: Any, server: str) -> Elicitation:
    """Return the rule by which a server's questions are answered. Raises ConfigError."""
    if value is None:
        return "refuse"
    if not callable(value) and value not in _RULES:
        raise ConfigError(
            f"MCP server {server!r}: elicitation must be one of {', '.join(_RULES)}, or a function that answers, got "
            f"{value!r:.80}."
        )
    rule: Elicitation = value
    return rule


async def ruled_answer(rule: Elicitation, question: McpQuestion) -> tuple[bool, str] | None:
    """Return whether a rule accepts a question, and the text of the answer; None if a person must be asked.

    An answer of a function that does not fit the form declines: the text says why.
    """
    if rule == "ask":
        return None
    found: Any = rule == "accept" and question.form is not None  # nobody has opened an address
    if callable(rule):
        found = await returned(rule(question))
    if found is not True and not isinstance(found, Mapping):
        return False, ""
    text = json.dumps(dict(found)) if isinstance(found, Mapping) else ""
    if question.form is None:
        return True, "done"
    try:
        return True, json.dumps(read_form(question.form, text), ensure_ascii=False)
    except ValueError as error:
        return False, str(error)
