"""One call's way through the executor: resolved, repaired, checked for a duplicate, run, judged; never an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

import closeout
from closeout.compat.tool_executor import DEMO_SCRAPE_MAX_LENGTH, ToolExecutor
from closeout.compat.wrapper import UnifiedToolWrapper
from closeout.errors import ToolError
from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.results.tool_output import ResponseFormat, ToolOutput, ToolTelemetry
from closeout.tools import running
from closeout.tools.executor import CallOutcome, PlannedCall

SEARCH = {"type": "object", "properties": {"q": {"type": "string"}, "num": {"type": "integer"}}, "required": ["q"]}
PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}

Function = Callable[..., Any]


class Source:
    """Tools as a manager offers them, each with its policy and a function to run; `ran` lists the calls that ran."""

    def __init__(self, *tools: tuple[ToolSpec, Function]) -> None:
        self._specs = tuple(spec for spec, _ in tools)
        self._functions = {spec.name: function for spec, function in tools}
        self.ran: list[tuple[str, dict[str, Any]]] = []

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        self.ran.append((spec.name, dict(arguments)))
        result = self._functions[spec.name](**arguments)
        return await result if isinstance(result, Awaitable) else result


def search(q: str, num: int = 10) -> dict[str, Any]:
    return {"organic": [] if q.startswith("nothing") else [{"title": f"About {q}"}]}


def source() -> Source:
    return Source((ToolSpec("google_search", "", SEARCH), search))


def tool(
    name: str, function: Function, parameters: dict[str, Any] | None = None, **policy: Any
) -> tuple[ToolSpec, Function]:
    return ToolSpec(name, "", parameters or {"type": "object"}, policy=ToolPolicy(**policy)), function


async def one(executor: ToolExecutor, name: str, arguments: Any = None, **keys: Any) -> CallOutcome:
    (outcome,) = await executor.execute_calls([ToolCall(name, {} if arguments is None else arguments)], **keys)
    return outcome


# -------------------------------------------------------------------------------------- resolve and repair


async def test_an_exception_group_tells_what_it_holds() -> None:
    def split() -> str:
        """Split."""
        raise ExceptionGroup("two", [ValueError("out of stock"), KeyError("tea")])

    (outcome,) = await ToolExecutor(closeout.ToolManager([closeout.tool(split)])).execute_calls([ToolCall("split", {})])
    assert "ValueError: out of stock; KeyError: 'tea'" in outcome.text


async def test_a_valid_call_is_executed_unchanged() -> None:
    tools = source()
    call = ToolCall("google_search", {"q": "x"}, id="c1")
    (outcome,) = await ToolExecutor(tools).execute_calls([call], handles=lambda index: f"r{index + 1}")
    assert outcome.call is call
    assert (outcome.status, outcome.reason, outcome.rollback, outcome.repairs) == ("ok", "", False, ())
    assert outcome.output.result == {"organic": [{"title": "About x"}]}
    assert outcome.text == '{"organic":[{"title":"About x"}]}'
    assert outcome.handle == "r1"
    assert outcome.tokens > 0
    assert outcome.output.telemetry.success
    assert outcome.output.telemetry.tool_name == "google_search"


async def test_a_near_miss_is_repaired_named_and_executed() -> None:
    tools = source()
    call = ToolCall("functions.google-search", "{'query': 'x', 'num': '3',}", text="{'query': 'x', 'num': '3',}")
    (outcome,) = await ToolExecutor(tools).execute_calls([call])
    assert tools.ran == [("google_search", {"q": "x", "num": 3})]
    assert [repair.kind for repair in outcome.repairs] == [
        "tool_name",
        "single_quotes",
        "trailing_comma",
        "argument_alias",
        "string_to_number",
    ]
    assert (outcome.call.name, outcome.call.arguments, outcome.call.text) == ("google_search", {"q": "x", "num": 3}, "")


async def test_arguments_that_cannot_be_repaired_are_not_executed() -> None:
    tools = source()
    outcome = await one(ToolExecutor(tools), "google_search", {"num": "many"})
    assert tools.ran == []
    assert (outcome.status, outcome.rollback) == ("refused", False)
    assert outcome.text == 'Error: Missing argument "q" (given: "num"); send {"q": string, …}.'
    assert not outcome.output.telemetry.success


async def test_a_tool_that_does_not_exist_is_refused_with_what_there_is() -> None:
    outcome = await one(ToolExecutor(source()), "bing", {"q": "x"})
    assert (outcome.status, outcome.rollback, outcome.spec) == ("refused", True, None)
    assert "google_search" in outcome.reason
    assert "answer without tools" in (await one(ToolExecutor(), "bing")).reason


async def test_a_tool_may_refuse_all_repairs() -> None:
    tools = Source(tool("pay", lambda amount: amount, {"properties": {"amount": {"type": "integer"}}}, repair="none"))
    executor = ToolExecutor(tools)
    assert (await one(executor, "pay", {"amount": "5"})).status == "refused"
    assert (await one(executor, "Pay", {"amount": 5})).status == "refused"
    assert (await one(executor, "pay", '{"amount": 5}')).status == "ok"


async def test_a_destructive_tool_never_loses_an_argument() -> None:
    tools = Source(tool("remove", lambda path: path, PATH, destructive=True))
    outcome = await one(ToolExecutor(tools), "remove", {"path": "a", "dry_run": True})
    assert outcome.status == "refused"
    assert "dry_run" in outcome.reason
    assert tools.ran == []


async def test_a_tool_with_a_broken_schema_is_refused_by_name() -> None:
    outcome = await one(ToolExecutor(Source(tool("odd", lambda: 1, {"type": "strng"}))), "odd")
    assert outcome.status == "refused"
    assert "odd" in outcome.reason
    assert "not a JSON Schema" in outcome.reason


# -------------------------------------------------------------------------------------- duplicates


async def test_the_same_call_again_asks_for_a_rollback_and_does_not_run() -> None:
    tools = source()
    executor = ToolExecutor(tools)
    first = await one(executor, "google_search", {"q": "x", "num": 1})
    again = await one(executor, "google_search", {"q": "x", "num": 2})  # the duplicate key is q alone
    assert (again.status, again.rollback) == ("duplicate", True)
    assert "already called google_search" in again.reason
    assert again.text == first.text
    assert len(tools.ran) == 1
    assert executor.used_queries == {"main_google_search": {"google_search_x": 1}}


async def test_a_search_of_that_name_with_its_own_parameter_and_shape_is_not_taken_for_the_shipped_one() -> None:
    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tools = Source(tool("google_search", lambda query: {"results": [{"title": f"About {query}"}]}, query))
    executor = ToolExecutor(tools)
    outcomes = [await one(executor, "google_search", {"query": asked}) for asked in ("tides", "moons", "tides")]
    assert [(each.status, each.rollback) for each in outcomes] == [("ok", False), ("ok", False), ("duplicate", True)]
    assert (await one(executor, "google_search", {"q": "craters"})).call.arguments == {"query": "craters"}
    assert executor.used_queries["main_google_search"].keys() >= {"google_search_tides", "google_search_moons"}


async def test_calls_that_leave_an_optional_duplicate_key_out_are_told_apart_by_the_rest() -> None:
    both = {"type": "object", "properties": {"title": {"type": "string"}, "author": {"type": "string"}}}
    executor = ToolExecutor(Source(tool("find", lambda author: [author], both, duplicate_key=("title",))))
    outcomes = [await one(executor, "find", {"author": name}) for name in ("Ada", "Emmy", "Ada")]
    assert [outcome.status for outcome in outcomes] == ["ok", "ok", "duplicate"]


async def test_when_rollbacks_are_used_up_a_read_only_call_gets_its_earlier_result() -> None:
    tools = source()
    executor = ToolExecutor(tools)
    first = await one(executor, "google_search", {"q": "x"})
    again = await one(executor, "google_search", {"q": "x"}, allow_duplicates=True)
    assert (again.status, again.rollback, again.ok, again.text) == ("duplicate", False, True, first.text)
    assert len(tools.ran) == 1


@pytest.mark.parametrize(("policy", "runs"), [({"idempotent": True}, 2), ({}, 1), ({"destructive": True}, 1)])
async def test_when_rollbacks_are_spent_only_calls_without_effects_run_again(policy: Any, runs: int) -> None:
    tools = Source(tool("add", lambda: "added", **policy))
    executor = ToolExecutor(tools)
    await one(executor, "add")
    refused = await one(executor, "add")
    assert (refused.status, refused.rollback, len(tools.ran)) == ("duplicate", True, 1)
    again = await one(executor, "add", allow_duplicates=True)
    assert (again.status, len(tools.ran)) == ("ok" if runs == 2 else "duplicate", runs)


async def test_a_repeatable_tool_has_no_duplicates() -> None:
    tools = Source(tool("clock", lambda: "12:00", repeatable=True))
    executor = ToolExecutor(tools)
    outcomes = [await one(executor, "clock"), *await executor.execute_calls([ToolCall("clock"), ToolCall("clock")])]
    assert [outcome.status for outcome in outcomes] == ["ok"] * 3
    assert executor.get_query_str_from_tool_call("clock", {}) is None


async def test_agents_do_not_see_each_others_calls() -> None:
    tools = source()
    executor = ToolExecutor(tools)
    await one(executor, "google_search", {"q": "x"})
    assert (await one(executor, "google_search", {"q": "x"}, agent="main/r4:researcher")).status == "ok"


async def test_the_same_call_twice_in_one_reply_runs_once() -> None:
    tools = source()
    calls = [ToolCall("google_search", {"q": "x"}), ToolCall("google_search", {"query": "x"})]
    first, second = await ToolExecutor(tools).execute_calls(calls, handles=lambda index: f"r{index + 1}")
    assert (first.status, second.status, second.rollback) == ("ok", "duplicate", False)
    assert "r1" in second.text
    assert len(tools.ran) == 1


async def test_what_was_read_may_be_read_again_after_something_changed() -> None:
    """A tool that says nothing about its effects may have changed it as well, even if it failed."""
    for policy in ({"idempotent": True}, {"destructive": True}, {}):
        for fails in (False, True):
            files = {"a": "old"}

            def write(path: str, files: dict[str, str] = files, fails: bool = fails) -> str:
                files[path] = "new"
                if fails:
                    raise ToolError("the connection was lost")
                return "written"

            reads = tool("read", lambda path, files=files: files[path], PATH, read_only=True)
            executor = ToolExecutor(Source(reads, tool("write", write, PATH, **policy)))
            await one(executor, "read", {"path": "a"})
            await one(executor, "write", {"path": "a"})
            again = await one(executor, "read", {"path": "a"})
            assert (again.status, again.text) == ("ok", "new"), (policy, fails)


async def test_tools_that_declare_nothing_do_not_make_each_others_calls_new() -> None:
    executor = ToolExecutor(Source(tool("look", lambda path: "seen", PATH), tool("find", lambda path: "found", PATH)))
    statuses = [(await one(executor, name, {"path": "a"})).status for name in ("look", "find", "look")]
    assert statuses == ["ok", "ok", "duplicate"]


async def test_a_new_attempt_gets_what_an_earlier_one_has_read() -> None:
    tools = source()
    executor = ToolExecutor(tools)
    first = await one(executor, "google_search", {"q": "x"})
    executor.begin_attempt("main")
    again = await one(executor, "google_search", {"q": "x"})
    assert (again.status, again.rollback, again.text) == ("ok", False, first.text)
    assert len(tools.ran) == 1


async def test_a_call_that_failed_may_be_made_again() -> None:
    answers = iter([ToolError("no such row"), None])

    def flaky() -> str:
        if error := next(answers):
            raise error
        return "row"

    executor = ToolExecutor(Source(tool("row", flaky)))
    assert [(await one(executor, "row")).status for _ in range(2)] == ["error", "ok"]


# -------------------------------------------------------------------------------------- judging


async def test_an_empty_search_is_rolled_back_once_and_then_accepted_as_evidence() -> None:
    executor = ToolExecutor(source())
    first = await one(executor, "google_search", {"q": "nothing a"})
    assert (first.status, first.rollback, first.text) == ("low_quality", True, '{"organic":[]}')
    assert "other words" in first.reason
    second = await one(executor, "google_search", {"q": "nothing b"})
    assert (second.status, second.rollback, second.ok) == ("low_quality", False, True)


async def test_a_bot_wall_is_low_quality_but_its_output_is_kept() -> None:
    page = "Just a moment... Checking your browser before accessing the site."
    outcome = await one(ToolExecutor(Source(tool("scrape_website", lambda url: page))), "scrape_website", {"url": "u"})
    assert (outcome.status, outcome.rollback) == ("low_quality", True)
    assert "bot wall" in outcome.reason
    assert outcome.output.result == page


async def test_what_managers_report_as_failed_is_an_error_to_roll_back() -> None:
    outcome = await one(ToolExecutor(Source(tool("t", lambda: "Error executing tool t: boom"))), "t")
    assert (outcome.status, outcome.rollback) == ("error", True)


# -------------------------------------------------------------------------------------- running


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("The table has no column 'x'; it has a, b."), "Error: t: The table has no column 'x'; it has a, b."),
        (KeyError("x"), "Error: t: KeyError: 'x'"),
        (SystemExit(3), "Error: t: SystemExit: 3"),
        (RuntimeError(), "Error: t: RuntimeError"),
        (asyncio.CancelledError(), "Error: t: CancelledError"),
        (GeneratorExit(), "Error: t: GeneratorExit"),
    ],
)
async def test_exceptions_become_outputs(error: BaseException, text: str) -> None:
    def fails() -> None:
        raise error

    outcome = await one(ToolExecutor(Source(tool("t", fails))), "t")
    assert (outcome.status, outcome.rollback, outcome.text) == ("error", False, text)
    assert outcome.output.telemetry.error_code == type(error).__name__


async def test_a_tool_that_hangs_is_ended_at_its_deadline() -> None:
    ended = asyncio.Event()

    async def hangs() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    outcome = await one(ToolExecutor(Source(tool("t", hangs, timeout=0.01))), "t")
    late = "Error: t did not finish within 0.01 seconds"
    assert outcome.text == f"{late}. It may or may not have taken effect; check before you make it again."
    assert ended.is_set()
    outcome = await one(ToolExecutor(Source(tool("t", hangs, timeout=0.01, read_only=True, retries=0))), "t")
    assert outcome.text == late


async def test_a_tool_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.01)
    release = asyncio.Event()

    async def cleans_up_for_long() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await release.wait()

    outcome = await one(ToolExecutor(Source(tool("t", cleans_up_for_long, timeout=0.01))), "t")
    assert outcome.output.telemetry.error_code == "TimeoutError"
    assert "may or may not have taken effect" in outcome.text
    assert "tool t" not in {task.get_name() for task in asyncio.all_tasks()}, "asyncio.run() would wait for it"

    cancelled = asyncio.create_task(one(ToolExecutor(Source(tool("t", cleans_up_for_long))), "t"))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    release.set()


async def test_a_tool_may_return_what_it_has_at_its_deadline() -> None:
    async def returns_a_part() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "half of it"
        return "all"

    assert (await one(ToolExecutor(Source(tool("t", returns_a_part, timeout=0.01))), "t")).text == "half of it"


async def test_a_late_call_that_is_declared_to_have_effects_is_not_made_again_at_once() -> None:
    async def hangs() -> None:
        await asyncio.sleep(3600)

    for policy, status in (({"destructive": True}, "duplicate"), ({"on_crash": "ask"}, "duplicate"), ({}, "error")):
        executor = ToolExecutor(Source(tool("t", hangs, timeout=0.01, **policy)))
        await one(executor, "t")
        assert (await one(executor, "t")).status == status


async def test_cancellation_reaches_the_tools_and_passes_on() -> None:
    started, ended = asyncio.Semaphore(0), []

    async def hangs(path: str) -> None:
        started.release()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(path)

    calls = [ToolCall("t", {"path": name}) for name in "ab"]
    task = asyncio.create_task(ToolExecutor(Source(tool("t", hangs, PATH))).execute_calls(calls))
    await started.acquire()
    await started.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize(
    ("policy", "tries"),
    [({"retries": 2, "read_only": True}, 3), ({"retries": 2, "idempotent": True}, 3), ({"retries": 2}, 1)],
)
async def test_only_tools_that_are_safe_to_repeat_are_tried_again(policy: dict[str, Any], tries: int) -> None:
    def fails() -> None:
        raise ConnectionError("gone")

    tools = Source(tool("t", fails, **policy))
    outcome = await one(ToolExecutor(tools, retry_delay=0), "t")
    assert (outcome.status, len(tools.ran)) == ("error", tries)
    assert outcome.output.telemetry.retry_count == tries - 1


async def test_a_failure_that_would_come_again_is_not_retried() -> None:
    def fails() -> None:
        raise ToolError("no such page")

    tools = Source(tool("t", fails, retries=3, read_only=True))
    await one(ToolExecutor(tools, retry_delay=0), "t")
    assert len(tools.ran) == 1


async def test_calls_run_together_under_the_cap_and_keep_their_order() -> None:
    running = most = 0

    async def work(path: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - int(path)):  # the later ones finish first
            await asyncio.sleep(0)
        running -= 1
        return path

    calls = [ToolCall("t", {"path": str(number)}) for number in range(8)]
    outcomes = await ToolExecutor(Source(tool("t", work, PATH)), max_parallel=3).execute_calls(calls)
    assert [outcome.text for outcome in outcomes] == [str(number) for number in range(8)]
    assert most == 3


async def test_a_call_is_planned_run_and_judged_in_three_steps() -> None:
    tools = source()
    calls = [ToolCall("google_search", {"q": "a"}), ToolCall("nope"), ToolCall("google_search", {"q": "b"})]
    executor = ToolExecutor(tools)
    plans = executor.plan_calls(calls, handles=lambda index: f"r{index + 4}")
    assert [(plan.runs, plan.handle) for plan in plans] == [(True, "r4"), (False, "r5"), (True, "r6")]
    recorded = {
        index: (plans[index], ToolOutput(result={"organic": [{"title": "recorded"}]}, telemetry=ToolTelemetry()))
        for index in (0, 2)
    }
    outcomes = await executor.judge_calls(plans, recorded)
    assert tools.ran == []
    assert [outcome.status for outcome in outcomes] == ["ok", "refused", "ok"]
    assert executor.used_queries == {"main_google_search": {"google_search_a": 1, "google_search_b": 1}}


async def test_a_call_that_was_interrupted_says_so() -> None:
    executor = ToolExecutor(source())
    (plan,) = executor.plan_calls([ToolCall("google_search", {"q": "x"})])
    told = "Interrupted: it may have taken effect."
    output = ToolOutput(telemetry=ToolTelemetry(success=False, error_code="Interrupted", error_message=told))
    (outcome,) = await executor.judge_calls([plan], {0: (plan, output)})
    assert (outcome.status, outcome.rollback) == ("interrupted", False)
    assert "may have taken effect" in outcome.text


async def test_an_error_while_calls_run_together_ends_the_batch() -> None:
    async def run(plan: PlannedCall) -> tuple[PlannedCall, ToolOutput]:
        raise OSError("no space left")

    executor = ToolExecutor(source())
    plans = executor.plan_calls([ToolCall("google_search", {"q": "a"}), ToolCall("google_search", {"q": "b"})])
    with pytest.raises(OSError, match="no space"):
        await executor.run_together(plans, run)


async def test_a_tools_own_output_is_kept_with_its_images() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    made = ToolOutput(result="a chart", summary="chart", state_update={"n": 1}, metadata={"images": [image]})
    outcome = await one(ToolExecutor(Source(tool("draw", lambda: made))), "draw")
    assert (outcome.text, outcome.images, outcome.output.state_update) == ("chart", (image,), {"n": 1})
    assert outcome.output.telemetry.tool_name == "draw"


async def test_an_output_without_a_result_is_shown_by_its_summary() -> None:
    outcome = await one(ToolExecutor(Source(tool("write", lambda: ToolOutput(summary="3 rows updated")))), "write")
    assert (outcome.text, outcome.status) == ("3 rows updated", "ok")


async def test_a_wrapped_function_is_a_tool_like_any_other() -> None:
    def read(path: str) -> dict[str, Any]:
        return {"": {}[path]} if path == "none" else {"rows": 1000}

    wrapped = UnifiedToolWrapper.wrap_tool(read, "read", ResponseFormat.STANDARD)
    executor = ToolExecutor(Source(tool("read", wrapped, PATH)))
    outcome = await one(executor, "read", {"path": "a"})
    assert outcome.text == 'rows: 1000\n\nResult Type: dict\nStatus: Success\n\n{"rows":1000}'
    assert outcome.output.result == {"rows": 1000}
    outcome = await one(executor, "read", {"path": "none"})
    failed = (outcome.status, outcome.text, outcome.output.telemetry.error_code)
    assert failed == ("error", "Error: read: 'none'", "KeyError")


async def test_the_text_stays_within_the_budget_and_names_the_handle() -> None:
    executor = ToolExecutor(Source(tool("t", lambda: "word " * 50_000)), result_budget=200)
    outcome = await one(executor, "t", handles=lambda index: "r9")
    assert outcome.tokens <= 200
    assert outcome.truncated
    assert 'read_result("r9"' in outcome.text
    assert len(outcome.output.result) == 250_000


# -------------------------------------------------------------------------------------- the design's methods


def test_fixing_arguments_returns_a_copy() -> None:
    given = {"url": "u", "introduction": "who?"}
    fixed = ToolExecutor().fix_tool_call_arguments("scrape_and_extract_info", given)
    assert fixed == {"url": "u", "info_to_extract": "who?"}
    assert given == {"url": "u", "introduction": "who?"}
    code = ToolExecutor().fix_tool_call_arguments("run_python_code", {"code": "1"})
    assert code == {"code_block": "1", "sandbox_id": "default"}
    kept = {"url": "u", "info_to_extract": "a", "description": "b"}
    assert ToolExecutor().fix_tool_call_arguments("scrape_and_extract_info", kept) == kept
    assert ToolExecutor(source()).fix_tool_call_arguments("google_search", {"query": 5}) == {"q": "5"}


@pytest.mark.parametrize(
    ("given", "fixed"), [(None, {}), ([1], {}), ("no object", {}), ('{"code": "1",}', {"code_block": "1"}), ({}, {})]
)
def test_arguments_that_are_not_an_object_are_fixed_as_far_as_they_can_be_read(
    given: Any, fixed: dict[str, Any]
) -> None:
    assert ToolExecutor().fix_tool_call_arguments("run_python_code", given) == {"sandbox_id": "default", **fixed}


async def test_a_manager_that_can_only_execute_is_enough_for_the_designs_methods() -> None:
    executor = ToolExecutor(Manager())  # type: ignore[arg-type]
    assert executor.fix_tool_call_arguments("scrape_and_extract_info", {"description": "d"}) == {"info_to_extract": "d"}
    assert executor.get_query_str_from_tool_call("google_search", {"q": "x"}) == "google_search_x"
    assert not executor.should_rollback_result("google_search", "found", {"result": "found"})
    assert (await executor.execute_single_tool_call(Manager(), "web", "search", {})).tool_result["result"] == "found"


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("google_search", {"q": "a b", "num": 3}, "google_search_a b"),
        ("google_search", {}, "google_search_"),
        ("sogou_search", {"Query": "猫"}, "sogou_search_猫"),
        ("scrape_website", {"url": "http://x"}, "scrape_website_http://x"),
        ("scrape_and_extract_info", {"url": "u", "info_to_extract": "i"}, "scrape_and_extract_info_u_i"),
        ("search_and_browse", {"subtask": "s"}, "search_and_browse_s"),
        ("other", {"b": 1, "a": [2]}, None),  # of a tool that is neither offered nor known
        ("google_search", {"text": "x"}, 'google_search_{"text":"x"}'),  # the key is not among them: all of them count
        ("google_search", '{"q": "a b"}', "google_search_a b"),
        ("google_search", None, "google_search_"),
    ],
)
def test_query_keys(name: str, arguments: Any, key: str | None) -> None:
    assert ToolExecutor().get_query_str_from_tool_call(name, arguments) == key


def test_the_key_of_a_large_call_is_short_and_its_own() -> None:
    executor = ToolExecutor(Source(tool("t", str)))
    keys = {executor.get_query_str_from_tool_call("t", {"text": "x" * 100_000 + end}) for end in "ab"}
    assert len(keys) == 2
    assert all(len(key or "") < 100 for key in keys)


def test_any_arguments_have_a_key() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    cycle: dict[Any, Any] = {1: "x", "y": 2}
    cycle["z"] = cycle
    executor = ToolExecutor(Source(tool("t", str)))
    keys = [executor.get_query_str_from_tool_call("t", arguments) for arguments in (deep, cycle, {"a": "\ud800"})]
    assert all(key and key.startswith("t_") for key in keys)
    assert len(set(keys)) == 3


def test_recorded_queries_are_duplicates_within_their_cache() -> None:
    executor = ToolExecutor()
    assert executor.is_duplicate_query("main_google_search", "k") == (False, 0)
    executor.record_query("main_google_search", "k")
    executor.record_query("main_google_search", "k")
    assert executor.is_duplicate_query("main_google_search", "k") == (True, 2)
    assert not executor.is_duplicate_query("sub_google_search", "k").is_duplicate


def test_empty_google_results() -> None:
    is_empty = ToolExecutor().is_google_search_empty_result
    assert is_empty("google_search", {"result": '{"organic": []}'})
    assert is_empty("google_search", {"result": {"organic": []}})
    assert not is_empty("google_search", {"result": {"organic": [{"title": "x"}]}})
    assert not is_empty("google_search", {"result": "not json"})
    assert not is_empty("google_search", {"result": "[]"})
    assert not is_empty("google_search", {"result": {"answerBox": {"answer": "42"}}})
    assert not is_empty("google_search", {"error": "x"})
    assert not is_empty("sogou_search", {"result": '{"organic": []}'})


def test_scraped_text_is_cut_and_json_around_it_is_kept() -> None:
    cut = ToolExecutor().get_scrape_result
    long = "é" * (DEMO_SCRAPE_MAX_LENGTH + 5)
    assert cut(long) == long[:DEMO_SCRAPE_MAX_LENGTH]
    assert cut('{"url": "u", "text": "' + long + '"}') == '{"url": "u", "text": "' + long[:-5] + '"}'
    assert cut('{"text": "short"}') == '{"text": "short"}'


def test_results_are_shortened_in_demo_mode_only(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ToolExecutor()
    result = {"server_name": "s", "result": "x" * 30_000}
    assert executor.post_process_tool_call_result("scrape", result) is result
    monkeypatch.setenv("DEMO_MODE", "1")
    shortened = executor.post_process_tool_call_result("scrape_website", result)
    assert (len(shortened["result"]), len(result["result"])) == (DEMO_SCRAPE_MAX_LENGTH, 30_000)
    assert executor.post_process_tool_call_result("google_search", result) is result
    assert executor.post_process_tool_call_result("scrape", {"error": "e"}) == {"error": "e"}


@pytest.mark.parametrize(
    ("name", "result", "expected"),
    [
        ("any", "Unknown tool: x", True),
        ("any", "Error executing tool x: boom", True),
        ("google_search", '{"organic": []}', True),
        ("google_search", '{"organic": [{"title": "x"}]}', False),
        ("google_search", {"results": [{"title": "x"}]}, False),
        ("scrape_website", "Please enable JavaScript to continue", True),
        ("any", "Please enable JavaScript to continue", False),
        ("any", "fine", False),
        ("any", None, False),
    ],
)
def test_results_that_are_better_rolled_back(name: str, result: Any, expected: bool) -> None:
    assert ToolExecutor().should_rollback_result(name, result, {"result": result}) is expected


class Manager:
    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if tool_name == "broken":
            raise RuntimeError("no connection")
        return {"server_name": server_name, "tool_name": tool_name, "result": "found"}


class Log:
    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str]] = []

    def log_step(self, *step: str) -> None:
        self.steps.append(step)  # type: ignore[arg-type]


async def test_a_single_call_is_measured_and_logged() -> None:
    log = Log()
    executor = ToolExecutor(task_log=log)
    result, duration_ms, records = await executor.execute_single_tool_call(
        Manager(), "web", "search", {"q": "x"}, "main", 3
    )
    assert result == {"server_name": "web", "tool_name": "search", "result": "found"}
    assert isinstance(duration_ms, int)
    (record,) = records
    assert {key: record[key] for key in ("server_name", "tool_name", "arguments", "result", "duration_ms")} == {
        "server_name": "web",
        "tool_name": "search",
        "arguments": {"q": "x"},
        "result": result,
        "duration_ms": duration_ms,
    }
    assert log.steps[0][:2] == ("info", "main | Turn: 3 | Tool Call")


async def test_a_single_call_that_fails_brings_an_error_and_does_not_raise() -> None:
    log = Log()
    result, _, (record,) = await ToolExecutor(task_log=log).execute_single_tool_call(
        Manager(), "web", "broken", {}, "main", 1
    )
    assert result == {"error": "Tool call failed: no connection", "server_name": "web", "tool_name": "broken"}
    assert record["error"] == "no connection"
    assert log.steps[0][0] == "error"
    nothing = await ToolExecutor().execute_single_tool_call(None, "web", "x", {}, "main", 1)
    assert "error" in nothing.tool_result

    class Leaves:
        async def execute_tool_call(self, **call: Any) -> None:
            raise SystemExit(3)

    left = await ToolExecutor().execute_single_tool_call(Leaves(), "web", "x", {})
    assert left.tool_result["error"] == "Tool call failed: 3"


@pytest.mark.parametrize("bare", ["found", None, ["a"]])
async def test_a_manager_that_returns_the_bare_result_has_it_named(bare: Any) -> None:
    class Bare:
        async def execute_tool_call(self, server_name: str, tool_name: str, arguments: dict[str, Any]) -> Any:
            return bare

    result, _, (record,) = await ToolExecutor().execute_single_tool_call(Bare(), "web", "search", {})
    assert result == record["result"] == {"server_name": "web", "tool_name": "search", "result": bare}


def test_results_become_message_parts() -> None:
    executor = ToolExecutor()
    assert executor.format_tool_result_for_llm({"tool_name": "t", "server_name": "s", "result": "found"}) == {
        "type": "text",
        "text": "found",
    }
    failed = executor.format_tool_result_for_llm({"tool_name": "t", "server_name": "s", "error": "boom"})
    assert failed["text"] == "Tool call to t on s failed. Error: boom"
    assert "no specific output" in executor.format_tool_result_for_llm({})["text"]

    class Formatter:
        def format_tool_result_for_user(self, result: dict[str, Any]) -> dict[str, Any]:
            return {"type": "text", "text": f"formatted {result['result']}"}

    formatted = ToolExecutor(output_formatter=Formatter()).format_tool_result_for_llm({"result": 1})
    assert formatted == {"type": "text", "text": "formatted 1"}
