"""Constrained decoding: grammars and schemas that hold a reply to the form of its dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.messages import Capabilities, Constraint, ToolSpec

__all__ = ["PROGRAM_GRAMMAR", "action_constraint", "action_grammar", "action_schema"]

_MAX_DEPTH = 6  # Deeper parts of a schema may be any JSON.
_LONGEST_THOUGHT = 400  # characters; a weak model that is held to one line may never end it
# `end`: vocabularies have brackets and the newline after them as one token. Without `end` that token is ruled out, and
# the most likely continuation is not the bracket alone but more of the input: "7 * 12 + 7 * 5 + …".
_COMMON = r"""
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
value ::= object | array | string | number | "true" | "false" | "null"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9a-fA-F]
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
integer ::= "-"? ("0" | [1-9] [0-9]*)
ws ::= " "?
rest ::= [^\x00]+
end ::= ("\n" "\n"?)?
"""
# A reply that is one fenced program. Its lines have no backslash: small models add `\\boxed{5}`.
PROGRAM_GRAMMAR = r"""
root ::= "```python\n" line+ "```" ("\n" "\n"?)?
line ::= [^`\\\n] [^`\\\n]{0,300} "\n"
"""
# A rule's name in a grammar, or what may hold such letters without being one: a text, a character class.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z][\w-]*')


def action_constraint(
    tools: Sequence[ToolSpec],
    capabilities: Capabilities,
    *,
    primed: bool = False,
    may_answer: bool = True,
    answer: Constraint | None = None,
) -> Constraint | None:
    """Make the constraint for a ReAct reply.

    Args:
        tools: The tools that may be called.
        capabilities: What the endpoint can do.
        primed: The prompt ends in `Thought:`.
        may_answer: A final answer is allowed now.
        answer: What the answer must match: a grammar or a schema. Any other constraint is left to the answer contract.

    Returns:
        A grammar or a schema; None if the endpoint takes neither.
    """
    if capabilities.grammar:
        grammar = action_grammar(tools, primed=primed, may_answer=may_answer, answer=answer)
        return Constraint("grammar", grammar, "react")
    if capabilities.json_schema:
        return Constraint("json_schema", action_schema(tools, may_answer=may_answer), "react")
    return None


def action_schema(tools: Sequence[ToolSpec], *, may_answer: bool = True) -> dict[str, Any]:
    """Make a JSON Schema of one reply: `{"thought", "action", "action_input"}`, which the ReAct parser reads."""
    options = [_option(tool.name, dict(tool.parameters)) for tool in tools]
    if may_answer or not options:
        options.append(_option("Final Answer", {"type": "string"}))
    return {"anyOf": options} if len(options) > 1 else options[0]


def _option(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"thought": {"type": "string"}, "action": {"const": name}, "action_input": schema},
        "required": ["thought", "action", "action_input"],
        "additionalProperties": False,
    }


def action_grammar(
    tools: Sequence[ToolSpec],
    *,
    primed: bool = False,
    may_answer: bool = True,
    answer: Constraint | None = None,
) -> str:
    """Make a GBNF grammar of one reply: a thought, then an action that fits its tool's schema, or the final answer."""
    writer = _Grammar()
    calls = []
    for number, tool in enumerate(tools):
        name, given = json.dumps(tool.name, ensure_ascii=False), writer.rule(f"input{number}", tool.parameters)
        # The examples show one JSON object, or for weak models the bare name and its input.
        whole = f"""{_literal(f'{{"action": {name}, "action_input": ')} {given} "}}\""""
        writer.rules[f"call{number}"] = f"{whole} | {_literal(f'{tool.name} ')} {given}"
        calls.append(f"call{number}")
    ends = [f'"Action: " ({" | ".join(calls)})'] if calls else []
    if may_answer or not calls:
        ends.append(f'"Final Answer: " {writer.answer(answer)}')
    start = '" "' if primed else '"Thought: "'
    root = f'{start} line "\\n" ({" | ".join(ends)}) end'
    rules = [f"root ::= {root}"]
    rules += [f"{name} ::= {body}" for name, body in writer.rules.items()]
    return "\n".join(rules) + _COMMON + f"line ::= [^\\n]{{1,{_LONGEST_THOUGHT}}}\n"


