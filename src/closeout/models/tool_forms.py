"""Tools as a server takes them, and the way back from its calls to the tools' own names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from closeout.messages import ModelReply, ToolCall, ToolSpec
from closeout.models.sent_names import safe_name
from closeout.models.server_rules import ANTHROPIC_KEYS, ServerRules
from closeout.repair.schema_rules import kind_of, map_schemas

__all__ = ["SentTools"]

Schema = Mapping[str, Any]

_COMBINED = ("anyOf", "oneOf", "allOf", "not", "enum", "$ref")
_DEEPEST_PLAIN = 6  # Levels of a schema that is reduced: it may refer to itself.
_MOST_PLAIN = 1_000  # Schemas in it: twelve references to itself would be millions of them.
# Rules on a value that are put into words where the schema cannot hold them.
_TOLD = ("pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
         "maxLength", "minItems", "maxItems", "uniqueItems", "default")  # fmt: skip
_CUT = " …"


class SentTools:
    """The tools of a request as one server takes them: `specs`."""

    def __init__(self, tools: tuple[ToolSpec, ...], rules: ServerRules) -> None:
        self._own_names: dict[str, str] = {}
        self._own_keys: dict[str, dict[str, str]] = {}  # of each tool: the parameters by the names that were sent
        self.specs = tuple(self._sent(tool, rules) for tool in tools if tool.name not in rules.withheld)

    def _sent(self, tool: ToolSpec, rules: ServerRules) -> ToolSpec:
        name, keys = safe_name(tool.name), dict[str, str]()
        if name != tool.name:
            self._own_names[name] = tool.name
        schema = tool.parameters
        if "properties" not in schema and not any(key in schema for key in _COMBINED):
            schema = {**schema, "type": "object", "properties": {}}  # OpenAI: "object schema missing properties"
        if rules.is_plain(tool.name):
            schema = _plain(schema, schema, 0, iter(range(_MOST_PLAIN)))
        elif not rules.combined_root and any(key in schema for key in _COMBINED):
            schema = _without_combinations(schema)
        pattern = rules.keys or (ANTHROPIC_KEYS if rules.is_plain(tool.name) else "")
        valid = re.compile(pattern) if pattern else None

        def mended(part: Schema) -> Schema:
            return _with_items(part if valid is None else _renamed(part, valid, keys))

        schema = map_schemas(schema, mended)
        if keys:
            self._own_keys[tool.name] = {sent: own for own, sent in keys.items()}
        description = tool.description
        if (longest := rules.longest_description) is not None and len(description) > longest:
            description = description[: longest - len(_CUT)].rstrip() + _CUT
        same = name == tool.name and schema is tool.parameters and description is tool.description
        return tool if same else replace(tool, name=name, description=description, parameters=schema)

    def restored(self, reply: ModelReply) -> ModelReply:
        """Return a reply whose calls have the tools' own names."""
        if not (self._own_names or self._own_keys) or not reply.tool_calls:
            return reply
        return replace(reply, tool_calls=tuple(map(self._restored, reply.tool_calls)))

    def _restored(self, call: ToolCall) -> ToolCall:
        name = self._own_names.get(call.name, call.name)
        keys = self._own_keys.get(name, {})
        text = call.text
        for sent, own in keys.items():  # in the text, which need not be valid: digits stay as they were written
            if sent in text:
                written = json.dumps(own, ensure_ascii=False)
                text = written.join(re.split(rf'(?<!\\)"{re.escape(sent)}"(?=\s*:)', text))
        arguments = text if call.arguments is call.text or call.arguments == call.text else call.arguments
        return replace(call, name=name, text=text, arguments=arguments)


# ------------------------------------------------------------------------------------------------ schemas


def _with_items(schema: Schema) -> Schema:
    kind = schema.get("type")
    is_array = kind == "array" or (isinstance(kind, list) and "array" in kind)
    return {**schema, "items": {}} if is_array and "items" not in schema else schema


