"""Evaluations: trials are runs, failures count, budgets hold, and the same call continues."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import (
    AuthenticationFailed,
    ContextOverflow,
    RateLimited,
    RunNotFound,
    ServerFailed,
    UsageError,
)
from closeout.evaluate import (
    Attempted,
    EvalReport,
    EvalTask,
    compare,
    compare_all,
    edit_score,
    evaluate,
    load_report,
    rescore,
    write_html,
)
from closeout.evaluate.comparison import power_of_plan
from closeout.evaluate.overview import list_evaluations, show_evaluation
from closeout.evaluate.sweep import Sweep
from closeout.evaluate.trials import TrialStore, evaluation_file, evaluations_in
from closeout.journal.store import open_store
from closeout.run.waits.decisions import record_decisions
from closeout.testing import RequestView, ScriptedClient, answer, call
from scripted_answers import Scripted, echo, tasks, until


def run(client: Scripted, number: int = 4, **options: Any) -> EvalReport:
    options = {"scorer": "exact", "name": "sweep", "concurrency": 3, **options}
    return asyncio.run(evaluate(Agent(client), tasks(number), **options))


# ------------------------------------------------------------------------------------------------ trials are runs


def test_every_trial_is_a_run_of_the_journal(home: Path) -> None:
    report = run(Scripted(echo), 3, epochs=2)
    assert [(t.task_id, t.epoch, t.run_id) for t in report.trials[:3]] == [
        ("t0", 1, "sweep.0-t0.e1"),
        ("t0", 2, "sweep.0-t0.e2"),
        ("t1", 1, "sweep.1-t1.e1"),
    ]
    started: Any = next(open_store(home).rows("sweep.1-t1.e2")).event
    assert (started.task_id, started.ground_truth) == ("t1", "1")
    assert started.origin.items() >= {"evaluation": "sweep", "task": "t1", "epoch": 2}.items()
    assert (report.score.mean, report.totals.correct, report.totals.planned) == (1.0, 6, 6)


def test_an_evaluation_with_scores_beyond_one_can_still_be_read(home: Path) -> None:
    run(Scripted(echo), 2)
    with closing(sqlite3.connect(evaluation_file(home, "sweep"))) as db:  # as versions without that limit wrote them
        db.execute("UPDATE scores SET value=2.5 WHERE trial=(SELECT min(trial) FROM scores)")
        db.commit()
    report = load_report("sweep", home=home)
    assert sorted(row["score"] for row in report.rows()) == [1.0, 2.5]
    assert "2 of 2 trials" in str(report)


def test_the_same_call_again_does_nothing_again() -> None:
    client = Scripted(echo)
    first, again = run(client), run(client)
    assert client.requests == 4
    assert again.trials == first.trials


def test_more_epochs_and_tasks_extend_an_evaluation() -> None:
    client = Scripted(echo)
    run(client, 2)
    report = run(client, 3, epochs=2)
    assert client.requests == 6
    assert [(t.task_id, t.epoch) for t in report.trials] == [(f"t{i}", e) for i in range(3) for e in (1, 2)]


def test_another_agent_or_task_is_refused() -> None:
    run(Scripted(echo))
    other = Agent(Scripted(echo), config={"llm": {"temperature": 0.9}}, instructions="Be brief.")

    def again(agent: Agent, number: int = 4, **options: Any) -> EvalReport:
        return asyncio.run(evaluate(agent, tasks(number), scorer="exact", name="sweep", **options))

    with pytest.raises(UsageError, match=r"instructions differ; llm.temperature: default then, 0.9 now.*--force"):
        again(other)
    assert again(other, force=True).totals.correct == 4
    changed = [{**task, "question": "Else?"} for task in tasks(4)]
    with pytest.raises(UsageError, match="Task 't0' is not the one that evaluation sweep began with"):
        asyncio.run(evaluate(Agent(Scripted(echo)), changed, name="sweep"))


def test_an_agent_in_memory_and_a_bad_name_are_refused() -> None:
    with pytest.raises(UsageError, match="home=False"):
        asyncio.run(evaluate(Agent(Scripted(echo), home=False), tasks(1)))
    for name in ("../x", ".x", "a b", "x" * 101):
        with pytest.raises(UsageError, match="The name of an evaluation"):
            run(Scripted(echo), name=name)


def test_each_task_may_have_an_agent_of_its_own() -> None:
    seen = []

    def agent_for(task: Any) -> Agent:
        @tool(read_only=True)
        def look_up() -> str:
            """Look it up."""
            return str(task.answer)

        seen.append(task.id)
        return Agent(Scripted(echo), [look_up])

    report = asyncio.run(evaluate(agent_for, tasks(3), scorer="exact"))
    assert report.name == "tasks-scripted"
    assert sorted(seen) == ["t0", "t0", "t1", "t2"]  # the first one describes the evaluation too
    assert report.totals.correct == 3


def test_a_task_whose_agent_cannot_be_made_fails_alone() -> None:
    def agent_for(task: Any) -> Agent:
        if task.id == "t1":
            raise RuntimeError("no sandbox")
        return Agent(Scripted(echo))

    report = asyncio.run(evaluate(agent_for, tasks(3), scorer="exact"))
    assert (report.totals.correct, report.totals.failed) == (2, 1)
    (failed,) = [trial.outcome for trial in report.trials if trial.task_id == "t1"]
    assert failed is not None
    assert failed.error == "The agent for this task could not be made: RuntimeError: no sandbox"


# ------------------------------------------------------------------------------------------------ failures


def test_transient_failures_are_retried_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.evaluate.sweep.LONGEST_RETRY_WAIT", 0.0)

    def reply(question: str, times: int) -> str | Exception:
        if question == "1?" and times < 3:
            return ServerFailed("The server is down.", status=500)
        return ServerFailed("The server is down.", status=500) if question == "2?" else echo(question, times)

    client = Scripted(reply)
    report = run(client, retries=3)
    assert client.asked == {"0?": 1, "1?": 3, "2?": 4, "3?": 1}
    assert report.totals.correct == 3
    assert (report.totals.failed, report.failures, report.totals.tries) == (1, {"ServerFailed": 1}, 5)
    assert report.score.mean == 0.75  # the failed one counts as wrong
    assert "1 failed (of 4)" in str(report)


def test_permanent_failures_are_recorded_and_count_as_wrong() -> None:
    client = Scripted(lambda q, n: ContextOverflow("Too long.", status=400) if q == "1?" else echo(q, n))
    report = run(client)
    assert report.totals.failed == 1
    assert report.score.mean == 0.75
    assert report.failures == {"ContextOverflow": 1}


def test_a_wrong_key_stops_the_sweep_and_the_same_call_continues() -> None:
    client = Scripted(lambda q, n: AuthenticationFailed("The key is wrong.", status=401))
    with pytest.raises(AuthenticationFailed, match="The key is wrong"):
        run(client, 20)
    assert client.requests <= 3
    assert run(Scripted(echo), 20).totals.correct == 20


def test_a_scorer_that_fails_costs_only_its_verdicts() -> None:
    def picky(attempt: Attempted) -> bool:
        return bool(1 / int(attempt.answer or 0))

    report = run(Scripted(echo), scorer=picky)
    assert (report.totals.correct, report.totals.not_judged) == (3, 1)
    assert "1 of 4, counted as wrong" in str(report)
    assert "ZeroDivisionError" in str(report)


# ------------------------------------------------------------------------------------------------ budget and control


def test_a_budget_is_exceeded_at_most_by_the_requests_in_flight() -> None:
    client = Scripted(echo, cost=0.01)
    report = run(client, 50, max_cost=0.1, concurrency=4)
    assert report.stopped == "max_cost"
    assert 10 <= client.requests <= 10 + 4
    assert report.totals.finished == client.requests
    assert "stopped" in str(report)
    more = run(client, 50, max_cost=10)
    assert (more.stopped, more.totals.correct, client.requests) == ("", 50, 50)


def test_tokens_are_a_budget_too() -> None:
    client = Scripted(echo, cost=None)
    assert run(client, 50, max_tokens=1000, concurrency=2).stopped == "max_tokens"
    assert 10 <= client.requests <= 12


def test_a_cost_limit_needs_prices() -> None:
    client = Scripted(echo, cost=None)
    with pytest.raises(UsageError, match="the price of scripted is unknown"):
        run(client, 50, max_cost=1.0, concurrency=2)
    assert client.requests <= 2


def test_concurrency_is_kept() -> None:
    client = Scripted(echo)

    async def until_five_are_in_flight() -> None:
        await until(lambda: client.most >= 5)

    client.before = until_five_are_in_flight
    assert run(client, 30, concurrency=5).totals.correct == 30
    assert client.most == 5


def test_a_sweep_can_be_stopped_and_continued() -> None:
    client = Scripted(echo)
    sweeps: list[Sweep] = []

    async def stop_at_ten() -> None:
        if client.requests >= 10:
            sweeps[0].stop()

    client.before = stop_at_ten
    report = run(client, 50, on_start=lambda sweep, _: sweeps.append(sweep))
    assert report.stopped == "stopped"
    assert 10 <= report.totals.finished <= 13
    assert report.totals.finished == client.requests  # what was in flight came to its end
    client.before = None
    assert run(client, 50).totals.correct == 50
    assert client.requests == 50


def test_others_can_pause_it_and_change_its_concurrency(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.evaluate.sweep.POLL_SECONDS", 0.01)
    client = Scripted(echo)

    async def main() -> tuple[int, int, EvalReport]:
        async def slowly() -> None:
            await asyncio.sleep(0.002)

        client.before = slowly
        work = asyncio.ensure_future(evaluate(Agent(client), tasks(200), scorer="exact", name="sweep", concurrency=2))
        await until(lambda: client.requests >= 10)
        other = TrialStore(evaluation_file(home, "sweep"))
        other.set_control(state="paused", concurrency=7)
        await until(lambda: not client.in_flight and not other.control().running)
        paused = client.requests
        for _ in range(20):
            await asyncio.sleep(0.005)
        still = client.requests
        other.set_control(state="running")
        report = await work
        other.close()
        return paused, still, report

    paused, still, report = asyncio.run(main())
    assert paused == still < 200
    assert client.most == 7
    assert report.totals.correct == 200


def test_cancelling_leaves_trials_that_can_be_resumed(home: Path) -> None:
    client = Scripted(echo)

    async def main() -> None:
        ready = asyncio.Event()

        async def hang() -> None:
            if client.requests > 5:
                ready.set()
                await asyncio.sleep(3600)

        client.before = hang
        work = asyncio.ensure_future(evaluate(Agent(client), tasks(20), scorer="exact", name="sweep", concurrency=2))
        await ready.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(main())
    unfinished = load_report("sweep", home=home)
    assert 0 < unfinished.totals.finished < 20
    assert not [trial for trial in unfinished.trials if trial.state == "running"]
    client.before = None
    assert run(client, 20).totals.correct == 20


def test_two_workers_share_an_evaluation() -> None:
    one, two = Scripted(echo), Scripted(echo)

    async def main() -> list[EvalReport]:
        share = [
            evaluate(Agent(client), tasks(60), scorer="exact", name="sweep", concurrency=3) for client in (one, two)
        ]
        return list(await asyncio.gather(*share))

    reports = asyncio.run(main())
    assert reports[0].trials == reports[1].trials
    assert reports[0].totals.correct == 60
    assert one.requests + two.requests == 60
    assert set(one.asked).isdisjoint(two.asked)


# ------------------------------------------------------------------------------------------------ reports


def test_a_new_scorer_needs_no_new_run(home: Path) -> None:
    client = Scripted(lambda q, n: "about 3")
    assert run(client).totals.correct == 0
    report = asyncio.run(rescore("sweep", "includes", home=home))
    assert (report.totals.correct, client.requests) == (1, 4)
    assert load_report("sweep", home=home).totals.correct == 0
    assert load_report("sweep", home=home, scorer="includes").totals.correct == 1
    assert report.agreement("exact", "includes") == 0
    with pytest.raises(UsageError, match="'f1' has not scored sweep"):
        load_report("sweep", home=home, scorer="f1")


def test_another_scorer_in_the_same_call_scores_what_is_finished() -> None:
    client = Scripted(echo)
    run(client)
    report = run(client, scorer=["includes", "exact"])
    assert (report.scorer, report.scorers, client.requests) == ("includes", ["exact", "includes"], 4)


def test_a_scorer_sees_the_record_of_the_run() -> None:
    def turns(attempt: Attempted) -> bool:
        return len(attempt.read_rows()) > 3

    assert run(Scripted(echo), scorer=turns).totals.correct == 4


def test_passes_and_slices() -> None:
    report = run(Scripted(lambda q, n: "0" if n == 1 else echo(q, n)), 4, epochs=2)
    assert report.score.mean == pytest.approx(5 / 8)  # t0 is right twice, the others once
    assert (report.pass_at(1).mean, report.pass_at(2).mean) == (pytest.approx(5 / 8), 1.0)
    assert report.pass_hat(2).mean == 0.25
    with pytest.raises(UsageError, match="k must be from 1 to 2"):
        report.pass_at(3)
    halves = {each.value: each for each in report.slices("half")}
    assert halves["0"].score.mean == 0.75
    assert (halves["1"].score.mean, halves["1"].score.trials, halves["1"].score.clusters) == (0.5, 4, 2)
    with pytest.raises(UsageError, match=r"No task has the metadata field 'whole'\. Fields: half"):
        report.slices("whole")
    one, *others = report.tasks  # a field that is null says nothing
    some = replace(report, tasks=(replace(one, metadata={"half": None}), *others))
    assert {each.value for each in some.slices("half")} == {"0", "1", "(none)"}


def test_unfinished_trials_count_as_wrong_and_are_shown(home: Path) -> None:
    run(Scripted(echo), 10, max_tokens=550, concurrency=1)
    report = load_report("sweep", home=home)
    assert report.totals.finished == 5
    assert (report.score.mean, report.score_so_far.mean) == (0.5, 1.0)
    assert "5 of 10 trials, counted as wrong; finished ones: 100.0 % of 5" in str(report)


def test_two_evaluations_are_compared_task_by_task() -> None:
    first = run(Scripted(lambda q, n: "1"), 8)
    second = run(Scripted(echo), 8, name="other")
    found = compare(first, second)
    named = next(text for label, *_, text in found.lines() if label == "tasks that changed, losses first")
    assert named == "t0 (0 → 1), t2 (0 → 1), t3 (0 → 1), t4 (0 → 1), t5 (0 → 1), and 2 more (--json)"
    assert found.estimate.difference == pytest.approx(7 / 8)
    assert (found.estimate.only_first, found.estimate.only_second) == (0, 7)
    assert found.changed[0] == ("t0", 0.0, 1.0)
    assert "McNemar p = 0.0156" in str(found)
    assert "| +87.5 points" in found.markdown()
    third = asyncio.run(evaluate(Agent(Scripted(echo)), [{"id": "x", "question": "x?"}], scorer="exact", name="third"))
    with pytest.raises(UsageError, match="share no finished task"):
        compare(first, third)


def test_several_comparisons_are_adjusted_for_their_number() -> None:
    first = run(Scripted(lambda q, n: "1"), 8)
    better, same = run(Scripted(echo), 8, name="better"), run(Scripted(lambda q, n: "1"), 8, name="same")
    one, two = compare_all(first, [better, same])
    assert (one.holm_p, two.holm_p) == (pytest.approx(2 * one.estimate.p_value), 1.0)
    assert "by Holm's method for 2 comparisons" in str(one)
    assert one.estimate == compare(first, better).estimate
    assert "Holm" not in str(compare(first, better))


def test_a_comparison_is_clustered_by_a_field_of_the_tasks() -> None:
    first = run(Scripted(lambda q, n: "1"), 8)
    first = replace(first, tasks=[replace(t, metadata={"page": i // 4}) for i, t in enumerate(first.tasks)])
    second = replace(run(Scripted(echo), 8, name="other"), tasks=first.tasks)
    found = compare(first, second, cluster="page")
    assert (found.estimate.clusters, found.estimate.tasks) == (2, 8)
    assert "(2 clusters by page)" in str(found)
    with pytest.raises(UsageError, match="8 of 8 shared tasks have no metadata field 'site': t0, t1, t2"):
        compare(first, second, cluster="site")


def test_a_comparison_names_its_power() -> None:
    found = compare(run(Scripted(lambda q, n: "1"), 8), run(Scripted(echo), 8, name="other"))
    assert "80 % power for 35.0 points; to see 3 points you need about 1,100 tasks" in str(found)
    assert "no power to see any difference; to see 3 points" in power_of_plan(3)  # of 100 points at most
    power = found.to_dict()["power"]
    assert (power["detectable"], power["tasks_needed"]) == (pytest.approx(0.350198), pytest.approx(1090.1, abs=0.1))


def test_a_comparison_leaves_out_unfinished_tasks_and_says_so(home: Path) -> None:
    first = run(Scripted(echo), 10)
    run(Scripted(echo), 10, name="cut", max_tokens=550, concurrency=1)
    found = compare(first, load_report("cut", home=home))
    assert (found.estimate.tasks, found.estimate.difference) == (5, 0.0)
    assert "Warning: 5 of 10 trials of cut are unfinished; their tasks are left out." in str(found)
    assert found.to_dict()["warnings"] == list(found.warnings)


def test_other_questions_and_other_scorers_are_not_compared() -> None:
    first = run(Scripted(echo), 4)
    other = replace(first, tasks=[replace(task, question="What else?") for task in first.tasks])
    with pytest.raises(UsageError, match="different questions under 4 of 4 shared ids: t0, t1, t2"):
        compare(first, other)
    with pytest.raises(UsageError, match=r"is scored by .*, sweep by f1"):
        compare(first, replace(first, scorer="f1"))


def test_a_comparison_names_the_settings_and_right_answers_that_differ() -> None:
    first = run(Scripted(echo), 4)
    other = replace(
        first,
        spec={**first.spec, "settings": {"llm.temperature": 1.0}},
        tasks=[replace(task, answer="9") for task in first.tasks],
    )
    found = str(compare(first, other))
    assert "Warning: The settings differ: llm.temperature default and 1.0." in found
    assert "Warning: The right answers of 4 shared tasks differ: t0, t1, t2." in found


def test_a_report_has_every_form(home: Path, tmp_path: Path) -> None:
    report = run(Scripted(echo), 4, epochs=2)
    found = json.loads(json.dumps(report.to_dict(trials=True), allow_nan=False))
    assert (found["score"]["mean"], found["totals"]["planned"], len(found["trials"])) == (1.0, 8, 8)
    assert found["spec"]["agent"]["model"] == "scripted"
    assert "closeout" in found["spec"]["versions"]
    text = report.markdown(slices=["half"])
    assert "## By half" in text
    assert "| model | scripted |" in text
    page = write_html(report, tmp_path / "report.html", against=[compare(report, report)], slices=["half"]).read_text(
        "utf-8"
    )
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert [row["run_id"] for row in report.rows()][:2] == ["sweep.0-t0.e1", "sweep.0-t0.e2"]
    assert evaluations_in(home) == ["sweep"]


def test_hostile_texts_cannot_become_html_or_break_a_table(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>|\n# x"
    rows = [{"id": "<img src=x>", "question": evil, "answer": evil, "kind": evil}]
    report = asyncio.run(evaluate(Agent(Scripted(lambda q, n: evil)), rows, scorer="exact", name="evil"))
    page = write_html(report, tmp_path / "report.html", slices=["kind"]).read_text("utf-8")
    assert "<script" not in page
    assert "<img" not in page
    table = report.markdown(slices=["kind"]).split("## By kind")[1].strip().splitlines()
    assert table[2].startswith(r"| <script>alert(1)</script>\| # x |")


def test_a_damaged_or_missing_evaluation_is_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="No evaluation sweep"):
        load_report("sweep", home=home)
    run(Scripted(echo))
    file = evaluation_file(home, "sweep")
    for extra in ("-wal", "-shm"):
        file.with_name(file.name + extra).unlink(missing_ok=True)
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(Exception, match="is damaged"):
        load_report("sweep", home=home)
    with pytest.raises(RunNotFound):
        open_store(home).run("sweep.9-t9.e1")


def test_rate_limits_lower_an_adaptive_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.evaluate.sweep.LONGEST_RETRY_WAIT", 0.01)

    def reply(question: str, times: int) -> str | Exception:
        return RateLimited("Slow down.", status=429) if client.in_flight > 4 else echo(question, times)

    client = Scripted(reply)
    seen: list[Sweep] = []
    report = run(client, 60, concurrency="auto", retries=50, on_start=lambda sweep, _: seen.append(sweep))
    assert report.totals.correct == 60
    assert seen[0].gate.limit <= 8


def test_a_page_gets_evaluations_as_json(home: Path) -> None:
    run(Scripted(echo), 5, epochs=2)
    (listed,) = json.loads(json.dumps(list_evaluations(home), allow_nan=False))
    assert (listed["name"], listed["finished"], listed["planned"], listed["workers"]) == ("sweep", 10, 10, 0)
    shown = json.loads(json.dumps(show_evaluation(home, "sweep", first=1, tasks=2), allow_nan=False))
    assert [row["task"] for row in shown["matrix"]] == ["t1", "t2"]
    assert [trial["run_id"] for trial in shown["matrix"][0]["trials"]] == ["sweep.1-t1.e1", "sweep.1-t1.e2"]
    assert shown["totals"]["correct"] == 10


# ------------------------------------------------------------------------------------------------ decisions


@tool(approval=lambda arguments: arguments["amount"] > 50)
def transfer(amount: int) -> str:
    """Transfer money."""
    return f"{amount} sent"


def payer() -> Agent:
    """An agent that transfers as much as the question says."""

    def reply(request: RequestView) -> Any:
        amount = int(str(request.question))
        return call("transfer", amount=amount) if "sent" not in request.last else answer(request.last.split()[0])

    return Agent(ScriptedClient(reply, by="question"), [transfer])


PAYMENTS = [{"id": f"pay-{n}", "question": str(n), "answer": str(n)} for n in (10, 60, 70)]


def pay() -> EvalReport:
    return asyncio.run(evaluate(payer(), PAYMENTS, scorer="exact", name="payments"))


def test_trials_that_wait_for_a_decision_are_shown_and_continued_after_it(home: Path) -> None:
    report = pay()
    assert [trial.state for trial in report.trials] == ["finished", "suspended", "suspended"]
    totals = report.totals
    assert (totals.planned, totals.finished, totals.suspended, totals.correct) == (3, 1, 2, 1)
    assert totals.requests == 4
    assert report.failures == {}
    assert report.score.mean == pytest.approx(1 / 3)
    assert "2 of 3 trials wait for a decision" in str(report)
    assert (list_evaluations(home)[0]["failures"], list_evaluations(home)[0]["suspended"]) == ({}, 2)

    store = open_store(home)
    suspended = {trial.task_id: trial.run_id for trial in report.trials if trial.state == "suspended"}
    assert set(suspended.values()) == {record.run_id for record in store.runs() if record.status == "waiting"}
    record_decisions(store, suspended["pay-60"], {"r1": True})
    again = pay()
    assert [trial.state for trial in again.trials] == ["finished", "finished", "suspended"]
    assert (again.totals.correct, again.totals.requests) == (2, 5)

    record_decisions(store, suspended["pay-70"], {"r1": {"verdict": "approve", "arguments": {"amount": 1}}})
    last = pay()
    assert (last.totals.finished, last.totals.suspended, last.totals.correct) == (3, 0, 2)
    assert last.totals.requests == 6


# ------------------------------------------------------------------------------------------------ tools of tasks


@tool(read_only=True, inline=True)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(read_only=True, inline=True)
def double(a: int) -> int:
    """Double."""
    return 2 * a


TASKS_WITH_TOOLS = [
    {"id": "all", "question": "all?", "answer": "add,double"},
    {"id": "one", "question": "one?", "answer": "double", "tools": ["double"]},
    {"id": "none", "question": "none?", "answer": "", "tools": []},
    {"id": "both", "question": "both?", "answer": "add,double", "tools": "add, double"},
]


def names_its_tools() -> ScriptedClient:
    """A model whose answer is the names of the tools that it was offered."""
    offered = lambda request: ",".join(sorted({*request.tools} - {"read_result"})) or "none"  # noqa: E731
    return ScriptedClient(lambda request: answer(offered(request)), by="question")


def test_a_task_may_name_the_tools_that_it_has() -> None:
    agent = Agent(names_its_tools(), [add, double])
    report = asyncio.run(evaluate(agent, TASKS_WITH_TOOLS, scorer="exact", name="tools"))
    answers = {trial.task_id: trial.outcome and trial.outcome.answer for trial in report.trials}
    assert answers == {"all": "add,double", "one": "double", "none": "none", "both": "add,double"}
    assert report.spec["agent"]["tools"].keys() >= {"add", "double"}
    again = asyncio.run(evaluate(agent, TASKS_WITH_TOOLS, scorer="exact", name="tools"))
    assert again.trials == report.trials


def test_a_function_from_a_task_to_its_agent_is_restricted_too() -> None:
    def agent_for(task: EvalTask) -> Agent:
        return Agent(names_its_tools(), [add, double])

    report = asyncio.run(evaluate(agent_for, TASKS_WITH_TOOLS[1:2], scorer="exact", name="tools"))
    assert report.totals.correct == 1


def test_tools_that_the_agent_does_not_have_are_refused_before_anything_runs() -> None:
    client = names_its_tools()
    tasks = [*TASKS_WITH_TOOLS, {"id": "wrong", "question": "wrong?", "tools": ["halve"]}]
    problem = "Task 'wrong' names tools that the agent does not have: No tool 'halve'. There are: add, double"
    with pytest.raises(UsageError, match=problem):
        asyncio.run(evaluate(Agent(client, [add, double]), tasks, name="tools"))
    assert client.requests == []


def test_an_edited_score_keeps_the_original_also_when_the_trials_are_scored_again(home: Path) -> None:
    client = ScriptedClient(lambda view: answer("0"))
    tasks = [{"id": f"t{n}", "question": f"{n}?", "answer": n} for n in range(3)]
    report = asyncio.run(evaluate(Agent(client, home=True), tasks, scorer=("exact", "includes"), name="x"))
    assert (report.totals.correct, report.edited) == (1, 0)
    edited = edit_score("x", "t2", 1.0, reason="2 and 0 were both asked for.")
    edited = edit_score("x", "t2", 0.5, reason="Half of it. 一半。")  # a second edit: the original is the scorer's
    assert (edited.score.mean, edited.totals.correct, edited.edited) == (0.5, 1, 1)
    assert "edited by hand" in str(edited)
    (trial,) = [each for each in edited.trials if each.task_id == "t2"]
    assert trial.scores["exact"].reason == "Edited: Half of it. 一半。"
    assert load_report("x", scorer="exact (original)").score.mean == report.score.mean
    assert load_report("x", scorer="includes").edited == 0
    again = asyncio.run(rescore("x", "exact"))
    assert (again.score.mean, again.edited) == (0.5, 1)
    back = edit_score("x", "t2", None)
    assert (back.score, back.edited, back.scorers) == (report.score, 0, ["exact", "includes"])
    for wrong, said in (
        ({"task_id": "t9"}, "no trial 1 of a task 't9'"),
        ({"epoch": 2}, "no trial 2"),
        ({"scorer": "f1"}, "f1 has not scored"),
        ({"reason": " "}, "needs a reason"),
        ({"value": 2}, "from 0 to 1"),
    ):
        with pytest.raises(UsageError, match=said):
            edit_score("x", **{"task_id": "t1", "value": 1.0, "reason": "r", **wrong})  # type: ignore[arg-type]
