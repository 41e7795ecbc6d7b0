"""`evaluate`: run an agent on tasks, score its answers and report; re-scoring; repeating failed trials."""

from __future__ import annotations

import asyncio
import platform
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from closeout import __version__
from closeout.agent import Agent
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.evaluate.outcome import agent_for_task, store_of
from closeout.evaluate.report import EvalReport, read_report
from closeout.evaluate.scorers import Scorer, ScorerSource, make_scorer
from closeout.evaluate.scores import Attempted, Score
from closeout.evaluate.sweep import AgentFor, Sweep, SweepSettings, score_attempt
from closeout.evaluate.tasks import EvalTask, Fields, TaskSource, load_tasks
from closeout.evaluate.trials import TrialStore, evaluation_file
from closeout.homes import Home
from closeout.journal.run_names import new_run_id
from closeout.journal.store import open_store
from closeout.redaction import redact
from closeout.run.plan import differences

if TYPE_CHECKING:
    from closeout.evaluate.on_ray import RaySweep

__all__ = ["AgentSource", "default_name", "evaluate", "make_scorers", "rescore", "retry", "shard_of"]

AgentSource: TypeAlias = "Agent[Any] | Callable[[EvalTask], Agent[Any]]"
"""An agent, or a function that makes one for a task, with that task's tools."""

OnStart: TypeAlias = "Callable[[Any, TrialStore], object]"
"""Receives the sweep, whose `stop` ends it, and the store of its trials."""

SCORING_AT_ONCE = 20  # trials


async def evaluate(
    agent: AgentSource,
    tasks: TaskSource,
    *,
    scorer: ScorerSource | Sequence[ScorerSource] = "normalized",
    name: str = "",
    epochs: int = 1,
    ids: Collection[str] | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    fields: Fields | None = None,
    concurrency: int | str = 10,
    max_cost: float | None = None,
    max_tokens: int | None = None,
    retries: int = 3,
    shard: tuple[int, int] | None = None,
    ray: str = "",
    force: bool = False,
    origin: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
    on_start: OnStart | None = None,
) -> EvalReport:
    """Evaluate an agent on tasks. Called again with the same arguments, it continues where it stopped.

    Every trial is a run in the agent's home. Any number of processes may make the same call at the same time: they
    share the trials, and each returns when all are done.

    Args:
        agent: The agent, or a function from a task to its agent.
        tasks: A file, or an iterable of tasks or mappings; see `load_tasks`.
        scorer: The scorer of the trials: a name, a function of an `Attempted`, a `Scorer`, or several. Reports show the
            first one's scores.
        name: The evaluation's name; by default it is made of the names of the tasks and the model.
        epochs: How many trials each task has.
        ids: Take only the tasks with these ids.
        shuffle: Put the tasks in the order of this seed.
        limit: Take only this many tasks, from the first.
        fields: Where records hold a task's fields, if they name them otherwise.
        concurrency: How many trials run at once, "auto" to adapt to the endpoint.
        max_cost: US dollars to spend. Requests in flight may exceed them.
        max_tokens: Tokens to spend. Requests in flight may exceed them.
        retries: How often to retry a trial that failed for a transient reason.
        shard: (i, n), from 1: run only the i-th of n shares of the tasks.
        ray: Run on a Ray cluster: "auto" for the one that this machine belongs to, or its address. The agent must then
            be a function, which makes it on each node. Needs `closeout[ray]`.
        force: Continue even if the agent or its settings have changed.
        origin: Notes for the trials' runs.
        details: Further parts of the evaluation's description, which reports show.
        on_start: Called with the sweep, to control it, and its store.

    Returns:
        The report. If a budget ended the sweep, `report.stopped` says so.

    Raises:
        UsageError: An argument is wrong, a task is malformed, or the evaluation exists with another agent.
        JournalError: A journal cannot be written.
        ModelError: The endpoint refuses all requests: a wrong key, address or model.
    """
    if epochs < 1:
        raise UsageError(f"epochs must be at least 1, got {epochs}.")
    read = load_tasks(tasks, fields=fields, ids=ids, shuffle=shuffle, limit=limit)
    if ray and isinstance(agent, Agent):
        raise UsageError("With ray, pass a function that makes the agent, which is called on each node, not an Agent.")
    example = _example(agent, read[0])
    shared = bool(ray) or isinstance(agent, Agent)
    home = store_of(example).home
    scorers = make_scorers(scorer, home)
    settings = SweepSettings(
        concurrency=concurrency,
        max_cost=max_cost,
        max_tokens=max_tokens,
        retries=retries,
        despite_changes=force,
        origin=origin or {},
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    )
    async with example:
        if shared:
            for named in {task.tools: task for task in read}.values():
                _agent_for(agent)(named)  # raises UsageError if there are no such tools
        spec = {
            **_description(example, shared=shared),
            "scorers": [each.name for each in scorers],
            "tasks": str(tasks) if isinstance(tasks, str | Path) else f"{len(read):,} tasks from Python",
            "command": settings.command,
            **(details or {}),
        }
        with TrialStore(evaluation_file(home, name or default_name(tasks, example)), spec) as store:
            _check_same(store, spec, force=force)
            store.add_tasks(read, epochs, None if shard is None else shard_of(len(read), *shard))
            sweep: Sweep | RaySweep
            if ray:
                from closeout.evaluate.on_ray import RaySweep

                sweep = RaySweep(store, cast("AgentFor", agent), _as_list(scorer), settings, home=home, address=ray)
            else:
                sweep = Sweep(store, _agent_for(agent), scorers, settings)
            return await _work(store, sweep, scorers, on_start, home)