def _renamed(schema: Schema, valid: re.Pattern[str], keys: dict[str, str]) -> Schema:
    """Return a schema whose properties have names that a server takes, and add the names to `keys`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or all(valid.fullmatch(key) for key in properties):
        return schema
    sent = {key: key if valid.fullmatch(key) else safe_name(key) for key in properties}
    keys.update({own: name for own, name in sent.items() if own != name})
    changed = {**schema, "properties": {sent[key]: _titled(value, key, sent) for key, value in properties.items()}}
    if isinstance(required := schema.get("required"), list):
        changed["required"] = [sent.get(key, key) for key in required]
    return changed


def _titled(schema: Any, own: str, sent: Mapping[str, str]) -> Any:
    """Return the schema of a property whose own name is in its description if another one is sent."""
    if sent[own] == own or not isinstance(schema, Mapping):
        return schema
    return {**schema, "description": " ".join(filter(None, (own, str(schema.get("description") or ""))))}


def _without_combinations(schema: Schema) -> Schema:
    """Return an object's schema without combinations at its root, which are in its description."""
    kept = {key: value for key, value in schema.items() if key not in _COMBINED}
    properties, required = dict(kept.get("properties") or {}), list(kept.get("required") or ())
    parts = [_resolved(schema, schema), *(_resolved(each, schema) for each in _branches(schema))]
    for part in parts:
        for name, each in (part.get("properties") or {}).items():
            properties.setdefault(name, each)
    for part in (*parts[:1], *(_resolved(each, schema) for each in schema.get("allOf") or ())):
        required += [name for name in part.get("required") or () if name not in required]
    told = {key: schema[key] for key in ("anyOf", "oneOf", "not") if key in schema}
    if told:
        kept["description"] = _told(kept.get("description"), told)
    return {**kept, "type": "object", "properties": properties, **({"required": required} if required else {})}


def _branches(schema: Schema) -> list[Schema]:
    return [each for key in ("allOf", "anyOf", "oneOf") for each in schema.get(key) or () if isinstance(each, Mapping)]


def _told(description: Any, rules: Mapping[str, Any]) -> str:
    text = json.dumps(rules, ensure_ascii=False, default=str)[1:-1]
    return " ".join(filter(None, (str(description or ""), f"({text})" if len(text) <= 300 else "")))


def _resolved(schema: Any, root: Schema) -> Schema:
    """Follow a reference to a schema inside the root; `{}` if it leads nowhere."""
    for _ in range(8):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root if "#" in reference else None
        for step in filter(None, reference.partition("#")[2].split("/")):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}} if found else {}
    return {}


def _plain(schema: Any, root: Schema, depth: int, numbers: Iterator[int]) -> dict[str, Any]:
    """Return a schema of types, names, descriptions and lists of texts, which every server takes.

    A union becomes its first type: a call is checked by the tool's own schema in any case. Each schema takes one of the
    numbers; without one, its parts are left out.
    """
    is_cut = next(numbers, None) is None or depth >= _DEEPEST_PLAIN
    found = dict(_resolved(schema, root))
    for each in map(dict, (_resolved(each, root) for each in found.pop("allOf", None) or ())):
        merged = {**(found.get("properties") or {}), **(each.get("properties") or {})}
        found = {**each, **found, **({"properties": merged} if merged else {})}
    for key in ("anyOf", "oneOf"):
        options = [_resolved(each, root) for each in found.pop(key, None) or ()]
        chosen = next((each for each in options if each.get("type") != "null"), {})
        found = {**chosen, **found}
    if "const" in found:
        found["enum"] = [found["const"]]
    kind = _kind(found) if depth else "object"
    told = {key: found[key] for key in _TOLD if found.get(key) is not None}
    plain: dict[str, Any] = {"type": kind}
    if (description := found.get("description")) or told:
        plain["description"] = _told(description, told) if told else description
    values = found.get("enum")
    if kind == "string" and isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        plain["enum"] = values
    if kind == "array":
        first: Any = found.get("items") or next(iter(found.get("prefixItems") or ()), {})
        plain["items"] = {"type": "string"} if is_cut else _plain(first, root, depth + 1, numbers)
    if kind == "object":
        members = None if is_cut else found.get("properties")
        members = members if isinstance(members, Mapping) else {}
        plain["properties"] = {name: _plain(each, root, depth + 1, numbers) for name, each in members.items()}
        if required := [name for name in found.get("required") or () if name in members]:
            plain["required"] = required
    return plain


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), None)
    if kind in ("string", "boolean", "integer", "number", "object", "array"):
        return str(kind)
    if values := schema.get("enum"):
        return next((kind_of(each) for each in values if each is not None), "string")
    return "object" if "properties" in schema else "array" if "items" in schema else "string"
