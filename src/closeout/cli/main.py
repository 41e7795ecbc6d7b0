"""The commands of the command line.

Each command imports what it needs when it runs, so that `closeout --help` starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeout.cli.approvals import approvals_app
from closeout.cli.data import data_app
from closeout.cli.eval import eval_app
from closeout.cli.exits import FAILED, OK, CommandGroup, guarded
from closeout.cli.mcp_commands import mcp_app
from closeout.cli.option_types import (
    AgentSource,
    Answer,
    BaseUrl,
    Dialect,
    Docs,
    Json,
    Mcp,
    Model,
    OnChange,
    Profile,
    Quiet,
    Settings,
    SkillFolders,
    Tools,
    Web,
)
from closeout.cli.run_ids import complete_run_id, full_run_id
from closeout.errors import UsageError
from closeout.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeout.agent import Agent
    from closeout.journal.subscribers import Listener
    from closeout.run.result import RunResult

__all__ = ["app", "main"]


class _Commands(CommandGroup):
    """All commands. A former name still works, and prints the new one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in MOVED:
            from closeout.cli.terminal import say_error

            group = MOVED[args[0]]
            say_error(f"`closeout {args[0]}` is now `closeout {group} {args[0]}`.")
            args = [group, *args]
        return super().resolve_command(ctx, args)


class _RunsGroup(CommandGroup):
    """`closeout runs …` is `closeout runs list …`."""

    default = "list"


# Former top-level commands, with their group.
MOVED = dict.fromkeys(("cancel", "cite", "diff", "fork", "replay", "send", "signal", "undo", "usage"), "runs")
MOVED |= {"tools": "agent", "upgrade": "agent", "what-if": "eval", "encode": "models", "proxy": "models"}

