"""The names of runs, those that the runtime makes and the session that one belongs to, and of calls within a run."""

from __future__ import annotations

import re
import secrets
import time

__all__ = ["LAB", "call_id", "is_new_run_id", "new_run_id", "run_of_lane", "session_of"]

LAB = "what-if"
"""The first part of the names of runs that comparisons keep, the name of their agent, and the key of their origin."""

_BASE_32 = "0123456789abcdefghjkmnpqrstvwxyz"


def new_run_id() -> str:
    """Return a unique name that sorts by time, such as 20261121-114503-k83v9qw0dmz6t4sn2e.

    The time in UTC to the millisecond, then 80 random bits, as in a ULID; the last 18 letters are the milliseconds and
    the random bits in base 32.
    """
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    number = milliseconds << 80 | secrets.randbits(80)
    letters = "".join(_BASE_32[number >> shift & 31] for shift in range(85, -1, -5))
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(seconds)) + letters


_NEW_RUN_ID = re.compile(rf"\d{{8}}-\d{{6}}-[{_BASE_32}]{{18}}", re.ASCII)


def is_new_run_id(name: str) -> bool:
    """Return whether a name is one that `new_run_id` makes, rather than a user's."""
    return _NEW_RUN_ID.fullmatch(name) is not None


def run_of_lane(lane: str) -> str:
    """Return the id of the run that a lane (`what-if.COMPARISON.RUN.LANE`) repeats; empty for any other name."""
    return lane.removeprefix(f"{LAB}.").partition(".")[2].rpartition(".")[0] if lane.startswith(f"{LAB}.") else ""


def session_of(run_id: str) -> str:
    """Return the id of the session that a run belongs to, or begins; empty if its name is one of a user's."""
    session, _, number = run_id.rpartition(".")
    if session and len(number) < 10 and number.isascii() and number.isdigit():
        return session
    return run_id if is_new_run_id(run_id) else ""


def call_id(agent: str, name: str) -> str:
    """Return the id of a call or a decision within its run, such as r1 of the main agent or r2:clerk/r1 of another.

    Args:
        agent: The path of the agent.
        name: The handle of the call, or the name of the decision.
    """
    path = agent.partition("/")[2]
    return f"{path}/{name}" if path else name
