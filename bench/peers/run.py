"""Run the ten programs of a framework against a scripted model, and count their lines.

    python bench/peers/run.py closeout
    python bench/peers/run.py pydantic_ai --python path/to/venv/bin/python

Each program runs in a folder of its own, with OPENAI_BASE_URL set to a server on this machine. Blank lines and comments
do not count. All programs are formatted with the same width.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from closeout.testing import ScriptedServer, Turn, call, say, serve_script
from closeout.testing.script import RequestView, ScriptItem

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENDS = ("final_answer", "final_result")  # tools by which smolagents and Pydantic AI take an answer
CITY = {"name": "Zurich", "inhabitants": 443000}

# Closeout knows the price of gpt-5 on OpenAI's own host only.
PRICES = {"CLOSEOUT_LLM__PRICES": "{gpt-5: [1.25, 10, 0.125]}"}

# What must be in the output of each program.
EXPECTED = {
    "01_tools": "80",
    "02_structured_output": "Zurich 443000",
    "03_chat": "You are Anna",
    "04_many_tasks": "200 144",
    "05_mcp": "40",
    "06_sub_agents": "40",
    "07_streaming": "[price]",
    "08_tracing": '"trace_id"',
    "09_test": "1 passed",
    "10_cost_cap": "max_cost",
}


def model(request: RequestView) -> ScriptItem:
    """The model's reply, from what the conversation holds: the same for every framework."""
    texts = [(message["role"], _text(message)) for message in request.messages]
    users = [index for index, (role, text) in enumerate(texts) if role == "user" and "Observation:" not in text]
    start = users[-1] if users else 0
    question, results = texts[start][1], [text for role, text in texts[start + 1 :] if role in ("tool", "user")]
    turn = _turn(question, results, texts, request)
    ending = next((name for name in request.tools if name in ENDS), None)
    if ending is None or turn.calls:
        return turn
    return Turn(calls=[call(ending, **(CITY if ending == "final_result" else {"answer": turn.text}))])


def _turn(question: str, results: list[str], texts: list[tuple[str, str]], request: RequestView) -> Turn:
    if "squared" in question:
        number = int(question.partition("What is ")[2].split()[0])
        return say(str(number * number))
    if "Switzerland" in question:
        return say(json.dumps(CITY))
    if "My name" in question:
        return say("Hello, Anna.")
    if "Who am I" in question:
        known = any("My name is Anna" in text for _, text in texts)
        return say("You are Anna." if known else "I do not know.")
    if "catalogue" in question:
        return Turn(calls=[call("read_page", number=len(results) + 1)])
    if results:
        return say(f"It costs {results[-1].rpartition('Observation:')[2].strip()}.")
    if "clerk" in question and "clerk" in request.tools:
        return Turn(calls=[call("clerk", **{_first_parameter(request, "clerk"): "What does a lamp cost?"})])
    size = {"size": "large"} if "large" in question else {}
    return Turn(calls=[call("price", item="lamp", **size)])


def _first_parameter(request: RequestView, name: str) -> str:
    tool = next(each["function"] for each in request.body["tools"] if each["function"]["name"] == name)
    return next(iter(tool["parameters"]["properties"]))


def _text(message: object) -> str:
    content = message.get("content") or ""  # type: ignore[attr-defined]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return text.rpartition("New task:")[2]  # smolagents joins it to the observation before


def lines_of(program: Path) -> int:
    """The lines that are neither blank nor a comment."""
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") for line in program.read_text("utf-8").splitlines()
    )


def run(program: Path, python: str) -> str:
    """Run a program as its user would. Return what is wrong, or nothing."""
    with tempfile.TemporaryDirectory() as name, serve_script(model) as server:
        folder = Path(name)
        shutil.copy(HERE / "shop_server.py", folder)
        shutil.copy(program, folder / ("test_shop.py" if program.stem == "09_test" else program.name))
        path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "key", "PATH": path}
        environment |= {"CLOSEOUT_HOME": str(folder / "home"), **PRICES}
        command = [python, str(HERE / "start.py"), program.name]
        if program.stem == "09_test":
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
        output = ""
        for given in _runs(program.stem):
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=-1, stdout=-1, stderr=-1, text=True, start_new_session=True
            )
            if given is None:
                _kill_when_half_done(process, server)
                process.communicate()
                continue
            output, errors = process.communicate(given, timeout=120)
            if process.returncode:
                return f"exit code {process.returncode}: {errors.strip()[-500:]}"
        if EXPECTED[program.stem] not in output:
            return f"not in the output: {EXPECTED[program.stem]!r}. Output: {output[-500:]!r}"
        if program.stem == "04_many_tasks" and len(server.requests) > 240:
            return f"{len(server.requests)} requests for 200 tasks"
    return ""


def _runs(name: str) -> list[str | None]:
    """What is typed in each run of the program; None: the run is killed."""
    if name == "03_chat":
        return ["My name is Anna.\n\n", "Who am I?\n\n"]
    return [None, ""] if name == "04_many_tasks" else [""]


def _kill_when_half_done(process: subprocess.Popen[str], server: ScriptedServer) -> None:
    while len(server.requests) < 100 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=sorted(path.name for path in HERE.iterdir() if path.is_dir()))
    parser.add_argument("--python", default=sys.executable, help="the Python that has the framework")
    parser.add_argument("--only", default="", help="the programs whose names contain this")
    options = parser.parse_args()
    failed = 0
    for program in sorted((HERE / options.framework).glob("[01]*.py")):
        if options.only in program.name:
            problem = run(program, options.python)
            failed += bool(problem)
            print(
                f"{program.stem:22}{lines_of(program):4} lines  {'FAILED ' + problem if problem else 'works'}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
