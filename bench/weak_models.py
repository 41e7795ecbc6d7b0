"""The same small model, questions and tools in Closeout and in four other frameworks.

    python bench/weak_models.py                        # everything (make bench-peers); after Ctrl-C it continues
    python bench/weak_models.py --only closeout --first 5
    python bench/weak_models.py --table                # the table of what has been measured so far

The weights of the embedded model are served by llama.cpp's own HTTP server with its chat template and its tool calls.
Each framework has a program in `bench/weak_models` and a virtual environment with the versions that the program names.
The tools are the same functions for all and run here, as do the counts of requests and tokens: the programs reach the
model through this process. Systems take turns question by question, so that an interrupted measurement compares the
same questions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web

from closeout.errors import ToolError
from closeout.evaluate.estimates import mean_estimate
from closeout.models.local.gguf import read_gguf
from closeout.tools.builtin import calculate, document_tools

HERE = Path(__file__).parent
PROGRAMS = HERE / "weak_models"
DATA = HERE / "data"
SET, DOCUMENTS = "two", "local_documents"
TITLES = {
    "closeout_embedded": "Closeout, in process",
    "closeout": "Closeout",
    "langgraph": "LangGraph",
    "openai_agents": "OpenAI Agents",
    "pydantic_ai": "Pydantic AI",
    "smolagents": "smolagents, tool calls",
    "smolagents_code": "smolagents, code",
}
OWN = ("closeout_embedded", "closeout")  # they run in this Python
MAX_REQUESTS = 10  # as in weak_models/bridge.py
CONTEXT = 8192
# The example of a call in Qwen2.5-Coder's chat template, whose braces are doubled by mistake. The model copies them,
# and the server then finds no call.
DOUBLED = r"{{\"name\": <function-name>, \"arguments\": <args-json-object>}}"
_CALL = re.compile(r"<tool_call>|<tools>|\"name\"\s*:|(?:search_documents|read_document|calculate)\s*[({]")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_EITHER = re.compile(r"[,:] (?:the )?([^,]+?) or (?:the )?([^,]+?)\?$")


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    answer: str


@dataclass(slots=True)
class Counts:
    """What one question cost."""

    requests: int = 0
    input: int = 0  # tokens, the cached ones among them
    cached: int = 0
    output: int = 0
    refused: int = 0  # requests that the server answered with an error
    tool_calls: int = 0
    tool_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one system answered one question. A line of the results."""

    model: str
    system: str
    version: str
    question: str
    answer: str | None
    verdict: str
    error: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------ judging


