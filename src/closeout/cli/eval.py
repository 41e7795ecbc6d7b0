"""The commands of `closeout eval` and their options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from closeout.cli.arguments import Answer, BaseUrl, Dialect, Docs, Json, Mcp, Model, Quiet, Settings, Tools, Web
from closeout.cli.exits import CommandGroup, guarded

__all__ = ["eval_app"]


class _EvalGroup(CommandGroup):
    """`closeout eval TASKS …` is `closeout eval run TASKS …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


eval_app = typer.Typer(
    cls=_EvalGroup,
    help="Evaluate an agent on tasks: closeout eval TASKS.jsonl --agent FILE.yaml --scorer exact",
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
Agent = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="FILE.yaml or package.module:agent; without it, the options say what it is"),
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
        typer.Argument(help="A .jsonl, .json, .csv, .tsv or .parquet file; or math, multihop, retail, bfcl:CATEGORY"),
    ],
    agent: Agent = None,
    scorer: Scorer = None,
    name: Annotated[str, typer.Option(help="The evaluation's name; the same name continues it")] = "",
    epochs: Annotated[int, typer.Option(help="Trials of each task", min=1)] = 1,
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
    by: Slice = None,
    html: Html = None,
    markdown: Markdown = None,
    model: Model = None,
    base_url: BaseUrl = None,
    docs: Docs = None,
    mcp: Mcp = None,
    tool: Tools = None,
    web: Web = False,
    dialect: Dialect = None,
    answer: Answer = None,
    config: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run an agent on tasks and score its answers. The same command continues an interrupted evaluation."""
    from closeout.cli.eval_reports import ReportOptions
    from closeout.cli.evaluating import EvalOptions, run_command
    from closeout.cli.options import RunOptions

    options = EvalOptions(
        agent=agent,
        run=RunOptions(
            model=model,
            base_url=base_url,
            docs=docs,
            mcp=tuple(mcp or ()),
            tools=tuple(tool or ()),
            web=web,
            dialect=dialect,
            answer=answer,
            config=tuple(config or ()),
        ),
        scorers=tuple(scorer or ()),
        concurrency=concurrency,
        max_cost=max_cost,
        max_tokens=max_tokens,
        retries=retries,
        force=force,
        ray=ray,
        report=ReportOptions(by=tuple(by or ()), html=html, markdown=markdown, as_json=json),
        quiet=quiet,
    )
    return run_command(tasks, options, name=name, epochs=epochs, limit=limit, fields=tuple(field or ()), shard=shard)


@eval_app.command("list")
@guarded
def list_(json: Json = False) -> int:
    """List the evaluations."""
    from closeout.cli.eval_reports import list_command

    return list_command(as_json=json)


@eval_app.command()
@guarded
def show(
    name: Name,
    scorer: Annotated[str, typer.Option("--scorer", help="Whose scores to show")] = "",
    live: Annotated[bool, typer.Option("--live", help="Follow it until it is done")] = False,
    trials: Annotated[bool, typer.Option("--trials", help="With --json: a record for each trial")] = False,
    by: Slice = None,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Show the report of an evaluation, also while it runs."""
    from closeout.cli.eval_reports import ReportOptions, show_command

    options = ReportOptions(by=tuple(by or ()), html=html, markdown=markdown, as_json=json)
    return show_command(name, options, scorer=scorer, live=live, trials=trials)


@eval_app.command()
@guarded
def compare(
    first: Annotated[str, typer.Argument(help="The evaluation to compare with")],
    others: Annotated[list[str], typer.Argument(help="The other ones, of the same tasks")],
    scorer: Annotated[str, typer.Option("--scorer", help="Whose scores to compare")] = "",
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Compare evaluations task by task: difference, interval, McNemar's test. With --html: score against cost."""
    from closeout.cli.eval_reports import ReportOptions, compare_command

    options = ReportOptions(html=html, markdown=markdown, as_json=json)
    return compare_command(first, others, options, scorer=scorer)


@eval_app.command()
@guarded
def score(
    name: Name,
    scorer: Annotated[str, typer.Option("--scorer", help="The scorer")],
    json: Json = False,
) -> int:
    """Score the trials of an evaluation with another scorer. No trial runs again."""
    from closeout.cli.evaluating import score_command

    return score_command(name, scorer, as_json=json)


@eval_app.command()
@guarded
def retry(
    name: Name,
    unanswered: Annotated[bool, typer.Option("--unanswered", help="Repeat trials without an answer too")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin new runs instead of resuming the failed ones")] = False,
    concurrency: Concurrency = "10",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the failed trials of an evaluation again, and the unfinished ones."""
    from closeout.cli.evaluating import retry_command

    return retry_command(name, unanswered=unanswered, fresh=fresh, concurrency=concurrency, as_json=json, quiet=quiet)


@eval_app.command()
@guarded
def export(
    name: Name,
    output: Annotated[str, typer.Option("--output", "-o", help="The JSONL file to write")],
    format: Annotated[str, typer.Option(help="openai, chatml, tokens or rows")] = "openai",  # noqa: A002
    which: Annotated[str, typer.Option(help="correct, answered or finished trials")] = "correct",
    rolled_back: Annotated[bool, typer.Option(help="Include rolled-back replies, marked")] = False,
    scorer: Annotated[str, typer.Option("--scorer", help="Whose scores decide what is correct")] = "",
) -> int:
    """Export trials for training and analysis: conversations with a loss mask, or flat records."""
    from closeout.cli.eval_reports import export_command

    return export_command(name, output, form=format, which=which, rolled_back=rolled_back, scorer=scorer)


@eval_app.command()
@guarded
def merge(
    name: Annotated[str, typer.Argument(help="The evaluation whose shards to merge")],
    homes: Annotated[list[str] | None, typer.Argument(help="The homes of the shards, if they have their own")] = None,
    runs: Annotated[bool, typer.Option(help="Copy the runs too, or only the trials and their scores")] = True,
    json: Json = False,
) -> int:
    """Merge the shards of an evaluation into one, with their runs."""
    from closeout.cli.eval_reports import merge_command

    return merge_command(name, tuple(homes or ()), runs=runs, as_json=json)


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
    """Pause, resume or stop an evaluation at work, or change its concurrency."""
    from closeout.cli.eval_reports import control_command

    return control_command(name, pause=pause, resume=resume, stop=stop, concurrency=concurrency)
