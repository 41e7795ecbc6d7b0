"""The commands that lead runs: run, resume, replay."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.config import Config, load_config
from closeout.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.cli.display import Display
    from closeout.journal.journal import Listener
    from closeout.orchestrator.result import RunResult

__all__ = ["RunOptions", "make_agent", "replay_command", "resume_command", "run_command", "split_settings"]

EXIT_CODES = {"answered": 0, "unanswered": 1, "failed": 3, "cancelled": 130}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `closeout run` was given. Kept with the run, so that `closeout resume` makes the same agent."""

    model: str | None = None
    base_url: str | None = None
    docs: str | None = None
    mcp: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    dialect: str | None = None
    config: tuple[str, ...] = ()


def run_command(question: str, options: RunOptions, *, as_json: bool, quiet: bool) -> int:
    """Answer a question; returns the exit code."""
    if question == "-":
        question = sys.stdin.read()
    if not question.strip():
        raise UsageError('The question is empty. Try: closeout run "How far is the Moon?"')
    from closeout.journal.journal import new_run_id

    run_id = new_run_id()

    async def start(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        return await agent.run(
            question, files=options.files, run_id=run_id, origin=_as_origin(options), listeners=listeners
        )

    return _lead(options, start, run_id, as_json=as_json, quiet=quiet)


def resume_command(run_id: str, *, force: bool, as_json: bool, quiet: bool) -> int:
    """Lead a run on; returns the exit code."""

    async def go_on(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        return await agent.resume(run_id, despite_changes=force, listeners=listeners)

    return _lead(_options_of(run_id), go_on, run_id, as_json=as_json, quiet=quiet)


def replay_command(run_id: str, *, as_json: bool) -> int:
    """Run a record again; 0 if it comes out as it was, 1 if it departs."""
    from closeout.orchestrator.run import replay

    agent = make_agent(_options_of(run_id))
    store = agent.store()
    assert store is not None
    result, departure = asyncio.run(replay(agent.plan(), run_id, list(store.rows(run_id))))
    if as_json:
        print(json.dumps({**result.to_dict(), "departure": departure}, ensure_ascii=False))
        return 1 if departure else 0
    print(result.answer if result.answer is not None else "")
    message = f"It departs from its record at {departure}." if departure else "It follows its record to the end."
    print(message, file=sys.stderr)
    return 1 if departure else 0


def make_agent(options: RunOptions) -> Agent:
    """The agent that the options describe. Raises ConfigError."""
    from closeout.agent import Agent
    from closeout.tools.builtin import calculate, document_tools

    config = split_settings(options.config)
    tools: list[Any] = [calculate]
    if options.docs is not None:
        if not Path(options.docs).is_dir():
            raise ConfigError(f"--docs {options.docs}: there is no such folder.")
        tools += document_tools(options.docs)
    model = options.model or _model_in(config)
    return Agent(model, tools, options.mcp, options.dialect, base_url=options.base_url, config=config, stream=True)


def _model_in(config: Config) -> str:
    provider, name = config.llm.provider, config.llm.model_name
    if provider == "local" or (provider is None and name is None):
        return f"local:{name}" if name else "local"
    return f"{provider or 'openai'}:{name or ''}"


def split_settings(settings: Sequence[str]) -> Config:
    """The settings of `-c`: at most one YAML file, and any number of key=value."""
    files = [s for s in settings if "=" not in s]
    if len(files) > 1:
        raise ConfigError(f"Give one configuration file, not {len(files)}: {', '.join(files)}.")
    return load_config(files[0] if files else None, [s for s in settings if "=" in s])


# ------------------------------------------------------------------------------------------------ leading


def _lead(
    options: RunOptions,
    start: Callable[[Agent, Sequence[Listener]], Awaitable[RunResult]],
    run_id: str,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    agent = make_agent(options)
    display: Display | None = None
    if not quiet:
        from closeout.cli.display import Display

        display = Display()
    try:
        with display or nullcontext():
            result = asyncio.run(_started(agent, start, display))
    except KeyboardInterrupt:
        print(f"\nStopped. See it: closeout runs {run_id}   Go on: closeout resume {run_id}", file=sys.stderr)
        return EXIT_CODES["cancelled"]
    _report(result, display, as_json=as_json)
    return EXIT_CODES[result.status]


async def _started(
    agent: Agent, start: Callable[[Agent, Sequence[Listener]], Awaitable[RunResult]], display: Display | None
) -> RunResult:
    client = agent.plan().client
    try:
        if display is not None and hasattr(client, "on_status"):
            client.on_status = display.working  # loading and fetching weights take their time
        return await start(agent, (display,) if display is not None else ())
    finally:
        await client.aclose()


def _report(result: RunResult, display: Display | None, *, as_json: bool) -> None:
    if display is not None:
        usage = result.usage
        cost = "" if usage.cost_usd is None else f" · ${usage.cost_usd:.4f}"
        repairs = f" · {len(result.repairs)} repairs" if result.repairs else ""
        display.say(
            f"{result.status} ({result.stop_reason}) · {result.turns} turns · {usage.requests} requests · "
            f"{usage.input_tokens:,} tokens in ({usage.cache_read_tokens:,} cached), {usage.output_tokens:,} out{cost}"
            f"{repairs} · {result.seconds:.1f} s · closeout runs {result.run_id}",
            "dim",
        )
    if as_json:
        print(json.dumps(result.to_dict(), ensure_ascii=False, default=str))
        return
    if result.answer is not None:
        print(result.answer)
    else:
        reason = result.error or f"The run ended without an answer ({result.stop_reason})."
        print(f"closeout: {reason}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------ options kept


def _as_origin(options: RunOptions) -> dict[str, Any]:
    """What the journal keeps of the options: paths absolute, so that the run can be resumed from any folder."""
    docs = None if options.docs is None else str(Path(options.docs).absolute())
    config = [c if "=" in c else str(Path(c).absolute()) for c in options.config]
    return {**asdict(options), "docs": docs, "config": config}


def _options_of(run_id: str) -> RunOptions:
    from closeout.config import home_folder
    from closeout.journal.events import RunStarted
    from closeout.journal.store import open_store

    started = next(open_store(home_folder()).rows(run_id), None)
    event = started.event if started is not None else None
    if not isinstance(event, RunStarted) or not event.origin:
        raise UsageError(f"Run {run_id} was not started by this command line. Resume it in Python: agent.resume(…).")
    kept: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in event.origin.items()}
    return RunOptions(**kept)
