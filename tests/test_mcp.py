"""MCP servers as real processes: started, called, crashed, hung, reconnected and ended, over every transport."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from rich.console import Console

from bing_executor import Bing
from cli_process import here
from closeout import Agent, ToolExecutor
from closeout.cli.display import Display
from closeout.cli.options import RunOptions
from closeout.dialects.mcp_xml import McpXml
from closeout.dialects.protocol import HistoryView
from closeout.errors import ConfigError, ToolError, UsageError
from closeout.journal.subscribers import Progress
from closeout.messages import ToolCall, ToolPolicy
from closeout.results.escape import escape_markers
from closeout.results.tool_output import ToolOutput
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.call_records import CallOutcome
from closeout.tools.manager import ToolManager
from closeout.tools.mcp import mcp_client
from closeout.tools.mcp.mcp_config import read_servers
from closeout.tools.mcp.mcp_result import McpResult
from closeout.tools.running import CallUnsure
from closeout.tools.tool import tool
from serving import listening

SERVERS = Path(__file__).parent / "mcp_servers"
EVERYTHING = {"name": "everything", "command": sys.executable, "args": [str(SERVERS / "everything.py")]}
TWIN = {"name": "twin", "command": sys.executable, "args": [str(SERVERS / "twin.py")]}

SLY = {"name": "sly", "command": sys.executable, "args": [str(SERVERS / "sly.py")]}


shared = pytest.mark.asyncio(loop_scope="module")  # tests that use one server for all of them


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager() -> AsyncIterator[ToolManager]:
    async with ToolManager(mcp_servers=[EVERYTHING]) as opened:
        assert opened.problems == ()
        yield opened


async def result_of(manager: ToolManager, name: str, /, **arguments: Any) -> Any:
    answer = await manager.execute_tool_call("everything", name, arguments)
    assert "error" not in answer, answer
    return answer["result"]


async def error_of(manager: ToolManager, name: str, /, **arguments: Any) -> str:
    answer = await manager.execute_tool_call("everything", name, arguments)
    assert "result" not in answer, answer
    return str(answer["error"])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that hang are asked and ended in tenths of a second."""
    monkeypatch.setattr(mcp_client, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.2)
    monkeypatch.setattr("mcp.client.stdio.FORCE_KILL_TIMEOUT", 0.2)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_gone(pid: int) -> None:
    """Wait for the end of a server that was killed, but that the library, in its haste here, may not have reaped."""
    async with asyncio.timeout(60):
        while is_alive(pid):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------------ resources


async def test_resources_are_listed_read_and_paged() -> None:
    turns = [
        call("list_resources"),
        call("read_resource", uri="notes://all"),
        call("read_result", handle="r2", pattern="note 4711"),
        call("read_resource", uri="notes://ada/picture"),
        call("read_resource", uri="notes://nothing"),
        answer("done"),
    ]
    agent = Agent(ScriptedClient(turns), mcp_servers=[{**EVERYTHING, "resources": True}])
    result = await agent.run("Read")
    listed, whole, part, picture, missing = [
        str(message["content"]) for message in result.messages if message["role"] == "tool"
    ]
    assert "notes://all" in listed
    assert "notes://{name}/picture" in listed
    assert "</tool_result>" not in listed
    assert "note 0" in whole
    assert "read_result" in whole
    assert "note 4711" in part
    assert "3" in picture
    assert "notes://nothing" in missing


def test_prompts_of_a_server_are_listed_and_printed_with_their_arguments() -> None:
    options = ["--mcp", shlex.join([sys.executable, str(SERVERS / "everything.py")])]
    assert here("mcp", "prompts", "everything", *options).out == "plan city=… [day=…]  Plan a day\n"
    assert here("mcp", "prompt", "everything", "plan", "city=罗马", *options).out == "Plan Monday in 罗马.\n"
    assert "needs city=… as well" in here("mcp", "prompt", "everything", "plan", *options).sentence
    assert "No prompt 'nope'. There are: plan." in here("mcp", "prompt", "everything", "nope", *options).sentence


# ------------------------------------------------------------------------------------------------ stdio


async def test_a_manager_with_some_of_the_tools_shares_the_servers() -> None:
    async with ToolManager(mcp_servers=[EVERYTHING]) as whole:
        some = whole.only(["add", "pid"])
        assert [spec.name for spec in some.specs()] == ["add", "pid"]
        process = await result_of(whole, "pid")
        async with some:
            assert await result_of(some, "pid") == process
        assert await result_of(whole, "pid") == process
        with pytest.raises(UsageError, match=r"No tool 'subtract'\. There are: add, "):
            whole.only(["subtract"])


@shared
async def test_a_server_is_one_session_with_all_its_tools(manager: ToolManager) -> None:
    specs = {spec.name: spec for spec in manager.specs()}
    assert list(specs) == sorted(specs)
    assert specs["add"].server_name == "everything"
    assert specs["add"].parameters == {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    }  # fmt: skip
    first = await result_of(manager, "pid")
    assert [await result_of(manager, "pid") for _ in range(3)] == [first] * 3
    assert await manager.call(specs["add"], {"a": 1, "b": 2}) == 3


