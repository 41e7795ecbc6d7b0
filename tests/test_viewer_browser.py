"""The viewer in a real Chromium: every page loads, follows, searches, compares and exports without a console error."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from closeout import Agent, Number, tool
from closeout.evaluate import what_if
from closeout.journal import events as ev
from closeout.journal.run_journal import Journal
from closeout.journal.store import open_store
from closeout.messages import ModelReply, Usage
from closeout.testing import ScriptedClient, Turn, answer, call, say
from many_runs import short_run, write_runs
from viewer_pages import Viewer, check_looks, held_back, run_apart, texts

sys.path.insert(0, str(Path(__file__).parent / "harness"))
from shop import World


@tool(read_only=True)
async def search(query: str, limit: int = 5) -> str:
    """Search."""
    return f"{query}: The Rideau Canal opened in 1832. " * limit


@tool(read_only=True)
async def fetch(url: str) -> str:
    """Fetch a page."""
    raise ValueError("HTTP 503, try another mirror")


def returned(*results: str) -> ev.TurnAccepted:
    """A turn of the main agent in which a tool returned these texts."""
    calls = tuple(
        {"id": f"c{n}", "name": "f", "arguments": {}, "server_name": None, "text": ""} for n in range(len(results))
    )
    shown = tuple(
        {"call": n, "text": text, "handle": f"r{n}", "ok": True, "tokens": 1} for n, text in enumerate(results)
    )
    return ev.TurnAccepted("main", 0, 0, calls=calls, returns=shown)


def recorded(home: Path, answer: str = "82", instructions: str = "") -> str:
    """A run with a repair, a rollback, a failed call and a sub-agent."""
    helper = Agent(
        ScriptedClient([call("search", query="Panama"), say("It opened in \\boxed{1914}.")]), tools=[search], home=False
    )
    script = [
        Turn("I look up the Rideau Canal.", calls=[call("search", query="Rideau", limit="3")]),
        Turn("A helper looks up the other one.", calls=[call("research", task="When did the Panama Canal open?")]),
        say("I'm sorry, I cannot help with that."),
        Turn("One more page.", calls=[call("fetch", url="https://archive.example/x")]),
        Turn(f"1914 - 1832 = {answer}. The answer is \\boxed{{{answer}}}."),
    ]
    tools = [search, fetch, helper.as_tool(name="research", description="Ask a researcher.")]
    agent = Agent(
        ScriptedClient(script, name="openai:m"), tools=tools, home=home, answer=Number(), instructions=instructions
    )
    return run_apart(agent, "How many years passed between the two openings?")


# ------------------------------------------------------------------------------------------------ the list of runs


def test_the_list_shows_each_run_opens_one_and_adds_a_new_one_by_itself(viewer: Viewer, home: Path) -> None:
    run_id = recorded(home)
    page = viewer.open()
    page.wait_for_selector(".run-row .flag-repair")
    row = page.locator(".run-row").inner_text()
    assert all(part in row for part in (run_id, "answered", "openai:m", "82", "1 repair", "1 rollback"))
    page.click(".run-link")
    page.wait_for_selector(".item.answer")
    assert page.url.endswith(f"#/run/{run_id}")
    page.go_back()
    page.wait_for_selector(f"[data-id='{run_id}']")
    page.evaluate("id => { document.querySelector(`[data-id='${id}']`).dataset.kept = 'yes' }", run_id)
    write_runs(home, [("second", short_run(2))])
    page.wait_for_selector(f"[data-id=second] + [data-id='{run_id}'][data-kept=yes]")


def test_a_page_that_was_left_while_it_loaded_is_not_seen_any_more(viewer: Viewer, home: Path) -> None:
    run_id = recorded(home)
    left = ((f"run/{run_id}", "story"), (f"run/{run_id}/prompts", "requests"), ("evaluations", "evaluations"))
    for path, asked in left:
        page = viewer.open()
        page.wait_for_selector(".run-row")
        with held_back(page, re.compile(rf"/api/.*{asked}(\?|$)")):
            page.evaluate("path => { location.hash = '#/' + path; }", path)
            page.wait_for_selector(".run-row", state="detached")
            page.keyboard.press("u")
            page.wait_for_selector(".run-row")
        assert page.locator(".run-row").count() == 1, path
        assert page.evaluate("location.hash") == "#/", path


def test_the_list_is_searched_filtered_and_continued(viewer: Viewer, home: Path) -> None:
    write_runs(home, [(f"run{n:03d}", short_run(n, turns=1)) for n in range(150)])
    page = viewer.open()
    page.wait_for_selector(".run-row")
    page.fill("input[type=search] >> nth=0", "task 7")
    page.wait_for_selector("text=11 runs")
    assert "Task 79" in page.locator(".hit").first.inner_text()
    assert page.locator(".hit mark").first.inner_text() in ("Task", "7")
    page.fill("input[type=search] >> nth=0", "no such words")
    page.wait_for_selector("text=No run matches.")
    page.fill("input[type=search] >> nth=0", "")
    page.select_option("select", "failed")
    page.wait_for_selector("text=No run matches.")
    page.select_option("select", "")
    page.wait_for_selector(".run-row")
    for _ in range(300):
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        if page.locator(".run-row").count() == 150:
            break
        page.wait_for_timeout(100)
    page.wait_for_selector("text=150 runs")
    ids = page.locator(".run-row").evaluate_all("rows => rows.map(row => row.dataset.id)")
    assert ids == [f"run{n:03d}" for n in reversed(range(150))]
    write_runs(home, [("bad", [ev.RunStarted("main", "Task"), ev.RunEnded("main", "failed", "error", error="broken")])])
    page.reload()
    page.click("button:has-text('failed: 1+')")
    page.wait_for_selector("text=1 run")
    assert texts(page, ".run-row code") == ["bad"]
    assert page.locator("button:has-text('failed: ')").count() == 0


# ------------------------------------------------------------------------------------------------ a run


def test_a_run_shows_its_repair_its_rollback_its_failure_and_its_sub_agent(viewer: Viewer, home: Path) -> None:
    run_id = recorded(home)
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector(".item.answer")
    assert texts(page, ".repair .before pre") == ['"3"']
    assert texts(page, ".repair .after pre") == ["3"]
    assert texts(page, ".repair del") == ['"', '"']
    (rollback,) = texts(page, ".rollback")
    assert "no_action" in rollback
    assert "HTTP 503" in page.locator(".call.failed .result").inner_text()
    assert "hint" in page.locator(".hint").first.inner_text().lower()
    nested = page.locator(".item[data-depth='1']")
    assert "Panama" in nested.all_inner_texts()[0]
    assert page.locator(".item").nth(2).locator(".call").inner_text().startswith("research")
    assert texts(page, ".item.answer .final") == ["82"]
    assert texts(page, ".item.answer mark") == ["82", "82"]
    assert page.locator(".bar").count() >= 7


def test_extra_requests_are_shown_in_their_turn_by_their_purpose(viewer: Viewer, home: Path) -> None:
    proposed = {"id": "c", "name": "search", "arguments": '{"query": "canal"}', "server_name": None}
    usage = {"input_tokens": 1433, "output_tokens": 12}
    events: list[ev.Event] = [
        ev.RunStarted("main", "Find it"),
        ev.ModelRequested("main", 0),
        ev.ModelReplied("main", 0, "I search.", tool_calls=(proposed,), usage=usage),
        ev.ModelRequested("main", 1, purpose="weigh"),
        ev.ModelReplied("main", 1, "0.9", usage=usage, ms=586.0),
        ev.Repaired("main", 0, "likelier", before="canals", after="canal"),
        ev.ToolStarted("main", "r1", "search", arguments='{"query": "canal"}'),
        ev.ToolFinished("main", "r1", "search", ok=True, record='{"result": "found"}'),
        ev.RunEnded("main", "answered", "answered", answer="found"),
    ]
    write_runs(home, [("one", events)])
    page = viewer.open("#/run/one")
    page.wait_for_selector(".item.answer")
    assert texts(page, ".item-name") == ["Task", "Turn 1", "Answer"]
    turn = page.locator(".item.turn")
    assert re.sub(r"\s+", " ", turn.locator(".extra > header").inner_text()).startswith(
        "weigh 1,433 in · 12 out · 586 ms"
    )
    assert turn.locator(".says").inner_text() == "I search."
    assert "found" in turn.locator(".call .result").inner_text()
    assert turn.locator(".repair .after pre").inner_text() == "canal"
    assert page.locator(".bar").count() == 2
    turn.locator(".extra >> text=prompt").click()
    page.wait_for_selector(".prompt-head >> text=weigh")


def test_repairs_and_failed_calls_are_counted_alike_and_each_is_shown_as_before_and_after(
    viewer: Viewer, home: Path
) -> None:
    """If the record of a repair names only its place, the reply is shown, and the call that was read from it."""

    def script(request: Any) -> Turn:
        broken = '<tool_call>{"name": "search", "arguments": {"query": "canal",}}</tool_call>'
        pair = Turn(calls=[call("fetch", url="a"), call("fetch", url="b")])
        return [say(broken), pair, answer("1832")][sum(each["role"] == "assistant" for each in request.messages)]

    run_id = run_apart(Agent(ScriptedClient(script), tools=[search, fetch], home=home), "When?")
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector(".item.answer")
    before, after = (texts(page, f".repair:has-text('trailing_comma') .{side} pre") for side in ("before", "after"))
    assert before == ['<tool_call>{"name": "search", "arguments": {"query": "canal",}}</tool_call>']
    assert after == ['search {"query":"canal"}']
    repairs = page.locator(".repair").count()
    assert texts(page, ".jump-repair b") == texts(page, ".tile:has-text('Repairs') dd") == [str(repairs)]
    assert texts(page, ".jump-failure b") == ["2"]
    assert "2 failed" in page.locator(".tile:has-text('Calls')").inner_text()


def test_a_json_result_is_indented_and_a_list_of_flat_objects_is_a_table(viewer: Viewer, home: Path) -> None:
    flat, nested = '[{"year":1832,"id":12345678901234567890},{"year":1.50,"open":true}]', '{"locks":[{"n":1}],"a":"b"}'
    write_runs(
        home,
        [
            (
                "one",
                [
                    ev.RunStarted("main", "Find it"),
                    returned(flat, nested, "[1832]", "[plain"),
                    ev.RunEnded("main", "answered", "answered"),
                ],
            )
        ],
    )
    page = viewer.open("#/run/one")
    page.wait_for_selector(".result table")
    rows = page.locator(".result table tr").all_inner_texts()
    assert rows == ["year\tid\topen", "1832\t12345678901234567890\t", "1.50\t\ttrue"]
    assert texts(page, ".result:not(:has(table)) .text") == [
        json.dumps(json.loads(nested), indent=2),
        "[\n  1832\n]",
        "[plain",
    ]


def test_a_fork_says_where_it_begins_and_leads_to_its_run(viewer: Viewer, home: Path) -> None:
    first = run_apart(
        Agent(ScriptedClient([call("search", query="a"), answer("1")]), tools=[search], home=home), "When?"
    )
    agent = Agent(ScriptedClient([call("search", query="b"), answer("2")]), tools=[search], home=home)
    with ThreadPoolExecutor(1) as pool:
        fork = pool.submit(asyncio.run, agent.fork(first, at=2)).result()
    page = viewer.open(f"#/run/{fork.run_id}")
    page.wait_for_selector(".item.answer")
    assert texts(page, ".item-name") == ["Task", "Turn 1", "Forked here", "Turn 2", "Turn 3", "Answer"]
    page.click(".item.forked >> text=Forked from")
    page.wait_for_selector(f".run-head >> text={first}")


def test_a_link_leads_to_an_event_and_keys_go_about(viewer: Viewer, home: Path) -> None:
    run_id = recorded(home)
    rows = open_store(home).rows(run_id)
    repaired = next(row.seq for row in rows if isinstance(row.event, ev.Repaired))
    page = viewer.open(f"#/run/{run_id}?e={repaired}")
    page.wait_for_selector(f"#e{repaired}.target")
    assert "Turn 1" in page.locator(".item.selected .item-name").inner_text()
    page.keyboard.press("j")
    assert "Turn 2" in page.locator(".item.selected .item-name").inner_text()
    page.keyboard.press("k")
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.wait_for_selector(".item.selected.rolled-back, .item.selected:has(.call.failed)")
    page.keyboard.press("G")
    page.wait_for_selector(".item.answer.selected")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_selector(".run-row")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".run-page")


def test_a_run_is_followed_while_it_runs(viewer: Viewer, home: Path) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "A long task"), "m", run_id="live")
    journal.flush()
    page = viewer.open("#/run/live")
    page.wait_for_selector("text=live")
    journal.append(ev.ModelRequested("main", 0))
    journal.flush()
    page.wait_for_selector("text=The model is writing")
    journal.append(ev.ReplyStreamed("main", 0, 0, "Forty-"))
    journal.append(ev.ReplyStreamed("main", 0, 6, "tw"))
    journal.flush()
    page.wait_for_selector("text=Forty-tw")
    journal.append(ev.ModelReplied.of("main", 0, ModelReply("Forty-two.", usage=Usage(10, 2, requests=1)), 5.0))
    journal.flush()
    page.wait_for_selector("text=Forty-two.")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, journal.end(ev.RunEnded("main", "answered", "answered", answer="42"))).result()
    page.wait_for_selector(".item.answer")
    page.wait_for_selector(".run-head .status-answered")
    assert texts(page, ".item.answer .final") == ["42"]


def test_a_request_through_the_proxy_shows_the_calls_that_the_client_got(viewer: Viewer, home: Path) -> None:
    proposed = {"id": "c", "name": "serach", "arguments": '{"term": "canal"}', "server_name": None}
    passed = {"id": "c", "name": "search", "arguments": {"term": "canal"}, "server_name": None, "text": ""}
    events: list[ev.Event] = [
        ev.RunStarted("main", "Find it", name="proxy", origin={"proxy": {"messages": 1}}),
        ev.ModelRequested("main", 0),
        ev.ModelReplied("main", 0, "", tool_calls=(proposed,)),
        ev.Repaired("main", 0, "tool_name", before="serach", after="search"),
        ev.TurnAccepted("main", 0, 0, calls=(passed,)),
        ev.RunEnded("main", "answered", "answered", answer="search"),
    ]
    write_runs(home, [("one", events)])
    page = viewer.open("#/run/one")
    page.wait_for_selector(".item.answer")
    (call,) = texts(page, ".call")
    assert re.sub(r"\s+", " ", call) == "search passed to the client term canal"


def test_a_fork_leads_to_its_origin_and_to_the_difference(viewer: Viewer, home: Path) -> None:
    origin, fork = short_run(1), short_run(1)
    fork[0] = ev.RunStarted("main", "Task 1, again", forked={"run_id": "origin", "events": 7})
    fork.insert(7, ev.CheckpointReached("main", 0, 0, name="the first page"))
    write_runs(home, [("origin", origin), ("fork", fork)])
    page = viewer.open("#/run/fork")
    page.wait_for_selector(".item.checkpoint >> text=the first page")
    page.click("text=Forked from origin before event 7")
    page.wait_for_selector(".item.selected >> text=Turn 1")
    page.go_back()
    page.click(".run-head >> text=Compare >> nth=0")
    page.wait_for_selector("text=Both runs took the same steps.")


def test_the_lanes_of_a_comparison_lie_side_by_side(viewer: Viewer, home: Path) -> None:
    world = World(home, items=2)
    recorded_run = run_apart(world.agent(pays="never"), "Was kostet 茶? Pay it.")
    generous = world.agent(pays="never", instructions="Be generous.")
    world.models[-1].__init__(lambda view: call("pay", amount=50))  # type: ignore[misc]
    comparison = what_if(generous, [recorded_run], baseline=world.agent(pays="never"))
    with ThreadPoolExecutor() as thread:
        (case,) = thread.submit(asyncio.run, comparison).result().cases
    page = viewer.open()
    page.wait_for_selector(".run-row")
    assert page.locator(".run-row").count() == 1, "lanes are not among the runs"
    page.fill("input[type=search] >> nth=0", "kostet")
    page.wait_for_selector(".run-row >> nth=1")
    page.goto(viewer.address + case.page)
    page.wait_for_selector("text=The first difference is at step 1 of 5.")
    assert texts(page, ".lane-name") == ["Recorded run", "Baseline", "Candidate"]
    assert ["50" in each for each in texts(page, ".first-difference .compare-cell")] == [False, False, True]
    assert "The run left the record: it wants to call pay" in page.inner_text(".compare-page")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        check_looks(page)
    page.goto(viewer.address + f"#/run/{case.now.run_id}")
    page.click("p:has-text('What-if lane of') >> text=Compare")
    page.wait_for_selector("text=The first difference is at step 1 of 5.")


# ------------------------------------------------------------------------------------------------ prompts, comparing


def test_a_request_is_shown_as_the_model_saw_it_with_the_reason_why_the_prefix_broke(
    viewer: Viewer, home: Path
) -> None:
    client = ScriptedClient(
        [
            *(Turn(f"step {n}", calls=[call("search", query=f"q{n}")]) for n in range(14)),
            Turn("The answer is \\boxed{1}."),
        ]
    )
    config = {"agent": {"keep_tool_result": 2}}
    agent = Agent(client, tools=[search], home=home, answer=Number(), config=config, instructions="Be exact.")
    run_id = run_apart(agent, "How many?")
    page = viewer.open(f"#/run/{run_id}/prompts")
    page.wait_for_selector(".message.role-system")
    assert "Be exact." in page.locator(".role-system").inner_text()
    assert "first request" in page.locator(".prompt-head .line").inner_text()
    page.keyboard.press("j")
    page.wait_for_selector("text=It extends the previous request")
    assert texts(page, ".message.added .tool-name") == ["search"]
    assert "2 messages as before" in page.locator(".same-note").inner_text()
    page.locator(".prompt-row:has-text('prefix broke')").first.click()
    page.wait_for_selector("text=The cached prefix broke")
    assert "results were evicted (count)" in page.locator(".prompt-head .line").inner_text()
    assert page.locator(".message.removed").count() > 0
    page.keyboard.press("d")
    shown = texts(page, ".message > pre, .message > .long > pre")
    place = int(page.locator(".prompt-row.selected").get_attribute("data-place"))
    sent = [message.text for message in client.requests[place].messages if message.text]
    assert [text.strip() for text in sent] == shown


def test_two_runs_are_compared_at_the_first_step_that_differs(viewer: Viewer, home: Path) -> None:
    first, second = recorded(home), recorded(home, answer="83", instructions="Count the years.")
    page = viewer.open()
    page.wait_for_selector(".run-row >> nth=1")
    page.check(".choose >> nth=0")
    page.check(".choose >> nth=1")
    page.click("text=Compare these two runs")
    page.wait_for_selector("text=The first difference is at step 5 of 6.")
    assert "83" in page.locator(".first-difference").text_content()
    assert texts(page, ".compare-settings .line") == ["The agents differ: instructions"]
    page.click("text=The first prompts")
    page.wait_for_selector(".compare-settings >> text=Count the years.")
    page.goto(viewer.address + f"#/compare/{first}")
    page.click(f".compare-choice a[href*='{second}']")
    page.wait_for_selector(".first-difference")
    page.goto(viewer.address + f"#/compare/{first}/{first}")
    page.wait_for_selector("text=Both runs took the same steps.")


# ------------------------------------------------------------------------------------------------ export, looks, safety


def test_an_exported_file_shows_the_run_without_a_server(viewer: Viewer, home: Path, tmp_path: Path) -> None:
    run_id = recorded(home)
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector(".item.answer")
    items = texts(page, ".item-name")
    with page.expect_download() as download:
        page.click("text=Export")
    file = tmp_path / "run.html"
    download.value.save_as(file)
    page = viewer.open(address=file.as_uri())
    page.wait_for_selector(".item.answer")
    assert texts(page, ".item-name") == items
    page.click(".item-extras >> text=prompt >> nth=1")
    page.wait_for_selector(".message.added")
    page.click(f"text=← {run_id}")
    page.wait_for_selector(".item.answer")
    assert page.locator("a:has-text('Export')").count() == 0


HOSTILE = [
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(2)">',
    "</script><script>alert(3)</script>",
    "<!--<script>alert(4)//-->",
    "javascript:alert(5)",
    "'\"><svg onload=alert(6)>",
    "{{constructor.constructor('alert(7)')()}}",
    "\u202egnp.exe \u0000 \x1b[31mred \ud83d lone",
    "__proto__",
    "https://evil.example/x.png",
]


def hostile_run() -> list[ev.Event]:
    """A run in which every text that a model, a tool or a user writes is hostile."""
    text = "\n".join(HOSTILE)
    calls = (
        {"id": text, "name": text, "arguments": json.dumps({text: text, "__proto__": HOSTILE}), "server_name": None},
    )
    result = {"call": 0, "text": text, "handle": "r1", "ok": False, "tokens": 3, "images": ({"url": HOSTILE[9]},)}
    table = json.dumps([{text: text, "__proto__": text}])
    shown = (result, {**result, "call": 1, "handle": "r2", "text": table})
    made = ({"id": "c", "name": text, "arguments": {text: text}, "server_name": None, "text": text},) * 2
    question = json.dumps({"question": text, "options": HOSTILE})
    added = tuple({"role": role, "content": text, "tool_call_id": text} for role in ("system", HOSTILE[0], "tool"))
    return [
        ev.RunStarted("main", text, question=text + "?", name=text, earlier=text, files=(text,)),
        ev.AttemptStarted("main", 0, (text,)),
        ev.ModelRequested("main", 0, messages=3, size=9, note=text, added=added, tools=text),
        ev.ModelRetried("main", 0, text),
        ev.ModelReplied("main", 0, text, reasoning=text, tool_calls=calls, finish_reason=text, model=text),
        ev.ToolStarted("main", "r1", text, arguments=json.dumps({text: text})),
        ev.ToolFinished("main", "r1", text, ok=False, record=json.dumps({"summary": text, "result": text}), note=text),
        ev.Repaired("main", 0, text, where=text, before=text, after=text + "!"),
        ev.Repaired("main", 0, text),
        ev.DecisionRequested("main", "r1", "question", name=text, arguments=question, digest="", reason=text),
        ev.TurnAccepted("main", 0, 0, text=text, raw=text, calls=made, returns=shown),
        ev.ModelRequested("main", 1, messages=3, kept=3, note=text),
        ev.TurnRolledBack("main", 0, 1, reason=text, detail=text, change=text),
        ev.AgentStarted(f"main/r1:{text}", text, text),
        ev.AgentEnded(f"main/r1:{text}", text, text),
        ev.Evicted("main", 0, 1, reason=text),
        ev.Compacted("main", 0, 1, summary=text),
        ev.Noted("main", text, text, message=text),
        ev.ModelFailed("main", 1, text, error=text),
        ev.AttemptEnded("main", 0, text, experience=text),
        ev.RunEnded(
            "main", text, text, answer=text, summary=text, closing_text=text + text, error=text, error_kind=text
        ),
    ]


def test_nothing_that_is_written_in_a_run_becomes_part_of_the_page(viewer: Viewer, home: Path, tmp_path: Path) -> None:
    write_runs(home, [("hostile", hostile_run())])
    inside = "document.querySelectorAll('main script, main img, main svg, main iframe, [onerror], [onload]').length"
    for path in (
        "",
        "?q=alert",
        "#/run/hostile",
        "#/run/hostile/prompts",
        "#/compare/hostile",
        "#/compare/hostile/hostile",
    ):
        page = viewer.open(path)
        page.wait_for_selector("main > div")
        page.wait_for_selector("text=alert(1)")
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert page.evaluate(inside) == 0
    with page.expect_download() as download:
        page.evaluate("location.href = 'api/runs/hostile/export'")
    file = tmp_path / "hostile.html"
    download.value.save_as(file)
    page = viewer.open(address=file.as_uri())
    page.wait_for_selector(".item.answer")
    assert page.evaluate(inside) == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2


def test_unknown_events_and_outcomes_without_their_beginnings_are_shown(viewer: Viewer, home: Path) -> None:
    unknown = [ev.Unknown("main", name, {"problem": "odd"}) for name in ("RunEnded", "TurnAccepted", "FromTheFuture")]
    orphans = [
        ev.ToolFinished("main", "r9", "f", ok=False, record="not json", note="it broke"),
        ev.TurnAccepted(
            "main", 0, 5, returns=({"call": 3, "text": "a result", "handle": "", "ok": True, "tokens": 0},)
        ),
        ev.TurnRolledBack("main/r1:clerk", 0, 0, reason="no_action"),
        ev.ModelReplied("main/r2:clerk", 7, "a late reply"),
    ]
    write_runs(home, [("odd", [ev.RunStarted("main", "A task"), *unknown, *orphans])])
    page = viewer.open("#/run/odd")
    page.wait_for_selector("text=8 events")
    assert page.locator(".item.other").count() >= len(unknown)
    shown = page.inner_text(".run-main")
    assert all(text in shown for text in ("it broke", "a result", "no_action", "a late reply"))


def test_a_run_that_is_not_there_is_an_error_that_says_so(viewer: Viewer, home: Path) -> None:
    page = viewer.open()
    for number, path in enumerate(("#/run/none", "#/run/none/prompts", "#/compare/none/none")):
        page.goto(f"{viewer.address}?{number}{path}")  # another address, so that the page before is gone
        page.wait_for_selector("text=No run none in")
    viewer.expect_status(404)


def test_every_page_fits_its_window_and_can_be_read(viewer: Viewer, home: Path) -> None:
    first, second = recorded(home), recorded(home, answer="83", instructions="Count.")
    wide = [
        ev.RunStarted("main", "w" * 900),
        ev.ModelReplied("main", 0, "x" * 900),
        returned(json.dumps([{"n" * 300: "y" * 900}] * 2)),
        ev.RunEnded("main", "failed", "error", error="e" * 900),
    ]
    write_runs(home, [("wide", wide)])
    page = viewer.open()
    paths = ("", f"#/run/{first}", "#/run/wide", f"#/run/{first}/prompts", f"#/compare/{first}/{second}")
    for width, colours in ((320, "light"), (2000, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=colours)
        for number, path in enumerate((*paths, f"#/compare/{first}", "#/run/none")):
            page.goto(f"{viewer.address}?{width}{number}{path}")  # another address, so that the page before is gone
            page.wait_for_selector(".run-row, .item.answer, .message, .compare-cell, .compare-choice, .line.error")
            check_looks(page)
    viewer.expect_status(404)


def test_the_language_and_the_colours_are_chosen_and_remembered(viewer: Viewer, home: Path) -> None:
    recorded(home)
    page = viewer.open(locale="zh-CN")
    page.wait_for_selector(".chip:text('已回答')")
    page.click("text=English")
    page.wait_for_selector(".chip:text('answered')")
    background: Callable[[], Any] = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = background()
    page.click("button[aria-label^=Colours]")
    page.click("button[aria-label^=Colours]")
    assert background() != light
    page.reload()
    page.wait_for_selector(".chip:text('answered')")
    assert background() != light


def test_every_word_of_the_pages_has_a_chinese_translation() -> None:
    static = Path(__file__).parent.parent / "src" / "closeout" / "server" / "viewer" / "static"
    words = json.dumps((static / "language.js").read_text("utf-8"))
    for file in static.glob("*.js"):
        for key in re.findall(r'\bt\(\s*("(?:[^"\\]|\\.)*")', file.read_text("utf-8")):
            assert json.dumps(f"\n  {key}: ")[1:-1] in words, f"{file.name}: {key}"
