"""The machine as the embedded model sees it: its cores, how many are idle, and the speeds that were reached on it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from closeout.shared_files import write_whole

__all__ = ["Speed", "Speeds", "idle_cores", "pick_threads", "processor", "processor_flags", "usable_cores"]

MOST_THREADS = 16  # memory is the limit before that
_LOOK = 0.1  # seconds during which the load is measured


def usable_cores() -> int:
    """Return how many cores this process may use: those of its affinity, within the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def idle_cores(cores: int) -> int:
    """Return how many of `cores` other processes leave idle, at least 1. Takes a tenth of a second."""
    before = _busy_seconds()
    if before is None:
        with contextlib.suppress(OSError, AttributeError):  # not on Windows
            return max(1, min(cores, round(cores - os.getloadavg()[0])))
        return cores
    began, own = time.perf_counter(), time.process_time()
    time.sleep(_LOOK)
    after = _busy_seconds() or before
    others = (after - before) - (time.process_time() - own)
    return max(1, min(cores, round(cores - others / (time.perf_counter() - began))))


def _busy_seconds() -> float | None:
    """The seconds that all cores have worked so far; None if the system does not say."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
        user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second that were reached with a number of threads."""

    threads: int
    prompt: float
    reply: float

    @property
    def seconds(self) -> float:
        """Return the seconds of a typical turn: 100 new tokens of prompt, and 60 written."""
        return 100 / self.prompt + 60 / self.reply


def pick_threads(available: int, speeds: Mapping[int, Speed]) -> int:
    """Return the number of threads to use: all that are available, or fewer if those were faster here."""
    most = max(1, min(available, MOST_THREADS))
    known = [speed for threads, speed in speeds.items() if threads <= most]
    if most not in speeds or not known:
        return most
    return min(known, key=lambda speed: speed.seconds).threads


class Speeds:
    """The best speeds that a model has reached on this machine with an engine. A damaged file counts as empty."""

    def __init__(self, file: Path, model: str, engine: str) -> None:
        self._file = file
        self._key = f"{model} · {engine} · {processor()}"

    def read(self) -> dict[int, Speed]:
        """The best speeds, by threads."""
        found: dict[int, Speed] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            for threads, (prompt, reply) in json.loads(self._file.read_text("utf-8"))[self._key].items():
                if prompt > 0 and reply > 0:
                    found[int(threads)] = Speed(int(threads), float(prompt), float(reply))
        return found

    def keep(self, speed: Speed) -> None:
        """Note a speed if it is the best for its threads. A file that cannot be written changes nothing."""
        best = self.read().get(speed.threads)
        prompt, reply = max(speed.prompt, best.prompt if best else 0), max(speed.reply, best.reply if best else 0)
        if best is not None and prompt < 1.02 * best.prompt and reply < 1.02 * best.reply:
            return
        with contextlib.suppress(OSError):
            try:
                known = json.loads(self._file.read_text("utf-8"))
            except (OSError, ValueError):
                known = {}
            known = known if isinstance(known, dict) else {}
            of_key = known.get(self._key)
            known[self._key] = {
                **(of_key if isinstance(of_key, dict) else {}),
                str(speed.threads): [round(prompt, 2), round(reply, 2)],
            }
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(known, ensure_ascii=False, indent=1).encode() + b"\n")


def processor() -> str:
    """The processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def processor_flags() -> frozenset[str]:
    """The processor's abilities as Linux calls them; empty on other systems."""
    return frozenset(_cpuinfo("flags").split())


def _cpuinfo(field: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith(field):
                return line.partition(":")[2].strip()
    return ""
