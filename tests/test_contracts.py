"""Answer contracts: what each finds, refuses, normalises and asks for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from closeout import Agent
from closeout.answers.contracts import (
    AnswerContract,
    Boxed,
    Choice,
    ContractReading,
    Json,
    Number,
    OneOf,
    Tagged,
    Yaml,
)
from closeout.errors import UsageError


class Person(BaseModel):
    name: str
    age: int


SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
CHANGED_NUMBERS = [
    r"<5",
    r"\geq 5",
    r"5!",
    r"5+",
    r"±5",
    r"sqrt(5)",
    r"0,500",
    r"1,5",
    r"1.234,5",
    r"-x = 5",
    r"5k",
    r"5i",
    r"5π",
    r"[5]",
    r"minus 5",
    r"not 5",
    r"at least 5",
    r"5 or so",
]
CHANGED_NUMBERS += ["5²", "1½", "5 hundred thousand", "$5 M", "5 млн", "5 tausend", "5 unter Null", "5 km"]
CHANGED_NUMBERS += ["5 dozen", "5 squared", "5 and a half"]
CAPITALS = Choice({"A": "Paris", "B": "Rome", "C": "Bern"})


@pytest.mark.parametrize(
    ("contract", "reply", "value", "text"),
    [
        (Boxed(), r"so \boxed{42}", "42", "42"),
        (Boxed(blacklist=()), r"\boxed{unknown}", "unknown", "unknown"),
        (Tagged(), "so <answer> 42 </answer>.", "42", "42"),
        (Tagged(), "<answer>1</answer> no <ANSWER lang='en'>2</ANSWER>", "2", "2"),
        (Tagged(), "<answer>3, and the reply was cut", "3, and the reply was cut", "3, and the reply was cut"),
        (Tagged("result"), "<result>x</result><answer>y</answer>", "x", "x"),
        (Tagged(), "<think><answer>1</answer></think><answer>2</answer>", "2", "2"),
        (Tagged(), "<think><answer>1</answer></think>it is one", "1", "1"),
        (Json(), 'It is {"a": 1}.', {"a": 1}, '{"a":1}'),
        (Json(), "42", 42, "42"),
        (Json(SCHEMA), '```json\n{"a": 1}\n```', {"a": 1}, '{"a":1}'),
        (Json(SCHEMA), 'first {"a": 1}, then {"a": 2}, as in [1]', {"a": 2}, '{"a":2}'),
        (Json(SCHEMA), "{'a': 1,}", {"a": 1}, '{"a":1}'),
        (Json(SCHEMA), 'a "quote and {"a": 1, "b": "}{"}', {"a": 1, "b": "}{"}, '{"a":1,"b":"}{"}'),
        (Json(SCHEMA), '<think>{"a": 9}</think> {"a": 1}', {"a": 1}, '{"a":1}'),
        (Json(Person), '{"name": "Ann", "age": 5}', Person(name="Ann", age=5), '{"name":"Ann","age":5}'),
        (Json(list[int]), "so [1, 2]", [1, 2], "[1,2]"),
        (Json(list[int]), r"so \boxed{[1, 2]}.", [1, 2], "[1,2]"),
        (Json(SCHEMA), r'so \boxed{{"a": 1}}', {"a": 1}, '{"a":1}'),
        (Yaml(), "```yaml\na: 1\nb: [x, y]\n```", {"a": 1, "b": ["x", "y"]}, "a: 1\nb: [x, y]"),
        (Yaml(), "a: 1\nb: 2", {"a": 1, "b": 2}, "a: 1\nb: 2"),
        (Yaml(SCHEMA), "```yaml\na: x\n```\nno:\n```yml\na: 2\n```", {"a": 2}, "a: 2"),
        (Choice(["yes", "no"]), r"\boxed{\text{Yes}.}", "yes", "yes"),
        (Choice(["yes", "no"]), "Answer: **no**", "no", "no"),
        (CAPITALS, r"\boxed{B}", "B", "B"),
        (CAPITALS, r"\boxed{(b)}", "B", "B"),
        (CAPITALS, r"\boxed{B. Rome}", "B", "B"),
        (CAPITALS, r"\boxed{Rome}", "B", "B"),
        (CAPITALS, "The correct answer is (C).", "C", "C"),
        (CAPITALS, "答案：C", "C", "C"),
        (CAPITALS, "B", "B", "B"),
        (CAPITALS, r"\boxed{B, Rome}", "B", "B"),
        (Choice(["A", "B"]), r"\boxed{B: a city on seven hills}", "B", "B"),
        (Choice(["1", "2"]), r"\boxed{1.}", "1", "1"),
        (Number(), r"\boxed{1,234.5}", 1234.5, "1234.5"),
        (Number(), r"\boxed{-7}", -7, "-7"),
        (Number(), r"\boxed{\frac{1}{4}}", 0.25, "0.25"),
        (Number(), r"\boxed{\dfrac34}", 0.75, "0.75"),
        (Number(), r"\boxed{3/4}", 0.75, "0.75"),
        (Number(), r"\boxed{3 \times 10^{5}}", 300_000, "300000"),
        (Number(), r"\boxed{50\%}", 50, "50"),
        (Number(), r"\boxed{\$12.50}", 12.5, "12.5"),
        (Number(), r"\boxed{x = 5}", 5, "5"),
        (Number(), r"\boxed{12^\circ}", 12, "12"),
        (Number(), r"\boxed{１２}", 12, "12"),
        (Number(), "The answer is about 42.", 42, "42"),
        (Number(unit="km"), "The answer is about 42 km.", 42, "42"),
        (Number(), r"so $x = \boxed{5}$", 5, "5"),
        (Number(), "- \\boxed{5}", 5, "5"),
        (Number(), r"\boxed{120}^\circ", 120, "120"),
        (Number(), r"\boxed{50}\%", 50, "50"),
        (Number(), r"\boxed{5} km lie between them.", 5, "5"),
        (Number(), "42", 42, "42"),
        (Number(), r"\boxed{1.1 million}", 1_100_000, "1100000"),
        (Number(), r"\boxed{-2.5\text{ billion dollars}}", -2_500_000_000, "-2500000000"),
        (Number(), r"\boxed{3万}", 30_000, "30000"),
        (Number(unit="人"), r"\boxed{1.5千万人}", 15_000_000, "15000000"),
        (Number(), r"\boxed{2万亿}", 2_000_000_000_000, "2000000000000"),
        (Number(unit="千米"), r"\boxed{5千米}", 5, "5"),
        (Number(unit="km"), r"\boxed{2 million km}", 2_000_000, "2000000"),
        (Number(unit="million USD"), r"\boxed{1.5 million USD}", 1.5, "1.5"),
        (Number(unit="万元"), r"\boxed{3万元}", 3, "3"),
        (Number(unit="km"), r"\boxed{12\text{ km}}", 12, "12"),
        (Number(unit="km"), r"\boxed{12}", 12, "12"),
        (Number(unit="hours"), r"\boxed{12 hour}", 12, "12"),
        (Number(), r"\boxed{USD 5}", 5, "5"),
        (Number(), r"\boxed{-5 °C}", -5, "-5"),
        (Number(), r"\boxed{3 crore}", 30_000_000, "30000000"),
        (Number(unit="%"), r"\boxed{12 percent}", 12, "12"),
        (Number(unit="EUR"), r"\boxed{€12}", 12, "12"),
        (Number(unit="km^2"), r"\boxed{5 km^2}", 5, "5"),
        (Choice(["C", "C++", "C#"]), r"\boxed{C++}", "C++", "C++"),
        (Choice(["A*", "A"]), r"\boxed{A*}", "A*", "A*"),
        (Choice(["(1,2)", "[1,2]"]), r"\boxed{[1,2]}", "[1,2]", "[1,2]"),
        (OneOf(Number(), Tagged()), "<answer>none of them</answer>", "none of them", "none of them"),
        (OneOf(Number(), Tagged()), r"\boxed{3}", 3, "3"),
    ],
)
def test_an_answer_is_found_and_put_in_its_normal_form(
    contract: AnswerContract, reply: str, value: Any, text: str
) -> None:
    reading = contract.read(reply)
    assert reading.ok, reading.problem
    assert (reading.value, reading.text) == (value, text)
    assert type(reading.value) is type(value)
    assert (reading.problem, reading.kind) == ("", "")
    assert reading.candidates


@pytest.mark.parametrize(
    ("contract", "reply", "kind", "problem"),
    [
        (Boxed(), "It is 42.", "missing", r"no \boxed{}"),
        (Boxed(), r"\boxed{ }", "empty", "empty"),
        (Boxed(), r"\boxed{...}", "placeholder", "..."),
        (Tagged(), "It is 42.", "missing", "<answer>"),
        (Tagged(), "<answer></answer>", "empty", "empty"),
        (Tagged(), "<answer>?</answer>", "placeholder", "?"),
        (Json(), "It is so.", "missing", "JSON"),
        (Json(SCHEMA), '{"a": "x"}', "violation", 'a: the value is not of type "integer", got "x"'),
        (Json(SCHEMA), '{"b": 1}', "violation", '"a"'),
        (Json(Person), '{"name": 3}', "violation", "name: Input should be a valid string, got 3;"),
        (Yaml(), "The answer is: 42", "missing", "```yaml"),
        (Yaml(), "```yaml\na: [\n```", "unreadable", "line"),
        (Yaml(), "```yaml\njust text\n```", "unreadable", "neither a mapping nor a list"),
        (Yaml(), "```yaml\na: &x [1]\nb: *x\n```", "unreadable", "anchors"),
        (Yaml(SCHEMA), "```yaml\na: x\n```", "violation", 'a: the value is not of type "integer", got "x"'),
        (CAPITALS, "I like Rome and Paris, both of them.", "missing", "option"),
        (CAPITALS, "I do not think it is Rome", "missing", "option"),
        (CAPITALS, r"\boxed{Madrid}", "violation", "A (Paris), B (Rome), C (Bern)"),
        (CAPITALS, r"\boxed{Rome or Paris}", "violation", "not one of"),
        (CAPITALS, r"\boxed{}", "empty", "empty"),
        (Number(), "I found 3 of them in chapter 4.", "missing", "number"),
        (Number(), r"\boxed{between 3 and 5}", "unreadable", "not a number"),
        (Number(), r"\boxed{2023-05-01}", "unreadable", "not a number"),
        (Number(), r"\boxed{\frac{1}{0}}", "unreadable", "not a number"),
        (Number(), r"\boxed{1e999}", "unreadable", "not a number"),
        (Number(unit="km"), r"\boxed{12 miles}", "violation", "not in km"),
        (Number(integer=True), r"\boxed{1.5}", "violation", "whole number"),
        (Number(minimum=0), r"\boxed{-1}", "violation", "less than 0"),
        (Number(maximum=10), r"\boxed{11}", "violation", "more than 10"),
        (Number(unit="km"), r"\boxed{2 million miles}", "violation", "not in km"),
        (Number(), r"\boxed{3万5千}", "unreadable", "not a number"),
        (CAPITALS, r"\boxed{A, B}", "violation", "not one of"),
        (CAPITALS, r"\boxed{A. Paris, B. Rome}", "violation", "not one of"),
        (CAPITALS, r"\boxed{(A) and (C)}", "violation", "not one of"),
        (CAPITALS, r"\boxed{not Rome}", "violation", "not one of"),
        (CAPITALS, r"\boxed{不是 Rome}", "violation", "not one of"),
        (Choice(["1", "2"]), r"\boxed{1.5}", "violation", "not one of"),
        (Choice(["10", "20"]), r"\boxed{-10}", "violation", "not one of"),
        (Choice(["10", "20"]), r"\boxed{10.5}", "violation", "not one of"),
        (Choice(["C", "Java"]), r"\boxed{C++}", "violation", "not one of"),
        (Choice(["Go", "Java"]), r"\boxed{Java++}", "violation", "not one of"),
        (Choice(["a", "A"]), r"\boxed{(a)}", "violation", "not one of"),
        (Choice(["(1,2)", "[1,2]"]), r"\boxed{1,2}", "violation", "not one of"),
        (CAPITALS, r"\boxed{anything but Rome}", "violation", "not one of"),
        (CAPITALS, r"\boxed{A: Rome}", "violation", "not one of"),
        *((Number(), rf"\boxed{{{answer}}}", "unreadable", "not a number") for answer in CHANGED_NUMBERS),
        (Number(unit="EUR"), r"\boxed{\$12}", "violation", "not in EUR"),
        (Number(unit="m"), r"\boxed{5 ms}", "violation", "not in m"),
        (Number(unit="mW"), r"\boxed{5 MW}", "violation", "not in mW"),
        (Number(unit="km"), r"\boxed{50\%}", "violation", "not in km"),
        (OneOf(Tagged(), Number()), "words", "missing", "<answer>"),
        (OneOf(Tagged(), Number(maximum=1)), r"\boxed{2}", "violation", "more than 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(contract: AnswerContract, reply: str, kind: str, problem: str) -> None:
    reading = contract.read(reply)
    assert not reading.ok
    assert (reading.value, reading.text) == (None, "")
    assert reading.kind == kind
    assert problem in reading.problem
    assert reading.problem.endswith((".", ")."))
    assert "\n" not in reading.problem


CONTRACTS: list[AnswerContract] = [
    Boxed(),
    Tagged(),
    Json(),
    Json(SCHEMA),
    Json(Person),
    Yaml(),
    Yaml(SCHEMA),
    CAPITALS,
    Number(unit="km", integer=True),
    OneOf(Number(), Boxed()),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=repr)
def test_a_contract_says_how_to_write_the_answer(contract: AnswerContract) -> None:
    assert contract.instruction()
    assert contract.finishing().startswith("Now write only")
    assert not contract.read(contract.instruction()).ok, "a model that echoes the instruction has not answered"
    assert contract.read("").kind == "missing"


@pytest.mark.parametrize(
    "reply",
    [
        r"$-\boxed{5}$",
        r"-\boxed{5}",
        r"10\boxed{5}",
        r"$\sqrt{\boxed{5}}$",
        r"\boxed{5}^2",
        r"\boxed{5}!",
        r"\boxed{5}½",
        r"$\boxed{5} \times 10^3$",
        r"\boxed{5}\pi",
        r"\boxed{5} million",
        r"$\boxed{5}\text{ million}$",
    ],
)
def test_a_number_is_refused_if_something_outside_its_box_changes_it(reply: str) -> None:
    assert Number().read(reply).kind == "unreadable"
    assert Boxed().read(reply).text == "5"


@pytest.mark.parametrize("answer", ["hardly yes", "yes, hardly", "kaum yes", "the answer may be yes", "5 yes"])
def test_a_choice_is_an_option_and_nothing_else(answer: str) -> None:
    assert not Choice({"yes": "true", "no": "false"}).read(f"\\boxed{{{answer}}}").ok
    assert not CAPITALS.read(r"\boxed{the city of Rome}").ok
    assert not CAPITALS.read(r"\boxed{B: hardly}").ok


@pytest.mark.parametrize(("option", "answer"), [("MW", "mW"), ("mW", "MW"), ("MB", "Mb"), ("MPa", "mPa")])
def test_an_option_in_other_capitals_is_another_one(option: str, answer: str) -> None:
    contract = Choice([option, "none"])
    assert not contract.read(f"\\boxed{{{answer}}}").ok
    assert contract.read(f"\\boxed{{{option}}}").value == option
    assert Choice(["Yes", "NO"]).read(r"\boxed{no}").value == "NO"


def test_an_unclosed_answer_is_marked() -> None:
    assert Boxed().read(r"\boxed{4}").complete
    assert not Boxed().read(r"\boxed{4").complete
    assert not Tagged().read("<answer>4").complete


@pytest.mark.parametrize("contract", [Boxed(), Choice(["1", "2"]), Number()])
def test_boxes_that_are_never_closed_are_together_no_longer_than_the_reply(contract: AnswerContract) -> None:
    reply = "\\boxed{1, or " * 1_000 + "\\boxed{2"
    candidates = contract.read(reply).candidates
    assert [candidate.text for candidate in candidates] == ["1, or"] * 1_000 + ["2"]
    assert not any(candidate.complete for candidate in candidates)
    assert sum(candidate.end - candidate.start for candidate in candidates) == len(reply)


def test_yaml_that_nests_too_deeply_is_refused_before_it_is_read() -> None:
    reading = Yaml().read("```yaml\na: " + "[" * 101 + "]" * 101 + "\n```")
    assert (reading.ok, reading.kind) == (False, "unreadable")
    assert "nested too deeply" in reading.problem
    assert Yaml().read("```yaml\na: " + "[" * 60 + "]" * 60 + "\n```").ok


def test_all_candidates_are_given_in_reading_order() -> None:
    text = r"\boxed{1} then \boxed{2}"
    assert [(c.text, text[c.start : c.end]) for c in Boxed().read(text).candidates] == [
        ("1", r"\boxed{1}"),
        ("2", r"\boxed{2}"),
    ]


@pytest.mark.parametrize(
    ("contract", "good", "bad"),
    [
        (Boxed(), [r"\boxed{a {b} c}"], ["a"]),
        (Choice(["yes", 'n"o']), [r"\boxed{yes}", r'\boxed{n"o}'], [r"\boxed{no}", "yes"]),
        (Number(), [r"\boxed{-1.5}"], [r"\boxed{x}"]),
        (Number(integer=True), [r"\boxed{15}"], [r"\boxed{1.5}"]),
        (Tagged(), ["<answer>x</answer>"], ["x"]),
    ],
)
def test_a_constraint_allows_the_answer_in_its_wrapper_only(
    contract: AnswerContract, good: list[str], bad: list[str]
) -> None:
    constraint = contract.constraint()
    assert constraint is not None
    assert constraint.kind == "grammar"
    matches = grammar_to_regex(str(constraint.value))
    assert all(matches.fullmatch(text) for text in good)
    assert not any(matches.fullmatch(text) for text in bad)
    assert all(contract.read(text).ok for text in good)


def grammar_to_regex(grammar: str) -> re.Pattern[str]:
    """The GBNF subset that contracts write, as a regular expression (one level of nested content)."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.strip().splitlines())
    token = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[a-z]+|[()|+?*]')

    def build(rule: str, depth: int) -> str:
        parts = []
        for part in token.findall(rules[rule]):
            if part.startswith('"'):
                parts.append(f"(?:{re.escape(part[1:-1].encode().decode('unicode_escape'))})")
            elif part.isalpha():
                parts.append(f"(?:{build(part, depth + 1)})" if depth < 3 else "(?!)")
            else:
                parts.append(part)
        return "".join(parts)

    return re.compile(build("root", 0))