def words(text: str) -> list[str]:
    """The words and numbers of a text, without case, thousands commas and trailing zeros."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.casefold())
    return [repr(float(word)) if word[0].isdigit() else word for word in _WORD.findall(text)]


def place_of(wanted: str, text: str) -> int | None:
    """Where the words of an answer stand together in a text."""
    part, whole = words(wanted), words(text)
    return next((at for at in range(len(whole) - len(part) + 1) if whole[at : at + len(part)] == part), None)


def is_right(answer: str, question: Question) -> bool:
    """Whether the answer contains the right one; of two things to choose from, it must be named first.

    This is lenient: a sentence around the answer is no error, for none of the systems.
    """
    golds = question.answer.split(" | ")
    places = [place for gold in golds if (place := place_of(gold, answer)) is not None]
    choice = _EITHER.search(question.question)
    others = [place_of(each, answer) for each in choice.groups() if place_of(golds[0], each) is None] if choice else []
    return bool(places) and all(other is None or min(places) < other for other in others)


def verdict(question: Question, answer: str | None, counts: Counts, error: str) -> str:
    """`right`, or the kind of failure."""
    if answer and is_right(answer, question) and counts.requests <= MAX_REQUESTS:
        return "right"
    if error == "timeout":
        return "out of time"
    if counts.requests >= MAX_REQUESTS:
        return "out of requests"
    if error:
        return "exception"
    if not answer or not answer.strip():
        return "no answer"
    return "call as text" if _CALL.search(answer) else "wrong answer"


# ------------------------------------------------------------------------------------------------ the server between


class Between:
    """Forwards requests to the model and runs the tools, and counts both."""

    def __init__(self, upstream: str, log: Path | None) -> None:
        self.counts = Counts()
        self.address = ""
        self._upstream, self._log = upstream.rstrip("/").removesuffix("/v1"), log
        search, read = document_tools(DATA / DOCUMENTS, plain=True)
        self._tools = {"search_documents": search, "read_document": read, "calculate": calculate}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/tools/{name}", self._tool)
        app.router.add_route("*", "/{path:.*}", self._forward)
        # A program that is killed must not leave its request behind.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ClientSession(timeout=ClientTimeout(total=None)) as self._session:
            try:
                yield
            finally:
                await runner.cleanup()

    async def _tool(self, request: web.Request) -> web.Response:
        name, arguments = request.match_info["name"], await request.json()
        self.counts.tool_calls += 1
        try:
            result: Any = await asyncio.to_thread(self._tools[name].function, **arguments)
        except ToolError as error:
            self.counts.tool_errors += 1
            result = f"Error: {error}"
        if isinstance(result, Mapping):
            result = result.get("note") if "results" in result else result["text"]
        self._write({"tool": name, "arguments": arguments, "result": result})
        return web.json_response(str(result))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        data, counted = await request.read(), request.path.endswith("/completions")
        if counted:
            self.counts.requests += 1
            body = json.loads(data)
            if body.get("stream"):  # so that a reply that is cut short is counted too
                data = json.dumps({**body, "timings_per_token": True}).encode()
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with self._session.request(
            request.method, self._upstream + request.path_qs, data=data or None, headers=headers
        ) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await response.prepare(request)
            received = b""
            try:
                async for chunk in answer.content.iter_any():
                    received += chunk
                    await response.write(chunk)
            finally:
                if counted:
                    self._count(received, answer.status)
                    self._write({"request": json.loads(data), "status": answer.status, "reply": received.decode()})
            await response.write_eof()
            return response

    def _count(self, received: bytes, status: int) -> None:
        self.counts.refused += status >= 400
        for line in reversed(received.decode(errors="replace").splitlines()):
            with contextlib.suppress(ValueError):
                found = json.loads(line.removeprefix("data: "))
                if usage := found.get("usage"):
                    self.counts.input += usage["prompt_tokens"]
                    self.counts.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                    self.counts.output += usage["completion_tokens"]
                    return
                if timings := found.get("timings"):
                    self.counts.input += timings["prompt_n"] + timings["cache_n"]
                    self.counts.cached += timings["cache_n"]
                    self.counts.output += timings["predicted_n"]
                    return

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                print(json.dumps(record, ensure_ascii=False), file=file)


@contextlib.contextmanager
def model_server(weights: Path, threads: int) -> Iterator[str]:
    """llama.cpp's HTTP server with its chat templates, in this process."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx, params.n_parallel = CONTEXT, 1
    params.n_batch = params.n_ubatch = 128
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = 2048  # systems take turns, and each finds its instructions again
    params.use_jinja = True
    template = read_gguf(weights).template
    if DOUBLED in template:
        params.chat_template = template.replace(DOUBLED, DOUBLED[1:-1])
    params.verbosity, params.warmup, params.ui = -1, False, False
    params.hostnames, params.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(params)
    server.handle_completions(b'{"prompt": "a", "max_tokens": 1}', lambda _: False)
    yield server.listening_address
    del server


# ------------------------------------------------------------------------------------------------ the programs


class Program:
    """A framework's program as a process that answers one question after the other."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], errors: Any) -> None:
        self.version = ""
        self._command = command
        self._environment, self._errors = dict(environment), errors
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, question: str, limit: float) -> dict[str, Any]:
        """Ask a question. A program that takes too long, or ends, is started again for the next one."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(question)}\n".encode())
        try:
            line = await asyncio.wait_for(process.stdout.readline(), limit)
        except TimeoutError:
            await self.close()
            return {"answer": None, "error": "timeout"}
        if not line:
            await self.close()
            return {"answer": None, "error": "the program ended"}
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def start(self) -> None:
        """Start the program unless it runs, and wait until it is ready."""
        if self._process is not None:
            return
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            await self.close()
            raise SystemExit(f"{self._command[1]} does not start. The reason is in {self._errors.name}.")
        self.version = json.loads(line)["version"]

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def pins_of(system: str) -> list[str]:
    """What the virtual environment of a program has, from the program's head (PEP 723)."""
    text = (PROGRAMS / f"with_{system}.py").read_text("utf-8")
    header = re.search(r"^# /// script\n(.*?)^# ///$", text, re.MULTILINE | re.DOTALL)
    pinned = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE)) if header else {}
    return list(pinned.get("dependencies", ()))


