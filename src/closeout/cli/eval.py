"""The commands of `closeout eval`.

Each command imports what it needs when it runs, so that `closeout --help` starts fast and a report is shown at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeout.cli.exits import OK, CommandGroup, guarded
from closeout.cli.option_types import (
    AgentSource,
    Answer,
    BaseUrl,
    Dialect,
    Docs,
    Json,
    Mcp,
    Model,
    Profile,
    Quiet,
    Settings,
    SkillFolders,
    Tools,
    Web,
)
from closeout.errors import UsageError

if TYPE_CHECKING:
    from closeout.evaluate.report import EvalReport

__all__ = ["eval_app"]


class _EvalGroup(CommandGroup):
    """`closeout eval TASKS …` is `closeout eval run TASKS …`."""

    default = "run"


eval_app = typer.Typer(
    cls=_EvalGroup,
    help="Evaluate an agent on tasks: closeout eval TASKS.jsonl -a AGENT.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="An evaluation from `closeout eval list`")]
Scorer = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer",
        help="exact, normalized, numeric, math, choice, includes, em, f1, json, judge:MODEL or module:function; "
        "may be repeated",
    ),
]
Slice = Annotated[list[str] | None, typer.Option("--by", help="Show the score by a metadata field; may be repeated")]
Html = Annotated[str | None, typer.Option(help="Write the report as one HTML file")]
Markdown = Annotated[str | None, typer.Option(help="Write the report as a Markdown file")]
Concurrency = Annotated[str, typer.Option(help="Trials at the same time, or auto to adapt to the endpoint")]


@eval_app.command("run")
@guarded
def run(
    tasks: Annotated[
        str,
        typer.Argument(
            help="A .jsonl, .json, .csv, .tsv or .parquet file, or MiroFlow's .yaml; or a benchmark: math, multihop, "
            "bfcl:CATEGORY, harbor:FOLDER, package.module:NAME; or a published one over your file: browsecomp:FILE"
        ),
    ],
    agent: AgentSource = None,
    scorer: Scorer = None,
    name: Annotated[str, typer.Option(help="The evaluation's name; the same name continues it")] = "",
    epochs: Annotated[int, typer.Option(help="Trials of each task", min=1)] = 1,
    task_id: Annotated[
        list[str] | None, typer.Option("--id", help="Take only the task with this id; repeatable")
    ] = None,
    shuffle: Annotated[int | None, typer.Option(help="Put the tasks in the order of this seed")] = None,
    limit: Annotated[int | None, typer.Option(help="Take only the first tasks", min=1)] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Where records hold id, question, answer, files or tools: question=problem")
    ] = None,
    concurrency: Concurrency = "10",
    max_cost: Annotated[float | None, typer.Option(help="US dollars to spend", min=0)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to spend", min=1)] = None,
    retries: Annotated[int, typer.Option(help="How often a transient failure is tried again", min=0)] = 3,
    shard: Annotated[str | None, typer.Option(help="i/n: run the i-th of n shares, for job arrays")] = None,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, or its address")] = None,
    force: Annotated[bool, typer.Option(help="Continue although the agent has changed")] = False,
    at_least: Annotated[float, typer.Option(help="End with exit code 1 if the score is lower", min=0, max=1)] = 0.0,
    by: Slice = None,
    html: Html = None,
    markdown: Markdown = None,
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    dialect: Dialect = None,
    answer: Answer = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run an agent on tasks and score its answers. The same command continues an interrupted evaluation."""
    import shlex
    import sys
    from pathlib import Path

    from closeout.cli import evaluating
    from closeout.cli.options import make_agent, options_in
    from closeout.evaluate.benchmarks import find_benchmark
    from closeout.evaluate.evaluation import default_name, evaluate

    options = options_in(locals())
    benchmark = None if Path(tasks).exists() else find_benchmark(tasks)
    origin = options.as_origin()
    source = {"options": origin, "scorers": scorer or [], "benchmark": "" if benchmark is None else tasks}
    share = evaluating.share_of(shard, name)
    loaded = make_agent(options)
    settings: dict[str, Any] = {
        "scorer": evaluating.scorers_of(benchmark, scorer, loaded),
        "name": name if benchmark is None else name or default_name(tasks, loaded),
        "epochs": epochs,
        "ids": task_id,
        "shuffle": shuffle,
        "limit": limit,
        "fields": evaluating.fields_of(field or ()),
        "concurrency": evaluating.concurrency_of(concurrency),
        "max_cost": max_cost,
        "max_tokens": max_tokens,
        "retries": retries,
        "force": force,
        "origin": origin,
        "details": {"source": source, "tasks": tasks, "command": shlex.join(["closeout", *sys.argv[1:]])},
        "shard": share,
    }

    async def work(on_start: evaluating.OnStart) -> EvalReport:
        agents = evaluating.agents_of(benchmark, loaded, options, on_ray=ray is not None)
        read = tasks if benchmark is None else benchmark.tasks()
        return await evaluate(agents, read, on_start=on_start, ray=ray or "", **settings)

    shards = 1 if share is None else share[1]
    shown: dict[str, Any] = {"by": by or (), "html": html, "markdown": markdown}
    return evaluating.run_work(work, loaded, quiet=quiet, as_json=json, shards=shards, at_least=at_least, **shown)


