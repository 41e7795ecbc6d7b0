"""The rules of model servers on requests: what is documented of vendors, and what a server's refusals have taught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from closeout.models.openai_messages import MessageEncoder
from closeout.records import record

__all__ = ["ALL", "ANTHROPIC_KEYS", "ServerRules", "dump_rules", "known_rules", "learned_in", "load_rules"]

ALL = "*"  # in place of the name of a tool
ANTHROPIC_KEYS = r"[a-zA-Z0-9_.-]{1,64}"


@record(kw_only=True)
class ServerRules:
    """How requests are written for one model of one server.

    Attributes:
        dropped: Parameters that are left out.
        limit_name: The parameter for the most tokens of a reply.
        most_tokens: The highest value that it may have; None if unknown.
        keys: A pattern that the names of a tool's parameters must match; empty if any name is taken.
        combined_root: Whether the schema of a tool may be a combination such as `anyOf` at its root.
        long_from: Characters of the messages from which a reply may have `long_tokens` only: both must fit the context.
        longest_description: Characters of a tool's description; None if any length is taken.
        most_tools: How many tools a request may have; None if any number is taken.
        plain: Tools whose schemas are reduced to types, names and descriptions; `*` for all.
        withheld: Tools that are not offered.
        streamed: Whether every reply is streamed.
        strict: Whether conversations have the form that the strictest servers take.
        encode: Writes the messages. Of its fields, Anthropic's protocol has `server`, `always` and `refused`.
    """

    dropped: frozenset[str] = frozenset()
    limit_name: str = "max_tokens"
    most_tokens: int | None = None
    long_from: int | None = None
    long_tokens: int = 0
    keys: str = ""
    combined_root: bool = True
    longest_description: int | None = None
    most_tools: int | None = None
    plain: frozenset[str] = frozenset()
    withheld: frozenset[str] = frozenset()
    streamed: bool = False
    strict: bool = False
    encode: MessageEncoder = MessageEncoder()

    def is_plain(self, tool: str) -> bool:
        return tool in self.plain or ALL in self.plain


# What vendors document or state in their refusals, by protocol and by the end of the host's name; "" is any host.
# Three rules hold everywhere and are kept for every server: names of 1 to 64 letters, digits, `_` and `-`
# (https://platform.openai.com/docs/api-reference/chat/create) that "must start with a letter or an underscore" (Gemini:
# "function_declarations[12].name: [FIELD_INVALID] Invalid function name"), `items` in the schema of every array (OpenAI
# and Gemini: "array schema missing items"), and an object with `properties` as the schema of a tool ("object schema
# missing properties").
_OPENAI: Mapping[str, Any] = {
    "limit_name": "max_completion_tokens",  # reasoning models refuse max_tokens
    # "messages[1].tool_calls[0].id: string too long. Expected … maximum length 40"
    "encode": MessageEncoder(longest_id=40),
    # "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    "combined_root": False,
    "longest_description": 1024,  # "tools[0].function.description … maximum length 1024"
    "most_tools": 128,  # "Invalid 'tools': array too long. Expected … maximum length 128"
}
_KNOWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "openai": {
        "api.openai.com": _OPENAI,
        ".openai.azure.com": _OPENAI,
        # "Tool call id was … but must be a-z, A-Z, 0-9, with a length of 9"
        "api.mistral.ai": {"encode": MessageEncoder(short_ids=True)},
        "generativelanguage.googleapis.com": {
            "combined_root": False,  # https://ai.google.dev/api/caching#Schema: a subset of OpenAPI 3.0
            "most_tools": 512,  # "At most 512 function declarations can be specified."
        },
    },
    # "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", and "input_schema does not support oneOf, allOf, or
    # anyOf at the top level": also where others serve its models.
    "anthropic": {"": {"keys": ANTHROPIC_KEYS, "combined_root": False}},
}


def known_rules(protocol: str, host: str) -> ServerRules:
    """Return what is known of a server before it has been asked."""
    found = _KNOWN.get(protocol, {})
    return ServerRules(**next((rules for end, rules in found.items() if host.endswith(end)), {}))


def learned_in(rules: ServerRules, since: ServerRules) -> dict[str, Any]:
    """Return the fields in which rules differ from earlier ones."""
    names = (each.name for each in fields(rules))
    return {name: value for name in names if (value := getattr(rules, name)) != getattr(since, name)}


# A tool that is withheld may be mended for the next run, whose prompts are other ones.
_NOT_KEPT = frozenset({"withheld", "long_from", "long_tokens"})


def dump_rules(learned: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of rules as JSON values."""
    kept = {name: value for name, value in learned.items() if name not in _NOT_KEPT}
    return {name: _dumped(value) for name, value in kept.items()}


def _dumped(value: Any) -> Any:
    if isinstance(value, MessageEncoder):
        return {name: _dumped(each) for name, each in asdict(value).items()}
    return sorted(value) if isinstance(value, frozenset) else value


def load_rules(dumped: Mapping[str, Any], rules: ServerRules) -> ServerRules:
    """Return rules with the fields that `dump_rules` wrote. Raises TypeError for others."""
    given: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list) else value for name, value in dumped.items()
    }
    if isinstance(encode := given.get("encode"), Mapping):
        refused = frozenset(encode.get("refused", ()))
        given["encode"] = replace(rules.encode, **{**encode, "refused": refused, "server": rules.encode.server})
    return replace(rules, **given)