def python_for(system: str, folder: Path) -> str:
    """The Python that has a framework. Its virtual environment is made when it is missing."""
    if not (pinned := pins_of(system)):
        return sys.executable
    venv = folder / re.sub(r"[^\w.=]+", "-", pinned[0])
    python = venv / "bin" / "python"
    done = venv / "done"  # what the finished environment has
    if not done.exists() or done.read_text("utf-8").split() != pinned:
        print(f"Installing {', '.join(pinned)} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *pinned], check=True)
        done.write_text("\n".join(pinned), "utf-8")
    return str(python)


# ------------------------------------------------------------------------------------------------ measuring


def questions(first: int | None) -> list[Question]:
    rows = json.loads((DATA / "local_questions.json").read_text("utf-8"))
    return [Question(row["question"], row["answer"]) for row in rows if row["set"] == SET][:first]


def read_results(file: Path, model: str) -> list[Outcome]:
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return [outcome for outcome in outcomes if outcome.model == model]


async def measure(options: argparse.Namespace, systems: list[str], upstream: str) -> None:
    done = {(outcome.system, outcome.question) for outcome in read_results(options.results, options.model)}
    todo = [(each, name) for each in questions(options.first) for name in systems if (name, each.question) not in done]
    between = Between(upstream, options.log)
    with options.results.with_suffix(".errors").open("ab") as errors:
        async with between.serving(), contextlib.AsyncExitStack() as stack:
            programs: dict[str, Program] = {}
            environment = {
                **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                "WEAK_MODELS_SERVER": between.address,
                "WEAK_MODELS_NAME": options.name,
            }
            own = {"WEAK_MODELS_WEIGHTS": options.model, "WEAK_MODELS_THREADS": str(options.threads)}
            own |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            started = time.monotonic()
            for question, system in todo:
                if options.minutes and time.monotonic() - started > 60 * options.minutes:
                    return
                if system not in programs:
                    python = await asyncio.to_thread(python_for, system, options.venvs)
                    command = [python, str(PROGRAMS / f"with_{system}.py")]
                    programs[system] = Program(command, environment | (own if system in OWN else {}), errors)
                    stack.push_async_callback(programs[system].close)
                outcome = await one(options.model, system, programs[system], question, between, options.seconds)
                with options.results.open("a", encoding="utf-8") as file:
                    print(json.dumps(asdict(outcome), ensure_ascii=False), file=file)
                said = (outcome.answer or outcome.error).replace("\n", " ")[:100]
                took = f"{outcome.verdict:15} {system:18} {outcome.seconds:4.0f} s"
                print(f"{took}  {question.question}  {said}", flush=True)


async def one(model: str, system: str, program: Program, question: Question, between: Between, limit: float) -> Outcome:
    """Ask one system one question."""
    await program.start()
    between.counts = counts = Counts()
    began = time.monotonic()
    reply = await program.ask(question.question, limit)
    seconds = time.monotonic() - began
    for name, value in (reply.get("usage") or {}).items():
        setattr(counts, name, value)  # requests that do not pass through here
    answer, error = reply["answer"], reply.get("error", "")
    return Outcome(
        model=model,
        system=system,
        version=program.version,
        question=question.question,
        answer=answer,
        verdict=verdict(question, answer, counts, error),
        error=error,
        seconds=round(seconds, 1),
        counts=asdict(counts),
    )


def table(outcomes: list[Outcome]) -> str:
    """The table in Markdown, a row for each system."""
    lines = [
        "| | version | right | 95 % interval | requests | tokens in (cached) | out | seconds | failures |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for system, title in TITLES.items():
        rows = [outcome for outcome in outcomes if outcome.system == system]
        if not rows:
            continue
        number, right = len(rows), sum(row.verdict == "right" for row in rows)
        estimate = mean_estimate([[float(row.verdict == "right")] for row in rows])
        mean = {name: sum(row.counts[name] for row in rows) / number for name in rows[0].counts}
        failures = Counter(row.verdict for row in rows if row.verdict != "right")
        cells = [
            title,
            rows[-1].version,
            f"{right} of {number}",
            f"{100 * estimate.low:.0f} to {100 * estimate.high:.0f} %",
            f"{mean['requests']:.1f}",
            f"{mean['input']:,.0f} ({mean['cached']:,.0f})",
            f"{mean['output']:,.0f}",
            f"{sum(row.seconds for row in rows) / number:.0f}",
            ", ".join(f"{count} {kind}" for kind, count in failures.most_common()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TITLES), help="these systems")
    parser.add_argument("--first", type=int, help="only that many questions")
    parser.add_argument("--model", default="local", help="local, local:small, or a .gguf file")
    parser.add_argument("--base-url", help="a server that runs already, instead of the weights; leaves out in process")
    parser.add_argument("--name", help="the model's name on the server; by default that of the file of its weights")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the model")
    parser.add_argument("--seconds", type=float, default=180, help="limit for a question")
    parser.add_argument("--minutes", type=float, help="begin no question after that time")
    parser.add_argument("--results", type=Path, default=Path("weak_models.jsonl"), help="where results are kept")
    parser.add_argument("--log", type=Path, help="write every request and tool call to this file")
    parser.add_argument("--venvs", type=Path, default=Path(".cache/weak_models"), help="folder of the environments")
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    options = parser.parse_args()
    systems = options.only or list(TITLES)
    with contextlib.suppress(KeyboardInterrupt):
        if options.table:
            pass
        elif options.base_url:
            options.model, options.name = options.base_url, options.name or "local"
            systems = [system for system in systems if system != "closeout_embedded"]
            asyncio.run(measure(options, systems, options.base_url))
        else:
            from closeout.models.local.weights import find_weights, pull_weights

            weights = find_weights(options.model) or pull_weights(options.model)
            options.name = options.name or weights.stem
            with model_server(weights, options.threads) as address:
                asyncio.run(measure(options, systems, address))
    print(table(read_results(options.results, options.model)))


if __name__ == "__main__":
    main()
