"""A subclass of ToolExecutor changes how calls are governed: its methods are called for every call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from bing_executor import Bing
from closeout import Agent, ToolExecutor
from closeout.answers.formatter import OutputFormatter
from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.testing import ScriptedClient, answer
from closeout.tools.executor import CallOutcome
from closeout.tools.manager import ToolManager
from closeout.tools.tool import tool

QUERY = {
    "type": "object",
    "properties": {"q": {"type": "string"}},
    "required": ["q"],
    "additionalProperties": False,
}


class Search:
    """One search tool; `ran` lists the queries that reached it."""

    def __init__(self, result: Any = "found", **policy: Any) -> None:
        self.result = result
        self.ran: list[str] = []
        self._specs = (ToolSpec("bing_search", "", QUERY, policy=ToolPolicy(**policy)),)

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        self.ran.append(arguments["q"])
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def one(executor: ToolExecutor, arguments: Any = None, name: str = "bing_search", **options: Any) -> CallOutcome:
    call = ToolCall(name, {"q": "cats"} if arguments is None else arguments)
    (outcome,) = await executor.execute_calls([call], handles=lambda index: "r1", **options)
    return outcome


# ------------------------------------------------------------------------------------ fix_tool_call_arguments


class FixesArguments(ToolExecutor):
    def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        fixed = super().fix_tool_call_arguments(tool_name, arguments)
        return {**fixed, "q": fixed.get("q", fixed.get("suchwort", "")).strip()}


@pytest.mark.parametrize("arguments", [{"q": " cats "}, {"suchwort": "cats "}, '{"suchwort": "cats "}'])
async def test_an_override_fixes_arguments_and_the_fix_is_named(arguments: Any) -> None:
    search = Search(read_only=True)
    outcome = await one(FixesArguments(search), arguments)
    assert search.ran == ["cats"]
    assert outcome.call.arguments == {"q": "cats"}
    assert outcome.repairs[-1].kind == "fix_tool_call_arguments"


async def test_a_fix_that_changes_nothing_is_not_a_repair() -> None:
    call = ToolCall("bing_search", {"q": "cats"})
    (outcome,) = await FixesArguments(Search()).execute_calls([call])
    assert outcome.call is call
    assert outcome.repairs == ()


async def test_a_fix_that_changes_nothing_keeps_the_digits_of_numbers() -> None:
    paid: list[Decimal] = []

    @tool
    def pay(amount: Decimal) -> None:
        """Pay."""
        paid.append(amount)

    class Repairs(ToolExecutor):
        def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return super().fix_tool_call_arguments(tool_name, arguments)

    written = '{"amount": 12345678901234567.89}'
    for executor in (ToolExecutor, Repairs):
        model = ScriptedClient([ToolCall("pay", written), answer("Paid.")])
        await Agent(model, [pay], tool_executor=executor).run("Pay.")
    assert paid == [Decimal("12345678901234567.89")] * 2


async def test_a_fix_must_fit_the_schema() -> None:
    class Breaks(ToolExecutor):
        def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return {}

    search = Search()
    outcome = await one(Breaks(search))
    assert (outcome.status, search.ran) == ("refused", [])


async def test_a_tool_that_takes_no_repairs_takes_no_fixes() -> None:
    search = Search(repair="none")
    assert (await one(FixesArguments(search), {"q": " cats "})).status == "refused"
    assert search.ran == []


# ------------------------------------------------------------------------------------ get_query_str_from_tool_call


async def test_an_override_decides_which_calls_are_the_same() -> None:
    class IgnoresCase(ToolExecutor):
        def get_query_str_from_tool_call(self, tool_name: str, arguments: dict[str, Any]) -> str | None:
            return f"{tool_name}_{arguments['q'].lower()}"

    search = Search()
    executor = IgnoresCase(search)
    assert (await one(executor, {"q": "Cats"})).status == "ok"
    assert (await one(executor, {"q": "cats"})).status == "duplicate"
    assert search.ran == ["Cats"]
    assert executor.used_queries == {"main_bing_search": {"bing_search_cats": 1}}


async def test_an_override_may_allow_repetitions() -> None:
    class Repeats(ToolExecutor):
        def get_query_str_from_tool_call(self, tool_name: str, arguments: dict[str, Any]) -> str | None:
            return None

    search = Search()
    executor = Repeats(search)
    assert [(await one(executor)).status for _ in range(3)] == ["ok"] * 3
    assert len(search.ran) == 3


# ------------------------------------------------------------------------------------ post_process_tool_call_result


async def test_an_override_changes_the_result_that_is_judged_stored_and_shown() -> None:
    class Redacts(ToolExecutor):
        def post_process_tool_call_result(self, tool_name: str, tool_call_result: dict[str, Any]) -> dict[str, Any]:
            result = super().post_process_tool_call_result(tool_name, tool_call_result)
            return {**result, "result": result["result"].replace("s3cret", "***")}

    outcome = await one(Redacts(Search("the key is s3cret")))
    assert outcome.text == outcome.output.result == "the key is ***"
    assert "s3cret" not in json.dumps(outcome.output.to_record())


async def test_post_processing_turns_a_result_into_an_error_and_back() -> None:
    class Turns(ToolExecutor):
        def post_process_tool_call_result(self, tool_name: str, tool_call_result: dict[str, Any]) -> dict[str, Any]:
            if "error" in tool_call_result:
                return {"result": f"recovered from {tool_call_result['error']}"}
            return {"error": "quota exceeded"}

    failed = await one(Turns(Search("fine")))
    assert (failed.status, failed.text) == ("error", "Error: bing_search: quota exceeded")
    recovered = await one(Turns(Search(ValueError("boom"))))
    assert (recovered.status, recovered.text) == ("ok", "recovered from ValueError: boom")
    assert recovered.output.telemetry.success


async def test_demo_mode_shortens_what_the_model_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_MODE", "1")
    outcome = await one(ToolExecutor(Search("word " * 50, demo_length=20)))
    assert outcome.text == ("word " * 50)[:20]


# ------------------------------------------------------------------------------------ should_rollback_result


@pytest.mark.parametrize("nothing", [{"webPages": {"value": []}}, '{"webPages": {}}', "no json"])
async def test_an_override_rolls_a_result_back_each_time_while_rollbacks_are_left(nothing: Any) -> None:
    executor = Bing(Search(nothing))
    for number in range(3):
        outcome = await one(executor, {"q": str(number)})
        assert (outcome.status, outcome.rollback) == ("low_quality", True)
        assert outcome.reason
    assert not (await one(executor, {"q": "last"}, allow_duplicates=True)).rollback
    assert (await one(Bing(Search({"webPages": {"value": [{"name": "x"}]}})))).status == "ok"


async def test_an_override_accepts_what_the_built_in_rules_roll_back() -> None:
    class Accepts(ToolExecutor):
        def should_rollback_result(self, tool_name: str, result: Any, tool_result: dict[str, Any]) -> bool:
            return False

    assert (await one(ToolExecutor(Search("Error executing tool x: boom")))).rollback
    assert not (await one(Accepts(Search("Error executing tool x: boom")))).rollback
    assert not (await one(Accepts(Search({"organic": []}, empty_at=("organic",))))).rollback


# ------------------------------------------------------------------------------------ format_tool_result_for_user


class Shouts(OutputFormatter):
    def format_tool_result_for_user(self, tool_call_execution_result: Any) -> dict[str, str]:
        part = super().format_tool_result_for_user(tool_call_execution_result)
        return {**part, "text": f"{tool_call_execution_result['tool_name']} says: {part['text']}"}


async def test_the_formatter_writes_every_result() -> None:
    executor = ToolExecutor(Search(), output_formatter=Shouts())
    assert (await one(executor)).text == "bing_search says: found"
    refused = await one(executor, {"p": 1, "r": 2})
    assert refused.text.startswith("bing_search says: Error: Missing argument")
    failed = await one(ToolExecutor(Search(ValueError("boom")), output_formatter=Shouts()))
    assert failed.text == "bing_search says: Error: bing_search: ValueError: boom"


async def test_a_formatter_that_calls_super_keeps_the_budget_and_read_result() -> None:
    executor = ToolExecutor(Search("word " * 50_000), output_formatter=Shouts(), result_budget=200)
    outcome = await one(executor)
    assert outcome.text.startswith("bing_search says: word word")
    assert 'read_result("r1"' in outcome.text
    assert outcome.truncated
    assert 150 < outcome.tokens < 220


async def test_a_formatter_of_another_class_gets_the_seed_record() -> None:
    class Plain:
        def format_tool_result_for_user(self, outcome: dict[str, Any]) -> dict[str, Any]:
            return {"type": "text", "text": json.dumps([outcome["tool_name"], outcome["result"]])}

    assert (await one(ToolExecutor(Search({"n": 1}), output_formatter=Plain()))).text == '["bing_search", {"n": 1}]'


# ------------------------------------------------------------------------------------ @tool(judge=…)


async def test_a_tools_own_judge_decides_what_is_unusable() -> None:
    @tool(judge=lambda result: "only old prices: ask for today's" if result["year"] < 2020 else None)
    def price(year: int) -> dict[str, int]:
        """Look a price up."""
        return {"year": year}

    executor = ToolExecutor(ToolManager([price]))
    old, new = await one(executor, {"year": 1990}, "price"), await one(executor, {"year": 2024}, "price")
    assert (old.status, old.reason, old.rollback) == ("low_quality", "only old prices: ask for today's", True)
    assert (new.status, new.rollback) == ("ok", False)


@pytest.mark.parametrize(
    ("verdict", "status"),
    [(True, "low_quality"), (False, "ok"), ("", "ok"), (None, "low_quality"), ("why", "low_quality")],
)
async def test_a_judge_is_final_unless_it_has_no_verdict(verdict: Any, status: str) -> None:
    empty = Search({"organic": []}, empty_at=("organic",), judge=lambda result: verdict)
    assert (await one(ToolExecutor(empty))).status == status


async def test_a_judge_sees_json_text_parsed() -> None:
    seen: list[Any] = []
    await one(ToolExecutor(Search('{"n": [1]}', judge=seen.append)))
    assert seen[0] == {"n": [1]}


async def test_a_judge_that_raises_leaves_the_built_in_rules() -> None:
    def broken(result: Any) -> bool:
        raise RuntimeError("no")

    assert (await one(ToolExecutor(Search("fine", judge=broken)))).status == "ok"
    assert (await one(ToolExecutor(Search("Error: no", judge=broken)))).status == "error"