async def retry(
    agent: AgentSource,
    name: str,
    *,
    statuses: Sequence[str] = ("failed",),
    fresh: bool = False,
    scorer: ScorerSource | Sequence[ScorerSource] = (),
    settings: SweepSettings | None = None,
    on_start: OnStart | None = None,
) -> EvalReport:
    """Run finished trials of an evaluation again, and the unfinished ones.

    Args:
        agent: As for `evaluate`. Agents that a function makes must keep their runs in the usual home.
        name: The evaluation.
        statuses: Which trials: "failed", "unanswered", "answered".
        fresh: Begin new runs. Otherwise a failed run is resumed where it failed, and one that ended without an answer
            is only scored again.
        scorer: As for `evaluate`; by default the scorers that the evaluation names.
        settings: The settings of the sweep.
        on_start: As for `evaluate`.

    Raises:
        UsageError: The evaluation does not exist, or was begun with another agent.
    """
    agent_for = _agent_for(agent)
    settings = settings or SweepSettings()
    folder = store_of(agent).home if isinstance(agent, Agent) else home_folder()
    with TrialStore(evaluation_file(folder, name)) as store:
        example = _example(agent, store.tasks()[0])
        if (home := store_of(example).home) != folder:
            raise UsageError(f"Evaluation {name} is kept in {folder}, but the agent keeps its runs in {home}.")
        async with example:
            spec = _description(example, shared=isinstance(agent, Agent))
            scorers = make_scorers(scorer or store.spec["scorers"], home)
            _check_same(store, {**spec, "scorers": []}, force=settings.despite_changes)
            # A new run of a trial needs another name than its earlier ones.
            store.wait_again(statuses, suffix=f".{new_run_id().rpartition('-')[2]}" if fresh else "")
            return await _work(store, Sweep(store, agent_for, scorers, settings), scorers, on_start, home)


def _agent_for(agent: AgentSource) -> AgentFor:
    """Return the function from a task to its agent, which has the tools that the task names."""
    if not isinstance(agent, Agent):
        return lambda task: agent_for_task(agent(task), task)
    made: dict[tuple[str, ...] | None, Agent[Any]] = {}

    def agent_for(task: EvalTask) -> Agent[Any]:
        if task.tools not in made:
            made[task.tools] = agent_for_task(agent, task)
        return made[task.tools]

    return agent_for


def _example(agent: AgentSource, task: EvalTask) -> Agent[Any]:
    """Return the agent that represents the evaluation: the only one, or that of the first task."""
    return agent if isinstance(agent, Agent) else agent(task)


def _as_list(scorer: ScorerSource | Sequence[ScorerSource]) -> list[ScorerSource]:
    return [scorer] if isinstance(scorer, str) or not isinstance(scorer, Sequence) else list(scorer)


def make_scorers(scorer: ScorerSource | Sequence[ScorerSource], home: Home) -> list[Scorer]:
    """Return the scorers for the `scorer` argument of `evaluate`."""
    return [make_scorer(each, home=home) for each in _as_list(scorer)]


async def _work(
    store: TrialStore, sweep: Sweep | RaySweep, scorers: Sequence[Scorer], on_start: OnStart | None, home: Home
) -> EvalReport:
    if store.control().state == "stopped":
        store.set_control(state="running")
    if on_start is not None:
        on_start(sweep, store)
    await sweep.run()
    for scorer in scorers:
        if missing := store.finished(unscored_by=scorer.name):  # trials of an earlier call with other scorers
            await _score(store, scorer, missing, home)
    return read_report(store, scorers[0].name, sweep.stopped)


