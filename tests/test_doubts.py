"""Doubts about answers that programs of small models give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from closeout import Agent, Boxed, Number, RunResult
from closeout.dialects.code import DOUBT, READ_AGAIN
from closeout.messages import Capabilities, Step, ToolCall, ToolReturn, ToolSpec
from closeout.parsing.questions import asks_for_name, asks_to_compare, rates_in
from closeout.run.doubts import (
    doubt,
    has_doubtful_numbers,
    must_correct,
    must_look_up,
    must_use,
    not_looked_up,
    query_without_result,
    read_again,
)
from closeout.run.programs import NOTHING_PRINTED
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


YEARS = "y = {'North': 1926, 'Orm': 1510}\n"
SIZES = "y = {'North': 270, 'Orm': 1510}\n"
DOUBTFUL = [
    ("How old was it in 1930?", "final_answer(270)", "270", "says 1930."),
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
    ("When was the North Dairy opened?", "final_answer('Hill Dairy')", "Hill Dairy", "for a year"),
    ("How many cows are there?", "final_answer('many')", "many", "for a number"),
    ("When was it opened?", "final_answer(3.5 * 2)", "7", "for a year"),
    ("How much do 7 make?", "final_answer(7 * 7)", "49", "no number that was found"),
    ("How many remain of 1,200?", "final_answer(1200 - 1200)", "0", "0 is in no result"),
    ("How old is it?", "final_answer(1926 - 1926)", "0", "1926 is used more often than it was found"),
    ("Which dairy is the oldest?", f"{YEARS}final_answer(max(y, key=lambda n: y[n]))", "Orm", "has the smaller year"),
    ("Which has been open longest?", f"{YEARS}final_answer(max(y, key=lambda n: y[n]))", "Orm", "has the smaller year"),
    (
        "Which has most cows?",
        f"{SIZES}final_answer(min(y, key=lambda n: y[n]))",
        "N",
        "the largest number",
    ),
    ("Which is the smallest dairy?", f"{SIZES}final_answer(max(y, key=lambda n: y[n]))", "N", "the smallest number"),
    ("Which dairy is newer, or last?", f"{YEARS}final_answer(min(y, key=lambda n: y[n]))", "N", "has the larger year"),
]


@pytest.mark.parametrize(("question", "program", "answer", "part"), DOUBTFUL)
def test_a_number_left_out_or_made_up_and_a_wrong_sign_are_doubted(
    question: str, program: str, answer: str, part: str
) -> None:
    found = doubt(program, answer, question, steps(("print(search('dairies'))", FOUND)), weak=True)
    assert found is not None
    assert found.startswith(DOUBT)
    assert part in found


CERTAIN = [
    ("In 1900 a dairy was opened. How much cheese does it make?", "final_answer(270)", "270"),
    ("How much cheese do both make in 7 days?", "final_answer(7 * (1510 + 270))", "12460"),
    ("How much cheese do both make?", "a = {'North': 1510, 'Hill': 270}\nfinal_answer(sum(a.values()))", "1780"),
    ("How many eggs are 15 dozen?", "final_answer(15 * 12)", "180"),
    ("How many minutes are 3 days?", "final_answer(3 * 24 * 60)", "4320"),
    ("How much rye is in 5 % of it?", "final_answer(0.05 * 270)", "13.5"),
    ("How much is it with 10 % off?", "final_answer(270 * 0.9)", "243"),
    ("How much is 3.5 % of 270?", "final_answer(3.5 / 100 * 270)", "9.45"),
    ("Which train leaves at 9, the R2 or the B-17?", "print(search('train at 9'))\nfinal_answer('R2')", "R2"),
    ("Does Otto say that the Hill Dairy is older?", "final_answer(search('Otto') == 'yes')", "yes"),
    ("Why? Is the North Dairy older?", "final_answer(1510)", "1510"),
    ("Who?", "final_answer('Jon Berg')", "Jon Berg"),
    ("Which year was it?", "final_answer(1926)", "1926"),
    ("Which makes more?", "kg = {'N': 1510, 'H': 270}\nfinal_answer(max(kg, key=lambda n: kg[n]))", "N"),
    ("How old was it in 2004?", "final_answer(2004 - 1926)", "78"),
    ("How many are 6 and 3 times as much?", "all_of_them = 9  # 6 + 3\nfinal_answer((6 + 3) * 270 or 9)", "2430"),
    ("How many dairies are there?", "final_answer('two or three')", "two or three"),
    ("Who makes 270?", "final_answer('Hill Dairy')", "Hill Dairy"),
    ("Which dairy is the oldest?", f"{YEARS}final_answer(min(y, key=lambda n: y[n]))", "Orm"),
    ("Which has more cows and fewer huts, or yaks?", f"{SIZES}final_answer(min(y, key=lambda n: y[n]))", "North"),
    ("Which dairy has most cows?", f"{SIZES}final_answer(max(y, key=lambda n: y[n]))", "Orm"),
    ("Which has been open longer, this or that?", f"{SIZES}final_answer(min(y, key=lambda n: y[n]))", "North"),
    ("Which was founded neither first nor last?", f"{YEARS}final_answer(sorted(y, key=lambda n: y[n])[1])", "North"),
    ("Which makes most, the oldest or the first?", "m = {'N': 1510, 'H': 270}\nfinal_answer(max(m, key=m.get))", "N"),
    ("Sort 5, 3, 8, 1, 9, 2 and 7.", "final_answer('see above')", "see above"),  # too many to expect all of them
]


@pytest.mark.parametrize(("question", "program", "answer"), CERTAIN)
def test_what_the_question_and_the_results_account_for_is_not_doubted(question: str, program: str, answer: str) -> None:
    assert doubt(program, answer, question, steps((SEARCHED, FOUND)), weak=True) is None


@pytest.mark.parametrize(
    ("question", "program", "part"),
    [
        (
            "The Imsel Herald appears 6 times a week. How many are printed?",
            "final_answer(6 * 7)",
            "Imsel Herald is in no",
        ),
        ("What do 9 tickets for the Old Theatre cost?", "final_answer(9 * 12)", "Old Theatre is in no result"),
        ("How many pens does Ada Rehn have if she buys 3 packs of 12?", "final_answer(3 * 12)", None),
        ("Ben Orm packs three boxes of 5. How many is that?", "final_answer(3 * 5)", None),
        ("What is 90 - 3 to the power of 4?", "final_answer(90 - 3 ** 4)", None),
    ],
)
def test_an_answer_before_any_search_may_only_use_the_numbers_of_the_question(
    question: str, program: str, part: str | None
) -> None:
    found = doubt(program, "42", question, [], weak=True)
    assert (found is None) if part is None else (part in str(found))


def test_an_answer_from_the_facts_that_uses_none_of_them_lets_the_first_one_stand() -> None:
    done = steps(("print(search('dairy'))", FOUND), ("final_answer(7 * 270)", f"Error: {DOUBT}{READ_AGAIN}"))
    for program, answer in [("final_answer(7 * 7)", "49"), ("final_answer(7 - 7)", "0")]:
        found = doubt(program, answer, "How much in 7 days?", done, weak=True)
        assert found is not None
        assert DOUBT not in found


@pytest.mark.parametrize(
    ("question", "program", "answer", "makes"),
    [
        ("How much more does the Hill Dairy make?", "final_answer(270 - 1510)", "-1240", "size"),
        ("Which dairy is the oldest?", f"{YEARS}final_answer(max(y, key=lambda n: y[n]))", "Orm", "least"),
        ("Which dairy is the newest?", f"{YEARS}final_answer(min(y, key=lambda n: y[n]))", "Orm", "most"),
        ("Which has most cows?", f"{SIZES}final_answer(min(y, key=lambda n: y[n]))", "North", "most"),
        ("Which dairy has the fewest cows?", f"{SIZES}final_answer(max(y, key=lambda n: y[n]))", "Orm", "least"),
        ("Who founded it?", "final_answer(1926)", "1926", None),
    ],
)
def test_a_fault_that_can_be_mended_at_once_decides_what_the_next_program_makes(
    question: str, program: str, answer: str, makes: str | None
) -> None:
    told = doubt(program, answer, question, steps((SEARCHED, FOUND)), weak=True)
    assert must_correct(steps((SEARCHED, FOUND), (program, f"Error: {told}"))) == makes
    assert must_correct(steps((SEARCHED, FOUND))) is None


def test_the_next_program_must_use_a_number_that_was_left_out_unless_it_only_describes() -> None:
    def then(question: str, program: str, answer: str) -> str | None:
        done = steps((SEARCHED, FOUND))
        told = doubt(program, answer, question, done, weak=True)
        assert "must use it" in str(told)
        return must_use(question, [*done, *steps((program, f"Error: {told}"))])

    assert then("How much cheese do both make in 7 days?", "final_answer(1510 + 270)", "1780") == "7"
    assert then("How much does the dairy with 270 make?", "final_answer(1510)", "1510") is None
    assert then("Which makes more in 7 days, North or Hill?", "final_answer('Orm')", "Orm") is None
    assert must_use("How much in 7 days?", []) is None


def test_a_number_of_the_same_things_in_a_result_only_describes() -> None:
    question = "One machine takes 14 seconds to multiply. How many wheels does it have?"
    done = steps(("print(search('machine'))", "The Septima has 2300 wheels and takes 14 seconds for a multiplication."))
    assert doubt("final_answer(2300)", "2300", question, done, weak=True) is None
    assert not has_doubtful_numbers("2300", question, done)
    assert has_doubtful_numbers("14", question, done)
    wheels = "How many wheels do 14 machines have?"
    assert "must use it" in str(doubt("final_answer(2300)", "2300", wheels, done, weak=True))


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


def test_an_answer_is_made_again_once_if_something_was_found() -> None:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tools = (ToolSpec("search", "Search.", parameters),)
    once = ("print(search('North Dairy'))", FOUND)

    def asked(*done: tuple[str, str], question: str = "How much does it make?", answer: str = "270") -> str | None:
        return read_again(answer, question, steps(*done), tools)

    assert asked() is None
    assert asked((once[0], "Error: the index is locked")) is None
    again = asked(once)
    assert again is not None
    assert asked((SEARCHED, FOUND)) is None  # the first answer was made from the facts alone
    assert asked(once, ("print(search('Hill'))", "The Hill Dairy has a shop.")) == again
    assert asked(once, ("final_answer(1)", f"Error: {again}")) is None
    assert asked(once, question="Who owns it?", answer="Jon Berg") == again
    assert asked(once, question="Who is older, Jon or Ada?", answer="Jon") is None  # one of the names that are compared
    assert asked(once, question="Who owns it?") == again


@pytest.mark.parametrize(
    ("question", "name", "compared"),
    [
        ("Which is older, the North Dairy or the Hill Dairy?", True, True),
        ("Which of the three dairies is the oldest?", True, True),
        ("Who has more workers, Orm or Pell?", True, True),
        ("Who conducts the choir of the town with the bell?", True, False),
        ("In which town is a goose led across the square?", True, False),
        ("At whose mill were both born?", True, False),
        ("What is the name of the mayor?", True, False),
        ("What lasts longer, a tour of the mine or a dive?", True, True),
        ("What goes on for longer, a lesson or a concert?", True, True),
        ("Is the brewery Orm or the pottery Pell the older one?", True, True),
        ("What is the dearest of these: a hat, an umbrella or a night at the hotel?", True, True),
        ("Of Orm, Pell and Velbury, which one is the second oldest?", True, True),
        ("Of Ada Rehn and Jon Berg, who lived longer or later?", True, True),
        ("Put the three in order of age. Which one comes in the middle?", True, True),
        ("If you order the three by age, which one is in the middle?", True, True),
        ("If it was opened in spring, which year was it?", False, False),
        ("Of the guests, how many are children, or who is older?", False, False),
        ("What is the highest number of guests or cars?", False, False),
        ("What takes longer: the tour of the mill or a visit to the mine?", True, True),
        ("What lasts the shortest time: a show, a tour or a visit?", True, True),
        ("What is over most quickly: the crossing or the tour?", True, True),
        ("Name the faster of the two ships Orm and Pell.", True, True),
        ("Orm or Pell – whose light shone first?", True, True),
        ("Otto climbs the tower of the mill. Who built it?", True, False),
        ("Otto asks who it was. How many mills are there?", False, False),
        ("Name the number of rooms.", False, False),
        ("Is the tower higher than 30 m or 40 m?", False, False),
        ("What is the price of dinner or lunch?", False, False),
        ("In which year was it?", False, False),
        ("On which day is it open?", False, False),
        ("Which year was it, 1926 or 1970?", False, False),
        ("How many more are there in the north or west?", False, False),
    ],
)
def test_questions_for_names_and_comparisons_are_told_apart(question: str, name: bool, compared: bool) -> None:
    assert (asks_for_name(question), asks_to_compare(question)) == (name, compared)


@pytest.mark.parametrize(
    ("program", "answer"), [("final_answer(launched - launched)", "0"), ("final_answer(14 * 9)", "126")]
)
def test_a_number_from_nowhere_is_made_again_from_the_facts_if_several_programs_found_something(
    program: str, answer: str
) -> None:
    once = ("print(search('Gudrun'))", "The Gudrun was launched in 1911.")
    other = ("print(search('Philippa'))", "The Philippa was launched in 1897.")
    both = (f"{once[0]}\n{other[0]}", f"{once[1]}\n{other[1]}")
    question = "How many years after the Philippa was the Gudrun launched?"

    def told(*done: tuple[str, str]) -> str:
        return str(doubt(program, answer, question, steps(*done), weak=True))

    assert told(once, other) == f"{DOUBT}{READ_AGAIN}"
    assert "Look it up" in told(once)
    assert "Look it up" in told(both)  # it was made from the facts
    assert "Look it up" in told(once, other, ("final_answer(5)", f"Error: {DOUBT}{READ_AGAIN}"))


def test_what_is_missing_is_searched_for() -> None:
    program = "final_answer(1)"
    town = "How old was the town when the North Dairy was opened?"
    for question, made_up, at_once, names in [
        ("How many live in Pellam?", program, ("Pellam",), ("Pellam",)),
        (town, "final_answer(1926 - 1700)", None, ("Hill Dairy", "Rye")),
    ]:
        found = steps(("print(search('North Dairy'))", f"{FOUND} It is older than Hill Dairy and Rye."))
        missing = doubt(made_up, "1", question, found, weak=True)
        after = steps(
            ("print(search('North Dairy'))", f"{FOUND} It is older than Hill Dairy and Rye."),
            (made_up, f"Error: {missing}"),
        )
        assert must_look_up(question, found) == at_once
        assert must_look_up(question, after) == names


def test_what_was_found_is_looked_up_if_the_answer_uses_nothing_of_it() -> None:
    found = ("print(search('Fontaine'))", "The hat shop Fontaine is owned by Ada Rehn, who was born in Orm.")
    question, program = (
        "How many wells has the birthplace of the owner of the hat shop?",
        "wells = 1\nfinal_answer(wells)",
    )
    told = doubt(program, "1", question, steps((found[0], f"{found[1]} It sells 57 hats.")), weak=True)
    after = (program, f"Error: {told}")
    assert must_look_up(question, steps(found, after)) == ("Ada Rehn", "Orm")
    assert must_look_up(question, steps(("print(search('Orm'))", "57 wells."), after)) is None


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What does a night cost at the hotel where the picture hangs?", ("Hotel Pell",)),
        ("Who is the miller in the mill in which it was painted?", ("Gathercole",)),
        ("How high is the mountain on whose slope the painter lived?", ("Mount Ulverac",)),
        ("How many wells has the painter's birthplace?", ("Velbury", "Rye")),
        ("It was painted in a town – who is its mayor?", ("Velbury", "Rye")),
        ("How many inns are in the village that she left?", ("Velbury", "Rye")),
        ("When was the author of the Eel Catchers born?", ("Ada Rehn",)),
        ("When was the owner of the Eel Catchers born?", ("Jon Berg",)),
        ("Who is the owner of the Eel Catchers?", None),
        ("Who was the owner of the Eel Catchers?", None),
        ("How many live in the town in which the painter of the Eel Catchers was born?", ("Ada Rehn",)),
        ("On which island was it, and how long is the island?", ("Velbury", "Mount Ulverac", "Rye")),
        ("How many live in the village of Orm?", ("Orm",)),
        ("What is the name of the painter of the Eel Catchers?", None),
        ("In which town was it painted?", None),
        ("How large is the picture that hangs at the Hotel Pell?", None),  # it is the subject
        ("Who owns the yacht that she bought?", None),
        ("How much did the one that she sold bring?", None),
        ("How tall is the tower that belongs to the Eel Catchers?", ("Gathercole", "Velbury", "Mount Ulverac")),
        ("How much is the picture that belongs to the Eel Catchers?", None),  # a text has the word
        ("How tall is the tower that keeps it?", None),  # what was found may be the tower
    ],
)
def test_names_of_what_the_question_only_describes_are_looked_up(question: str, names: tuple[str, ...] | None) -> None:
    text = (
        "The picture Eel Catchers was painted in the windmill Gathercole near Velbury on Mount Ulverac. It hangs in "
        "the Hotel Pell, and before that did in Rye from May to June. It is by Ada Rehn. "
        "The owner is Jon Berg."
    )
    done = ("print(search('Eel Catchers'))", text)
    assert must_look_up(question, steps(done)) == names
    if names:
        after = ("\n".join(f"print(search({name!r}))" for name in names), "57 wells.")
        assert must_look_up(question, steps(done, after)) is None
        assert (
            must_look_up(question, steps(done, ("print(search('x'))", "x"), ("print(search('y'))", "y"), done)) is None
        )


@pytest.mark.parametrize(
    ("text", "question", "names"),
    [
        ("Orm Hall was drawn by the architect Ada Rehn.", "How old was the architect of Orm Hall?", ("Ada Rehn",)),
        (
            "Orm Ale, founded by Ada Rehn. The head brewer is Jon Berg.",
            "When was Orm's head brewer born?",
            ("Jon Berg",),
        ),
        ("The Orm kettle is made by Pell Works.", "When was the company founded that makes the Orm?", ("Pell Works",)),
        (
            "Ada Rehn was at the Pell Institute in Rye.",
            "Where is the college where Ada Rehn was?",
            ("Pell Institute",),
        ),
        ("Ada Rehn, a poet, was born in Rye on Monday, 3 May.", "How old is the fort that Ada Rehn left?", ("Rye",)),
        ("Old Ada hangs in the tower of Rye.", "Old Ada hangs in a tower. How tall is this tower?", ("Rye",)),
        ("Ada Rehn of Rye, a native of Skorn.", "How big is Ada Rehn's birthplace?", ("Skorn",)),
        ("Orm Ale is made in Rye. The manager is Jon Berg.", "Who is Orm Ale's manager?", None),
        ("Ada Rehn of Rye was born on Skorn. She likes Pell.", "How big is Ada Rehn's birthplace?", ("Skorn",)),
        (
            "Ada Rehn was born in Rye. The skipper Jon Berg is her brother.",
            "How old is Ada Rehn's brother now?",
            ("Jon Berg",),
        ),
    ],
)
def test_people_companies_and_schools_are_looked_up(text: str, question: str, names: tuple[str, ...] | None) -> None:
    assert must_look_up(question, steps(("print(search('Orm'))", text))) == names


def test_what_a_search_without_a_result_names_is_not_found() -> None:
    done = steps(("print(search('Ada Rehn'))", "Ada Rehn is in Rye.\n{'results': [], 'note': 'Try Pell.'}"))
    assert must_look_up("How old is the fort at Pell?", done) == ("Pell",)
    assert must_look_up("How old is the fort that Ada Rehn left?", done) == ("Rye",)
    assert not_looked_up("How old is Ada Rehn?", done) == ("Rye",)


def test_how_often_is_calculated_from_after_how_long() -> None:
    found = "A tram leaves every 12 minutes, and the lamp flashes every 7 seconds. It is cleaned every 0 days."
    assert rates_in(found, "How many trams leave per hour?") == ["Every 12 minutes is 5 times an hour."]
    assert rates_in(found, "How many trams does it take in an hour or a day?") == [
        "Every 12 minutes is 120 times a day.",
        "Every 12 minutes is 5 times an hour.",
    ]
    assert rates_in(found, "How many trams leave?") == []
    done = steps(("print(search('tram'))", found))
    assert doubt("final_answer(5 * 130)", "650", "How many of 130 seats are there in an hour?", done, weak=True) is None


def test_a_place_is_no_person() -> None:
    found = (
        "print(search('Eel Catchers'))",
        "The painter Ada Rehn of the Eel Catchers was born in Orm and died at Pell.",
    )
    done = steps(found, (found[0], "Ada Rehn lived in\nOrm, at the Grand Hotel. Velbury is near. He was in Velbury."))
    asks = "The painter of the Eel Catchers was born in a town – who is its mayor?"

    def told(answer: str, question: str = asks) -> str | None:
        return doubt(f"mayor = {answer!r}\nfinal_answer(mayor)", answer, question, done, weak=True)

    assert told("Orm") == f"{DOUBT}Orm is a place. Look it up."
    assert must_look_up(asks, [*done, *steps(("final_answer('Orm')", f"Error: {told('Orm')}"))]) == ("Orm",)
    assert told("Ada Rehn") is None
    assert told("Velbury") is None  # not always
    assert told("Jon Berg") is None
    assert told("") is None
    assert told("Grand Hotel") == f"{DOUBT}Grand Hotel is a place. Look it up."
    for place in ("Where was the painter who made them born?", "In which town lives the man whose bell it is?"):
        assert told("Orm", place) is None


def test_searches_that_find_nothing_have_not_found_anything() -> None:
    empty = (
        "print(search('brass'))",
        "{'results': [], 'note': 'Try other words. There are documents on: Orm; Pell'}\n",
    )
    told = doubt("final_answer(15 * 12)", "180", "How many horns?", steps(empty, empty), weak=True)
    assert "12 is in no result" not in str(told)  # 12 is the number of months
    assert "15 is in no result. Look it up." in str(told)
    assert read_again("180", "How many horns?", steps(empty), ()) is None


def test_a_search_that_finds_nothing_is_followed_by_others() -> None:
    empty = (
        "print(search('brass'))",
        "{'results': [], 'note': 'Try other words. There are documents on: Orm; Pell'}\n",
    )
    assert must_look_up("Which brass instrument?", steps(empty)) == ("",)
    assert must_look_up("Which brass instrument?", steps(empty, empty)) == ("",)
    assert must_look_up("Which brass instrument?", steps(empty, empty, empty)) is None
    assert (
        must_look_up("Which brass instrument?", steps(empty, ("print(search('horn'))", "A horn hangs there."))) is None
    )
    assert query_without_result(steps(empty)) == "brass"
    for done in (
        [],
        [empty, empty],
        [("print(search('horn'))", "A horn.")],
        [(f"{empty[0]}\n{empty[0]}", empty[1] * 2)],
    ):
        assert query_without_result(steps(*done)) is None
    told = doubt("final_answer(5)", "5", "How many horns?", steps(empty), weak=True)
    assert must_look_up("How many horns?", steps(empty, ("final_answer(5)", f"Error: {told}"))) == ()


def test_a_program_that_printed_nothing_is_followed_by_one_that_prints() -> None:
    assert must_look_up("Who?", steps(("# a plan", f"{NOTHING_PRINTED}\n"))) == ()


def test_a_name_that_a_program_computes_with_is_searched_for() -> None:
    first = ("print(search('Agathe Brill'))", "Agathe Brill was born in Orm and found it in 1788.")
    failed = (
        "town = 'Orm'\nfinal_answer(1788 - town)",
        "Error: TypeError: unsupported operand type(s) for -: 'int' and 'str'",
    )
    assert must_look_up("How old was her town?", steps(first, failed)) == ("Orm",)
    searched = ("print(search('Orm'))", "Orm has a bell.")
    assert must_look_up("How old was her town?", steps(first, searched, failed)) is None


def test_a_larger_model_is_doubted_only_about_the_error_of_a_program() -> None:
    question, program, answer, _ = DOUBTFUL[0]
    assert doubt(program, answer, question, steps((SEARCHED, FOUND)), weak=False) is None
    error = "RuntimeError: search: the index is locked"
    found = doubt(f"final_answer({error!r})", error, "What?", steps((SEARCHED, f"Error: {error}")), weak=False)
    assert found is not None
    assert "error" in found


@pytest.mark.parametrize(
    "program",
    [
        "",
        "final_answer(",
        "final_answer(1e999)",
        "final_answer(2 ** 3j)",
        "x = 0x7F\nfinal_answer(x)",
        "9" * 5_000,
        f"final_answer(0x{'F' * 6_000})",
    ],
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


async def ask_a_small_model(reply: Callable[[RequestView], str], search: Callable[[str], str]) -> RunResult:
    client = ScriptedClient(reply)
    client.capabilities = Capabilities(chat=False, weak=True, completions=True, grammar=True, preferred_dialect="code")
    return await Agent(client, [search], answer=Number(), home=False).run("How much does it make?")


async def test_a_small_model_makes_its_answer_again_from_the_facts_alone() -> None:
    prompts: list[str] = []

    def reply(view: RequestView) -> str:
        if str(view.prompt).endswith("final_answer("):
            return "7)\n"  # without its likelihood
        prompts.append(str(view.prompt))
        programs = ['print(search_dairies("Hill Dairy"))', "final_answer(7)", "hill = 270\nfinal_answer(hill)"]
        return f"```python\n{programs[len(prompts) - 1]}\n```"

    def search_dairies(query: str) -> str:
        return "The Hill Dairy makes 270 in 7 days."

    result = await ask_a_small_model(reply, search_dairies)
    assert (result.answer, len(prompts)) == ("270", 3)
    head = prompts[0].removesuffix("Question: How much does it make?\n")
    assert prompts[1].startswith(prompts[0])
    facts = "Facts:\nThe Hill Dairy makes 270 in 7 days.\n\nQuestion: How much does it make?\n"
    assert prompts[2] == f"{head}{facts}"


async def test_after_two_failed_programs_the_answer_is_made_from_the_facts() -> None:
    prompts: list[str] = []

    def reply(view: RequestView) -> str:
        prompts.append(str(view.prompt))
        programs = [
            'print(search_dairies("Hill"))',
            "final_answer('a'['b'])",
            "final_answer('a'['c'])",
            "final_answer(270)",
        ]
        return f"```python\n{programs[len(prompts) - 1]}\n```"

    def search_dairies(query: str) -> str:
        return "The Hill Dairy makes 270."

    result = await ask_a_small_model(reply, search_dairies)
    assert (result.answer, result.usage.requests) == ("270", 4)
    assert ["Facts:\nThe Hill Dairy makes 270.\n" in prompt for prompt in prompts] == [False, False, False, True]


async def test_the_first_answer_stands_if_it_cannot_be_made_again() -> None:
    prompts: list[str] = []

    def reply(view: RequestView) -> str:
        prompts.append(str(view.prompt))
        facts = "Facts:" in prompts[-1]
        first = "final_answer(270)" if "makes 270" in prompts[-1] else 'print(search_dairies("Hill Dairy"))'
        return f"```python\n{'final_answer(Hill Dairy)' if facts else first}\n```"

    def search_dairies(query: str) -> str:
        return "The Hill Dairy makes 270."

    result = await ask_a_small_model(reply, search_dairies)
    assert (result.answer, result.stop_reason) == ("270", "answered")
    assert prompts[3] == prompts[1]