@shared
async def test_hints_of_the_server_become_policy(manager: ToolManager) -> None:
    policies = {spec.name: spec.policy for spec in manager.specs()}
    assert (policies["add"].read_only, policies["add"].crash_rule) == (True, "rerun")
    assert (policies["erase"].read_only, policies["erase"].idempotent, policies["erase"].destructive) == (
        False,
        True,
        True,
    )
    assert policies["say"] == ToolPolicy(effects_known=False), "no hints: it may be destructive"
    assert [policies[name].effects for name in ("add", "keep", "erase", "say")] == ["none", "local", None, None]


async def test_a_value_that_has_not_the_stated_format_is_passed_on_with_one_hint() -> None:
    kept = [call("keep", text=text, until=until) for text, until in (("a", "soon"), ("b", "soon"), ("c", "2026-12-01"))]
    result = await Agent(ScriptedClient([*kept, answer("done")]), mcp_servers=[EVERYTHING], home=False).run("Keep.")
    shown = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert [text.partition("\n")[0] for text in shown] == [
        "The call was made, but its argument until should be a date.",
        shown[1],
        shown[2],
    ]
    assert [text.count("kept") for text in shown] == [1, 1, 1]
    assert not any("should be" in text for text in shown[1:])


@shared
async def test_results_of_every_kind_arrive_whole(manager: ToolManager) -> None:
    assert await result_of(manager, "say", text="a\n中文 😀") == "a\n中文 😀"
    assert await result_of(manager, "table") == {"rows": [{"n": 1}, {"n": 2}]}
    assert await result_of(manager, "big", megabytes=5) == "x" * 5_000_000
    spec = next(spec for spec in manager.specs() if spec.name == "picture")
    output = await manager.call(spec, {})
    assert isinstance(output, ToolOutput)
    assert [part["type"] for part in output.result] == ["text", "image", "resource"]
    assert output.metadata["images"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert output.metadata["content"][2]["resource"]["text"] == "a note"
    (outcome,) = await ToolExecutor(manager).execute_calls([ToolCall("picture", {})])
    assert "a note" in outcome.text, "the model is shown every text, not only an outline"


@shared
async def test_failures_of_tools_are_reported(manager: ToolManager) -> None:
    assert await error_of(manager, "fail", why="no") == "Error executing tool fail"
    assert "valid integer" in await error_of(manager, "add", a="x", b=1)
    assert (await error_of(manager, "nothing")).startswith("Unknown tool: nothing on server everything. There are: ")


@shared
async def test_calls_run_side_by_side_on_one_session(manager: ToolManager) -> None:
    calls = [result_of(manager, "meet", others=30) for _ in range(30)]
    async with asyncio.timeout(60):  # one after the other they would never meet
        assert await asyncio.gather(*calls) == ["met"] * 30


async def test_the_users_variables_are_not_passed_to_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with ToolManager(mcp_servers=[{**EVERYTHING, "env": {"CITY": "Ottawa"}}]) as manager:
        assert await result_of(manager, "variable", name="OPENAI_API_KEY") == ""
        assert await result_of(manager, "variable", name="CITY") == "Ottawa"


async def test_a_server_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("mcp").setLevel(logging.WARNING)
    async with ToolManager(mcp_servers=[EVERYTHING]) as manager:
        await error_of(manager, "crash")
    assert capfd.readouterr() == ("", "")


@shared
async def test_leaving_ends_the_process(manager: ToolManager) -> None:
    async with ToolManager(mcp_servers=[EVERYTHING]) as other:
        pid = await result_of(other, "pid")
        assert is_alive(pid)
        assert pid != await result_of(manager, "pid")  # managers share nothing
    assert not is_alive(pid)
    assert await result_of(other, "pid") != pid  # used again, it starts again
    await other.aclose()
    await other.aclose()


# ------------------------------------------------------------------------------------------------ crashes and hangs


@shared
async def test_a_crash_in_a_harmless_call_is_mended_by_one_restart(manager: ToolManager, tmp_path: Path) -> None:
    before = await result_of(manager, "pid")
    assert await result_of(manager, "crash_once", marker=str(tmp_path / "marker")) == "recovered"
    assert await result_of(manager, "pid") != before


@shared
async def test_a_crash_in_any_other_call_is_reported_and_the_server_restarted(manager: ToolManager) -> None:
    told = await error_of(manager, "crash")
    assert "MCP server 'everything' ended during the call of crash" in told
    assert "divide by cucumber" in told  # its last words
    assert "It may or may not have taken effect; check before you make it again." in told
    assert await result_of(manager, "add", a=1, b=2) == 3


@shared
async def test_a_server_that_always_crashes_is_started_once_more_only(manager: ToolManager) -> None:
    spec = next(spec for spec in manager.specs() if spec.name == "crash")
    server = manager._servers[0]
    with pytest.raises(ToolError, match="ended twice during the call of crash"):
        await server.call("crash", {}, replace(spec.policy, read_only=True))


@shared
async def test_a_crash_under_many_calls_restarts_the_server_once(manager: ToolManager) -> None:
    calls = [manager.execute_tool_call("everything", "wait", {"seconds": 30}) for _ in range(5)]
    answers = await asyncio.gather(manager.execute_tool_call("everything", "crash", {}), *calls)
    assert all("ended during the call" in answer["error"] for answer in answers)
    pids = await asyncio.gather(*(result_of(manager, "pid") for _ in range(5)))
    assert len(set(pids)) == 1


@pytest.mark.usefixtures("impatient")
async def test_a_hanging_call_ends_at_its_deadline_and_the_server_is_replaced() -> None:
    async with ToolManager(mcp_servers=[EVERYTHING]) as manager:
        hung = await result_of(manager, "pid")
        late = r"hang did not answer within 0\.5 s .*\. It may or may not have taken effect; check before"
        with pytest.raises(CallUnsure, match=late):
            await manager._servers[0].call("hang", {}, ToolPolicy(timeout=0.5))
        assert await result_of(manager, "pid") != hung
    await until_gone(hung)


@shared
async def test_a_slow_call_that_is_given_up_leaves_the_session_as_it_is(
    manager: ToolManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_client, "PROBE_SECONDS", 60.0)
    before = await result_of(manager, "pid")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await result_of(manager, "wait", seconds=30)
    assert await result_of(manager, "pid") == before


async def test_cancelling_a_run_ends_its_servers() -> None:
    pids: list[int] = []

    async def run() -> None:
        async with ToolManager(mcp_servers=[EVERYTHING]) as manager:
            pids.append(await result_of(manager, "pid"))
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    while not pids:  # noqa: ASYNC110  # the number comes from another process
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pids[0])


STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
if len(sys.argv) > 2:
    from mcp.server.mcpserver import MCPServer
    MCPServer("stubborn").run()
time.sleep(60)
"""


@pytest.mark.parametrize("moment", ["while it starts", "while it ends"])
async def test_a_server_ends_with_its_run_however_often_the_run_is_cancelled(
    impatient: None, tmp_path: Path, moment: str
) -> None:
    noted = tmp_path / "pid"
    serves = ["serve"] if moment == "while it ends" else []
    entry = {"name": "stubborn", "command": sys.executable, "args": ["-c", STUBBORN, str(noted), *serves]}

    entered = asyncio.Event()

    async def run() -> None:
        async with ToolManager(mcp_servers=[entry]):
            entered.set()

    task = asyncio.create_task(run())
    while not entered.is_set() if serves else not noted.is_file() or not noted.read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    cancels = 0
    while not task.done():
        task.cancel()
        cancels += 1
        await asyncio.sleep(0)  # once in each turn of the loop: however long a turn takes, the end needs several
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancels > 2
    await until_gone(int(noted.read_text()))


# ------------------------------------------------------------------------------------------------ servers that fail


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"command": "no-such-program --x"}, "the command 'no-such-program' was not found"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]}, "ended before.*no licence"),
        ({"command": sys.executable, "args": ["no_such_file.py"]}, "can't open file"),
        (
            {"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"], "start_timeout": 0.5},
            "not ready within 0.5 s",
        ),
        ({"command": sys.executable, "cwd": "no-such-folder"}, "cwd 'no-such-folder' does not exist"),
        ({"url": "http://127.0.0.1:1/mcp"}, "could not be reached"),
        ({"url": "http://127.0.0.1:1/sse"}, "could not be reached"),
    ],
)
@pytest.mark.usefixtures("impatient")
async def test_a_server_that_does_not_start_is_a_problem_and_not_the_end(entry: dict[str, Any], says: str) -> None:
    @tool
    def lookup() -> str:
        """Look up."""
        return "found"

    async with ToolManager([lookup], [{"name": "bad", **entry}]) as manager:
        (problem,) = manager.problems
        assert problem.server_name == "bad"
        with pytest.raises(ToolError, match=says):
            raise ToolError(problem.message.replace("\n", " "))
        assert "'bad'" in str(problem)
        assert [spec.name for spec in manager.specs()] == ["lookup"]
        assert await manager.call(lookup.spec, {}) == "found"
        assert (await manager.get_all_tool_definitions())[1] == {"name": "bad", "tools": [], "error": problem.message}


async def test_servers_start_all_at_once_and_one_bad_one_stops_no_other() -> None:
    bad = {"name": "bad", "command": "no-such-program"}
    async with ToolManager(mcp_servers=[EVERYTHING, bad, TWIN]) as manager:
        problems = {problem.server_name: problem.message for problem in manager.problems}
        assert set(problems) == {"bad", "twin"}
        assert "parameters of crooked are not a self-contained JSON Schema" in problems["twin"]
        assert "crooked" in [spec.name for spec in manager.specs()]
        assert {spec.server_name for spec in manager.specs()} == {"everything", "twin"}


async def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'closeout\[mcp\]'"):
        await ToolManager(mcp_servers=[EVERYTHING]).open()


# ------------------------------------------------------------------------------------------------ names


async def test_some_tools_of_a_server_are_offered() -> None:
    notes = {"command": sys.executable, "args": [str(SERVERS / "notes.py")]}
    chosen = {**notes, "only": ["read_note", "write_note"], "exclude": ["write_note"]}
    async with ToolManager(mcp_servers={"notes": chosen}) as manager:
        assert [spec.name for spec in manager.specs()] == ["read_note"]
    with pytest.raises(UsageError, match=r"exclude of the MCP server 'notes' names 'raed', which does not exist"):
        await ToolManager(mcp_servers={"notes": {**notes, "exclude": ["raed"]}}).open()
    (theirs,) = read_servers({"mcpServers": {"notes": {**notes, "includeTools": ["a"], "disabledTools": ["b"]}}})
    assert (theirs.only, theirs.exclude) == (("a",), ("b",))
    with pytest.raises(ConfigError, match="only must be a list of names of tools, got 'read_note'"):
        read_servers({"notes": {**notes, "only": "read_note"}})


async def test_tools_of_a_server_are_renamed() -> None:
    notes = {"name": "notes", "command": sys.executable, "args": [str(SERVERS / "notes.py")]}
    names = {"read_note": "look_up_note"}
    async with ToolManager(mcp_servers=[{**notes, "rename": names}], approval={"notes/read_note": "always"}) as manager:
        specs = {spec.name: spec for spec in manager.specs()}
        assert ("read_note" in specs, specs["look_up_note"].policy.approval) == (False, "always")
        outcomes = [
            await manager.execute_tool_call("notes", name, {"name": "a"}) for name in ("read_note", "look_up_note")
        ]
        assert outcomes[0] == {**outcomes[1], "tool_name": "read_note"}, "its own name is known, too"
    with pytest.raises(
        UsageError, match=r"rename of the MCP server 'notes' names 'raed', which does not exist\. There are"
    ):
        await ToolManager(mcp_servers=[{**notes, "rename": {"raed": "read"}}]).open()
    for wrong in (["read"], {"read_note": "a b"}, {"read_note": 3}):
        with pytest.raises(ConfigError, match=r"MCP server 'notes': (rename must map|the new name of a tool has)"):
            read_servers([{**notes, "rename": wrong}])


async def test_an_error_names_a_server_and_its_tool_of_the_same_name_once() -> None:
    notes = {"name": "read_note", "command": sys.executable, "args": [str(SERVERS / "notes.py")]}
    with pytest.raises(UsageError) as wrong:
        await ToolManager(mcp_servers=[notes], blacklist=["raed"]).open()
    assert str(wrong.value).count("read_note") == 1


async def test_a_name_that_several_have_is_told_apart_by_its_server() -> None:
    @tool
    def table() -> str:
        """A local table."""
        return "local"

    async with ToolManager(
        [table], [EVERYTHING, TWIN], blacklist=["everything/hang", ("everything", "crash")]
    ) as manager:
        names = {spec.name: spec.server_name for spec in manager.specs()}
        assert names["table"] is None
        assert names["everything-table"] == names["everything-add"] == "everything"
        assert names["twin-add"] == names["say_hello"] == "twin"
        prices = [name for name in names if "price_now" in name]
        assert len(prices) == 2, "names that differ in what no API accepts"
        assert not {"add", "hang", "crash", "say.hello"} & set(names)
        specs = {spec.name: spec for spec in manager.specs()}
        assert await manager.call(specs["everything-add"], {"a": 1, "b": 2}) == 3
        assert await manager.call(specs["twin-add"], {"a": 1, "b": 2}) == "12"
        found = {await manager.call(specs[name], {}) for name in prices}
        assert found == {"price with a full stop", "price with a slash"}
        for server, name, answer in (("twin", "add", "12"), ("twin", "twin-add", "12"), ("twin", "say.hello", "hello")):
            arguments = {"a": 1, "b": 2} if "add" in name else {}
            assert (await manager.execute_tool_call(server, name, arguments))["result"] == answer
        assert "Unknown tool" in (await manager.execute_tool_call("everything", "crash", {}))["error"]
        assert specs["google_search"].policy.empty_at == ("organic",)  # shipped with the well-known name


# ------------------------------------------------------------------------------------------------ loops and threads


def test_one_manager_serves_sync_callers_one_after_the_other_and_at_once() -> None:
    manager = ToolManager(mcp_servers=[EVERYTHING])
    pids: list[int] = []

    async def run() -> None:
        async with manager, manager:
            pids.append(await result_of(manager, "pid"))

    asyncio.run(run())
    threads = [threading.Thread(target=lambda: asyncio.run(run())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(pids)) == 3  # a process for each event loop, and none is left
    assert not any(is_alive(pid) for pid in pids)


async def test_runs_at_the_same_time_share_a_session_until_the_last_one_leaves() -> None:
    manager = ToolManager(mcp_servers=[EVERYTHING])
    async with manager:
        pid = await result_of(manager, "pid")
        async with manager:
            assert await result_of(manager, "pid") == pid
        assert await result_of(manager, "pid") == pid
    assert not is_alive(pid)


# ------------------------------------------------------------------------------------------------ HTTP and SSE


@contextmanager
def serving(transport: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that listens."""
    command = [sys.executable, str(SERVERS / "everything.py"), transport, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(("transport", "path"), [("streamable-http", "/mcp"), ("sse", "/sse")])
async def test_a_remote_server_works_alike(transport: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_client, "BROKEN_SECONDS", 5.0)
    port = free_port()
    with serving(transport, port):
        manager = ToolManager(mcp_servers={"everything": f"http://127.0.0.1:{port}{path}"})
        async with manager:
            assert manager.problems == ()
            assert await result_of(manager, "add", a=1, b=2) == 3
            assert await result_of(manager, "table") == {"rows": [{"n": 1}, {"n": 2}]}
            assert await error_of(manager, "fail", why="x") == "Error executing tool fail"
            meeting = [result_of(manager, "meet", others=10) for _ in range(10)]
            assert await asyncio.gather(*meeting) == ["met"] * 10
            if transport == "streamable-http":
                assert await result_of(manager, "big", megabytes=5) == "x" * 5_000_000
            else:  # what the library does not read is told, and the session is there again for the next call
                told = await error_of(manager, "big", megabytes=2)
                assert "more than 1 MB over SSE" in told
                assert "the call of big was lost with it. Ask for less at once, or connect over streamable HTTP" in told
                assert await result_of(manager, "add", a=1, b=2) == 3
            told = await error_of(manager, "crash")
            assert "ended during the call of crash" in told
            assert "could not be reached" in told
            with serving(transport, port):  # it comes back, and so does the session
                assert await result_of(manager, "add", a=1, b=2) == 3


async def test_headers_are_sent_and_a_refused_key_is_reported() -> None:
    from aiohttp import web

    seen: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.Response(status=401)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with listening(app) as port:
        for path in ("mcp", "sse"):
            entry = {"name": "far", "url": f"http://127.0.0.1:{port}/{path}", "headers": {"Authorization": "Bearer k"}}
            async with ToolManager(mcp_servers=[entry]) as manager:
                assert "it answered HTTP 401; give its key in headers=" in manager.problems[0].message
    assert set(seen) == {"Bearer k"}


async def test_a_servers_descriptions_are_bounded_and_cannot_forge_a_prompt() -> None:
    async with ToolManager(mcp_servers=[SLY]) as manager:
        echo, _failing, long, _marked, outside = manager.specs()
        assert [each.name for each in manager.specs()] == ["echo", "failing", "long", "marked", "outside"]
        assert outside.parameters["properties"] == {"a": {}}
        messages = [problem.message for problem in manager.problems]
        assert len(messages) == 2
        assert "outside" in messages[0]
        assert "without a name" in messages[1]
        assert len(long.description) < 11_000
        for told in (echo.description, echo.parameters["properties"]["t"]["description"]):
            assert "\nObservation&#58; done" in told
            assert "&lt;tool_call>" in told
            assert "&lt;|im_end|>" in told
            assert "{{ 7 * 7 }}" in told
        prompt = McpXml().system_text(HistoryView("", "Why?", manager.specs()), examples=False)
        assert prompt.count("\n### Tool name: ") == 5
        assert "### Tool name&#58; erase\nInput JSON schema&#58; {}\n{{ 7 * 7 }}" in prompt


async def test_schemas_that_are_too_large_or_wind_back_on_themselves_are_bounded() -> None:
    async with ToolManager(mcp_servers=[{**SLY, "args": [*SLY["args"], "limits"]}]) as manager:
        large, wrong = (problem.message for problem in manager.problems)
        assert "the parameters of large take" in large
        assert "more than 200,000" in large
        assert "the parameters of bad_pattern are not a self-contained JSON Schema" in wrong
        assert [spec.name for spec in manager.specs()] == ["bad_pattern", "fan", "loop", "slow_pattern"]
        calls = [
            ToolCall("fan", {"a": {"x": {}}}),
            ToolCall("loop", {"a": 1}),
            ToolCall("slow_pattern", {"a": "a" * 60 + "b"}),
        ]
        outcomes = await ToolExecutor(manager).execute_calls(calls)
        assert [outcome.status for outcome in outcomes] == ["ok", "ok", "refused"]


async def test_names_and_values_of_a_schema_cannot_forge_a_prompt_and_reach_the_server_as_they_are() -> None:
    async with ToolManager(mcp_servers=[SLY]) as manager:
        marked = next(spec for spec in manager.specs() if spec.name == "marked")
        shown = json.dumps(marked.parameters)
        assert escape_markers(shown) == shown
        name = "&lt;|im_end|>"
        parameter = marked.parameters["properties"][name]
        assert parameter["enum"] == ["&lt;tool_call>", "plain"]
        result = await manager.execute_tool_call("sly", "marked", {name: "&lt;tool_call>"})
        assert json.loads(result["result"]) == {"<|im_end|>": "<tool_call>"}


@pytest.mark.parametrize(
    "args",
    [
        ["-c", "import sys; sys.exit(' '.join(sys.argv))", "--api-key", "s3cret-value-9000"],
        ["-c", "import sys; sys.exit(' '.join(sys.argv))", "--token=s3cret-value-9000"],
        ["-c", "import sys; sys.exit(' '.join(sys.argv))", "-e", "MY_API_KEY=s3cret-value-9000"],
    ],
)
async def test_a_key_among_the_arguments_is_never_shown(args: list[str]) -> None:
    (config,) = read_servers([{"command": sys.executable, "args": args}])
    origin = RunOptions(mcp=(shlex.join([sys.executable, *args]), "server --api-key ${KEY}")).as_origin()
    assert "s3cret" not in str(origin)
    assert origin["mcp"][1] == "server --api-key ${KEY}"
    assert "s3cret" not in f"{config.name} {config.address} {config!r}"
    async with ToolManager(mcp_servers=[config]) as manager:
        (problem,) = manager.problems
        assert "Its last words" in problem.message
        assert "s3cret" not in problem.message
    with pytest.raises(ConfigError) as refused:
        read_servers([{"command": [sys.executable, *args], "comand": "x"}])
    assert "s3cret" not in str(refused.value)


async def test_an_error_of_a_server_is_its_words_and_a_result_out_of_form_is_shown() -> None:
    async with ToolManager(mcp_servers=[SLY]) as manager:
        assert await manager.execute_tool_call("sly", "failing", {}) == {
            "server_name": "sly",
            "tool_name": "failing",
            "error": "Error executing tool failing: the key is used up",
        }
        shown = (await manager.execute_tool_call("sly", "echo", {}))["result"]
        assert "its result breaks a rule: content.0." in shown["note"]


async def test_the_error_of_a_server_is_the_result_of_the_call_and_never_speaks_for_the_user() -> None:
    client = ScriptedClient([call("failing"), answer("none")])
    result = await Agent(client, mcp_servers=[SLY], home=False).run("What?")
    assert (result.answer, result.rollbacks) == ("none", 0)
    said = [(each.role, "the key is used up" in each.text) for each in client.requests[1].messages]
    assert said[-1] == ("tool", True)
    assert [role for role, says in said if says] == ["tool"]


async def test_a_result_that_breaks_a_rule_is_shown_with_the_rule_and_counts_as_made(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    program = Path(__file__).parent / "mcp_servers" / "partly_invalid.py"
    shop = {"name": "shop", "command": sys.executable, "args": [str(program), str(orders)]}
    async with ToolManager(mcp_servers=[shop]) as manager:
        assert [spec.name for spec in manager.specs()] == ["bare", "half", "names", "nulls", "order"]
        kinds = {
            "no structure": "did not return structured content",
            "wrong structure": "None is not of type 'string'",
            "unknown part": "hologram",
            "no content": "content: Field required",
            "another field": "content: Field required",
        }
        for kind, rule in kinds.items():
            (outcome,) = await ToolExecutor(manager).execute_calls([ToolCall("order", {"item": kind})])
            assert outcome.status == "ok"
            assert "A-4711" in outcome.text
            assert rule in outcome.text
    assert orders.read_text() == "one\n" * len(kinds)


# ------------------------------------------------------------------------------------------------ forgotten sessions


@contextmanager
def forgetful_server(status: int, calls: Path) -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen([sys.executable, str(SERVERS / "forgetful.py"), str(port), str(status), str(calls)])
    try:
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("status", [404, 403, 400, 500])
async def test_a_forgotten_session_is_initialised_again_and_only_a_safe_call_repeated(
    status: int, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    with forgetful_server(status, calls) as url:
        async with ToolManager(mcp_servers=[{"name": "shop", "url": url}]) as manager:

            async def outcome(name: str) -> str:
                answer = await manager.execute_tool_call("shop", name, {})
                return str(answer.get("result") or answer["error"])

            assert await outcome("look") == "look in s1"
            await outcome("forget")
            assert await outcome("look") == "look in s2"
            await outcome("forget")
            refused = await outcome("pay")
            if status < 500:
                assert "refused the call of pay, perhaps because it had forgotten the session" in refused
                assert "Make the call again" in refused
            else:
                assert "may or may not have taken effect" in refused
            assert await outcome("pay") == "pay in s3"
    assert calls.read_text().splitlines() == ["s1 look", "s1 forget", "s2 look", "s2 forget", "s3 pay"]


# ------------------------------------------------------------------------------------------------ hand-written servers

ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
PROPERTIES: dict[str, Any] = {  # each breaks the rules of JSON Schema, or is not in the message
    "draft_4": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    "required_true": {"type": "string", "required": True},
    "no_such_type": {"type": "float"},
    "dangling": {"$ref": "#/definitions/Gone", "description": "gone"},
    "nothing": {"type": "string", "enum": None},
}
ODD_TOOLS: dict[str, dict[str, Any]] = {
    "hints": {"annotations": {"readOnlyHint": "yes", "title": 5}},
    "title": {"title": 5},
    "icons": {"icons": [{"url": "x"}]},
    "meta": {"_meta": "x"},
    "list_out": {"outputSchema": {"type": "array"}},
    "untyped_out": {"outputSchema": {"properties": {}}},
    "no_schema": {"inputSchema": None},
    "php": {"inputSchema": {"type": "object", "properties": []}},
    "nullable": {"inputSchema": {**ITEM, "type": ["object", "null"]}},
    "parts": {
        "inputSchema": {**ITEM, "properties": {**ITEM["properties"], **PROPERTIES}, "required": ["item", "gone"]}
    },
}
GREETINGS: dict[str, dict[str, Any]] = {
    "anonymous": {"serverInfo": None},
    "unversioned": {"serverInfo": {"name": "shop"}},
    "incapable": {"capabilities": None},
    "truly": {"capabilities": {"tools": True}},
    "unknown": {"protocolVersion": "1.0"},
    "whole": {},
}


async def test_a_hand_written_server_works_although_it_breaks_the_protocol_in_part() -> None:
    from aiohttp import web

    async def reply(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        message, kind = await request.json(), request.path.strip("/")
        if message.get("id") is None:
            return web.Response()
        listed = [{"name": name, "inputSchema": ITEM, **odd} for name, odd in ODD_TOOLS.items()]
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shop", "version": "1"},
                **GREETINGS[kind],
            },
            "tools/list": {"tools": listed},
            "tools/call": {"content": [{"type": "text", "text": "costs 4"}]},
        }
        if message["method"] not in results:
            error = {"code": -32601, "message": "Method not found"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        whole = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})
        return web.Response(text=whole, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reply)
    async with listening(app) as port:
        servers = [{"name": kind, "url": f"http://127.0.0.1:{port}/{kind}"} for kind in GREETINGS]
        async with ToolManager(mcp_servers=servers) as manager:
            assert {p.message for p in manager.problems if "parameters of parts" not in p.message} == set()
            for kind in GREETINGS:
                specs = {s.name.rpartition("-")[2]: s for s in manager.specs() if s.server_name == kind}
                assert len(specs) == len(ODD_TOOLS), kind
                answered = await manager.execute_tool_call(
                    kind, "hints" if kind == "whole" else "title", {"item": "tea"}
                )
                assert answered["result"] == "costs 4", kind
            parameters = specs["parts"].parameters
            assert parameters["properties"] == {
                "item": {"type": "string"},
                "draft_4": {"type": "number"},
                "required_true": {"type": "string"},
                "no_such_type": {},
                "dangling": {"description": "gone"},
                "nothing": {"type": "string"},
            }
            assert parameters["required"] == ["item"]
            assert not specs["hints"].policy.read_only


async def test_a_server_that_is_still_starting_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiohttp import web

    monkeypatch.setattr(mcp_client, "START_WAITS", (0.0, 0.0))
    for status, tried in ((503, 3), (404, 1)):
        seen: list[str] = []

        async def refuse(request: web.Request, status: int = status, seen: list[str] = seen) -> web.Response:
            if b"initialize" in await request.read():
                seen.append("asked")
            return web.Response(status=status)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", refuse)
        async with listening(app) as port:
            entry = {"name": "far", "url": f"http://127.0.0.1:{port}/mcp"}
            async with ToolManager(mcp_servers=[entry]) as manager:
                assert f"HTTP {status}" in manager.problems[0].message
        assert len(seen) == tried


# ------------------------------------------------------------------------------------------------ busy servers

BUSY = {"name": "busy", "command": sys.executable, "args": [str(SERVERS / "busy.py")]}


async def test_what_cannot_be_offered_is_left_out_and_reported() -> None:
    async with ToolManager(mcp_servers=[BUSY]) as manager:
        names = [spec.name for spec in manager.specs()]
        assert names == ["chart", "either", "endless", "grow", "silent", "slow"]
        messages = [problem.message for problem in manager.problems]
        assert len(messages) == 2
        assert "later runs only as a task" in messages[0]
        assert "2 tools named 'slow'; only the first" in messages[1]


async def test_a_server_with_very_many_tools_is_cut_and_the_bound_named() -> None:
    began = time.process_time()
    async with ToolManager(mcp_servers=[{**BUSY, "args": [*BUSY["args"], "100000"]}]) as manager:
        assert len(manager.specs()) == 998
        assert "more than 1,000 tools; only the first 1,000 are offered" in manager.problems[0].message
    assert time.process_time() - began < 10


async def test_a_changed_list_of_tools_is_on_offer_without_asking() -> None:
    async with ToolManager(mcp_servers=[BUSY]) as manager:
        before = manager.specs()
        assert manager.specs() is before
        await manager.execute_tool_call("busy", "grow", {})
        async with asyncio.timeout(60):
            while manager.specs() is before:  # noqa: ASYNC110  # the server's message is on its way
                await asyncio.sleep(0.02)
        assert {spec.name for spec in manager.specs()} == {*(spec.name for spec in before), "grown"}
        executor = ToolExecutor(manager)
        (outcome,) = await executor.execute_calls([ToolCall("grown", {})])
        assert (outcome.status, outcome.text) == ("ok", "grown")


async def test_progress_extends_a_deadline_and_is_passed_on(skip_time: Callable[[float], None]) -> None:
    seen: list[tuple[str, float, float | None, str]] = []

    def report(*progress: Any) -> None:
        seen.append(progress)
        skip_time(200)

    async with ToolManager(mcp_servers=[{**BUSY, "timeout": 300}]) as manager:
        specs = tuple(replace(spec, policy=replace(spec.policy, timeout=300)) for spec in manager.specs())
        manager.specs = lambda: specs  # type: ignore[method-assign]
        executor = ToolExecutor(manager, on_progress=report)
        (outcome,) = await executor.execute_calls([ToolCall("slow", {})], handles=lambda index: "r1")
        assert (outcome.status, outcome.text) == ("ok", "done")
        assert seen == [("r1", float(step), 5.0, f"step {step}") for step in range(1, 6)]


async def test_a_call_without_progress_ends_at_its_deadline() -> None:
    async with ToolManager(mcp_servers=[{**BUSY, "timeout": 0.2}]) as manager:
        (outcome,) = await ToolExecutor(manager).execute_calls([ToolCall("silent", {})])
    assert outcome.status == "error"
    assert "did not answer within 0.2 s" in outcome.text


async def test_progress_of_a_server_reaches_subscribers_and_the_terminal(tmp_path: Path) -> None:
    written, seen = io.StringIO(), []
    display = Display(Console(file=written, width=100))
    agent = Agent(ScriptedClient([call("slow"), answer("done")]), mcp_servers=[BUSY], home=tmp_path)
    with display:
        result = await agent.run("Wait.", listeners=[display, seen.append])
    assert result.answer == "done"
    pieces = [each for each in seen if isinstance(each, Progress) and each.kind == "tool_progress"]
    assert [(each.handle, each.done, each.total, each.text) for each in pieces] == [
        ("r1", float(step), 5.0, f"step {step}") for step in range(1, 6)
    ]
    assert "slow: step 1 (1 of 5)" in written.getvalue()


async def test_progress_without_end_is_bounded(skip_time: Callable[[float], None]) -> None:
    seen: list[float] = []

    def report(done: float, *rest: Any) -> None:
        seen.append(done)
        skip_time(290)

    async with ToolManager(mcp_servers=[{**BUSY, "timeout": 300}]) as manager:
        server = manager._servers[0]
        with pytest.raises(ToolError, match="or 3000 s in all"):
            await server.call("endless", {}, ToolPolicy(), report)
    assert 11 <= len(seen) < 59, "ten of 290 s are within the bound, the next is not, and the server has 59"


def test_text_that_says_more_than_the_structured_content_is_shown_with_it() -> None:
    def shown(structured: Any, *texts: str) -> Any:
        return McpResult(tuple({"type": "text", "text": each} for each in texts), structured).value

    assert shown({"price": 4}, '{\n "price": 4}') == {"price": 4}
    assert shown({"result": [1, 2]}, "1", "2") == [1, 2]
    assert shown({"result": "tea"}, "tea") == "tea"
    assert shown({"price": 4}) == {"price": 4}
    more = {"type": "text", "text": "4 today, 5 tomorrow"}
    assert shown({"price": 4}, more["text"]) == {"result": {"price": 4}, "content": [more]}


async def test_base64_in_structured_content_never_reaches_the_prompt() -> None:
    async with ToolManager(mcp_servers=[BUSY]) as manager:
        (outcome,) = await ToolExecutor(manager).execute_calls([ToolCall("chart", {})])
    assert "iVBOR" not in outcome.text
    assert len(outcome.text) < 1_000
    result = outcome.output.result["result"]
    assert result["image"] == "[10,244 bytes: not shown]"
    assert result["uri"] == "[image/png, 10,244 bytes: not shown]"
    assert result["dna"] == "ACGT" * 90
    assert len(outcome.images) == 1
    assert outcome.output.metadata["structured_content"]["title"] == "a chart"


# ------------------------------------------------------------------------------------------------ the seed's extension


async def test_the_bing_search_extension_works_over_a_server_that_sends_text() -> None:
    async with ToolManager(mcp_servers=[{**EVERYTHING, "name": "search"}]) as manager:
        executor = Bing(manager)

        async def search(text: str) -> CallOutcome:
            (outcome,) = await executor.execute_calls([ToolCall("bing_search", {"q": text})])
            return outcome

        nothing, again, found = await search("nothing here"), await search("nothing there"), await search("cats")
        assert (nothing.status, nothing.rollback) == ("low_quality", True)
        assert (again.status, again.rollback) == ("low_quality", True)  # each time, while rollbacks are left
        assert (found.status, found.rollback) == ("ok", False)
        assert isinstance(found.output.result, str)  # the server's text, as it came
        assert (await search("cats")).status == "duplicate"
