"""Two answers of a small model that differ are weighed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Number, RunResult
from closeout.errors import ModelError, ServerFailed
from closeout.journal.events import ModelRequested, Repaired
from closeout.messages import ModelReply, ReplyTokens
from closeout.run.weighing import MAX_NODES, calculation, in_order_of, likelihood, same_value
from closeout.testing import ScriptedClient
from weigher import FIRST, SECOND, Weigher, is_from_facts, search_members

DOUBLINGS = "\n".join(f"a{n + 1} = a{n} + a{n}" for n in range(60))


@pytest.mark.parametrize(
    ("program", "written_out"),
    [
        ("final_answer(43 * 52)", "43 * 52"),
        ("members = 43\nfee = 52\nfinal_answer(members * fee)", "43 * 52"),
        ("a = 2\nb = a + 1\na = 5\nfinal_answer(b * a)", "(2 + 1) * 5"),
        ("price = {'adult': 13, 'child': 7}\nfinal_answer(2 * price['child'])", "2 * 7"),
        ("price = {'adult': 13}\nfinal_answer(2 * price['child'])", '2 * {"adult": 13}["child"]'),
        ("final_answer('Jon „J“ Berg')", '"Jon „J“ Berg"'),
        ("final_answer(abs(1_000-2.50))", "abs(1000 - 2.5)"),
        ("final_answer(unknown)", "unknown"),
        ("print(search('Hill'))", None),
        ("for n in (1, 2):\n    final_answer(n)", None),
        ("a = 1\na += 1\nfinal_answer(a)", None),
        ("a = 43", None),
        ("final_answer(1, 2)", None),
        ("final_answer(", None),
        ("", None),
        (f"final_answer({' + '.join(['43'] * 30)})", None),
        (f"a0 = 1\n{DOUBLINGS}\nfinal_answer(a60)", None),
        ("a" + ".b" * 3_000, None),
        (f"final_answer({'-' * 3_000}1)", None),
        (f"final_answer(a{'.b' * 1_500})", None),
        (f"final_answer(0x{'F' * 6_000})", None),
        (f"a = {'+'.join(['1'] * MAX_NODES)}\nfinal_answer(2)", None),
    ],
)
def test_an_answer_is_written_out_as_one_expression(program: str, written_out: str | None) -> None:
    assert calculation([program]) == written_out


def test_names_of_earlier_programs_are_written_out() -> None:
    earlier = ["born = 1681\nbuilt, kept = 1, 2\nfinal_answer(born)", "for n in 1, 2:\n    born = n", "fee = 2"]
    assert calculation([*earlier, "final_answer(abs(born - 1655) * fee * built)"]) == "abs(1681 - 1655) * 2 * built"
    assert calculation([*earlier, "print(search('Orm'))"]) is None
    assert calculation([]) is None


@pytest.mark.parametrize(
    ("calculated", "ordered"),
    [
        ("380 * 5", "5 * 380"),
        ("380 * 5 * 34", "5 * 34 * 380"),
        ("380 * (34 - 5)", "(34 - 5) * 380"),
        ("34 * 3.5 + 8 * 5", "5 * 8 + 34 * 3.5"),
        ("380 / 5 + 1", "380 / 5 + 1"),
        ("1 + 380 / 5", "380 / 5 + 1"),
        ("abs(380 * 5 - 34)", "abs(5 * 380 - 34)"),
        ('"Orm" + "Pell"', '"Orm" + "Pell"'),
        ("a * 5", "a * 5"),
    ],
)
def test_sums_and_products_are_put_in_the_order_of_the_text(calculated: str, ordered: str) -> None:
    text = (
        "How many vases in 5 weeks?\nIts 34 workers blow 380 vases a week, for 3.5 or 8 crowns, 1,200 in all. Again 5."
    )
    assert in_order_of(text, calculated) == ordered


def test_calculations_with_the_same_result_are_not_weighed() -> None:
    assert same_value("96 * 160", "160 * 96")
    assert same_value("1603 - 1358", "1358 - 1603")
    assert same_value("unknown", "unknown")
    assert not same_value("96 * 160", "96 + 160")
    assert not same_value("unknown", "1 / 0")
    assert not same_value('"Orm"', '"Pell"')


def test_the_likelihood_is_of_the_text_alone() -> None:
    tokens = ReplyTokens(texts=("4", "3", ")\n", ""), logprobs=(-0.5, -0.25, -1.0, -9.0))
    assert likelihood(ModelReply("43)\n", tokens=tokens)) == -1.75
    assert likelihood(ModelReply("43)\n", tokens=ReplyTokens(ids=(1, 2), logprobs=(-0.5, -1.0)))) == -1.5
    # Nothing is stated; the reply was cut.
    for reply in (
        ModelReply("43)\n"),
        ModelReply("43)\n", tokens=ReplyTokens(ids=(1, 2))),
        ModelReply("43", tokens=tokens),
    ):
        with pytest.raises(ModelError, match="how likely"):
            likelihood(reply)


async def ask(client: ScriptedClient, home: Path | bool = False, period: str = "a year", **settings: Any) -> RunResult:
    agent = Agent(client, [search_members], answer=Number(), home=home, **settings)
    return await agent.run(f"How many shillings do the Osselby Divers collect in {period}?")


def purposes(result: RunResult) -> list[str]:
    return [row.event.purpose for row in result.read_rows() if isinstance(row.event, ModelRequested)]


@pytest.mark.parametrize(
    ("after_plan", "from_facts", "answer"),
    [((0.9, 0.01), (0.3, 0.5), "2236"), ((0.5, 0.4), (0.1, 0.9), "816140"), ((0.5, 0.5), (0.5, 0.5), "2236")],
)
async def test_the_answer_that_is_likelier_in_both_texts_stands(
    after_plan: tuple[float, float], from_facts: tuple[float, float], answer: str, tmp_path: Path
) -> None:
    result = await ask(Weigher((after_plan, from_facts)), home=tmp_path)
    assert (result.answer, result.usage.requests) == (answer, 7)
    events = [row.event for row in result.read_rows()]
    assert purposes(result) == ["act"] * 3 + ["weigh"] * 4
    repairs = [(e.kind, e.before, e.after) for e in events if isinstance(e, Repaired)]
    assert repairs == ([("likelier_answer", SECOND, FIRST)] if answer == "2236" else [])


TWICE = ("Divers", "Velbury")


@pytest.mark.parametrize(
    ("after_plan", "from_facts", "answer", "more"),
    [
        ((0.9, 0.01), (0.3, 0.5), "816140", ["weigh"]),  # likely from the facts
        ((0.9, 0.01), (0.3, 0.4), "2236", ["weigh", "act", *["weigh"] * 3]),
        ((0.1, 0.9), (0.1, 0.4), "816140", ["weigh", "act", *["weigh"] * 3]),
    ],
)
async def test_after_two_searches_the_answer_comes_from_the_facts_unless_another_is_likelier(
    after_plan: tuple[float, float], from_facts: tuple[float, float], answer: str, more: list[str], tmp_path: Path
) -> None:
    result = await ask(Weigher((after_plan, from_facts), TWICE), tmp_path)
    assert (result.answer, purposes(result)) == (answer, ["act", "act", *more])


@pytest.mark.parametrize(
    ("period", "then", "answer", "more"),
    [
        ("7 weeks", "final_answer(43 * 52 * 7)", "15652", ["act"]),
        ("365 days", "final_answer(43 * 52)", "816140", ["weigh", "act"]),
    ],
)
async def test_the_answer_that_uses_the_numbers_of_the_question_stands_without_weighing(
    period: str, then: str, answer: str, more: list[str], tmp_path: Path
) -> None:
    result = await ask(Weigher(((0.9, 0.1), (0.9, 0.1)), TWICE, then), tmp_path, period)
    assert (result.answer, purposes(result)) == (answer, ["act", "act", *more])


async def test_a_calculation_from_the_facts_stands_against_a_number_without_weighing(tmp_path: Path) -> None:
    result = await ask(Weigher(((0.9, 0.1), (0.9, 0.1)), TWICE, "final_answer(43)"), tmp_path)
    assert (result.answer, purposes(result)) == ("816140", ["act", "act", "weigh", "act"])


async def test_what_is_not_likely_from_the_facts_may_lead_to_another_search() -> None:
    weights = ((0.5, 0.5), (0.1, 0.1))
    client = Weigher(weights, TWICE, 'print(search_members("Osselby"))')
    await ask(client)
    assert 'a year.\nIn Velbury live 365 divers.\n```python\nprint(search_members("Osselby"))' in str(
        client.requests[-1].prompt
    )
    repeated = await ask(Weigher(weights, TWICE, "\n".join(f'print(search_members("{name}"))' for name in TWICE)))
    assert (repeated.answer, repeated.usage.requests) == ("816140", 4)


async def test_options_of_requests_do_not_hide_how_likely_answers_are() -> None:
    config = {"llm": {"extra_body": {"seed": 1}}}
    client = Weigher(((0.9, 0.01), (0.3, 0.5)))
    assert (await ask(client, config=config)).answer == "2236"
    assert all(request.extra_body["seed"] == 1 for request in client.requests)


@pytest.mark.parametrize("weights", [None, ServerFailed("down")])
@pytest.mark.parametrize("searches", [TWICE[:1], TWICE])
async def test_the_new_answer_stands_if_the_two_cannot_be_weighed(
    weights: Exception | None, searches: tuple[str, ...]
) -> None:
    result = await ask(Weigher(weights, searches))
    assert (result.answer, result.stop_reason) == ("816140", "answered")


async def test_no_request_is_made_that_the_budget_does_not_allow() -> None:
    result = await ask(Weigher(((0.9, 0.1), (0.9, 0.1))), config={"agent": {"max_tokens": 5_200}})
    assert (result.answer, result.usage.requests) == ("816140", 4)


async def test_if_neither_answer_is_likely_what_was_found_is_looked_up() -> None:
    client = Weigher(((1e-4, 1e-5), (1e-3, 1e-4)))
    result = await ask(client, home=False)
    prompts = [request.prompt or "" for request in client.requests]
    assert prompts[3] == prompts[1]  # neither answer is in it
    assert "In Velbury live 365 divers.\n\nQuestion:" in prompts[4]
    assert is_from_facts(prompts[4])
    assert (result.answer, len(prompts)) == ("816140", 5)
