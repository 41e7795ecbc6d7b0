"""Hostile MCP servers, all at once beside honest ones: what each does at which moment, and what a user is told."""

# ruff: noqa: E501  the table has one server a line

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted_mcp import serve_http

from closeout import ToolError, ToolManager, tool

SCRIPT = Path(__file__).parent / "scripted_mcp.py"
SHORT = 3.0  # seconds that a server which does not answer may take
MOST = 120.0  # seconds for all others, on a busy machine
LONGEST = 2_200  # characters of a sentence
BIG = 300  # megabytes

J = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream"}
INIT = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
TOOL = {"name": "act", "inputSchema": {"type": "object"}}
LONG = "\x1b[31mred\x07 " + "word " * 200_000
FORM = {"message": "Your password?", "requestedSchema": {"type": "object", "properties": {"p": {"type": "string"}}}}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "Say hi."}}], "maxTokens": 9}
DEEP = "[" * 100_000
NESTED = json.loads("[" * 900 + "]" * 900)


@dataclass(frozen=True)
class Hostile:
    """A server, its script, and what a user is told: `says` at the start or, with `at_call`, of the call.

    `says` is empty where the server does no harm: its tool then works.
    """

    name: str
    script: dict[str, Any]
    says: str = ""
    at_call: bool = False
    transport: str = "stdio"
    is_slow: bool = False  # not for the tests


def stdio(name: str, says: str = "", *, at_call: bool = False, is_slow: bool = False, **script: Any) -> Hostile:
    return Hostile(name, _named(script), says, at_call, is_slow=is_slow)


def http(
    name: str, says: str = "", *, at_call: bool = False, transport: str = "http", is_slow: bool = False, **script: Any
) -> Hostile:
    return Hostile(name, _named(script), says, at_call, transport, is_slow)


def packed(megabytes: int) -> bytes:
    """Compress so many megabytes of spaces: one compressed megabyte, repeated."""
    one = b" " * 1_000_000
    compressor = zlib.compressobj(wbits=-15)
    block = compressor.compress(one) + compressor.flush(zlib.Z_FULL_FLUSH)
    check = 0
    for _ in range(megabytes):
        check = zlib.crc32(one, check)
    end = check.to_bytes(4, "little") + (megabytes * len(one)).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + block * megabytes + compressor.flush() + end


def _named(script: dict[str, Any]) -> dict[str, Any]:
    names = {"lists": "tools/list", "calls": "tools/call", "discovers": "server/discover", "gets": "GET"}
    return {names.get(key, key): steps for key, steps in script.items()}


NOT_READY = r"was not ready within 3 s"
ENDED = r"could not be started: it ended before it was ready"
NO_ANSWER = r"did not answer within 3 s"
ENDED_IN_CALL = r"ended during the call of act"
BROKEN = r"breaks the protocol: tools|could not be started: its answer breaks the protocol"
ODD = r".*It sends what is not a message of the protocol"
UNSURE = r".*may or may not have taken effect"
UNREAD = r"gave a result that cannot be used: its answer breaks the protocol" + UNSURE
UNUSABLE = r"gave a result that cannot be used|its result breaks a rule"