@eval_app.command("list")
@guarded
def list_(json: Json = False) -> int:
    """List the evaluations."""
    from closeout.cli.eval_reports import print_evaluations

    print_evaluations(as_json=json)
    return OK


@eval_app.command()
@guarded
def show(
    name: Name,
    scorer: Annotated[str, typer.Option("--scorer", help="Whose scores to show")] = "",
    live: Annotated[bool, typer.Option("--live", help="Follow it until it is done")] = False,
    trials: Annotated[bool, typer.Option("--trials", help="List each trial, those that are not right first")] = False,
    by: Slice = None,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Show the report of an evaluation, also while it runs."""
    import asyncio
    from contextlib import suppress

    from closeout.cli.eval_display import EvalDisplay
    from closeout.cli.eval_reports import opened, print_report, print_trials, watch
    from closeout.cli.terminal import print_json
    from closeout.evaluate.report import load_report

    if live:
        with opened(name) as store:  # raises UsageError if it is missing
            file = store.path
        with EvalDisplay() as display, suppress(KeyboardInterrupt):
            asyncio.run(watch(file, display))
    report = load_report(name, scorer=scorer)
    if trials and json:
        print_json(report.to_dict(trials=True))
        return OK
    print_report(report, by=by or (), html=html, markdown=markdown, as_json=json)
    if trials:
        print_trials(report)
    return OK


@eval_app.command("compare")
@guarded
def compare_(
    first: Annotated[str, typer.Argument(help="The evaluation to compare with")],
    others: Annotated[list[str], typer.Argument(help="The other ones, of the same tasks")],
    scorer: Annotated[str, typer.Option("--scorer", help="Whose scores to compare")] = "",
    cluster: Annotated[str, typer.Option(help="A metadata field whose values make tasks dependent: a document")] = "",
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Compare evaluations task by task: difference, interval, tests."""
    from pathlib import Path

    from closeout.cli.terminal import make_console, print_json
    from closeout.evaluate.comparison import compare_all
    from closeout.evaluate.report import load_report
    from closeout.evaluate.report_html import write_html

    report = load_report(first, scorer=scorer)
    found = compare_all(report, [load_report(name, scorer=scorer) for name in others], cluster=cluster)
    if html:
        write_html(report, html, against=found)
    if markdown:
        Path(markdown).write_text("\n".join(each.markdown() for each in found), "utf-8")
    if json:
        records = [each.to_dict() for each in found]
        print_json(records if len(records) > 1 else records[0])
    else:
        make_console().print("\n\n".join(map(str, found)), markup=False)
    return OK


@eval_app.command("matrix", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@guarded
def matrix_(
    context: typer.Context,
    tasks: Annotated[str, typer.Argument(help="As for `closeout eval run`")],
    model: Annotated[
        list[str], typer.Option("--model", "-m", help="A model; give the option for each, the first to compare with")
    ],
    name: Annotated[str, typer.Option(help="The evaluations are named NAME-MODEL")] = "",
    cluster: Annotated[str, typer.Option(help="As for `closeout eval compare`")] = "",
    by_task: Annotated[bool, typer.Option("--tasks", help="Show each task too")] = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Evaluate several models on the same tasks, and show one table. Other options are those of `closeout eval run`."""
    from closeout.cli.eval_reports import print_matrix
    from closeout.cli.evaluating import run_models

    names = run_models(eval_app, tasks, model, name, context.args)
    if isinstance(names, int):
        return names
    print_matrix(names, cluster=cluster, by_task=by_task, html=html, markdown=markdown, as_json=json)
    return OK


@eval_app.command("edit")
@guarded
def edit_(
    name: Name,
    task: Annotated[str, typer.Argument(help="The id of the task")],
    value: Annotated[float | None, typer.Option("--score", help="Your score, from 0 to 1")] = None,
    reason: Annotated[str, typer.Option(help="Why, for those who read the report")] = "",
    epoch: Annotated[int, typer.Option(help="Which trial of the task")] = 1,
    scorer: Annotated[str, typer.Option("--scorer", help="Whose score to edit")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Remove the edit")] = False,
    json: Json = False,
) -> int:
    """Replace a scorer's verdict with your own; both are kept."""
    from closeout.cli.eval_reports import print_report
    from closeout.evaluate.evaluation import edit_score

    if (value is None) != undo:
        raise UsageError("Give --score with a number from 0 to 1, or --undo.")
    print_report(edit_score(name, task, value, reason=reason, epoch=epoch, scorer=scorer), as_json=json)
    return OK


@eval_app.command()
@guarded
def score(
    name: Name,
    scorer: Annotated[str, typer.Option("--scorer", help="The scorer")],
    json: Json = False,
) -> int:
    """Score the trials of an evaluation with another scorer. No trial runs again."""
    import asyncio

    from closeout.cli.eval_reports import print_report
    from closeout.evaluate.evaluation import rescore
    from closeout.stray_output import stray_output_to_stderr

    with stray_output_to_stderr():
        report = asyncio.run(rescore(name, scorer))
    print_report(report, as_json=json)
    return OK


@eval_app.command("retry")
@guarded
def retry_(
    name: Name,
    unanswered: Annotated[bool, typer.Option("--unanswered", help="Repeat trials without an answer too")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin new runs instead of resuming the failed ones")] = False,
    concurrency: Concurrency = "10",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the failed and unfinished trials of an evaluation again."""
    from closeout.cli import evaluating
    from closeout.cli.eval_reports import opened
    from closeout.cli.options import make_agent, options_in
    from closeout.evaluate.benchmarks import find_benchmark
    from closeout.evaluate.evaluation import retry
    from closeout.evaluate.sweep import SweepSettings

    with opened(name) as store:
        source = store.spec.get("source")
    if source is None:
        raise UsageError(
            f"{name} was not started on the command line. Repeat its trials in Python: retry(agent, {name!r})."
        )
    options = options_in(source["options"])
    agent = make_agent(options)
    benchmark = find_benchmark(source.get("benchmark", ""))
    scorer = evaluating.scorers_of(benchmark, source["scorers"], agent)
    settings = SweepSettings(concurrency=evaluating.concurrency_of(concurrency), origin=options.as_origin())

    async def work(on_start: evaluating.OnStart) -> EvalReport:
        return await retry(
            evaluating.agents_of(benchmark, agent, options),
            name,
            statuses=("failed", "unanswered") if unanswered else ("failed",),
            fresh=fresh,
            scorer=scorer,
            settings=settings,
            on_start=on_start,
        )

    return evaluating.run_work(work, agent, quiet=quiet, as_json=json)


@eval_app.command()
@guarded
def export(
    name: Name,
    output: Annotated[str, typer.Option("--output", "-o", help="The file to write; of huggingface the folder")],
    form: Annotated[str, typer.Option("--format", help="openai, chatml, tokens, atif, rows, csv or huggingface")] = "",
    which: Annotated[str, typer.Option(help="finished, answered or correct trials")] = "finished",
    rolled_back: Annotated[bool, typer.Option(help="Include rolled-back replies, marked")] = False,
    scorer: Annotated[str, typer.Option("--scorer", help="Whose scores decide what is correct")] = "",
) -> int:
    """Export trials as conversations for training, or as records."""
    import sys
    from pathlib import Path

    from closeout.config import home_folder
    from closeout.evaluate.export import export_trials, write_export
    from closeout.evaluate.report import load_report
    from closeout.evaluate.token_samples import SampleCount
    from closeout.journal.readonly import open_to_read

    report = load_report(name, scorer=scorer)
    with open_to_read(home_folder()) as store:
        form, count = form or ("csv" if output.lower().endswith(".csv") else "openai"), SampleCount()
        choice: Any = {"form": form, "which": which}
        records = export_trials(report, store, rolled_back=rolled_back, **choice)
        number = write_export(count.of(records) if form == "tokens" else records, Path(output), form)
    what = f"{count}, " if form == "tokens" else f"{number:,} of {len(report.trials):,} trials ({which}) "
    print(f"{what}written to {output}.", file=sys.stderr)
    return OK


@eval_app.command("delete")
@guarded
def delete_(
    name: Name,
    runs: Annotated[bool, typer.Option("--runs", help="Delete the runs of its trials too")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    json: Json = False,
) -> int:
    """Delete an evaluation, and with --runs also its runs."""
    from closeout.cli.managing import delete_runs, report_done
    from closeout.cli.terminal import confirmed
    from closeout.config import home_folder
    from closeout.evaluate.overview import delete_evaluation, runs_of
    from closeout.evaluate.task_sandbox import remove_sandboxes
    from closeout.journal.holds import check_not_held
    from closeout.journal.readonly import open_to_read

    found = runs_of(home_folder(), name)
    what = f"{name} with {len(found):,} trials" + (" and their runs" if runs else "; their runs stay")
    if not yes and not confirmed("eval delete", what):
        return report_done({"deleted": False}, "Nothing was deleted", as_json=json)
    if runs and found:
        with open_to_read(home_folder()) as store:
            check_not_held(store, found)
    delete_evaluation(home_folder(), name)
    remove_sandboxes(home_folder(), found)
    if runs and found:
        return delete_runs(found, as_json=json)
    return report_done({"deleted": True, "trials": len(found)}, f"{what}: deleted", as_json=json)


@eval_app.command("merge")
@guarded
def merge_(
    name: Annotated[str, typer.Argument(help="The evaluation whose shards to merge")],
    homes: Annotated[list[str] | None, typer.Argument(help="The homes of the shards, if they have their own")] = None,
    runs: Annotated[bool, typer.Option(help="Copy the runs too, or only the trials and their scores")] = True,
    json: Json = False,
) -> int:
    """Merge the shards of an evaluation into one, with their runs."""
    from pathlib import Path

    from closeout.cli.eval_reports import print_report
    from closeout.config import home_folder
    from closeout.evaluate.merging import merge, shard_homes

    home = home_folder()
    found = [Path(each) for each in homes or ()] or shard_homes(home, name)
    print_report(merge(name, found, home, runs=runs), as_json=json)
    return OK


@eval_app.command()
@guarded
def control(
    name: Name,
    pause: Annotated[bool, typer.Option("--pause", help="Start no more trials")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Start trials again")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Send no more requests and end; it can be continued")] = False,
    concurrency: Annotated[
        int | None, typer.Option(help="Trials at the same time in each process; 0: as it was started", min=0)
    ] = None,
) -> int:
    """Pause, resume or stop an evaluation, or change its concurrency."""
    from closeout.cli.eval_reports import opened

    states = [state for state, wanted in (("paused", pause), ("running", resume), ("stopped", stop)) if wanted]
    if len(states) > 1 or (not states and concurrency is None):
        raise UsageError("Give one of --pause, --resume and --stop, or --concurrency N.")
    with opened(name) as store:
        store.set_control(state=states[0] if states else None, concurrency=concurrency)
    return OK
