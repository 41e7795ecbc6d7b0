"""A JSON Schema of settings files, for editors."""

from __future__ import annotations

from typing import Any

from closeout.config import Config

__all__ = ["settings_schema"]

_VARIABLE = {"type": "string", "pattern": r"\$\{"}  # `${VAR}` may stand for any value
_ONE_VALUE = ("number", "integer", "boolean")


def settings_schema() -> dict[str, Any]:
    """Return a JSON Schema of a settings file: of its sections, of dotted keys, and of profiles."""
    schema: dict[str, Any] = _with_variables(Config.model_json_schema())
    agent = schema["$defs"]["AgentSettings"]["properties"]
    agent["max_turns"] = schema["$defs"]["AgentLimits"]["properties"]["max_turns"]
    whole = {key: value for key, value in schema.items() if key in ("properties", "additionalProperties", "type")}
    whole["patternProperties"] = {r"^[a-z_]+\.": {}}  # `agent.max_turns: 7`
    profile = {**whole, "properties": dict(whole["properties"])}
    whole["properties"]["profiles"] = {
        "type": "object",
        "description": "settings that --profile NAME puts over those of this file",
        "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Profile"}, {"type": "null"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Closeout settings",
        **whole,
        "$defs": {**schema["$defs"], "Profile": profile},
    }


def _with_variables(schema: Any) -> Any:
    """Return a schema in which every single value that is no text may be written as `${VAR}` too."""
    if isinstance(schema, list):
        return [_with_variables(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_variables(each) for key, each in schema.items() if key != "default" or _is_plain(each)}
    if found.get("type") in _ONE_VALUE or ("enum" in found and found.get("type") == "string"):
        kept = {key: found.pop(key) for key in ("description", "title", "default") if key in found}
        return {**kept, "anyOf": [found, _VARIABLE]}
    return found


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)
