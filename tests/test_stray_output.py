"""What tools print, and what they start, never reaches stdout: that has the answer, the JSON or the protocol alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_process import COMMAND, closeout, environment, here
from closeout.testing import RequestView, Turn, answer, call, serve_script

NOISE = ["of the import", "of print", "of a child", "of C", "of a stream that was kept"]
AGENT = """
import ctypes, os, subprocess, sys
from closeout import Agent, tool

print("noise of the import")
kept = sys.__stdout__

@tool
def look(where: str) -> str:
    "Look."
    print("noise of print")
    subprocess.run([sys.executable, "-S", "-c", "print('noise of a child')"], check=True)
    if os.name == "posix":
        ctypes.CDLL(None).puts(b"noise of C")
    print("noise of a stream that was kept", file=kept)
    return "七"

agent = Agent("openai:x", [look], base_url=os.environ["MODEL_URL"], api_key="k")
"""


def turns(view: RequestView) -> Turn:
    return answer("7") if "七" in view.text else call("look", where="here")


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of commands that run an agent whose tool prints."""
    (tmp_path / "noisy.py").write_text(AGENT, "utf-8")
    with serve_script(turns, by="question") as model:
        path = os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])))
        yield {"MODEL_URL": model.base_url, "PYTHONPATH": path}


def test_stdout_has_the_object_and_stderr_what_tools_print(noisy: dict[str, str]) -> None:
    done = closeout("run", "Q", "-a", "noisy:agent", "--json", env=noisy)
    assert done.json["answer"] == "7"
    assert [each for each in NOISE if f"noise {each}" not in done.err] == ([] if os.name == "posix" else ["of C"])


def test_an_mcp_client_reads_only_messages(noisy: dict[str, str]) -> None:
    def send(method: str, number: int | None = None, **parameters: Any) -> None:
        sent = {"jsonrpc": "2.0", "method": method, "params": parameters} | ({} if number is None else {"id": number})
        to_server.write(json.dumps(sent).encode() + b"\n")
        to_server.flush()

    def answer_to(number: int) -> Any:
        for line in from_server:
            if (message := json.loads(line)).get("id") == number:
                return message["result"]
        raise AssertionError("the server has ended")

    pipe = subprocess.PIPE
    command = [*COMMAND, "serve", "noisy:agent", "--mcp", "--name", "clerk"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment(noisy)) as serving:
        to_server, from_server, errors = serving.stdin, serving.stdout, serving.stderr
        assert to_server is not None
        assert from_server is not None
        assert errors is not None
        about = {"name": "test", "version": "1"}
        send("initialize", 1, protocolVersion="2025-06-18", capabilities={}, clientInfo=about)
        answer_to(1)
        send("notifications/initialized")
        send("tools/call", 2, name="clerk", arguments={"task": "Q"})
        assert json.loads(answer_to(2)["content"][0]["text"])["answer"] == "7"
        to_server.close()
        rest, noise = from_server.read(), errors.read()
    assert rest == b""
    assert noise.count(b"noise ") == len(NOISE) - (os.name != "posix")


def test_the_streams_are_as_before_after_a_command(
    noisy: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_URL", noisy["MODEL_URL"])
    monkeypatch.syspath_prepend(tmp_path)
    before, file = sys.stdout, os.fstat(1).st_ino
    done = here("run", "Q", "-a", "noisy:agent", "--quiet")
    assert (done.out, done.code) == ("7\n", 0)
    assert (sys.stdout, os.fstat(1).st_ino) == (before, file)
    monkeypatch.delitem(sys.modules, "noisy")
