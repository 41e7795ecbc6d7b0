"""Doubts about answers that programs of small models give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from closeout import Agent, Boxed, Number
from closeout.dialects.code import DOUBT, READ_AGAIN
from closeout.messages import Capabilities, Step, ToolCall, ToolReturn, ToolSpec
from closeout.run.doubts import asks_for_name, asks_to_compare, doubt, must_look_up, read_again
from closeout.testing import RequestView, ScriptedClient

SEARCHED = "print(search('North Dairy'))\nprint(search('Hill Dairy'))"
FOUND = (
    "The North Dairy makes 1,510 kilograms of cheese a day, opened in 1926.\nThe Hill Dairy makes 270. Rye is 3.5 %."
)


def steps(*programs_and_results: tuple[str, str]) -> list[Step]:
    made = []
    for turn, (program, result) in enumerate(programs_and_results):
        call = ToolCall("run_program", {"code": program})
        made.append(Step(turn, "", (call,), returns=(ToolReturn(call, result, ok=not result.startswith("Error")),)))
    return made


DOUBTFUL = [
    # question, program, answer, what is doubted
    ("How much cheese do both make in 7 days?", "final_answer(1510 + 270)", "1780", "says 7."),
    ("How much cheese do both make in 7 days?", "# 7 * (a + b)\nfinal_answer(1510 + 270)", "1780", "says 7."),
    ("买3个要多少钱?", "final_answer(270)", "270", "says 3."),
    ("How much do 1,200 kilograms cost?", "final_answer(270 * 200)", "54000", "says 1200."),
    ("How old was the dairy in 2004?", "final_answer(2004 - 1970)", "34", "1970 is in no result"),
    ("How much is it?", "price = 270.25\nfinal_answer(price)", "270.25", "270.25 is in no result"),
    ("Which makes more, North or Hill?", "final_answer(max(['North', 'Hill'], key=lambda n: n))", "North", "names"),
    ("Which makes more, North or Hill?", "final_answer(max(1510, 270))", "1510", "for a name"),
    ("Who founded it?", "final_answer(1926)", "1926", "for a name"),
    ("Where is more cheese made?", "final_answer(max(1510, 270))", "1510", "for a name"),
    ("Which dairy is older?", "final_answer(1926 < 1510)", "no", "for a name"),
    ("How many live in Pellam and Sankt-Orm?", "final_answer(270)", "270", "Pellam is in no result"),
    ("What is it?", f"final_answer({FOUND[:80]!r})", FOUND[:80], "passage"),
    ("How much more does the Hill Dairy make?", "final_answer(270 - 1510)", "-1240", "negative"),
]


@pytest.mark.parametrize(("question", "program", "answer", "part"), DOUBTFUL)
def test_a_number_left_out_or_made_up_and_a_wrong_sign_are_doubted(
    question: str, program: str, answer: str, part: str
) -> None:
    found = doubt(program, answer, question, steps((SEARCHED, FOUND)), weak=True)
    assert found is not None
    assert found.startswith(DOUBT)
    assert part in found


CERTAIN = [
    ("How much cheese do both make in 7 days?", "final_answer(7 * (1510 + 270))", "12460"),
    ("How much cheese do both make?", "a = {'North': 1510, 'Hill': 270}\nfinal_answer(sum(a.values()))", "1780"),
    ("How many eggs are 15 dozen?", "final_answer(15 * 12)", "180"),
    ("How many minutes are 3 days?", "final_answer(3 * 24 * 60)", "4320"),
    ("How much rye is in 5 % of it?", "final_answer(0.05 * 270)", "13.5"),
    ("How much is 3.5 % of 270?", "final_answer(3.5 / 100 * 270)", "9.45"),
    ("Which train leaves at 9, the R2 or the B-17?", "print(search('train at 9'))\nfinal_answer('R2')", "R2"),
    ("Does Otto say that the Hill Dairy is older?", "final_answer(search('Otto') == 'yes')", "yes"),
    ("Why? Is the North Dairy older?", "final_answer(1510)", "1510"),
    ("Who?", "final_answer('Jon Berg')", "Jon Berg"),
    ("Which year was it?", "final_answer(1926)", "1926"),
    ("Which makes more?", "kg = {'N': 1510, 'H': 270}\nfinal_answer(max(kg, key=lambda n: kg[n]))", "N"),
    ("How old was it in 2004?", "final_answer(2004 - 1926)", "78"),
    ("Sort 5, 3, 8, 1, 9, 2 and 7.", "final_answer('see above')", "see above"),  # too many to expect all of them
]


@pytest.mark.parametrize(("question", "program", "answer"), CERTAIN)
def test_what_the_question_and_the_results_account_for_is_not_doubted(question: str, program: str, answer: str) -> None:
    assert doubt(program, answer, question, steps((SEARCHED, FOUND)), weak=True) is None


def test_a_number_that_an_earlier_program_used_is_used() -> None:
    done = steps(("print(search('events of 1926'))", "Two dairies were founded."))
    assert doubt("final_answer(2)", "2", "How many dairies were founded in 1926?", done, weak=True) is None


def test_a_number_of_a_query_is_used_when_the_answer_is_made_again() -> None:
    question = "How many kilograms does the dairy of 1926 make?"
    done = steps(("print(search('dairy of 1926'))", FOUND), ("final_answer(1926)", f"Error: {DOUBT}{READ_AGAIN}"))
    assert doubt("final_answer(1510)", "1510", question, done, weak=True) is None


def test_only_one_answer_of_an_attempt_is_doubted() -> None:
    question, program = "How much in 7 days?", "final_answer(270)"
    first = doubt(program, "270", question, steps((SEARCHED, FOUND)), weak=True)
    again = steps((SEARCHED, FOUND), (program, f"Error: Line 1: {program}\nValueError: {first}"))
    assert doubt(program, "270", question, again, weak=True) is None


def test_an_answer_made_again_is_doubted_anew() -> None:
    question, program = "How much more does the Hill Dairy make?", "final_answer(270 - 1510)"
    first = doubt(program, "-1240", question, steps((SEARCHED, FOUND)), weak=True)
    told = [(SEARCHED, FOUND), (program, f"Error: {first}")]
    assert doubt(program, "-1240", question, steps(*told), weak=True) is None
    asked = steps(*told, ("final_answer(1240)", f"Error: {DOUBT}{READ_AGAIN}"))
    assert doubt(program, "-1240", question, asked, weak=True) == first


def test_an_answer_is_made_again_once_and_only_after_one_search() -> None:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tools = (ToolSpec("search", "Search.", parameters),)
    once = ("print(search('North Dairy'))", FOUND)
    assert read_again([], tools) is None
    assert read_again(steps((once[0], "Error: the index is locked")), tools) is None
    assert read_again(steps((SEARCHED, FOUND)), tools) is None  # the first answer was made from the facts alone
    asked = read_again(steps(once), tools)
    assert asked is not None
    assert read_again(steps(once, once), tools) is None  # the second program has found what was missing
    assert read_again(steps(once, ("final_answer(1)", f"Error: {asked}")), tools) is None


@pytest.mark.parametrize(
    ("question", "name", "compared"),
    [
        ("Which is older, the North Dairy or the Hill Dairy?", True, True),
        ("Which of the three dairies is the oldest?", True, True),
        ("Who has more workers, Orm or Pell?", True, True),
        ("Who conducts the choir of the town with the bell?", True, False),
        ("Which year was it, 1926 or 1970?", False, False),
        ("How many more are there in the north or west?", False, False),
    ],
)
def test_questions_for_names_and_comparisons_are_told_apart(question: str, name: bool, compared: bool) -> None:
    assert (asks_for_name(question), asks_to_compare(question)) == (name, compared)


def test_what_is_missing_is_searched_for() -> None:
    program = "final_answer(1)"
    for question, made_up, names in [
        ("How many live in Pellam?", program, ("Pellam",)),
        ("How old was the town when the North Dairy was opened?", "final_answer(1926 - 1700)", ("Hill Dairy", "Rye")),
    ]:
        found = steps(("print(search('North Dairy'))", f"{FOUND} It is near Hill Dairy and Rye."))
        missing = doubt(made_up, "1", question, found, weak=True)
        after = steps(
            ("print(search('North Dairy'))", f"{FOUND} It is near Hill Dairy and Rye."), (made_up, f"Error: {missing}")
        )
        assert must_look_up(question, found) is None
        assert must_look_up(question, after) == names


def test_a_larger_model_is_doubted_only_about_the_error_of_a_program() -> None:
    question, program, answer, _ = DOUBTFUL[0]
    assert doubt(program, answer, question, steps((SEARCHED, FOUND)), weak=False) is None
    error = "RuntimeError: search: the index is locked"
    found = doubt(f"final_answer({error!r})", error, "What?", steps((SEARCHED, f"Error: {error}")), weak=False)
    assert found is not None
    assert "error" in found


@pytest.mark.parametrize(
    "program",
    ["", "final_answer(", "final_answer(1e999)", "final_answer(2 ** 3j)", "x = 0x7F\nfinal_answer(x)", "9" * 5_000],
)
def test_programs_of_any_kind_are_read(program: str) -> None:
    doubt(program, "1", "How many in 7 days?", steps((SEARCHED, FOUND)), weak=True)


async def test_a_doubt_is_an_error_in_the_program_and_the_same_answer_is_accepted_then() -> None:
    seen: list[str] = []

    def reply(view: RequestView) -> Any:
        seen[:] = [str(message["content"]) for message in view.messages[2:] if message["role"] == "user"]
        return "```python\nfinal_answer(12 * 40)\n```" if seen else "```python\nfinal_answer(40)\n```"

    client = ScriptedClient(reply)
    client.capabilities = replace(client.capabilities, weak=True)
    agent = Agent(client, dialect="code", answer=Number(), home=False)
    result = await agent.run("It saves 40 minutes a journey. How many in 12 journeys?")
    assert (result.answer, result.usage.requests) == ("480", 2)
    again = ScriptedClient(lambda view: "```python\nfinal_answer(40)\n```")
    again.capabilities = Capabilities(weak=True)
    result = await Agent(again, dialect="code", answer=Boxed(), home=False).run(
        "How many in 12 journeys of 40 minutes?"
    )
    assert (result.answer, result.usage.requests) == ("40", 2)


async def test_a_small_model_makes_its_answer_again_from_the_facts_alone() -> None:
    prompts: list[str] = []

    def reply(view: RequestView) -> str:
        prompts.append(str(view.prompt))
        programs = ['print(search_dairies("Hill Dairy"))', "final_answer(7)", "hill = 270\nfinal_answer(hill)"]
        return f"```python\n{programs[len(prompts) - 1]}\n```"

    def search_dairies(query: str) -> str:
        return "The Hill Dairy makes 270 in 7 days."

    client = ScriptedClient(reply)
    client.capabilities = Capabilities(weak=True, completions=True, grammar=True, preferred_dialect="code")
    result = await Agent(client, [search_dairies], answer=Number(), home=False).run("How much does it make?")
    assert (result.answer, result.usage.requests) == ("270", 3)
    head = prompts[0].removesuffix("Question: How much does it make?\n")
    assert prompts[1].startswith(prompts[0])
    facts = "Facts:\nThe Hill Dairy makes 270 in 7 days.\n\nQuestion: How much does it make?\n"
    assert prompts[2] == f"{head}{facts}"


async def test_the_first_answer_stands_if_it_cannot_be_made_again() -> None:
    prompts: list[str] = []

    def reply(view: RequestView) -> str:
        prompts.append(str(view.prompt))
        facts = "Facts:" in prompts[-1]
        first = "final_answer(270)" if "makes 270" in prompts[-1] else 'print(search_dairies("Hill Dairy"))'
        return f"```python\n{'final_answer(Hill Dairy)' if facts else first}\n```"

    def search_dairies(query: str) -> str:
        return "The Hill Dairy makes 270."

    client = ScriptedClient(reply)
    client.capabilities = Capabilities(weak=True, completions=True, grammar=True, preferred_dialect="code")
    result = await Agent(client, [search_dairies], answer=Number(), home=False).run("How much does it make?")
    assert (result.answer, result.stop_reason) == ("270", "answered")
    assert prompts[3] == prompts[1]
