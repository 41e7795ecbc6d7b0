"""The trials of one evaluation in a SQLite file that any number of processes on a machine share.

A process takes trials under a lease: the trial names the worker, and the worker holds an operating-system lock that is
released when its process dies, however it dies. So a lease never expires too early and is never stale. The trials' runs
are in the journal beside the file; a trial's row can be rebuilt from its run.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from closeout.errors import UsageError
from closeout.evaluate.estimates import Estimate, mean_of_sums
from closeout.evaluate.outcome import RunOutcome
from closeout.evaluate.scores import Attempted, Score
from closeout.evaluate.tasks import EvalTask
from closeout.homes import Home
from closeout.journal.database import LOCK_SECONDS, explained, make_folder, open_connection, transaction
from closeout.journal.locks import RunLocks

__all__ = [
    "ORIGINAL",
    "Control",
    "Finished",
    "Released",
    "StoredScore",
    "SweepProgress",
    "Trial",
    "TrialClaim",
    "TrialStore",
    "evaluation_file",
    "evaluations_in",
    "trial_run_id",
]

FOLDER = "evaluations"
ORIGINAL = " (original)"  # follows the scorer's name where a person has edited its score
FORMAT = 1
_SCHEMA = """
CREATE TABLE evaluation (
  id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL, created REAL NOT NULL, spec TEXT NOT NULL,
  state TEXT NOT NULL, concurrency INTEGER, cost REAL NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE tasks (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE trials (
  number INTEGER PRIMARY KEY, task INTEGER NOT NULL, epoch INTEGER NOT NULL, run_id TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL, worker INTEGER, tries INTEGER NOT NULL, not_before REAL NOT NULL, started REAL, ended REAL,
  answer TEXT, status TEXT, stop_reason TEXT, error TEXT, error_kind TEXT, permanent INTEGER, turns INTEGER,
  attempts INTEGER, rollbacks INTEGER, repairs INTEGER, tool_calls INTEGER, tool_failures INTEGER, requests INTEGER,
  input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER, cost REAL, seconds REAL, UNIQUE (task, epoch));
CREATE INDEX trials_by_state ON trials (state, number);
CREATE TABLE scores (
  trial INTEGER NOT NULL, scorer TEXT NOT NULL, value REAL NOT NULL, correct INTEGER NOT NULL, judged INTEGER NOT NULL,
  reason TEXT NOT NULL, PRIMARY KEY (trial, scorer)) WITHOUT ROWID;
CREATE TABLE workers (
  id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, host TEXT NOT NULL, started REAL NOT NULL,
  command TEXT NOT NULL);
"""
# Trials that a driver sent to a node, and whose runs may have begun there.
_SENT = "CREATE TABLE IF NOT EXISTS sent (trial INTEGER PRIMARY KEY, node TEXT NOT NULL)"
_OUTCOME = tuple(field.name for field in fields(RunOutcome))
# The columns' names are those of a class, not of a user.
_FINISH = "UPDATE trials SET state=?, worker=NULL, ended=?, {} WHERE number=? AND worker=?".format(  # noqa: S608
    ", ".join(f"{name}=?" for name in _OUTCOME)
)
_SELECT_TRIALS = (  # noqa: S608
    "SELECT trials.number, id, epoch, run_id, state, tries, started, ended, {} "
    "FROM trials JOIN tasks ON tasks.number=trials.task ORDER BY task, epoch"
).format(", ".join(_OUTCOME))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of one task, as reports see it.

    Attributes:
        task_id: The task.
        epoch: The number of the trial of this task, from 1.
        run_id: Its run in the journal.
        state: "waiting", "running", "suspended" (its run waits for a person's decision) or "finished".
        tries: How often it was tried again after a transient failure.
        outcome: How its run ended, or was suspended; None while it has not.
        scores: Its scores by the scorers' names.
    """

    task_id: str
    epoch: int
    run_id: str
    state: str
    tries: int
    started: float | None
    ended: float | None
    outcome: RunOutcome | None
    scores: Mapping[str, StoredScore]


@dataclass(frozen=True, slots=True)
class StoredScore:
    """A score as the database holds it. Evaluations of older versions hold values that `Score` refuses."""

    value: float
    correct: bool
    judged: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TrialClaim:
    """A trial that this worker may run. `node` is that of a cluster where its run may have begun."""

    number: int
    task: EvalTask
    epoch: int
    run_id: str
    tries: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A claimed trial whose run has ended, with its score by scorer, or is suspended, or could not begin."""

    claim: TrialClaim
    outcome: RunOutcome
    scores: Mapping[str, Score]


@dataclass(frozen=True, slots=True)
class Released:
    """A claimed trial that other workers may run: it was interrupted, or is retried after `after` seconds."""

    claim: TrialClaim
    after: float = 0.0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """The controls of a running evaluation, its cost, and the number of unfinished trials.

    Attributes:
        state: "running", "paused" or "stopped".
        concurrency: The number of trials at once. None: as the command says.
        cost: US dollars spent by all workers, as far as prices are known.
        tokens: Tokens spent by all workers.
        waiting: Trials that no worker runs.
        running: Trials under a lease.
        suspended: Trials whose runs wait for a decision.
    """

    state: str
    concurrency: int | None
    cost: float
    tokens: int
    waiting: int
    running: int
    suspended: int


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """The progress of an evaluation.

    Attributes:
        control: Its controls and its cost.
        planned: All trials.
        finished: Trials that have ended.
        score: Their mean score.
        failures: How many ended without an answer, by kind.
        workers: The number of processes that work on it.
    """

    control: Control
    planned: int
    finished: int
    score: Estimate
    failures: Mapping[str, int]
    workers: int


def evaluation_file(home: Home, name: str) -> Path:
    """Return the file of an evaluation.

    Raises:
        UsageError: The name cannot be part of a file's name.
    """
    if not name or len(name) > 100 or name.startswith(".") or not all(c.isalnum() or c in "._-" for c in name):
        raise UsageError(f"The name of an evaluation consists of letters, digits, '.', '_' and '-', got {name[:50]!r}.")
    return home / FOLDER / f"{name}.sqlite3"


def evaluations_in(home: Home) -> list[str]:
    """Return the names of a home's evaluations, the latest first."""
    files = list((home / FOLDER).glob("*.sqlite3"))
    return [file.name.removesuffix(".sqlite3") for file in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]


def trial_run_id(name: str, number: int, task_id: str, epoch: int) -> str:
    """Return the name of a trial's run: readable, unique by the task's number, the same in every call."""
    readable = "".join(c if (c.isalnum() and c.isascii()) or c in "_-" else "-" for c in task_id)[:40]
    return f"{name}.{number}-{readable}.e{epoch}"


class TrialStore:
    """The trials of one evaluation. Its methods wait for the disk; call them from one thread at a time.

    Args:
        path: The file, see `evaluation_file`.
        spec: The description of the evaluation as JSON values. With it, a missing file is created.

    Raises:
        UsageError: There is no such evaluation, or another version of Closeout wrote it.
    """

    def __init__(self, path: Path, spec: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.worker = 0
        self._locks: RunLocks | None = None
        if spec is not None:
            make_folder(path.parent, path.name)
        elif not path.exists():
            raise UsageError(f"No evaluation {path.stem} in {path.parent.parent}. `closeout eval list` lists them.")
        with explained(path):
            self._db = open_connection(path)
            try:
                self._prepare(spec)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, spec: Mapping[str, Any] | None) -> None:
        self._db.execute(f"PRAGMA busy_timeout={int(LOCK_SECONDS * 1000)}")
        self._db.execute("PRAGMA synchronous=NORMAL")
        if self._format() == 0 and spec is not None:
            self._db.execute("PRAGMA journal_mode=WAL")
            with self._transaction() as db:
                if self._format() == 0:  # another process may have done it meanwhile
                    for statement in _SCHEMA.split(";"):
                        db.execute(statement)
                    row = (self.path.stem, time.time(), json.dumps({**spec, "id": secrets.token_hex(8)}))
                    db.execute("INSERT INTO evaluation VALUES (1,?,?,?,'running',NULL,0.0,0)", row)
                    db.execute(f"PRAGMA user_version={FORMAT}")
        if self._format() != FORMAT:
            raise UsageError(f"{self.path} was written by another version of Closeout. Choose another --name.")

    def _format(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path), transaction(self._db) as db:
            yield db

    def _query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with explained(self.path):
            return self._db.execute(statement, values).fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release the leases."""
        self._db.close()
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    # -------------------------------------------------------------------------------------------- what it is

    @property
    def spec(self) -> dict[str, Any]:
        """The description of the evaluation: agent, settings, scorers, command, versions."""
        return dict(json.loads(self._query("SELECT spec FROM evaluation")[0][0]))

    @property
    def id(self) -> str:
        """A random text that no other evaluation has, whatever its name and home."""
        return str(self.spec["id"])

    def update_spec(self, changes: Mapping[str, Any]) -> None:
        """Change parts of the spec."""
        with self._transaction() as db:
            spec = json.loads(db.execute("SELECT spec FROM evaluation").fetchone()[0])
            db.execute("UPDATE evaluation SET spec=?", (json.dumps({**spec, **changes}),))

    @property
    def created(self) -> float:
        """The time at which the evaluation was created, in seconds since the epoch."""
        return float(self._query("SELECT created FROM evaluation")[0][0])

    def add_tasks(self, tasks: Sequence[EvalTask], epochs: int, chosen: Iterable[int] | None = None) -> None:
        """Add the tasks and trials that are not there yet, in the order in which they are to run: epoch by epoch.

        Args:
            tasks: The tasks.
            epochs: The number of trials of each.
            chosen: The positions, in `tasks`, of those that this file holds; None for all.

        Raises:
            UsageError: A task that is there already has changed.
        """
        positions = range(len(tasks)) if chosen is None else sorted(chosen)
        with self._transaction() as db:
            known = {row[0]: row[1:] for row in db.execute("SELECT id, number, digest FROM tasks")}
            for position in positions:
                task = tasks[position]
                digest = task.digest()
                if task.id not in known:
                    known[task.id] = (position, digest)
                    row = (position, task.id, digest, json.dumps(task.to_dict(), default=str))
                    changed = db.execute("INSERT OR IGNORE INTO tasks VALUES (?,?,?,?)", row).rowcount == 0
                else:
                    changed = known[task.id][1] != digest
                if changed:
                    raise UsageError(
                        f"Task {task.id!r} is not the one that evaluation {self.path.stem} began with: its question, "
                        "answer or files have changed, or its place in the list has. Choose another --name."
                    )
            db.executemany(
                "INSERT OR IGNORE INTO trials (task, epoch, run_id, state, tries, not_before) "
                "VALUES (?,?,?,'waiting',0,0)",
                (
                    (known[task.id][0], epoch, trial_run_id(self.path.stem, known[task.id][0], task.id, epoch))
                    for epoch in range(1, epochs + 1)
                    for task in (tasks[position] for position in positions)
                ),
            )

    def add_part(self, path: Path) -> None:
        """Add the tasks, trials and scores of another file of the same evaluation. Finished trials replace others.

        Raises:
            UsageError: It has other tasks under the same ids.
        """
        with explained(self.path):
            self._db.execute("ATTACH ? AS part", (str(path),))
        try:
            with self._transaction() as db:
                changed = db.execute(
                    "SELECT part.tasks.id FROM part.tasks JOIN main.tasks AS own "
                    "ON own.id=part.tasks.id OR own.number=part.tasks.number "
                    "WHERE own.digest!=part.tasks.digest OR own.number!=part.tasks.number LIMIT 1"
                ).fetchone()
                if changed:
                    raise UsageError(f"Task {changed[0]!r} in {path} is not the one in {self.path}.")
                db.execute("INSERT OR IGNORE INTO main.tasks SELECT * FROM part.tasks")
                self._take_trials(db)
        finally:
            self._db.execute("DETACH part")

    def _take_trials(self, db: sqlite3.Connection) -> None:
        names = ("task", "epoch", "run_id", "state", "tries", "not_before", "started", "ended", *_OUTCOME)
        columns = ", ".join(names)
        db.execute(
            "DELETE FROM main.trials WHERE number IN (SELECT own.number FROM main.trials AS own, part.trials AS theirs "
            "WHERE theirs.state IN ('finished', 'suspended') AND own.state!='finished' AND own.task=theirs.task "
            "AND own.epoch=theirs.epoch)"
        )
        state = "CASE state WHEN 'running' THEN 'waiting' ELSE state END"
        values = ", ".join(state if name == "state" else name for name in names)
        db.execute(f"INSERT OR IGNORE INTO main.trials ({columns}) SELECT {values} FROM part.trials")  # noqa: S608
        db.execute(
            "INSERT OR REPLACE INTO main.scores SELECT own.number, scorer, value, correct, judged, reason "
            "FROM part.scores JOIN part.trials AS theirs ON theirs.number=trial "
            "JOIN main.trials AS own ON own.run_id=theirs.run_id AND own.state='finished'"
        )
        ((cost, tokens),) = db.execute("SELECT total(cost), total(input_tokens + output_tokens) FROM main.trials")
        db.execute("UPDATE main.evaluation SET cost=max(cost, ?), tokens=max(tokens, ?)", (cost, int(tokens)))

    # -------------------------------------------------------------------------------------------- working on it

    def register(self, command: str) -> None:
        """Register this process as a worker. It may claim trials until it closes the store or dies."""
        row = (os.getpid(), socket.gethostname(), time.time(), command)
        with self._transaction() as db:
            db.execute(_SENT)
            self.worker = int(db.execute("INSERT INTO workers VALUES (NULL,?,?,?,?)", row).lastrowid or 0)
        self._locks = RunLocks(Path(f"{self.path}-workers"))
        self._locks.take(f"worker {self.worker}", self.worker)

    def exchange(self, done: Sequence[Finished | Released], free: int, cost: float, tokens: int) -> list[TrialClaim]:
        """Store results, add cost and tokens, and claim up to `free` trials, in one transaction."""
        with self._transaction() as db:
            for each in done:
                if isinstance(each, Finished):
                    self._finish(db, each)
                else:
                    self._release(db, each)
            if cost or tokens:
                db.execute("UPDATE evaluation SET cost=cost+?, tokens=tokens+?", (cost, tokens))
            return self._claim(db, free) if free > 0 else []

    def _finish(self, db: sqlite3.Connection, done: Finished) -> None:
        outcome = asdict(done.outcome)
        db.execute(
            _FINISH,
            (
                "suspended" if done.outcome.suspended else "finished",
                time.time(),
                *map(_stored, outcome.values()),
                done.claim.number,
                self.worker,
            ),
        )
        db.execute("DELETE FROM sent WHERE trial=?", (done.claim.number,))
        self._put_scores(db, done.claim.number, done.scores)

    def _put_scores(self, db: sqlite3.Connection, trial: int, scores: Mapping[str, Score]) -> None:
        db.executemany(
            "INSERT OR REPLACE INTO scores VALUES (?,?,?,?,?,?)",
            ((trial, name, s.value, s.correct, s.judged, _stored(s.reason)) for name, s in scores.items()),
        )

    def _release(self, db: sqlite3.Connection, back: Released) -> None:
        db.execute(
            "UPDATE trials SET state='waiting', worker=NULL, tries=tries+?, not_before=? WHERE number=? AND worker=?",
            (back.failed, time.time() + back.after if back.after else 0, back.claim.number, self.worker),
        )

    def _claim(self, db: sqlite3.Connection, free: int) -> list[TrialClaim]:
        now = time.time()
        rows = db.execute(
            "SELECT trials.number, body, epoch, run_id, tries, coalesce(node, '') FROM trials "
            "JOIN tasks ON tasks.number=trials.task LEFT JOIN sent ON sent.trial=trials.number "
            "WHERE state='waiting' AND not_before<=? ORDER BY trials.number LIMIT ?",
            (now, free),
        ).fetchall()
        db.executemany(
            "UPDATE trials SET state='running', worker=?, started=coalesce(started, ?) WHERE number=?",
            ((self.worker, now, row[0]) for row in rows),
        )
        return [TrialClaim(number, EvalTask.of(json.loads(body)), *rest) for number, body, *rest in rows]

    def send(self, claims: Sequence[TrialClaim], node: str) -> None:
        """Note that claimed trials are about to be sent to a node. The note is on the disk when this returns."""
        self._query("PRAGMA synchronous=FULL")
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO sent VALUES (?,?)", ((claim.number, node) for claim in claims))

    def release_all(self) -> None:
        """Release the trials that this worker still holds."""
        if self.worker:
            with self._transaction() as db:
                db.execute("UPDATE trials SET state='waiting', worker=NULL WHERE worker=?", (self.worker,))

    def wake_suspended(self) -> None:
        """Let suspended trials be claimed again: their decisions may have been made."""
        with self._transaction() as db:
            db.execute("UPDATE trials SET state='waiting' WHERE state='suspended'")

    def spend(self, cost: float, tokens: int) -> tuple[float, int]:
        """Add cost and tokens, and return the totals of all workers."""
        with explained(self.path):
            ((spent, used),) = self._db.execute(
                "UPDATE evaluation SET cost=cost+?, tokens=tokens+? RETURNING cost, tokens", (cost, tokens)
            ).fetchall()
        return float(spent), int(used)

    def free_orphans(self) -> None:
        """Free the trials of workers that have died."""
        assert self._locks is not None
        workers = self._query("SELECT DISTINCT worker FROM trials WHERE state='running' AND worker!=?", (self.worker,))
        dead = [(worker,) for (worker,) in workers if not self._locks.held_anywhere(worker)]
        if dead:
            free = "UPDATE trials SET state='waiting', worker=NULL, not_before=0 WHERE state='running' AND worker=?"
            with self._transaction() as db:
                db.executemany(free, dead)

    # -------------------------------------------------------------------------------------------- controlling it

    def control(self) -> Control:
        """Return the controls, the cost, and the number of unfinished trials."""
        ((state, concurrency, cost, tokens),) = self._query("SELECT state, concurrency, cost, tokens FROM evaluation")
        counts = dict(self._query("SELECT state, count(*) FROM trials WHERE state!='finished' GROUP BY state"))
        numbers = [counts.get(name, 0) for name in ("waiting", "running", "suspended")]
        return Control(state, concurrency, cost, tokens, *numbers)

    def set_control(self, *, state: str | None = None, concurrency: int | None = None) -> None:
        """Control the workers.

        Args:
            state: "running", "paused" or "stopped".
            concurrency: The number of trials that each worker runs at once; 0: what it was started with.
        """
        with self._transaction() as db:
            if state is not None:
                db.execute("UPDATE evaluation SET state=?", (state,))
            if concurrency is not None:
                db.execute("UPDATE evaluation SET concurrency=?", (concurrency or None,))

    def wait_again(self, statuses: Sequence[str], *, suffix: str = "") -> None:
        """Let finished trials of these statuses run again.

        Args:
            statuses: "failed", "unanswered", "answered".
            suffix: Added to the run's name, for a new run instead of resuming the old one.
        """
        chosen = "state='finished' AND status IN (SELECT value FROM json_each(?))"
        wanted = json.dumps(list(statuses))
        forget = f"DELETE FROM scores WHERE trial IN (SELECT number FROM trials WHERE {chosen})"  # noqa: S608 - constant
        reset = f"UPDATE trials SET state='waiting', tries=0, not_before=0, run_id=run_id||? WHERE {chosen}"  # noqa: S608
        with self._transaction() as db:
            db.execute(forget, (wanted,))
            db.execute(reset, (suffix, wanted))

    # -------------------------------------------------------------------------------------------- reading it

    def progress(self, scorer: str) -> SweepProgress:
        """Return the progress of the evaluation. This is cheap enough for a display to ask every second."""
        counts = self._query("SELECT state, status, error_kind, stop_reason, count(*) FROM trials GROUP BY 1, 2, 3, 4")
        failures: Counter[str] = Counter()
        states: Counter[str] = Counter()
        for state, status, kind, reason, number in counts:
            states[state] += number
            if state == "finished" and status != "answered":
                failures[kind or reason] += number
        sums = self._query(
            "SELECT total(value), count(*) FROM trials LEFT JOIN scores ON trial=number AND scorer=? "
            "WHERE state='finished' GROUP BY task",
            (scorer,),
        )
        return SweepProgress(
            control=self.control(),
            planned=states.total(),
            finished=states["finished"],
            score=mean_of_sums(sums),
            failures=dict(failures.most_common()),
            workers=sum(self._is_alive(worker) for (worker,) in self._query("SELECT id FROM workers")),
        )

    def _is_alive(self, worker: int) -> bool:
        if self._locks is None:
            self._locks = RunLocks(Path(f"{self.path}-workers"), read_only=True)
        return self._locks.held_anywhere(worker)

    def tasks(self) -> list[EvalTask]:
        """Return the tasks in their order."""
        return [EvalTask.of(json.loads(body)) for (body,) in self._query("SELECT body FROM tasks ORDER BY number")]

    def trials(self) -> list[Trial]:
        """Return the trials, by task and epoch."""
        scores = _stored_scores(self._query("SELECT * FROM scores"))
        edited = {name for by_name in scores.values() for name in by_name if name.endswith(ORIGINAL)}
        for original in edited:  # a trial that nobody has edited has one score
            for by_name in scores.values():
                if original not in by_name and (score := by_name.get(original.removesuffix(ORIGINAL))):
                    by_name[original] = score
        return [_trial(row, scores.get(row[0], {})) for row in self._query(_SELECT_TRIALS)]

    def trial(self, run_id: str) -> tuple[EvalTask, Trial] | None:
        """Return the trial of this run and its task, or None."""
        rows = self._query(_SELECT_TRIALS.replace(" ORDER BY", " WHERE run_id=? ORDER BY"), (run_id,))
        if not rows:
            return None
        number, task_id, *_ = rows[0]
        scores = _stored_scores(self._query("SELECT * FROM scores WHERE trial=?", (number,)))
        ((body,),) = self._query("SELECT body FROM tasks WHERE id=?", (task_id,))
        return EvalTask.of(json.loads(body)), _trial(rows[0], scores.get(number, {}))

    def finished(self, *, unscored_by: str | None = None) -> list[tuple[int, Attempted]]:
        """Return the trials that have ended, with their numbers, as scorers see them.

        Args:
            unscored_by: Only the trials that this scorer has not scored. None: all.
        """
        found = self._query(
            "SELECT trials.number, body, answer, status, run_id, epoch FROM trials "
            "JOIN tasks ON tasks.number=trials.task WHERE state='finished' AND trials.number NOT IN "
            "(SELECT trial FROM scores WHERE scorer=?) ORDER BY trials.number",
            (unscored_by,),  # NULL equals no name.
        )
        return [
            (number, Attempted(EvalTask.of(json.loads(body)), answer, status, run_id=run_id, epoch=epoch))
            for number, body, answer, status, run_id, epoch in found
        ]

    def put_scores(self, scores: Mapping[int, Mapping[str, Score]]) -> None:
        """Store scores by the numbers of trials. If a person has edited one, the scorer's replaces the original."""
        with self._transaction() as db:
            edited = set(db.execute("SELECT trial, scorer FROM scores WHERE scorer LIKE ?", (f"%{ORIGINAL}",)))
            for trial, by_name in scores.items():
                originals = {name: f"{name}{ORIGINAL}" for name in by_name if (trial, f"{name}{ORIGINAL}") in edited}
                self._put_scores(db, trial, {originals.get(name, name): score for name, score in by_name.items()})

    def edit_score(self, task_id: str, epoch: int, scorer: str, score: Score | None) -> None:
        """Replace a scorer's score with a person's. The scorer's is kept under another name; None restores it.

        Raises:
            UsageError: There is no such trial, or the scorer has not scored it.
        """
        original = f"{scorer}{ORIGINAL}"
        with self._transaction() as db:
            number = db.execute(
                "SELECT trials.number FROM trials JOIN tasks ON tasks.number=trials.task WHERE id=? AND epoch=?",
                (task_id, epoch),
            ).fetchone()
            if number is None:
                raise UsageError(f"{self.path.stem} has no trial {epoch} of a task {task_id!r:.100}.")
            names = {name for (name,) in db.execute("SELECT scorer FROM scores WHERE trial=?", number)}
            if scorer not in names:
                known = ", ".join(sorted(names)) or "none"
                raise UsageError(f"{scorer} has not scored the trial {epoch} of {task_id!r:.100} (scored by: {known}).")
            if original not in names and score is not None:
                db.execute("UPDATE scores SET scorer=? WHERE trial=? AND scorer=?", (original, *number, scorer))
            elif original in names and score is None:
                db.execute("DELETE FROM scores WHERE trial=? AND scorer=?", (*number, scorer))
                db.execute("UPDATE scores SET scorer=? WHERE trial=? AND scorer=?", (scorer, *number, original))
            if score is not None:
                self._put_scores(db, number[0], {scorer: score})


def _stored(value: Any) -> Any:
    """Return a text without lone surrogates, which SQLite cannot hold; anything else as it is."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def _stored_scores(rows: Iterable[tuple[Any, ...]]) -> dict[int, dict[str, StoredScore]]:
    """Return rows of the table `scores` by trial and scorer."""
    scores: dict[int, dict[str, StoredScore]] = {}
    for trial, scorer, value, correct, judged, reason in rows:
        scores.setdefault(trial, {})[scorer] = StoredScore(value, bool(correct), bool(judged), reason)
    return scores


def _trial(row: tuple[Any, ...], scores: Mapping[str, StoredScore]) -> Trial:
    _, task_id, epoch, run_id, state, tries, started, ended, *values = row
    outcome = None
    if state in ("finished", "suspended"):
        known = dict(zip(_OUTCOME, values, strict=True))
        outcome = RunOutcome(**{**known, "permanent": bool(known["permanent"])})
    return Trial(
        task_id=task_id,
        epoch=epoch,
        run_id=run_id,
        state=state,
        tries=tries,
        started=started,
        ended=ended,
        outcome=outcome,
        scores=scores,
    )
