"""`/metrics` says what the runs of a process do, by agent, model and tool, in a form that Prometheus reads."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from closeout import Agent, tool
from closeout.observe.run_figures import RunFigures
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.testing import ScriptedClient, Turn, answer, call, say

BOARD = Path(__file__).parent.parent / "examples" / "grafana" / "closeout.json"


@tool(read_only=True)
def lookup(key: str, limit: int = 1) -> str:
    """Look up a key."""
    if key == "b":
        raise ValueError("no such key")
    return "42"


@tool(approval="always")
def pay(key: str) -> str:
    """Pay a bill."""
    return "paid"


def talkative(home: Path) -> Agent[Any]:
    """An agent with a failed call, a repair, a rollback and a wait."""
    script = [
        say(""),
        Turn(calls=[call("lookup", key="a", limit="3"), call("lookup", key="b")]),
        call("pay", key="a"),
        answer("42"),
    ]
    prices = {"llm": {"prices": {"*": [1000.0, 1000.0]}}}
    return Agent(ScriptedClient(script, name='a"model'), [lookup, pay], name="desk", home=home, config=prices)


async def figures_of(home: Path) -> str:
    host = AgentHost(talkative(home), drain_seconds=0)
    async with TestClient(TestServer(agent_app(host))) as client:
        run_id = await host.submit("How many?")
        await host.wait(run_id)
        await host.decide(run_id, {"r3": False})
        await host.wait(run_id)
        return await (await client.get("/metrics")).text()


async def test_figures_are_counted_by_agent_model_and_tool(home: Path) -> None:
    lines = (await figures_of(home)).splitlines()
    for line in (
        'closeout_runs_ended_total{status="answered"} 1',
        'closeout_runs_ended_total{status="failed"} 0',  # the first failure is an increase
        'closeout_model_requests_total{agent="desk",model="a\\"model",outcome="ok"} 4',  # once, though it was resumed
        'closeout_tokens_total{agent="desk",kind="input",model="a\\"model"} ',
        'closeout_cost_dollars_total{agent="desk",model="a\\"model"} ',
        'closeout_model_seconds_count{agent="desk",model="a\\"model"} 4',
        'closeout_tool_calls_total{agent="desk",outcome="ok",tool="lookup"} 1',
        'closeout_tool_calls_total{agent="desk",outcome="failed",tool="lookup"} 1',
        'closeout_tool_seconds_bucket{agent="desk",tool="lookup",le="+Inf"} 2',
        'closeout_repairs_total{agent="desk",kind="',
        'closeout_rollbacks_total{agent="desk",reason="',
        'closeout_waits_total{agent="desk",kind="approval"} 1',
        "closeout_runs_queued 0",
    ):
        assert any(each.startswith(line) for each in lines), line


async def test_prometheus_reads_the_figures(home: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    found = {family.name: family for family in parser.text_string_to_metric_families(await figures_of(home))}
    requests = found["closeout_model_requests"].samples[0]
    assert (requests.labels["model"], requests.value) == ('a"model', 4)
    seconds = found["closeout_model_seconds"]
    assert seconds.type == "histogram"
    buckets = [each.value for each in seconds.samples if each.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 4


async def test_the_board_asks_for_figures_that_there_are(home: Path) -> None:
    names = {line.split()[2] for line in (await figures_of(home)).splitlines() if line.startswith("# TYPE")}
    board = json.loads(BOARD.read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(asked) >= 10
    for name in re.findall(r"closeout_\w+", " ".join(asked)):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in names, name


@pytest.mark.promtool
async def test_the_board_is_valid_promql_and_the_figures_a_valid_exposition(home: Path, tmp_path: Path) -> None:
    panels = json.loads(BOARD.read_text("utf-8"))["panels"]
    asked = [target["expr"].replace("$__rate_interval", "5m") for each in panels for target in each.get("targets", [])]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(asked)]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    for command, stdin in (["check", "metrics"], await figures_of(home)), (["check", "rules", str(file)], ""):
        done = subprocess.run(  # noqa: ASYNC221 - nothing else runs
            ["promtool", *command], input=stdin, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_of_ones_own_has_the_figures_too(home: Path) -> None:
    figures = RunFigures()
    Agent(ScriptedClient([answer("42")], name="m"), name="desk", listeners=[figures], home=home).run_sync("How many?")
    assert 'closeout_model_requests_total{agent="desk",model="m",outcome="ok"} 1' in figures.text().splitlines()


def test_labels_are_escaped() -> None:
    figures = RunFigures()
    figures.add("tool_calls", tool='a"b\\c\nd', outcome="ok")
    figures.observe("tool_seconds", 0.2, tool="x")
    text = figures.text()
    assert r'closeout_tool_calls_total{outcome="ok",tool="a\"b\\c\nd"} 1' in text
    assert 'closeout_tool_seconds_bucket{tool="x",le="0.25"} 1' in text
    assert 'closeout_tool_seconds_bucket{tool="x",le="0.1"} 0' in text