class _Grammar:
    """Writes rules for JSON Schemas: types, enums, constants, required and optional properties, items.

    References, patterns and bounds are not expressed: any JSON value is allowed there, and the executor validates it.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}

    def rule(self, name: str, schema: Any, depth: int = 0) -> str:
        """The name of a rule for a schema, or of a common one."""
        body = self._body(name, schema if isinstance(schema, Mapping) else {}, depth)
        if body.isidentifier():
            return body
        self.rules[name] = body
        return name

    def answer(self, constraint: Constraint | None) -> str:
        """The name of a rule for the answer; `rest` if the constraint cannot be part of a grammar."""
        if constraint is not None and constraint.kind == "json_schema" and isinstance(constraint.value, Mapping):
            return self.rule("answer", constraint.value)
        if constraint is None or constraint.kind != "grammar" or str(constraint.value).startswith("%"):
            return "rest"
        for line in str(constraint.value).splitlines():
            name, defined, body = line.partition("::=")
            if defined:  # two grammars may use the same rule names
                self.rules[f"answer-{name.strip()}"] = _TOKEN.sub(_in_answer, body.strip())
        return "answer-root" if "answer-root" in self.rules else "rest"

    def _body(self, name: str, schema: Mapping[str, Any], depth: int) -> str:
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return " | ".join(_json_literal(value) for value in schema["enum"])
        if "const" in schema:
            return _json_literal(schema["const"])
        options = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list) and options and depth < _MAX_DEPTH:
            return " | ".join(self.rule(f"{name}-o{i}", option, depth + 1) for i, option in enumerate(options))
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(
                self.rule(f"{name}-t{i}", {**schema, "type": each}, depth + 1) for i, each in enumerate(kind)
            )
        return self._typed(name, kind, schema, depth)

    def _typed(self, name: str, kind: Any, schema: Mapping[str, Any], depth: int) -> str:
        if kind in ("string", "number", "integer"):
            return str(kind)
        if kind == "boolean":
            return '"true" | "false"'
        if kind == "null":
            return '"null"'
        if kind == "array":
            item = self.rule(f"{name}-i", schema.get("items"), depth + 1) if depth < _MAX_DEPTH else "value"
            return f'"[" ({item} (", " {item})*)? "]"'
        if kind == "object" or "properties" in schema:
            return self._object(name, schema, depth)
        return "value"

    def _object(self, name: str, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties or depth >= _MAX_DEPTH:
            return '"{}"' if properties == {} and depth == 0 else "object"
        required = set(schema.get("required") or ())
        members = {
            key: f"{_literal(json.dumps(key, ensure_ascii=False) + ': ')} {self.rule(f'{name}-p{i}', each, depth + 1)}"
            for i, (key, each) in enumerate(properties.items())
        }
        first = [members[key] for key in members if key in required]
        optional = [members[key] for key in members if key not in required]
        if first:
            body = ' ", " '.join(first)
            return f'"{{" {body} {_maybe(optional)}"}}"'
        # Without a required member any one may come first; those after it keep their order.
        chains = [f"{each} {_maybe(optional[i + 1 :])}" for i, each in enumerate(optional)]
        return f'"{{" ({" | ".join(chains)})? "}}"'


def _in_answer(token: re.Match[str]) -> str:
    return f"answer-{token[0]}" if token[0][0] not in '"[' else token[0]


def _maybe(members: Sequence[str]) -> str:
    return "".join(f'(", " {member})? ' for member in members)


def _literal(text: str) -> str:
    """A GBNF string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _json_literal(value: Any) -> str:
    return _literal(json.dumps(value, ensure_ascii=False))