def test_json_is_constrained_by_its_schema() -> None:
    constraint = Json(Person).constraint()
    assert constraint is not None
    assert (constraint.kind, constraint.value) == ("json_schema", Person.model_json_schema())
    assert Json().constraint() is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Json({"type": "objct"}), "JSON Schema"),
        (lambda: Json("name, age"), "JSON Schema"),
        (lambda: Tagged("not a name"), "XML name"),
        (lambda: Choice(["only"]), "two or more"),
        (lambda: Choice("yes or no"), "two or more different options"),
        (lambda: Number(minimum=5, maximum=1), "from 5 up to 1. Swap"),
        (lambda: OneOf(), "at least one"),
    ],
)
def test_a_contract_that_makes_no_sense_is_refused_at_once(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


class HalfAContract:
    def instruction(self) -> str:
        return "Say it."

    def read(self, text: str) -> ContractReading[str]:
        return ContractReading(text, text, True)


def test_an_agent_checks_its_contract_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="lacks finishing, constraint, finish_prefix: see AnswerContract"):
        Agent("openai:x", base_url="http://127.0.0.1:9/v1", answer=HalfAContract())  # type: ignore[arg-type]


HOSTILE = ["{" * 50_000, "[" * 50_000, '{"a":' * 20_000, '"' * 50_000, '\\"' * 50_000 + "{", '{"' + '\\"' * 50_000]
HOSTILE += [
    "<answer>" * 20_000,
    "```yaml\n" * 10_000,
    "```\na: [" * 5_000,
    "a: " * 20_000,
    "- " * 20_000,
    "{\\" * 20_000,
]
HOSTILE += [
    "```yaml\n" + "[" * 40_000 + "\n```",
    "\\boxed{x " * 10_000,
    "\\boxed{" * 9_000 + "x" + "}" * 9_000 + "\\boxed{y",
]
HOSTILE += ["1," * 50_000, "\\frac{" * 20_000, "Answer: " * 20_000, "\n" * 100_000, "(" * 50_000, "\ud800\0{" * 1000]
HOSTILE += ["\\boxed{" + "9" * 100_000 + "}", "\\boxed{" + "1e9" * 1000 + "}", "*" * 100_000, '"\\\n' * 20_000]


@pytest.mark.parametrize("contract", [CONTRACTS[number] for number in (0, 1, 4, 6, 7, 8, 9)], ids=repr)
def test_hostile_text_neither_raises_nor_hangs(contract: AnswerContract) -> None:
    for text in HOSTILE:
        contract.read(text)
        contract.read("\\boxed{" + text + "}")


@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from([*'{}[]"\\:,-\n `<>/answerbox1.%$&*', "é", "\ud800", "\0"]), max_size=80))
def test_any_text_is_read(text: str) -> None:
    for contract in CONTRACTS:
        reading = contract.read(text)
        assert reading.ok is (reading.problem == "")
