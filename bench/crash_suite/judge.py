"""Judges a runtime: cuts off the processes of its shim, has their runs resumed, and counts faults."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from database import Postgres
from endpoints import Server
from world import RECEIPT, TASKS, Cut, World, cpu_seconds

HERE = Path(__file__).parent
SECONDS = 90.0  # without using any CPU after which a process counts as hung
AT_MOST = 600.0  # seconds that a process may take in any case
STOPPED = 3.0  # seconds without using any CPU after which a process that resumes beside a stopped one counts as waiting
STOPPED_AT_MOST = 10.0  # seconds that a stopped process sleeps while another one resumes its run
RESUMES = 3  # attempts until a run counts as stuck
FAULTS = ("twice", "never", "stuck", "wrong", "untold")


class Process:
    """A process that a zygote has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        with suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended. Returns False if it has not."""
        if self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if not poll.poll(seconds * 1000):
                return False
            os.close(self._fd)
            self._fd = -1
        return True

    def wait_while_busy(self, idle: float = SECONDS, at_most: float = AT_MOST) -> bool:
        """Wait until it has ended. Returns False if it hangs: on a crowded machine, slow is not hung."""
        used, since, began = -1.0, time.monotonic(), time.monotonic()
        while not self.wait(1.0):
            now = time.monotonic()
            if (cpu := cpu_seconds(self.pid)) > used:
                used, since = cpu, now
            if now - since > idle or now - began > at_most:
                return False
        return True

    def send(self, number: int) -> None:
        if self._fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)


class Runtime:
    """A runtime under test: its shim, imported once by a process of its own Python."""

    def __init__(self, shim: str, python: str, preload: Path | None, log: Path, postgres: Postgres | None) -> None:
        self.postgres = postgres
        self._lock = threading.Lock()
        env = {
            **os.environ,
            "LD_PRELOAD": str(preload or ""),
            "OPENAI_API_KEY": "scripted",
            "PYTHONUNBUFFERED": "1",
        }
        self._log = log.open("ab")
        self._zygote = subprocess.Popen(
            [python, str(HERE / "zygote.py"), shim],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            text=True,
            bufsize=1,
        )
        assert self._zygote.stdout is not None
        first = self._zygote.stdout.readline()
        if not first:
            raise SystemExit(f"The shim {shim} cannot be imported:\n{log.read_text()}")
        hello = json.loads(first)
        self.modules: set[str] = set()
        self.import_cpu: float = hello["cpu"]
        self.not_offered: dict[str, str] = hello["not_offered"]

    def spawn(self, call: str, env: Mapping[str, str]) -> Process:
        with self._lock:
            assert self._zygote.stdin is not None
            assert self._zygote.stdout is not None
            self._zygote.stdin.write(json.dumps({"call": call, "env": dict(env)}) + "\n")
            return Process(int(self._zygote.stdout.readline()))

    def imports(self, modules: Sequence[str]) -> None:
        """Import what an undisturbed process has imported, so that the next ones find it."""
        with self._lock:
            assert self._zygote.stdin is not None
            assert self._zygote.stdout is not None
            self._zygote.stdin.write(json.dumps({"modules": list(modules)}) + "\n")
            self._zygote.stdout.readline()

    def close(self) -> None:
        self._zygote.kill()
        self._zygote.communicate()
        self._log.close()


@dataclass
class Verdict:
    """What became of one case.

    Args:
        faults: by kind, what happened
        reached: False if the run was over before the moment of the cut
        resumes: how often the run was resumed after it
        seconds: from the start of the first resume until it asked the model or called a tool
        cpu: the same in seconds of CPU
        keyed_twice: invoices that are paid twice although the service would honour the keys of the calls
    """

    scenario: str
    cut: Cut | None
    faults: dict[str, str] = field(default_factory=dict)
    reached: bool = True
    resumes: int = 0
    seconds: float | None = None
    cpu: float | None = None
    keyed_twice: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    log: str = ""


class Case:
    """One run of a scenario with one cut."""

    def __init__(self, runtime: Runtime, server: Server, scenario: str, cut: Cut | None, *, keep: bool = False) -> None:
        self.runtime, self.server, self.cut, self._keep = runtime, server, cut, keep
        self.world = World(scenario, cut)
        self.folder = Path(tempfile.mkdtemp(prefix="crash-suite-"))
        self.name = self.folder.name
        self.home = self.folder / "home"
        self.home.mkdir()
        self.counter = self.folder / "counter"
        self.counter.write_bytes(bytes(8))
        self.synced = self.folder / "synced"
        self.synced.mkdir()
        self.verdict = Verdict(scenario, cut)
        self._roles = 0
        self._shown: list[dict[str, Any]] = []
        self._approved = False
        self._cut_off = False
        server.worlds[self.name] = self.world
        self.database = runtime.postgres.database(self.name.replace("-", "_")) if runtime.postgres else ""

    def judge(self) -> Verdict:
        try:
            self._drive()
            self._examine()
        finally:
            self.verdict.counts = {**self.world.counts, "write": self._writes()}
            self.verdict.reached = self.cut is None or self._cut_off
            with suppress(OSError):
                self.verdict.log = (self.folder / "log").read_text(errors="replace")[-2000:]
            del self.server.worlds[self.name]
            if self.runtime.postgres:
                self.runtime.postgres.drop(self.name.replace("-", "_"))
            if not self._keep:
                shutil.rmtree(self.folder, ignore_errors=True)
        return self.verdict

    def _writes(self) -> int:
        return int(struct.unpack("q", self.counter.read_bytes())[0])

    # ------------------------------------------------------------------------------------------- the processes

    def _spawn(self, call: str) -> tuple[Process, str]:
        self._roles += 1
        role = f"p{self._roles}"
        scenario = self.world.scenario
        env = {
            "CRASH_SCENARIO": scenario,
            "CRASH_TASK": TASKS[scenario][0],
            "CRASH_RUN": f"run-{self.name}",
            "CRASH_HOME": str(self.home),
            "CRASH_POSTGRES": self.database,
            "CRASH_POSTGRES_SOCKET": str(self.runtime.postgres.folder) if self.runtime.postgres else "",
            "CRASH_MODEL": f"{self.server.url}/{self.name}/{role}/v1",
            "CRASH_TOOLS": f"{self.server.url}/{self.name}/{role}/tools",
            "CRASH_VERSION": "2" if scenario == "code" and self._cut_off else "1",
            "CRASH_SHOWN": str(self.folder / f"shown-{role}"),
            "CRASH_WATCHED": str(self.folder / f"watched-{role}"),
            "CRASH_LOG": str(self.folder / "log"),
            "CRASH_COUNTER": str(self.counter),
        }
        if self.cut is not None and self.cut.at == "write" and not self._cut_off:
            env["CRASH_WRITE_KILL" if self.cut.how == "kill" else "CRASH_WRITE_FULL"] = str(self.cut.number)
        if self.cut is not None and self.cut.how == "power" and not self._cut_off:
            env["CRASH_SYNCED"] = str(self.synced)
        if not self._cut_off:
            self.world.pid = 0
        process = self.runtime.spawn(call, env)
        self.server.began(f"{self.name}/{role}", process.pid)
        return process, role

    def _end(self, process: Process, role: str) -> dict[str, Any] | None:
        """Wait for the end of a process, and return what it shows."""
        if not process.wait_while_busy():
            process.send(signal.SIGKILL)
            process.wait(SECONDS)
        if self.cut is not None and (
            self.world.cut_off.is_set() or (self.cut.at == "write" and self._writes() >= self.cut.number)
        ):
            if self.cut.how == "power" and not self._cut_off:
                self._lose_unsynced()
            self._cut_off = True
            self.world.cut_off.set()
        file = self.folder / f"shown-{role}"
        if not file.exists():
            return None
        shown: dict[str, Any] = json.loads(file.read_text())
        if (modules := set(shown.pop("modules"))) - self.runtime.modules:
            self.runtime.imports(sorted(modules))
            self.runtime.modules |= modules
        self._shown.append(shown)
        return shown

    def _lose_unsynced(self) -> None:
        """Leave each file as it was when it was last synced or renamed, empty if it never was."""
        for file in [each for each in self.home.rglob("*") if each.is_file()]:
            kept = self.synced / str(file.relative_to(self.home)).replace("/", "\\")
            file.write_bytes(kept.read_bytes() if kept.exists() else b"")

    def _execute(self, call: str) -> dict[str, Any] | None:
        """Have one process do something, or two at once where the scenario says so."""
        was_cut = self._cut_off
        began = time.monotonic()
        process, role = self._spawn(call)
        if self.cut is not None and self.cut.how == "stop" and not was_cut:
            while not self.world.cut_off.is_set() and not process.wait(0.01):
                if time.monotonic() - began > AT_MOST:
                    break
            if self.world.cut_off.is_set():
                return self._resume_beside(process, role)
        other = self._spawn(call) if was_cut and self.world.scenario == "two" else None
        shown = self._end(process, role)
        if was_cut and self.verdict.seconds is None:
            first = [(moment, cpu) for moment, pid, cpu in self.world.seen if pid == process.pid][:1]
            for moment, cpu in first:
                self.verdict.seconds, self.verdict.cpu = moment - began, cpu
        if other is not None:
            second = self._end(*other)
            if second is not None and (shown is None or second["status"] == "answered"):
                return second
        return shown

    def _resume_beside(self, stopped: Process, role: str) -> dict[str, Any] | None:
        """Let another process resume the run of a stopped one, which wakes up afterwards."""
        self._cut_off = True
        self.verdict.resumes += 1
        other, other_role = self._spawn("resume")
        other.wait_while_busy(STOPPED, STOPPED_AT_MOST)
        stopped.send(signal.SIGCONT)
        first = self._end(stopped, role)
        second = self._end(other, other_role)
        both = [shown for shown in (second, first) if shown is not None]
        return next((shown for shown in both if shown["status"] == "answered"), both[0] if both else None)

    def _drive(self) -> None:
        call, failed, decisions, timers = "start", 0, 0, 0
        while True:
            was_cut = self._cut_off
            if call == "resume" and was_cut:
                self.verdict.resumes += 1
            shown = self._execute(call)
            status = shown["status"] if shown else "crashed"
            if self.cut is None and self.world.ledger and self.world.scenario == "approval" and not self._approved:
                self._fault("wrong", "paid without asking")
            if status == "answered":
                return
            if status == "waiting" and decisions < 6:
                decisions += 1
                assert shown is not None
                if not any(invoice in text for invoice in self.world.invoices for text in shown["waiting"]):
                    self._fault("untold", f"asks a person without saying what for: {shown['waiting']}")
                if self.world.ledger and not self._approved:
                    self._fault("wrong", "paid without asking")
                self._approved = True
                call = "decide"
                continue
            call = "resume"
            if status == "timer" and timers < 6:
                timers += 1
                assert shown is not None
                time.sleep(min(shown["seconds"], 5.0) + 0.05)
                continue
            if was_cut or self.cut is None:
                failed += 1
            if failed == (RESUMES if self.cut else 1):
                self._fault("stuck", f"{status}: {shown['note'] if shown else self._last_line()}")
                return

    def _last_line(self) -> str:
        log = self.folder / "log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return lines[-1][:300] if lines else "ended without a word"

    # ------------------------------------------------------------------------------------------- the verdict

    def _fault(self, kind: str, text: str) -> None:
        self.verdict.faults.setdefault(kind, text)

    def _examine(self) -> None:
        ledger, world = self.world.ledger, self.world
        paid = Counter(entry["invoice"] for entry in ledger)
        for invoice, times in paid.items():
            if times > 1:
                self._fault("twice", f"{invoice} paid {times} times")
                keys = [entry["key"] for entry in ledger if entry["invoice"] == invoice]
                self.verdict.keyed_twice += len(set(keys)) > 1 or "" in keys
        if world.due and ledger and ledger[0]["time"] < world.due - 0.1:
            self._fault("wrong", f"paid {world.due - ledger[0]['time']:.1f} s before it was due")
        if "stuck" in self.verdict.faults:
            return
        for invoice in world.invoices:
            if invoice not in paid:
                self._fault("never", f"{invoice} is not paid")
        answer = next(shown for shown in reversed(self._shown) if shown["status"] == "answered")
        said = RECEIPT.findall(answer["answer"])
        receipts = {(entry["invoice"], entry["receipt"]) for entry in ledger}
        if not receipts.issuperset(said) or {invoice for invoice, _ in said} != set(world.invoices):
            self._fault("wrong", f"answer {answer['answer']!r}, ledger {sorted(receipts)}")
        if world.scenario in {"read", "rollback"} and f"is {world.balance()}." not in answer["answer"]:
            self._fault("wrong", f"answer {answer['answer']!r}, balance {world.balance()}")
        if world.scenario == "overflow" and "so far: 4." not in answer["answer"]:
            self._fault("wrong", f"answer {answer['answer']!r} without the four documents")
        shown = "\n".join(each["history"] + each["answer"] for each in self._shown)
        if hidden := [receipt for _, receipt in sorted(receipts) if f"receipt {receipt}" not in shown]:
            self._fault("untold", f"nothing shows the payments {', '.join(hidden)}")
        watched = [file.read_text() for file in sorted(self.folder.glob("watched-*"))]
        if world.scenario == "stream" and not any(answer["answer"] in text for text in watched):
            self._fault("untold", f"who watches sees {watched} of the answer {answer['answer']!r}")
