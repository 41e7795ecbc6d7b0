"""Objects as notebooks show them, and what a notebook's running event loop refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from closeout import Agent, tool
from closeout.errors import UsageError
from closeout.evaluate import evaluate
from closeout.evaluate.tasks import EvalTask
from closeout.testing import ScriptedClient, answer, call


@tool(approval="always")
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def test_a_result_is_short_as_text_and_a_table_of_escaped_texts_in_a_notebook() -> None:
    result = Agent(ScriptedClient([answer("<b>42</b>" + "x" * 1000)]), home=False).run_sync("Is 1 < 2?")
    assert repr(result).startswith("RunResult(status='answered', answer='<b>42</b>xxx")
    assert len(repr(result)) < 400
    page = result._repr_html_()
    assert "answered: Is 1 &lt; 2?" in page
    assert "&lt;b&gt;42&lt;/b&gt;" in page
    assert "<b>42" not in page
    assert f"closeout view {result.run_id}" in page


def test_a_result_without_an_answer_shows_why() -> None:
    failed = Agent(ScriptedClient([]), home=False).run_sync("Go.")
    assert failed.error in repr(failed)
    assert "error" in failed._repr_html_()


async def test_a_waiting_result_shows_for_what(tmp_path: object) -> None:
    agent = Agent(ScriptedClient([call("pay", amount=3), answer("Done.")]), [pay])
    waiting = await agent.run("Pay.")
    assert f"approval pay: {waiting.waiting[0].id}" in waiting._repr_html_()


async def test_a_session_and_a_report_are_tables() -> None:
    agent = Agent(ScriptedClient([answer("Hello.")]))
    session = agent.session("anna")
    await session.run("Hi <there>.")
    assert "Hi &lt;there&gt;." in session._repr_html_()
    assert repr(agent) == "Agent(name='agent')"
    report = await evaluate(
        Agent(ScriptedClient(lambda _: answer("4"))), [EvalTask(id="sum", question="2 + 2?", answer="4")], name="sums"
    )
    assert repr(report) == "EvalReport('sums', 100.0 % ± n/a of 1 trial)"
    assert "1 of 1 trials" in report._repr_html_()


async def test_every_synchronous_method_names_the_one_to_await_in_a_running_loop() -> None:
    agent = Agent(ScriptedClient([]))
    for method, instead in (
        (lambda: agent.run_sync("Go."), r"await agent\.run\("),
        (lambda: agent.run_many_sync(["Go."]), r"await agent\.run_many\("),
        (lambda: agent.resume_sync("r"), r"await agent\.resume\("),
        (lambda: agent.session("s").run_sync("Go."), r"await session\.run\("),
    ):
        with pytest.raises(UsageError, match=instead):
            method()
    assert asyncio.get_running_loop()


def test_an_agent_is_a_picture() -> None:
    agent = Agent(ScriptedClient([], name="<m>"), [pay], name="desk")
    assert agent._repr_html_().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert ">desk</text>" in agent._repr_html_()
    assert "&lt;m&gt;" in agent._repr_html_()


CELLS = {
    """from closeout import Agent, evaluate, tool
from closeout.testing import ScriptedClient, answer, call

@tool(read_only=True)
def count(word: str) -> int:
    "Count."
    return len(word)

agent = Agent(ScriptedClient([call("count", word="abc"), answer("3")], by="question"), [count], home=HOME)
agent""": ("<svg ", "Agent(name='agent')"),
    "await agent.run('How many?')": ("<table>", "RunResult(status='answered', answer='3', "),
    "session = agent.session('a')\nawait session.run('Hello.')\nsession": ("<table>", "Session('a')"),
    "await evaluate(agent, [{'id': 'a', 'question': 'How?', 'answer': '3'}], name='e')": (
        "<table>",
        "EvalReport('e', ",
    ),
    "agent.run_sync('How many?')": (
        "",
        "UsageError: An event loop is running here, as in a notebook. Write `await agent.run",
    ),
}


@pytest.mark.notebook
def test_a_notebook_shows_pictures_tables_and_short_texts(home: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(cell.replace("HOME", repr(str(home)))) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    for cell, (page, text) in zip(notebook.cells, CELLS.values(), strict=True):
        shown = [each for each in cell.outputs if each.output_type != "stream"][-1]
        found = shown.data if shown.output_type != "error" else {"text/plain": f"{shown.ename}: {shown.evalue}"}
        assert found["text/plain"].startswith(text)
        assert found.get("text/html", "").startswith(page)
        assert len(found["text/plain"]) < 200