async def rescore(name: str, scorer: ScorerSource, *, home: Home | str | None = None) -> EvalReport:
    """Score the finished trials of an evaluation with another scorer, or again with one. No trial runs again.

    Args:
        name: The evaluation.
        scorer: The scorer.
        home: The folder that keeps the evaluation. None means `CLOSEOUT_HOME` or the user's data folder.

    Raises:
        UsageError: The evaluation or the scorer does not exist.
    """
    folder = home_folder(home)
    made = make_scorer(scorer, home=folder)
    with TrialStore(evaluation_file(folder, name)) as store:
        await _score(store, made, store.finished(), folder)
        return read_report(store, made.name)


def edit_score(
    name: str,
    task_id: str,
    value: float | None,
    *,
    reason: str = "",
    epoch: int = 1,
    scorer: str = "",
    home: Home | str | None = None,
) -> EvalReport:
    """Replace a scorer's score for one trial with your own. The scorer's is kept beside it.

    Reports of `SCORER (original)` show the scores without edits. Scoring again changes the original only.

    Args:
        name: The evaluation.
        task_id: The task.
        value: From 0 to 1; None removes the edit.
        reason: Why, for readers of the report.
        epoch: Which trial of the task.
        scorer: Whose score. Defaults to the first scorer of the evaluation.
        home: As for `rescore`.

    Raises:
        UsageError: There is no such trial, the scorer has not scored it, or the reason is missing.
    """
    if value is not None and not reason.strip():
        raise UsageError("An edited score needs a reason. Say why, for those who read the report.")
    folder = home_folder(home)
    with TrialStore(evaluation_file(folder, name)) as store:
        chosen = scorer or store.spec["scorers"][0]
        score = None if value is None else Score(value, value >= 1, f"Edited: {reason.strip()}")
        store.edit_score(task_id, epoch, chosen, score)
        return read_report(store, chosen)


async def _score(store: TrialStore, scorer: Scorer, trials: Sequence[tuple[int, Attempted]], home: Home) -> None:
    runs = open_store(home)
    limit = asyncio.Semaphore(SCORING_AT_ONCE)
    scores: dict[int, dict[str, Score]] = {}

    async def score(number: int, attempt: Attempted) -> None:
        async with limit:
            with_rows = replace(attempt, read_rows=lambda: runs.read(attempt.run_id).rows)
            scores[number] = {scorer.name: await score_attempt(scorer, with_rows)}

    await asyncio.gather(*(score(number, attempt) for number, attempt in trials))
    store.put_scores(scores)


# ------------------------------------------------------------------------------------------------ what it is


def default_name(tasks: TaskSource, agent: Agent[Any]) -> str:
    """Return the default name of an evaluation. It is the same for the same tasks and model."""
    what = Path(tasks).stem if isinstance(tasks, str | Path) else "tasks"
    return name_of_evaluation(f"{what}-{agent.plan().client.name.rpartition('/')[2]}") or "tasks"


def name_of_evaluation(text: str) -> str:
    """Return a text as the name of an evaluation: letters, digits, `.`, `_` and `-`."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip(".-")[:100]


def shard_of(number: int, shard: int, shards: int) -> range:
    """Return the positions of the tasks in the `shard`-th of `shards` shares, from 1.

    Raises:
        UsageError: `shard` is not between 1 and `shards`.
    """
    if not 1 <= shard <= shards:
        raise UsageError(f"A shard is i/n with i from 1 to n, got {shard}/{shards}.")
    return range(shard - 1, number, shards)


def _description(agent: Agent[Any], *, shared: bool) -> dict[str, Any]:
    """Return the fingerprint of an evaluation's agent, its settings, and the versions that it runs on."""
    plan = agent.plan()
    fingerprint = plan.fingerprint(plan.offered_tools())
    if not shared:  # each task has tools of its own; their runs compare them on resume
        del fingerprint["tools"]
    # Shared budgets and listeners do not change what a trial does.
    apart = {"agent": {"budget", "listeners"}}
    config: Any = agent.config.model_dump(mode="json", exclude_defaults=True, exclude=apart)
    return {
        "agent": fingerprint,
        "settings": {key: value for key, value in _flat(redact(config)) if not key.endswith("api_key")},
        "versions": {"closeout": __version__, "python": platform.python_version()},
    }


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _check_same(store: TrialStore, spec: Mapping[str, Any], *, force: bool) -> None:
    """Raise UsageError if the evaluation was begun with another agent, unless `force` is set."""
    recorded = store.spec
    found = differences(recorded["agent"], spec["agent"])
    then, now = recorded["settings"], spec["settings"]
    found += [
        f"{key}: {then.get(key, 'default')} then, {now.get(key, 'default')} now"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]
    if found and not force:
        raise UsageError(
            f"Evaluation {store.path.stem} was begun with another agent: {'; '.join(found)}. Choose another name "
            "(--name), or continue with this agent (--force, in Python force=True)."
        )
    store.update_spec({"scorers": list(dict.fromkeys([*spec["scorers"], *recorded["scorers"]]))})
