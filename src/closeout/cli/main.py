"""The command line: what the commands are called and take. What they do is in the modules beside this one.

Nothing heavy is imported here, so that `closeout --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

__all__ = ["app", "main"]

app = typer.Typer(
    name="closeout",
    help="Run tool-using LLM agents that finish.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="The embedded models' weights.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="openai:NAME, anthropic:NAME, local, local:small, local:FILE.gguf"),
]
BaseUrl = Annotated[str | None, typer.Option(help="An OpenAI-compatible server, such as http://localhost:8000/v1")]
Docs = Annotated[str | None, typer.Option(help="A folder whose documents the agent may search and read")]
Mcp = Annotated[list[str] | None, typer.Option(help="An MCP server: a command or a URL; may be repeated")]
Dialect = Annotated[str | None, typer.Option(help="auto, function_call, cot_chat, cot_completion or mcp_xml")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="FILE.yaml, or key=value such as agent.max_turns=20; may be repeated"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for machines")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer")]


@app.command()
def run(
    question: Annotated[str, typer.Argument(help="The task; - reads it from stdin")],
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    mcp: Mcp = None,
    file: Annotated[list[str] | None, typer.Option("--file", "-f", help="A file that belongs to the task")] = None,
    dialect: Dialect = None,
    config: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer a question. The answer goes to stdout, everything else to stderr."""
    from closeout.cli.running import RunOptions, run_command

    options = RunOptions(model, base_url, docs, tuple(mcp or ()), tuple(file or ()), dialect, tuple(config or ()))
    raise typer.Exit(run_command(question, options, as_json=json, quiet=quiet))


@app.command()
def resume(
    run_id: str,
    force: Annotated[bool, typer.Option(help="Go on although the agent is not the one that made the record")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Lead a run on that was cut off; what it did already is not done again."""
    from closeout.cli.running import resume_command

    raise typer.Exit(resume_command(run_id, force=force, as_json=json, quiet=quiet))


@app.command()
def replay(run_id: str, json: Json = False) -> None:
    """Run a recorded run again without model, tools and network, and say where it departs from its record."""
    from closeout.cli.running import replay_command

    raise typer.Exit(replay_command(run_id, as_json=json))


@app.command()
def runs(
    run_id: Annotated[str | None, typer.Argument(help="A run to look at; none: the list")] = None,
    limit: Annotated[int, typer.Option(help="How many runs to list", min=1)] = 20,
    json: Json = False,
) -> None:
    """List the runs, or show one: its turns, calls, repairs, rollbacks, tokens and cost."""
    from closeout.cli.showing import list_runs, show_run

    raise typer.Exit(list_runs(limit, as_json=json) if run_id is None else show_run(run_id, as_json=json))


@app.command()
def tools(docs: Docs = None, mcp: Mcp = None, config: Settings = None, json: Json = False) -> None:
    """List the tools an agent would have."""
    from closeout.cli.showing import list_tools

    raise typer.Exit(list_tools(docs, tuple(mcp or ()), tuple(config or ()), as_json=json))


@app.command()
def encode(
    file: Annotated[str, typer.Argument(help="A JSON or text file; - reads stdin")],
    format: Annotated[str, typer.Option(help="auto, json, columns, toon, yaml, xml, csv, markdown, raw")] = "auto",  # noqa: A002
    budget: Annotated[int | None, typer.Option(help="Cut to this many tokens", min=1)] = None,
    json: Json = False,
) -> None:
    """Print a value in the form that costs a model the fewest tokens; compare the forms on stderr."""
    from closeout.cli.encode import encode_command

    raise typer.Exit(encode_command(file, format, budget, json))


@app.command()
def config(config: Settings = None, json: Json = False) -> None:
    """Show every setting, its value, and where runs are kept."""
    from closeout.cli.showing import show_config

    raise typer.Exit(show_config(tuple(config or ()), as_json=json))


@app.command()
def doctor(model: Model = None, base_url: BaseUrl = None, json: Json = False) -> None:
    """Check what a run needs: the journal's folder, the model, the optional parts."""
    from closeout.cli.doctor import doctor_command

    raise typer.Exit(doctor_command(model, base_url, as_json=json))


@models_app.command("list")
def models_list(json: Json = False) -> None:
    """The embedded models and whether their weights are here."""
    from closeout.cli.models import list_command

    raise typer.Exit(list_command(json))


@models_app.command("pull")
def models_pull(name: Annotated[str, typer.Argument(help="local or local:small")] = "local") -> None:
    """Fetch a model's weights; goes on where an earlier pull stopped."""
    from closeout.cli.models import pull_command

    raise typer.Exit(pull_command(name))


@models_app.command("path")
def models_path(name: Annotated[str, typer.Argument(help="local or local:small")] = "local") -> None:
    """Where a model's weights are."""
    from closeout.cli.models import path_command

    raise typer.Exit(path_command(name))


def version_text() -> str:
    from closeout import __version__

    return f"closeout {__version__}"


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Show the version")] = False) -> None:
    if version:
        print(version_text())
        raise typer.Exit(0)


def main() -> None:
    """The entry point. Errors that a person can act on come as one sentence; exit codes: see docs/cli.md."""
    from closeout.errors import CloseoutError

    try:
        app()
    except CloseoutError as error:
        print(f"closeout: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ncloseout: stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