KINDS = (
    # ---------------------------------------------------------------------------- a process: start and handshake
    stdio("exits", ENDED, start=[["die", 0]]),
    stdio("exits_with_words", ENDED + r".*Its last words: no licence", start=[["say", "no licence\n"], ["die", 3]]),
    stdio("is_killed", ENDED, start=[["die", -9]]),
    stdio("says_nothing", NOT_READY, discovers=[["hang"]], initialize=[["hang"]]),
    stdio("closes_its_output", r"could not be started", start=[["close"], ["hang"]]),
    stdio("logs_to_its_output", start=[["write", "Starting the server ...\n"]]),
    stdio("writes_no_text", start=[["write", "\xff\xfe\x00\n"]]),
    stdio("floods_its_errors", start=[["say", "x" * 1_000_000 + "\n"]]),
    stdio("writes_one_endless_line", NOT_READY, start=[["write", "x" * 1_000_000, 8], ["hang"]], initialize=[["hang"]]),
    stdio("answers_another_id", NOT_READY, initialize=[["id", 999]]),
    stdio("answers_twice", initialize=[["twice"]], lists=[["twice"]], calls=[["twice"]]),
    stdio("old_version", initialize=[["result", {**INIT, "protocolVersion": "1999-01-01"}]]),
    stdio("empty_handshake", initialize=[["result", {}]]),
    stdio("handshake_is_a_list", NOT_READY, initialize=[["result", []]]),
    stdio("refuses_with_a_long_text", r"could not be started", initialize=[["error", {"code": -1, "message": LONG}]]),
    stdio("error_is_a_text", NOT_READY, initialize=[["error", "no"]]),
    stdio("discovery_lies", r"", discovers=[["result", {"supportedVersions": "all"}]]),
    stdio("dies_in_the_handshake", ENDED, initialize=[["write", '{"jsonrpc": "2.0", "id"'], ["die", 1]]),
    stdio("dies_after_the_handshake", ENDED, ready=[["die", 1]], lists=[["die", 1]]),
    stdio("asks_in_the_handshake", initialize=[["ask", "sampling/createMessage", SAMPLE]]),
    stdio("does_not_end", NOT_READY, start=[["stubborn"]], is_slow=True),
    # ---------------------------------------------------------------------------- a process: the list of tools
    stdio("never_lists", NOT_READY, lists=[["hang"]]),
    stdio("dies_listing", ENDED, lists=[["die", 1]]),
    stdio("list_error", r"could not be started: .*busy", lists=[["error", {"code": -32000, "message": "busy"}]]),
    stdio("list_is_a_text", BROKEN, lists=[["result", {"tools": "none"}]]),
    stdio("list_never_ends", r"has more than 1,000 tools.* has \d+ tools named 'act'; only the first", lists=[["result", {"tools": [TOOL], "nextCursor": "1"}]]),
    stdio("empty_pages_never_end", r"has more than 1,000 tools", lists=[["result", {"tools": [], "nextCursor": "1"}]]),
    stdio("deep_list", NOT_READY, lists=[["write", '{"jsonrpc": "2.0", "id": 3, "result": ' + DEEP + "\n"]]),
    stdio("strange_names", r"", lists=[["result", {"tools": [TOOL, {**TOOL, "name": "a\nb\x1b[2J" * 3_000}]}]]),
    stdio("wrong_schema", BROKEN, lists=[["result", {"tools": [{**TOOL, "inputSchema": {"type": 5}}]}]]),
    stdio("no_schema", lists=[["result", {"tools": [{"name": "act"}]}]]),
    stdio("floods_changes", ready=[["note", "notifications/tools/list_changed", {}, 100]]),
    stdio("floods_unknown_notes", ready=[["note", "notifications/evil", {"x": "y" * 1_000}, 200]]),
    stdio("dies_when_idle", ENDED_IN_CALL + "|ended twice", at_call=True, ready=[["hang"]], calls=[["die", 0]]),
    # ---------------------------------------------------------------------------- a process: calls
    stdio("dies_in_a_call", ENDED_IN_CALL + r".*Its last words: disk full", at_call=True, calls=[["say", "disk full\n"], ["die", 1]]),
    stdio("dies_in_its_answer", ENDED_IN_CALL, at_call=True, calls=[["write", '{"jsonrpc": "2.0", "id": '], ["die", 1]]),
    stdio("never_answers", NO_ANSWER, at_call=True, calls=[["hang"]]),
    stdio("answers_another_call", NO_ANSWER, at_call=True, calls=[["id", "x"]]),
    stdio("breaks_off_a_line", NO_ANSWER, at_call=True, calls=[["write", '{"jsonrpc": "2.0", "id": ']]),
    stdio("writes_words_instead", NO_ANSWER + ODD, at_call=True, calls=[["write", "Working ...\n"], ["hang"]]),
    stdio("result_is_a_text", UNREAD, at_call=True, calls=[["result", "done"]]),
    stdio("result_is_nothing", UNREAD, at_call=True, calls=[["result", None]]),
    stdio("error_of_a_call_is_a_text", UNREAD, at_call=True, calls=[["error", "no"]]),
    stdio("nested_result", UNREAD, at_call=True, calls=[["result", {"content": [], "a": NESTED}]]),
    stdio("batch_of_results", UNREAD, at_call=True, calls=[["batch", {"content": []}]]),
    stdio("asks_with_the_id_of_the_call", at_call=True, calls=[["request", 5]]),
    stdio("content_is_unknown", UNUSABLE, at_call=True, calls=[["result", {"content": [{"type": "weird"}]}]]),
    stdio("result_breaks_its_schema", UNUSABLE, at_call=True,
          lists=[["result", {"tools": [{**TOOL, "outputSchema": {"type": "object", "required": ["a"]}}]}]],
          calls=[["result", {"content": [], "structuredContent": {"b": 1}}]]),
    stdio("fails_with_nothing", r"failed and said nothing", at_call=True, calls=[["result", {"content": [], "isError": True}]]),
    stdio("fails_with_a_long_text", r"red", at_call=True, calls=[["error", {"code": -1, "message": LONG}]]),
    stdio("not_a_number", at_call=True, calls=[["write", '{"jsonrpc": "2.0", "id": 1e999, "result": NaN}\n'], ["twice"]]),
    stdio("half_a_character", UNREAD, at_call=True, calls=[["result", {"content": [{"type": "text", "text": "acted \ud800"}]}]]),
    stdio("asks_a_person", r"", at_call=True, calls=[["ask", "elicitation/create", FORM]]),
    stdio("asks_the_model", r"", at_call=True, calls=[["ask", "sampling/createMessage", SAMPLE]]),
    stdio("asks_for_folders", r"", at_call=True, calls=[["ask", "roots/list", {}]]),
    stdio("asks_for_the_unknown", r"", at_call=True, calls=[["ask", "evil/run", {"command": "rm"}]]),
    stdio("floods_logs", at_call=True, calls=[["note", "notifications/message", {"level": "error", "data": "x"}, 200]]),
    stdio("floods_progress", at_call=True, calls=[["token", 200]]),
    stdio("forgets_its_tool", r"no such tool", at_call=True, calls=[["error", {"code": -32602, "message": "no such tool"}]]),
    stdio("large_result", at_call=True, is_slow=True, calls=[["result", {"content": [{"type": "text", "text": "acted" * 4_000_000}]}]]),
    # ---------------------------------------------------------------------------- HTTP: start and handshake
    http("refuses_connections", r"could not be reached", transport="closed"),
    http("hangs_up", r"could not be reached", start=[["close"]]),
    http("is_silent", NOT_READY, start=[["hang"]]),
    http("speaks_no_http", r"could not be reached", start=[["write", "SSH-2.0-OpenSSH_9.2\r\n"], ["close"]]),
    http("status_500", r"could not be reached: it answered HTTP 500", start=[["http", [500, {"Content-Type": "text/html"}, "<h1>no</h1>"]]]),
    http("status_404", r"could not be reached: it answered HTTP 404", start=[["http", [404, {}, ""]]]),
    http("status_403", r"it answered HTTP 403; give its key", start=[["http", [403, {}, ""]]]),
    http("redirects_to_itself", r"could not be reached", start=[["http", [307, {"Location": "/redirects_to_itself/mcp"}, ""]]]),
    http("redirects_to_a_file", r"could not be reached", start=[["http", [302, {"Location": "file:///etc/passwd"}, ""]]]),
    http("is_a_web_page", r"could not be reached: Unexpected content type: text/html", start=[["http", [200, {"Content-Type": "text/html"}, "<h1>Hi</h1>"]]]),
    http("writes_no_json", r"could not be reached", start=[["http", [200, J, "{nope"]]]),
    http("breaks_off_its_body", r"could not be reached", start=[["http", [200, {**J, "Content-Length": "500"}, "{"]], ["close"]]),
    http("accepts_and_says_nothing", NOT_READY + "|answered a request with 202", start=[["http", [202, {}, ""]]]),
    http("never_sends_an_event", NOT_READY, start=[["write", "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n\r\n"], ["hang"]]),
    http("drips_its_header", NOT_READY, start=[["drip", "H"]]),
    http("large_header", r"could not be reached", start=[["http", [200, {"X": "y" * 1_000_000}, ""]]]),
    http("events_that_are_no_json", r"could not be reached: Failed to parse SSE message", start=[["http", [200, SSE, "data: {nope\n\n"]], ["close"]]),
    http("hostile_session_id", initialize=[["http", [200, {**J, "Mcp-Session-Id": "a" * 5_000}, json.dumps({"jsonrpc": "2.0", "id": 2, "result": INIT})]]]),
    http("packed_body", r"could not be reached|" + NOT_READY, is_slow=True,
         start=[["http", [200, {**J, "Content-Encoding": "gzip"}, packed(BIG)]]]),
    # ---------------------------------------------------------------------------- HTTP: calls
    http("hangs_up_in_a_call", ENDED_IN_CALL, at_call=True, calls=[["close"]]),
    http("never_answers_over_http", NO_ANSWER, at_call=True, calls=[["hang"]]),
    http("accepts_a_call_only", r"answered a request with 202", at_call=True, calls=[["http", [202, {}, ""]]]),
    http("result_is_a_number", r"Failed to parse JSON" + UNSURE, at_call=True, calls=[["result", 5]]),
    http("empty_answer", r"Failed to parse JSON" + UNSURE, at_call=True, calls=[["http", [200, J, ""]]]),
    http("ends_the_stream", r"SSE stream ended without a response" + UNSURE, at_call=True, calls=[["http", [200, SSE, ""]], ["close"]]),
    http("call_gets_a_page", r"Unexpected content type" + UNSURE, at_call=True, calls=[["http", [200, {"Content-Type": "text/html"}, "Hi"]]]),
    http("status_429", r"'status_429' answered HTTP 429", at_call=True, calls=[["http", [429, {"Retry-After": "3600"}, "slow down"]]]),
    http("status_500_in_a_call", r"'status_500_in_a_call' answered HTTP 500" + UNSURE, at_call=True, calls=[["http", [500, {}, "<h1>no</h1>"]]]),
    http("forgets_each_session", r"forgot", at_call=True,
         initialize=[["http", [200, {**J, "Mcp-Session-Id": "s"}, json.dumps({"jsonrpc": "2.0", "id": 2, "result": INIT})]]],
         calls=[["http", [404, {}, ""]]]),
    http("another_id_over_http", NO_ANSWER + "|" + UNUSABLE, at_call=True, calls=[["id", 77]]),
    # ---------------------------------------------------------------------------- the older transport
    http("sse_without_an_endpoint", NOT_READY, transport="sse", gets=[["write", "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n\r\n"], ["hang"]]),
    http("sse_to_another_host", r"could not be reached|" + NOT_READY, transport="sse",
         gets=[["http", [200, {**SSE, "Content-Length": "2000"}, "event: endpoint\ndata: http://evil.example.org/x\n\n"]], ["hang"]]),
    http("sse_is_a_page", r"could not be reached", transport="sse", gets=[["http", [200, {"Content-Type": "text/html"}, "Hi"]]]),
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """What a user was told of a server, and what is wrong with that."""

    name: str
    told: str
    fault: str


def _fault(kind: Hostile, told: str) -> str:
    if not kind.says:
        return "" if told.startswith("acted") else "does not work"
    if not re.search(kind.says, told, re.DOTALL):
        return "is not named"
    if len(told) > LONGEST:
        return f"is told in {len(told):,} characters"
    if any(unicodedata.category(each) == "Cc" and each != "\n" for each in told) or "Traceback" in told:
        return "is not told in a sentence"
    return ""


async def visit(kinds: Sequence[Hostile], folder: Path) -> tuple[list[Judged], float]:
    """Use hostile servers beside honest ones and a local tool.

    Args:
        kinds: The servers.
        folder: Where their scripts are written.

    Returns:
        What was told, and the seconds it took.
    """

    @tool
    def own() -> str:
        """Be there."""
        return "here"

    names = {kind.name for kind in kinds}
    assert len(names) == len(kinds)
    address, end = await serve_http({**{kind.name: kind.script for kind in kinds}, "honest_http": {}})
    entries: list[dict[str, Any]] = [
        {"name": kind.name, "required": False, **_entry(kind, address, folder)}
        for kind in (*kinds, Hostile("honest", {}), Hostile("honest_http", {}, transport="http"))
    ]
    began = time.monotonic()
    async with asyncio.timeout(2 * MOST), ToolManager([own], entries) as manager:
        problems: dict[str, str] = {}
        for problem in manager.problems:
            problems[problem.server_name] = f"{problems.get(problem.server_name, '')} {problem.message}".strip()

        async def act(name: str) -> str:
            spec = next((each for each in manager.specs() if each.server_name == name), None)
            if spec is None:
                return "has no tool"
            try:
                return str(await manager.call(spec, {}))
            except ToolError as error:
                return str(error)

        async def judged(kind: Hostile) -> Judged:
            at_start = kind.says and not kind.at_call
            told = problems.get(kind.name, "") if at_start else await act(kind.name)
            return Judged(kind.name, told, _fault(kind, told))

        found = list(await asyncio.gather(*map(judged, kinds)))
        others = [await act("honest"), await act("honest_http"), await manager.call(own.spec, {})]
        if others != ["acted", "acted", "here"]:
            found.append(Judged("the others", str(others), "are harmed"))
    await end()
    return found, time.monotonic() - began


def _entry(kind: Hostile, address: str, folder: Path) -> dict[str, Any]:
    limits = {
        "start_timeout": SHORT if NOT_READY in kind.says else MOST,
        "timeout": SHORT if NO_ANSWER in kind.says else MOST,
    }
    if kind.transport == "stdio":
        file = folder / f"{kind.name}.json"
        file.write_text(json.dumps(kind.script))
        return {"command": sys.executable, "args": ["-S", "-E", str(SCRIPT), str(file)], **limits}
    if kind.transport == "closed":
        return {"url": "http://127.0.0.1:1/mcp", **limits}
    path = "sse" if kind.transport == "sse" else "mcp"
    return {"url": f"{address}/{kind.name}/{path}", **limits}
