"""Constrained decoding: what a ReAct reply must match, as a GBNF grammar or a JSON Schema made from the tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Literal, TypeAlias

from closeout.messages import Capabilities, Constraint, ToolSpec
from closeout.records import record

__all__ = [
    "ProgramResult",
    "ThoughtRule",
    "action_constraint",
    "action_grammar",
    "action_schema",
    "exactly",
    "program_grammar",
    "rewording_grammar",
]

ProgramResult: TypeAlias = Literal["value", "size", "name", "choice", "least", "most", "second"]

_MAX_DEPTH = 6  # of a schema; what is deeper may be any JSON
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
# A reply that is one fenced program: BODY is its lines. They have no backslash: models add `\boxed{5}`.
_PROGRAM = r"""
root ::= "```python\n" BODY "```" ("\n" "\n"?)?
line ::= [^`\\\n] text
text ::= [^`\\\n]{0,300} "\n"
"""
_WORD = r"""
word ::= part (" " part)?
part ::= [^" `\\\n]{2,20}
"""
_PLANNED = r"""(plan | [^#`\n] text) line{0,12}"""
_PLAN = r"""
plan ::= "#" [^\n]{0,120} apart (ORDERS) (apart [^\n]{0,80})? "\n"
between ::= apart ([^\n]{0,80} apart)?
apart ::= [^0-9.,\n] | [.,] [^0-9\n]
"""
# Variables with written values and then the answer, or the answer at once; no bare words (`final_answer(Ada Rehn)`). A
# comment would be a plan, after which everything is looked up again. Names must not begin with `print`: a model that
# would print something names it `print_answer` instead.
_MAKING: dict[ProgramResult, str] = {
    "value": r"""(variable " = " [-0-9({"'[] text assigned{0,5})? "final_answer(" [-0-9a-z({"'[] bare""",
    "size": r""""final_answer(abs(" [^`\n]{1,200} "))" "\n" """,
    "name": r"""(variable " = {" text assigned{0,3} "final_answer(" [a-z] bare | "final_answer(" quoted ")" "\n")""",
    "choice": r'dictionary (("max(" | "min(") by ")" | "sorted(" by "[" "-"? [0-9] "])") "\n"',
    "second": r'dictionary "sorted(" by ("[1]" | "[-2]") ")" "\n"',
    "least": r'dictionary "min(" by ")" "\n"',
    "most": r'dictionary "max(" by ")" "\n"',
}
_MAKING_RULES = r"""
variable ::= ([a-oq-z] | "p" [a-qs-z0-9_] | "pr" [a-hj-z0-9_] | "pri" [a-mo-z0-9_]) [a-z0-9_]{0,40}
assigned ::= variable " = " [-0-9a-z({"'[] text
bare ::= [^#`\\\n]{1,300} "\n"
quoted ::= "\"" [^"\n]{1,100} "\""
dictionary ::= "numbers = {" [^\n]{1,300} "}\nfinal_answer("
by ::= "numbers, key=lambda name: numbers[name])"
"""
_USING = r'"final_answer(" (NUMBER operator sum | sum operator NUMBER (operator sum)?) ")" "\n"'
_CALCULATION = r"""
operator ::= " "? [-+*/] " "?
sum ::= operand (operator operand){0,5}
operand ::= [a-z] [a-z0-9_]{0,40} | [0-9] [0-9.]{0,12} | "(" sum ")"
"""
_LONGEST_QUERY = 60  # characters of a query that found nothing
_MOST_SEARCHED = 3  # names that one program must search for
_MOST_PLANNED = 3  # numbers: their orders are alternatives of the grammar
# A rule's name in a grammar, or what may hold such letters without being one: a text, a character class.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z][\w-]*')


@record
class ThoughtRule:
    """What a thought must match, and what may follow it, as bodies of GBNF rules."""

    ready: str  # nothing has to be found out: any action or the answer may follow
    pending: str  # something has: only these tools may be called
    finders: frozenset[str]


def program_grammar(
    numbers: Sequence[str],
    *,
    printing: Sequence[str] = (),
    makes: ProgramResult | None = None,
    using: str | None = None,
) -> str:
    """Return the grammar of a reply that is a program.

    A small model leaves a factor out of its plan, and then out of the answer, and does not find it when it is asked to
    check.

    Args:
        numbers: What the plan must contain, if the program begins with one: the numbers of the question.
        printing: How its lines must begin, if it may only print what its calls return; if there are more than three
            beginnings, one of them. `print(` alone stands for up to three lines.
        makes: What it makes from facts that were found, without a plan: a value, a size (a number without its sign), a
            name; or which name it chooses by its number from a dictionary: any, that of the least, of the most, or of
            the second in order.
        using: A number with which it must calculate the answer.
    """
    if printing:
        lines = [f"{_literal(beginning)} text" for beginning in printing]
        joined = (" " if len(lines) <= _MOST_SEARCHED else " | ").join(lines)
        more = '("print(" text){0,2}' if printing == ["print("] else ""
        return _PROGRAM.replace("BODY", f"({joined}) {more}")
    if using:
        return _PROGRAM.replace("BODY", _USING.replace("NUMBER", f'"{using}"')) + _CALCULATION
    if makes:
        return _PROGRAM.replace("BODY", _MAKING[makes]) + _MAKING_RULES
    if not 0 < len(numbers) <= _MOST_PLANNED:
        return _PROGRAM.replace("BODY", "line+")
    orders = " | ".join(" between ".join(f'"{number}"' for number in order) for order in permutations(numbers))
    return _PROGRAM.replace("BODY", _PLANNED) + _PLAN.replace("ORDERS", orders)


def rewording_grammar(query: str, beginning: str) -> str:
    """Return the grammar of a program that searches in other words than a query that found nothing.

    It names them first: a small model that is only asked for another query repeats words of the question.

    Args:
        query: The query.
        beginning: How the line begins that searches: `print(search("`.
    """
    words = " ".join(query.replace("`", " ").split())[:_LONGEST_QUERY]
    named = rf"""{_literal(f"# {words} may be called: ")} [a-z] [^`\n]{{8,80}} "\n" """
    return _PROGRAM.replace("BODY", rf"""{named} {_literal(beginning)} word (" or " word){{1,4}} "\"))\n" """) + _WORD


def action_constraint(
    tools: Sequence[ToolSpec],
    capabilities: Capabilities,
    *,
    primed: bool = False,
    may_answer: bool = True,
    answer: Constraint | None = None,
    thought: ThoughtRule | None = None,
) -> Constraint | None:
    """Make the constraint for a ReAct reply.

    Args:
        tools: The tools that may be called.
        capabilities: What the endpoint can do.
        primed: The prompt ends in `Thought:`.
        may_answer: A final answer is allowed now.
        answer: What the answer must match: a grammar or a schema. Any other constraint is left to the answer contract.
        thought: What the thought must match; by default any line.

    Returns:
        A grammar or a schema; None if the endpoint takes neither.
    """
    if capabilities.grammar:
        grammar = action_grammar(tools, primed=primed, may_answer=may_answer, answer=answer, thought=thought)
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
    thought: ThoughtRule | None = None,
) -> str:
    """Make a GBNF grammar of one reply: a thought, then an action that fits its tool's schema, or the final answer."""
    writer = _Grammar()
    calls = []
    for number, tool in enumerate(tools):
        name, given = json.dumps(tool.name, ensure_ascii=False), writer.rule(f"input{number}", tool.parameters)
        # As the examples show it: one JSON object, or for weak models the bare name and its input.
        whole = f"""{_literal(f'{{"action": {name}, "action_input": ')} {given} "}}\""""
        writer.rules[f"call{number}"] = f"{whole} | {_literal(f'{tool.name} ')} {given}"
        calls.append(f"call{number}")
    ends = [f'"Action: " ({" | ".join(calls)})'] if calls else []
    if may_answer or not calls:
        ends.append(f'"Final Answer: " {writer.answer(answer)}')
    start = '" "' if primed else '"Thought: "'
    root = f'{start} line "\\n" ({" | ".join(ends)}) end'
    finders = [call for call, tool in zip(calls, tools, strict=True) if thought and tool.name in thought.finders]
    if thought and finders:
        root = f'{start} (pending "\\n" "Action: " ({" | ".join(finders)}) | ready "\\n" ({" | ".join(ends)})) end'
        writer.rules |= {"pending": thought.pending, "ready": thought.ready}
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


def exactly(text: str) -> str:
    """Return the grammar of a reply that is a given text."""
    return f"root ::= {_literal(text)}"


def _literal(text: str) -> str:
    """A GBNF string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _json_literal(value: Any) -> str:
    return _literal(json.dumps(value, ensure_ascii=False))