app = typer.Typer(
    name="closeout",
    cls=_Commands,
    help="Run tool-using LLM agents that finish.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
agent_app = typer.Typer(cls=CommandGroup, help="Look at an agent.", no_args_is_help=True, rich_markup_mode=None)
models_app = typer.Typer(
    help="Manage embedded models; run a proxy; encode values.", no_args_is_help=True, rich_markup_mode=None
)
runs_app = typer.Typer(
    cls=_RunsGroup,
    help="List, show, continue, compare and manage runs.",
    epilog="`closeout runs list` also has files, export, import, trust, delete and prune: closeout runs list --help",
    rich_markup_mode=None,
)
app.add_typer(runs_app, name="runs")
app.add_typer(agent_app, name="agent")
app.add_typer(eval_app, name="eval")
app.add_typer(data_app, name="data")
app.add_typer(approvals_app, name="approvals")
app.add_typer(mcp_app, name="mcp")
app.add_typer(models_app, name="models")

RunId = Annotated[
    str, typer.Argument(help="A run id from `closeout runs`, or how it begins", autocompletion=complete_run_id)
]
Files = Annotated[list[str] | None, typer.Option("--file", "-f", help="A file for the task; may be repeated")]
Instructions = Annotated[str | None, typer.Option("--instructions", "-s", help="What the agent should know or be")]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Continue the last conversation, with its options")]
Deps = Annotated[str | None, typer.Option(help="package.module:function, which makes the dependencies of each run")]
Host = Annotated[str, typer.Option(help="Where to listen; addresses beyond loopback need a key")]
Port = Annotated[int, typer.Option(help="The port; 0 chooses a free one", min=0, max=65535)]
Keys = Annotated[str | None, typer.Option(help="A file with an API key on each line")]


@app.command()
@guarded
def run(
    question: Annotated[str, typer.Argument(help="The task; - reads it from stdin")],
    agent: AgentSource = None,
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    files: Files = None,
    dialect: Dialect = None,
    answer: Answer = None,
    instructions: Instructions = None,
    continue_last: Continue = False,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Answer a question. The answer goes to stdout, everything else to stderr."""
    from closeout.cli.options import options_in
    from closeout.cli.run_tasks import run_command

    options = options_in(locals())
    return run_command(question, options, continue_last=continue_last, as_json=json, quiet=quiet)


@app.command()
@guarded
def research(
    question: Annotated[str, typer.Argument(help="The question; - reads it from stdin")],
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    config: Settings = None,
    profile: Profile = None,
    html: Annotated[str | None, typer.Option(help="Also write the report as one HTML file")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Research a question; every quote of the report is checked."""
    from dataclasses import replace

    from closeout.cli.options import options_in
    from closeout.cli.run_tasks import research_command

    options = replace(options_in(locals()), research=True)
    return research_command(question, options, html=html, as_json=json, quiet=quiet)


@app.command()
@guarded
def chat(
    agent: AgentSource = None,
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    files: Files = None,
    dialect: Dialect = None,
    instructions: Instructions = None,
    continue_last: Continue = False,
    session: Annotated[str, typer.Option(help="The id of the conversation to continue or to begin")] = "",
    config: Settings = None,
    profile: Profile = None,
    quiet: Quiet = False,
) -> int:
    """Talk with an agent. Replies are streamed; Ctrl-C stops a reply, Ctrl-D leaves."""
    from closeout.cli.chat import chat_command
    from closeout.cli.options import options_in

    options = options_in(locals())
    return chat_command(options, session, continue_last=continue_last, quiet=quiet)


@app.command()
@guarded
def resume(
    run_id: Annotated[
        str | None, typer.Argument(help="A run id, or how it begins", autocompletion=complete_run_id)
    ] = None,
    agent: AgentSource = None,
    model: Model = None,
    base_url: BaseUrl = None,
    due: Annotated[bool, typer.Option("--due", help="Resume all waiting runs whose time or signal has come")] = False,
    on_change: OnChange = None,
    force: Annotated[bool, typer.Option(help="Resume even where the run cannot follow its record")] = False,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the time that the model's server stated")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Resume an interrupted run; finished steps are not repeated.

    With --due: all waiting runs that can continue, of the given agent or of those that `closeout run` made.
    """
    from closeout.cli.continuing import recorded_options
    from closeout.cli.run_tasks import resume_run

    if due:
        from closeout.cli.signal_command import resume_due_runs

        if force or now or run_id is not None:
            raise UsageError("--due resumes all that can continue. Leave out the RUN_ID, --force and --now, or --due.")
        return resume_due_runs(agent, model, base_url, as_json=json)
    if run_id is None:
        raise UsageError("resume needs the id of a run; `closeout runs` lists them. --due resumes what waited.")
    run_id = full_run_id(run_id)
    options = recorded_options(run_id, agent=agent).with_model(model, base_url)
    if now:
        from closeout.cli.signal_command import end_waits

        end_waits(run_id)
    return resume_run(run_id, options, on_change=on_change, force=force, as_json=json, quiet=quiet)


@agent_app.command("show")
@guarded
def show(
    agent: Annotated[str | None, typer.Argument(help="FILE.yaml or package.module:agent; or -a AGENT")] = None,
    model: Model = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    config: Settings = None,
    svg: Annotated[str | None, typer.Option(help="Write the picture to this file as SVG")] = None,
) -> int:
    """Print an agent, its tools and flow rules as a Mermaid flowchart."""
    from pathlib import Path

    from closeout.assembly.agent_picture import as_mermaid, as_svg, picture_of
    from closeout.cli.options import make_agent, options_in

    boxes = picture_of(make_agent(options_in(locals()), api_key="not needed").plan())
    if svg is None:
        print(as_mermaid(boxes), end="")
    else:
        Path(svg).write_text(as_svg(boxes), "utf-8")
    return OK


@agent_app.command("upgrade")
@guarded
def upgrade(
    agent: Annotated[str, typer.Argument(help="FILE.yaml or package.module:agent: the new version; or -a AGENT")],
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN_ID]…", help="Only these runs")] = None,
    check: Annotated[bool, typer.Option("--check", help="Says what the command does, also without it")] = True,
    on_change: OnChange = None,
    json: Json = False,
) -> int:
    """Check how the open runs of an agent continue with a new version.

    Uses no model and no tool. The exit code is 0 if every run continues, 1 if one would stop.
    """
    from closeout.cli.options import RunOptions, make_agent
    from closeout.cli.upgrade_check import upgrade_command

    loaded = make_agent(RunOptions(agent=agent), api_key="not needed")
    return upgrade_command(loaded, [*map(full_run_id, run_ids or ())], on_change, as_json=json)


@eval_app.command("what-if")
@guarded
def what_if(
    agent: Annotated[str, typer.Argument(help="FILE.yaml or package.module:agent: the candidate; or -a AGENT")],
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN_ID]…", help="Only these runs")] = None,
    last: Annotated[int, typer.Option(help="The newest ended runs of agents of this name", min=1)] = 100,
    model: Model = None,
    base_url: BaseUrl = None,
    instructions: Annotated[str | None, typer.Option(help="A file with other instructions")] = None,
    baseline: Annotated[str | None, typer.Option(help="The agent as it was, asked again to see the noise")] = None,
    allow_read_only: Annotated[bool, typer.Option("--allow-read-only", help="Run tools that only read")] = False,
    limit_cost: Annotated[float | None, typer.Option(help="Dollars after which no request is sent")] = None,
    parallel: Annotated[int, typer.Option(help="Runs at a time", min=1)] = 4,
    json: Json = False,
) -> int:
    """Run recorded runs again with a changed agent, and compare.

    Only requests that differ from the recorded ones are sent. No call with effects is made. The exit code is 0 if
    nothing differs, else 1.
    """
    from closeout.cli.options import RunOptions, make_agent
    from closeout.cli.what_if_command import read_instructions, what_if_command

    text = None if instructions is None else read_instructions(instructions)
    loaded = make_agent(RunOptions(agent=agent, model=model, base_url=base_url, instructions=text))
    return what_if_command(
        loaded,
        [*map(full_run_id, run_ids)] if run_ids else last,
        baseline=None if baseline is None else make_agent(RunOptions(agent=baseline)),
        allow_read_only=allow_read_only,
        limit_cost=limit_cost,
        parallel=parallel,
        as_json=json,
    )


@runs_app.command("list")
@guarded
def runs(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_ID | files | export | import | trust | delete | prune] …", help="A run to show, or what to do"
        ),
    ] = None,
    status: Annotated[str, typer.Option(help="answered, unanswered, failed, cancelled, interrupted, waiting")] = "",
    model: Annotated[str, typer.Option("--model", "-m", help="A part of the model's name")] = "",
    text: Annotated[str, typer.Option(help='Words that the run contains; "a phrase"')] = "",
    agent: Annotated[str, typer.Option("--agent", "-a", help="The name of the agent")] = "",
    user: Annotated[str, typer.Option(help="A person for whom the run is")] = "",
    older_than: Annotated[str, typer.Option(help="Only runs that began earlier, such as 30d or 12h")] = "",
    newer_than: Annotated[str, typer.Option(help="Only runs that began later")] = "",
    tool: Annotated[str, typer.Option(help="The name of a tool that the run called")] = "",
    failed_call: Annotated[bool, typer.Option("--failed-call", help="With a call, of --tool, that failed")] = False,
    limit: Annotated[int, typer.Option(help="How many runs to list", min=1)] = 20,
    output: Annotated[
        str, typer.Option("--output", "--out", "-o", help="export: the file to write; files: the folder")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="prune: do not ask; files: replace files")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="prune: list what would be deleted")] = False,
    json: Json = False,
) -> int:
    """List the runs, or show one with its turns, calls and cost.

    files RUN_ID [NAME…] lists the files that a run left, and with -o FOLDER writes them there.
    export [RUN_ID…] -o FILE writes runs into a file, import FILE… reads it, trust RUN_ID… lets imported runs start what
    their records name, delete RUN_ID… deletes runs, and prune deletes those that match --status, --model, --text,
    --agent, --user, --tool, --failed-call, --older-than, --newer-than.
    """
    from dataclasses import fields

    from closeout.cli.runs import list_runs, show_run
    from closeout.cli.selecting import RunFilter

    options = locals()
    wanted = RunFilter(**{each.name: options[each.name] for each in fields(RunFilter)})
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if dry_run and word != "prune":
        raise UsageError("--dry-run goes with prune. Write: closeout runs prune --older-than 30d --dry-run")
    if word == "files":
        from closeout.cli.run_files import files_command

        if not rest:
            raise UsageError("files needs the id of a run. Write: closeout runs files RUN_ID -o FOLDER")
        return files_command(full_run_id(rest[0]), rest[1:], output, yes=yes, as_json=json)
    if word in ("export", "import", "trust", "delete", "prune"):
        from closeout.cli import managing

        if word == "export":
            return managing.export_runs([*map(full_run_id, rest)], wanted, output, as_json=json)
        if word == "import":
            return managing.import_runs(rest, as_json=json)
        if word == "trust":
            return managing.trust_runs([*map(full_run_id, rest)], as_json=json)
        if word == "delete":
            return managing.delete_runs([*map(full_run_id, rest)], as_json=json)
        return managing.prune_runs(wanted, yes=yes, dry_run=dry_run, as_json=json)
    if rest:
        raise UsageError(f"closeout runs shows one run at a time, got {len(rest) + 1} arguments. Pass a RUN_ID alone.")
    return show_run(full_run_id(word), as_json=json) if word else list_runs(limit, wanted, as_json=json)


@runs_app.command("undo")
@guarded
def undo(
    run_id: RunId,
    call: Annotated[str, typer.Argument(help="The call, such as r3; `closeout runs RUN_ID` lists them")],
    agent: AgentSource = None,
    json: Json = False,
) -> int:
    """Undo a call of a run with the undo function of its tool."""
    import asyncio
    import sys

    from closeout.cli.continuing import recorded_options
    from closeout.cli.options import make_agent
    from closeout.cli.terminal import print_json

    run_id = full_run_id(run_id)
    options = recorded_options(run_id, agent=agent)
    output = asyncio.run(make_agent(options, api_key="no request is made").undo(run_id, call))
    if json:
        print_json({"run_id": run_id, "call": call, "undone": output.success, "result": output.to_record()["result"]})
    elif output.success:
        print(visible(output.summary))
    if not output.success:
        print(visible(f"{call} was not undone. {output.summary}"), file=sys.stderr)
    return OK if output.success else FAILED


@app.command()
@guarded
def approve(
    run_id: Annotated[
        str | None,
        typer.Argument(help="The run, or how its id begins; without it, what waits", autocompletion=complete_run_id),
    ] = None,
    call: Annotated[str | None, typer.Argument(help="What to decide, such as r3, if the run waits for several")] = None,
    edit: Annotated[
        str | None, typer.Option(help="Approve with these arguments instead, a JSON object with all of them")
    ] = None,
    deny: Annotated[str | None, typer.Option(help="Deny the call; the model reads the reason")] = None,
    answer: Annotated[str | None, typer.Option(help="Answer a question")] = None,
    hash: Annotated[str | None, typer.Option(help="Refuse if the call is not the one with this hash")] = None,  # noqa: A002
    together: Annotated[bool, typer.Option("--all", help="Decide on all calls that the run waits for")] = False,
    resume: Annotated[bool, typer.Option(help="Resume the run if nothing else is left to decide")] = True,
    agent: AgentSource = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Approve or deny what a run waits for, or answer its question.

    Then the run is resumed. Without a run, list what waits.
    """
    from closeout.cli.approve import approve_command, list_waiting

    if run_id is None:
        return list_waiting(as_json=json)
    return approve_command(
        full_run_id(run_id),
        call,
        edit=edit,
        deny=deny,
        answer=answer,
        hash=hash,
        together=together,
        resume=resume,
        agent=agent,
        as_json=json,
        quiet=quiet,
    )


@runs_app.command("signal")
@guarded
def send_signal(
    run_id: RunId,
    name: Annotated[str, typer.Argument(help="The name that the run waits for, now or later")],
    payload: Annotated[str, typer.Argument(help="A JSON value; - reads it from stdin")] = "null",
    id: Annotated[str, typer.Option("--id", help="Names this signal; a second one with this id is ignored")] = "",  # noqa: A002
    json: Json = False,
) -> int:
    """Send a signal to a run. It is kept until the run waits for it; `closeout resume --due` then continues the run."""
    from closeout.cli.signal_command import signal_command

    return signal_command(full_run_id(run_id), name, payload, id=id, as_json=json)


@runs_app.command("send")
@guarded
def send(
    run_id: RunId,
    message: Annotated[str, typer.Argument(help="What to tell the agent; - reads stdin")],
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Cancel the reply that is being written")] = False,
    to: Annotated[str, typer.Option(help="A sub-agent that is at work")] = "",
    json: Json = False,
) -> int:
    """Send a message to a run, for its next request to the model."""
    from closeout.cli.sending import send_command

    return send_command(full_run_id(run_id), message, to=to, interrupt=interrupt, as_json=json)


@runs_app.command("cancel")
@guarded
def cancel(run_id: RunId, json: Json = False) -> int:
    """Cancel a run, whichever process executes it. It can be resumed."""
    from closeout.cli.sending import cancel_command

    return cancel_command(full_run_id(run_id), as_json=json)


@runs_app.command("fork")
@guarded
def fork(
    run_id: RunId,
    at: Annotated[
        str | None, typer.Option(help="3: before turn 3; 2.3: of attempt 2; e57: after event 57; or a checkpoint")
    ] = None,
    set_result: Annotated[
        list[str] | None, typer.Option(help="Another result for a call, such as r3='{\"price\": 5}'; may be repeated")
    ] = None,
    note: Annotated[str, typer.Option(help="A hint for the model from there on")] = "",
    agent: AgentSource = None,
    model: Model = None,
    base_url: BaseUrl = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Continue a run from an earlier point as a new run."""
    from closeout.cli.continuing import recorded_options
    from closeout.cli.options import make_agent
    from closeout.cli.run_tasks import read_result, run_agent
    from closeout.journal.run_names import new_run_id

    run_id = full_run_id(run_id)
    options = recorded_options(run_id, agent=agent).with_model(model, base_url)
    set_results = dict(map(read_result, set_result or ()))
    new_id = new_run_id()

    async def start(made: Agent, listeners: Sequence[Listener]) -> RunResult:
        return await made.fork(
            run_id,
            at=at,
            set_results=set_results,
            note=note,
            new_run_id=new_id,
            origin=options.as_origin(),
            listeners=listeners,
        )

    return run_agent(make_agent(options), start, new_id, as_json=json, quiet=quiet)


@runs_app.command("schedules")
@guarded
def schedules(
    name: Annotated[str, typer.Argument(help="A schedule")] = "",
    pause: Annotated[bool, typer.Option("--pause", help="Begin none of its runs until it is continued")] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="Begin its runs again")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it; its runs stay")] = False,
    json: Json = False,
) -> int:
    """List the schedules of recurring runs, or change one."""
    from closeout.cli.recurring import schedules_command

    count = pause + go_on + remove
    if count > 1 or (count and not name):
        raise UsageError("Name one schedule, and one of --pause, --continue and --remove.")
    return schedules_command(name, changes=bool(count), paused=None if remove else pause, as_json=json)


@runs_app.command("webhooks")
@guarded
def webhooks(
    retry: Annotated[bool, typer.Option("--retry", help="Try again what was given up")] = False, json: Json = False
) -> int:
    """List the ends and waits of runs that are not announced yet."""
    from closeout.cli.recurring import webhooks_command

    return webhooks_command(retry=retry, as_json=json)


@runs_app.command("cite")
@guarded
def cite(run_id: RunId, json: Json = False) -> int:
    """Print the quotes of a run's answer and where they come from.

    The exit code is 1 if a quote is in no result."""
    from closeout.cli.citing import cite_command

    return cite_command(full_run_id(run_id), as_json=json)


@runs_app.command("diff")
@guarded
def diff(first: RunId, second: RunId, json: Json = False) -> int:
    """Name the first difference between two runs."""
    from closeout.cli.runs import print_difference

    return print_difference(full_run_id(first), full_run_id(second), as_json=json)


@runs_app.command("replay")
@guarded
def replay(run_id: RunId, agent: AgentSource = None, json: Json = False) -> int:
    """Replay a run without model, tools and network, and compare."""
    from closeout.cli.run_tasks import replay_command

    return replay_command(full_run_id(run_id), agent=agent, as_json=json)


@app.command()
@guarded
def view(
    run_id: Annotated[
        str | None, typer.Argument(help="The run to open; without it, the list of runs", autocompletion=complete_run_id)
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write the run as one HTML file instead; - writes to stdout")] = None,
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0 chooses a free one", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser")] = True,
) -> int:
    """See the runs in the browser, live, with every prompt and repair."""
    from closeout.cli.view import export_command, view_command

    run_id = run_id and full_run_id(run_id)
    return view_command(run_id, port, browser=browser) if html is None else export_command(run_id, html)


@agent_app.command("tools")
@guarded
def tools(
    agent: AgentSource = None,
    docs: Docs = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """List the tools that an agent would have."""
    from closeout.cli.environment import list_tools
    from closeout.cli.options import options_in

    return list_tools(options_in(locals()), as_json=json)


@app.command()
@guarded
def serve(
    agent: Annotated[
        str | None,
        typer.Argument(help="FILE.yaml or package.module:agent, or -a AGENT; without it, the options say what it is"),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    dialect: Dialect = None,
    config: Settings = None,
    profile: Profile = None,
    name: Annotated[str | None, typer.Option(help="The model name that clients use")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    keys: Keys = None,
    max_runs: Annotated[int, typer.Option(help="Runs at the same time", min=1)] = 16,
    max_queue: Annotated[int, typer.Option(help="Runs that may wait", min=0)] = 256,
    drain: Annotated[float, typer.Option(help="Seconds that runs may continue after Ctrl-C or SIGTERM", min=0)] = 10.0,
    user_budget: Annotated[
        list[str] | None, typer.Option(help="What each user may spend, such as '5 USD/day'; may be repeated")
    ] = None,
    deps: Deps = None,
    deps_header: Annotated[
        list[str] | None, typer.Option(help="A header that it reads, recorded with the run; may be repeated")
    ] = None,
    as_mcp: Annotated[bool, typer.Option("--mcp", help="Offer the agent as an MCP tool on stdin and stdout")] = False,
    description: Annotated[str | None, typer.Option(help="What the agent is for, told to MCP clients")] = None,
) -> int:
    """Serve an agent over OpenAI's APIs, its own API, or MCP."""
    import asyncio

    from closeout.cli import servers
    from closeout.cli.options import make_agent, options_in

    options = options_in(locals())
    if as_mcp:
        if deps or deps_header:
            raise UsageError("--deps needs requests over HTTP. For --mcp, bind them: agent.with_deps(…).")
        return servers.serve_mcp(options, name=name, description=description)
    client_keys, operator_keys = servers.usable_keys(keys, host)
    loaded = make_agent(options)
    make_deps, headers = servers.deps_maker(deps, loaded.config), deps_header or loaded.config.agent.deps_headers

    async def listen() -> None:
        from closeout.run.subagents import closing_clients
        from closeout.server.serve.host import AgentHost
        from closeout.server.serving import agent_app, serve_until_stopped

        served = AgentHost(
            loaded,
            name=name or servers.name_of(loaded, agent),
            max_runs=max_runs,
            max_queue=max_queue,
            origin=options.as_origin(),
            drain_seconds=drain,
            user_budget=user_budget,
            deps=make_deps,
            deps_headers=headers,
        )

        def ready(url: str) -> None:
            servers.say(f"Serving {served.name} at {url}/v1 (Ctrl-C stops)")

        def stopping() -> None:
            servers.say("Stopping. Runs that do not end in time are resumed at the next start.")

        app = agent_app(
            served, address=host, keys=client_keys, operator_keys=operator_keys, description=description or ""
        )
        async with closing_clients(loaded.plan()):
            await serve_until_stopped(app, host, port, on_ready=ready, before_stop=stopping, drain=drain)

    servers.log_warnings()
    asyncio.run(listen())
    return OK


@app.command()
@guarded
def work(
    agent: Annotated[str, typer.Argument(help="FILE.yaml or package.module:agent; or -a AGENT")],
    model: Model = None,
    base_url: BaseUrl = None,
    config: Settings = None,
    profile: Profile = None,
    limit: Annotated[int, typer.Option(help="Runs at the same time", min=1)] = 10,
    drain: Annotated[float, typer.Option(help="Seconds that runs may continue after Ctrl-C or SIGTERM", min=0)] = 30.0,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when there is nothing to do")] = False,
    health: Annotated[
        int | None, typer.Option(help="Offer /healthz at this port; 0 chooses a free one", min=0, max=65535)
    ] = None,
    host: Annotated[str, typer.Option(help="Where /healthz listens")] = "127.0.0.1",
    deps: Deps = None,
    json: Json = False,
) -> int:
    """Execute an agent's submitted, interrupted and due runs.

    Any number of workers share the work, also of several machines whose home is a database.
    """
    from closeout.cli.options import options_in
    from closeout.cli.work_command import work_command

    place = None if health is None else (host, health)
    return work_command(
        options_in(locals()), limit=limit, drain=drain, until_idle=until_idle, health=place, deps=deps, as_json=json
    )


@runs_app.command("usage")
@guarded
def usage(
    by: Annotated[
        str, typer.Option(help="Groups, separated by commas: day, key, user, model, agent, tool")
    ] = "day,model",
    since: Annotated[str, typer.Option(help="The first day, such as 2026-11-01 (UTC)")] = "",
    until: Annotated[str, typer.Option(help="The last day")] = "",
    budgets: Annotated[bool, typer.Option("--budgets", help="What the keys of budgets have spent instead")] = False,
    json: Json = False,
) -> int:
    """Show the tokens and the cost of the recorded runs."""
    from closeout.cli.usage_tables import print_budgets, print_usage

    return print_budgets(as_json=json) if budgets else print_usage(by, since, until, as_json=json)


@models_app.command("proxy")
@guarded
def proxy(
    upstream: Annotated[str, typer.Option(help="The model server, such as http://localhost:8000/v1")],
    api: Annotated[str, typer.Option(help="What the server speaks: auto, openai or anthropic")] = "auto",
    dialect: Annotated[str, typer.Option(help="auto, or text: write tools into the prompt")] = "auto",
    record_only: Annotated[bool, typer.Option("--record-only", help="Repair nothing; record what would be")] = False,
    keep_conversations: Annotated[bool, typer.Option("--keep-conversations", help="Record all that is said")] = False,
    read_only_tools: Annotated[str, typer.Option(help="Tools that only read, separated by commas")] = "",
    flow: Annotated[str, typer.Option(help="A settings file whose section flow has the rules for calls")] = "",
    host: Host = "127.0.0.1",
    port: Port = 8090,
    viewer_port: Annotated[int, typer.Option(help="The viewer's port; 0 chooses a free one", min=0, max=65535)] = 0,
    keys: Keys = None,
    max_requests: Annotated[int, typer.Option(help="Requests at the same time", min=1)] = 512,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait", min=0)] = 1024,
) -> int:
    """Run a proxy that gives any client valid tool calls."""
    import asyncio
    import os
    from contextlib import AsyncExitStack

    from closeout.cli import servers
    from closeout.config import home_folder
    from closeout.journal.store import open_store
    from closeout.server.proxy.proxy_server import Proxy
    from closeout.server.safety import is_loopback
    from closeout.server.serving import listening, proxy_app, serve_until_stopped, viewer_app
    from closeout.server.upstream import Upstream

    client_keys, operator_keys = servers.usable_keys(keys, host)
    server_keys = (*client_keys, *operator_keys)
    kind = servers.kind_of(upstream, api)
    written = servers.one_of("--dialect", dialect, servers.PROXY_DIALECTS)
    rules = servers.flow_rules(flow) if flow else None

    async def listen() -> None:
        key = os.environ.get(servers.UPSTREAM_KEY, "").strip() or None
        governed = Proxy(
            Upstream(upstream, kind, key=key, keeps_keys=bool(server_keys)),
            open_store(home_folder()),
            record_only=record_only,
            keep_conversations=keep_conversations,
            dialect=written,
            read_only_tools=[name.strip() for name in read_only_tools.split(",") if name.strip()],
            flow=rules,
            max_requests=max_requests,
            max_queue=max_queue,
        )

        app = proxy_app(governed, address=host, keys=server_keys)
        async with AsyncExitStack() as stack:
            pages = ""
            if is_loopback(host) and not server_keys:  # everybody who can reach the viewer may see all runs
                pages = await stack.enter_async_context(listening(viewer_app(home_folder()), host, viewer_port))

            def ready(url: str) -> None:
                what = "Recording" if record_only else "Governing"
                servers.say(f"{what} {governed.upstream.base} at {url}/v1 (Ctrl-C stops)")
                if pages:
                    servers.say(f"Viewer: {pages}/viewer/")

            await serve_until_stopped(app, host, port, on_ready=ready)

    servers.log_warnings()
    asyncio.run(listen())
    return OK


@models_app.command("encode")
@guarded
def encode(
    file: Annotated[str, typer.Argument(help="A JSON or text file; - reads stdin")],
    format: Annotated[str, typer.Option(help="auto, json, columns, toon, raw, safe_yaml, …")] = "auto",  # noqa: A002
    budget: Annotated[int | None, typer.Option(help="Cut to this many tokens", min=1)] = None,
    json: Json = False,
) -> int:
    """Print a value in the format that costs the fewest tokens."""
    from closeout.cli.encode import encode_command

    return encode_command(file, format, budget, json)


@app.command()
@guarded
def config(
    what: Annotated[str, typer.Argument(metavar="[show | schema]", help="What to print")] = "show",
    agent: AgentSource = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Show the settings and where each was set, or their JSON Schema."""
    from closeout.cli.environment import print_schema, show_config
    from closeout.cli.options import options_in

    if what == "schema":
        return print_schema()
    if what != "show":
        raise UsageError(f"closeout config takes show or schema, got {what}. A settings file is named with -C {what}.")
    options = options_in({"agent": agent, "config": config})
    if options.is_python:
        raise UsageError(f"{agent} is Python code. closeout config shows settings: -a FILE.yaml or -C FILE.yaml.")
    return show_config(options.settings, profile, as_json=json)


@app.command()
@guarded
def doctor(
    model: Model = None,
    base_url: BaseUrl = None,
    config: Settings = None,
    profile: Profile = None,
    check: Annotated[bool, typer.Option("--check", help="Examine every recorded run for damage instead")] = False,
    json: Json = False,
) -> int:
    """Check what a run needs: journal, model, optional parts."""
    from closeout.cli.environment import check_command, doctor_command

    if check:
        return check_command(as_json=json)
    return doctor_command(model, base_url, tuple(config or ()), profile, as_json=json)


@models_app.command("list")
@guarded
def models_list(json: Json = False) -> int:
    """List the embedded models and whether their weights are downloaded."""
    from closeout.cli.model_commands import list_command

    return list_command(json)


@models_app.command("pull")
@guarded
def models_pull(name: Annotated[str, typer.Argument(help="local or local:small")] = "local") -> int:
    """Download a model's weights; an interrupted download continues."""
    from closeout.cli.model_commands import pull_command

    return pull_command(name)


@models_app.command("path")
@guarded
def models_path(name: Annotated[str, typer.Argument(help="local or local:small")] = "local") -> int:
    """Print the path of a model's weights."""
    from closeout.cli.model_commands import path_command

    return path_command(name)


@models_app.command("bench")
@guarded
def models_bench(
    name: Annotated[str, typer.Argument(help="local, local:small or a .gguf file")] = "local", json: Json = False
) -> int:
    """Measure how fast a model reads and writes on this machine."""
    from closeout.cli.model_commands import bench_command

    return bench_command(name, json)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Show the version")] = False) -> None:
    if version:
        from closeout import __version__

        print(f"closeout {__version__}")
        raise typer.Exit(0)


def main() -> None:
    """Run the command line. For the exit codes see docs/cli.md."""
    app()
