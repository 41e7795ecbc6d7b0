"""A signal cancels a run at once, also if it arrives where it does not interrupt the event loop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")

# The system may deliver a signal to any thread, or to the main thread in the instant before it waits. Neither
# interrupts that wait. The first is what this program brings about.
ELSEWHERE = """
import asyncio, signal, threading
from closeout.cli.signals import Signals, Stopped

other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()

async def wait():
    asyncio.get_running_loop().call_later(0.05, start)
    await asyncio.sleep(600)

def start():
    threading.Timer(0.05, signal.pthread_kill, (other.ident, signal.SIGINT)).start()

with Signals() as signals:
    try:
        signals.run(wait())
    except Stopped as stopped:
        print(stopped.code)
"""


@posix_only
def test_a_signal_that_another_thread_receives_stops_the_run_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("130\n", "")


@posix_only
def test_the_wakeup_of_another_library_is_restored() -> None:
    from closeout.cli.signals import Signals

    async def work() -> int:
        inside = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(inside)
        return inside

    with Signals() as signals, asyncio.Runner() as runner:
        assert signals.run(work(), runner) >= 0
        assert signals.run(work(), runner) >= 0, "a runner serves several pieces of work"
    assert signal.set_wakeup_fd(-1) == -1
