"""`closeout serve` as a process: started, killed in the middle of its work, started again, stopped in good order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from cli_process import COMMAND, environment, here
from closeout import Agent, ToolManager
from closeout.journal.events import ModelRequested, TurnAccepted
from closeout.journal.store import open_store
from closeout.run.subagents import may_destroy
from closeout.testing import RequestView, ScriptedClient, ScriptedServer, Turn, answer, call, once, serve_script
from closeout.tools.mcp.mcp_prompts import listed_prompts

AGENT = """
llm: {{provider: openai, model_name: scripted, base_url: "{url}", max_retries: 0}}
dialect: function_call
"""


@asynccontextmanager
async def process(
    source: Path | str, *arguments: str, cwd: Path | None = None, **variables: str
) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """`closeout serve`, and the URL for clients."""
    command = [*COMMAND, "serve", str(source), "--port", "0", "--drain", "0", *arguments]
    cwd = cwd or Path(source).parent
    serving = await asyncio.to_thread(
        subprocess.Popen, command, stderr=subprocess.PIPE, env={**environment(), **variables}, cwd=cwd
    )
    try:
        assert serving.stderr is not None
        found, lines = None, b""
        while found is None:  # runs that are resumed are named first, or last
            line = await asyncio.to_thread(serving.stderr.readline)
            lines += line
            assert line, lines.decode()
            found = re.search(r"http://\S+/v1", line.decode())
        yield serving, found[0]
    finally:
        serving.kill()
        await asyncio.to_thread(serving.communicate)


async def requested(model: ScriptedServer, times: int) -> None:
    """Wait until the model was asked so often."""
    while len(model.requests) < times:  # noqa: ASYNC110  # the server has nothing to wait for
        await asyncio.sleep(0.01)


async def requests_recorded(times: int) -> None:
    """Wait until the journal says so too: a kill may lose the last milliseconds of the record."""
    store = open_store(Path(os.environ["CLOSEOUT_HOME"]))

    def recorded() -> int:
        rows = (row for run in store.runs() for row in store.rows(run.run_id))
        return sum(isinstance(row.event, ModelRequested) for row in rows)

    while recorded() < times:  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(0.01)


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


def turns(view: RequestView) -> Turn:
    """Two calls, then the answer."""
    if "111111" in view.text:
        return answer("111111")
    if "12345" in view.text:
        return call("calculate", expression="12345 * 9 + 6")
    return call("calculate", expression="1234 * 10 + 5")


async def test_after_kill_9_the_runs_continue_and_the_streams_resume(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    # The model hangs at the second turn of each conversation, until the server is killed.
    async with serve_script(turns, misbehave=once("hang", at=2), by="question") as model:
        file.write_text(AGENT.format(url=model.base_url))
        async with process(file) as (serving, url), client_of(url) as client:
            background = await client.responses.create(model="agent", input="In the background?", background=True)
            chat = {"model": "agent", "messages": [{"role": "user", "content": "In a chat?"}]}
            keyed: dict[str, Any] = {**chat, "extra_headers": {"Idempotency-Key": "order 7"}}
            lost = asyncio.create_task(client.chat.completions.create(**keyed))
            stream = await client.responses.create(model="agent", input="In a stream?", stream=True)
            seen: list[Any] = []
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_item.done":
                    break
            await requested(model, 6)
            await requests_recorded(6)
            serving.kill()
            await asyncio.to_thread(serving.wait)
            await stream.close()
            with pytest.raises(openai.APIConnectionError):
                await lost
        async with process(file) as (_, url), client_of(url) as client:
            response = seen[0].response.id
            rest = await client.responses.retrieve(response, stream=True, starting_after=seen[-1].sequence_number)
            seen += [event async for event in rest]
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            assert seen[-1].response.output_text == "111111"
            whole = await client.responses.retrieve(response, stream=True)
            assert [event async for event in whole] == seen
            done = await client.responses.retrieve(background.id, stream=True)
            last: Any = [event async for event in done][-1]
            assert last.response.output_text == "111111"
            found = await client.chat.completions.create(**keyed)
            assert found.choices[0].message.content == "111111"
    # Each conversation asked three times, and once again for the reply that the kill lost.
    assert len(model.requests) == 12


async def test_ctrl_c_stops_the_server_and_its_runs_continue_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    async with serve_script(turns, misbehave=once("hang", at=2)) as model:
        file.write_text(AGENT.format(url=model.base_url))
        async with process(file) as (serving, url), client_of(url) as client:
            response = await client.responses.create(model="agent", input="Go?", background=True)
            await requested(model, 2)
            serving.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(serving.wait, 100) == 0
        async with process(file) as (_, url), client_of(url) as client:
            stream = await client.responses.retrieve(response.id, stream=True)
            last: Any = [event async for event in stream][-1]
            assert last.response.output_text == "111111"


def test_wrong_arguments_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served_nothing.py").write_text("number = 5\n")
    (tmp_path / "keys").write_text("# only a comment\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for arguments, said in (
        (["--host", "0.0.0.0"], "must have a key"),
        (["missing.yaml"], "missing.yaml"),
        (["nonsense"], "neither a settings file"),
        (["served_nothing:number"], "must be an Agent"),
        (["served_nothing:nothing"], "served_nothing has no nothing"),
        (["no_such_module:agent"], "no module no_such_module"),
        (["served_nothing:number", "-m", "openai:x"], "defined in Python"),
        (["--keys", "keys"], "no keys"),
        (["--keys", "missing"], "cannot be read"),
    ):
        done = here("serve", *arguments)
        assert done.code == 2
        assert said in done.sentence
    monkeypatch.setenv("CLOSEOUT_SERVER_KEY", "short")
    assert "8 characters" in here("serve").sentence


async def test_an_agent_is_offered_as_an_mcp_tool(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    file = tmp_path / "researcher.yaml"
    async with serve_script(turns) as model:
        file.write_text(AGENT.format(url=model.base_url))
        server = {"command": sys.executable, "args": ["-m", "closeout", "serve", str(file), "--mcp"]}
        caller = Agent(
            ScriptedClient([call("researcher", task="How much?"), answer("done")]),
            mcp_servers=[{**server, "env": environment()}],
        )
        result = await caller.run("Ask the researcher.")
    (called,) = [row.event for row in result.read_rows() if isinstance(row.event, TurnAccepted)]
    assert "111111" in called.returns[0]["text"]
    assert "run_id" in called.returns[0]["text"]


async def test_an_mcp_client_sees_progress_and_whether_calls_may_destroy(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "careful.py").write_text(CAREFUL)
    said: list[str] = []
    env = {**environment(), "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = {"command": sys.executable, "args": ["-m", "closeout", "serve", "careful:looks", "--mcp"]}
    async with ToolManager(mcp_servers={"looks": {**command, "env": env}}) as manager:
        (spec,) = manager.specs()
        assert not spec.policy.destructive
        await manager.call(spec, {"task": "Look."}, lambda done, total, text: said.append(text))
        (found,) = await manager.mcp_servers[0].use(listed_prompts)
        assert (found["name"], found["arguments"][0]["name"]) == ("find", "what")
    assert said == ["look"]
    agents: dict[str, Any] = {}
    exec(CAREFUL, agents)
    assert [may_destroy(agents[name].plan()) for name in ("looks", "pays", "delegates")] == [False, True, True]


CAREFUL = """
from closeout import Agent, tool
from closeout.testing import ScriptedClient, answer, call

@tool(read_only=True)
async def look() -> str:
    import asyncio
    await asyncio.sleep(0.2)
    return "seen"

@tool(approval="always")
def pay() -> str:
    return "paid"

config = {"agent": {"task_templates": {"find": "Find {{ what }}."}}}
looks = Agent(ScriptedClient([call("look"), answer("done")]), [look], home=False, config=config)
pays = Agent(ScriptedClient([answer("done")]), [pay], home=False)
delegates = Agent(ScriptedClient([answer("done")]), [pays.as_tool("payer", "Pay.")], home=False)
"""
