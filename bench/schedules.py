"""Recurring runs of a year and the announcements of many ends, by two instances that are killed again and again.

Each time of each schedule must begin one run, also where the clocks change; each end must reach a receiver that fails
half the time. The clock of the schedules is simulated, and the delays of webhooks are a tenth of a second.

    python bench/schedules.py [--days 365] [--ends 2000] [--kill-every 20] [--postgres]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])  # that of the instances

from closeout.homes import Home, as_home  # noqa: E402
from harness.recurring_runs import announced, recurring  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--ends", type=int, default=2000)
    parser.add_argument("--kill-every", type=int, default=20, help="times, and tries of a webhook, from kill to kill")
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        homes: list[Home] = [folder / "one", folder / "two"]
        if options.postgres:
            server = PostgresServer(fsync="on")
            stack.callback(server.remove)
            server.start()
            homes = [as_home(server.url(schema=name, lease=2)) for name in ("one", "two")]
        began = time.monotonic()
        if options.days:
            first = date(2027, 1, 1)
            runs, wanted, kills = recurring(
                homes[0], folder, first=first, days=options.days, kill_every=options.kill_every, seconds=3600
            )
            print(
                json.dumps(
                    {
                        "firings": len(runs),
                        "missing": sorted(wanted - runs),
                        "not wanted": sorted(runs - wanted),
                        "kills": kills,
                        "seconds": round(time.monotonic() - began),
                    }
                )
            )
        began = time.monotonic()
        if options.ends:
            names, receiver, kills = announced(homes[1], runs=options.ends, kill_every=options.kill_every, seconds=3600)
            received = {name.rpartition(".")[0] for name in receiver.received}
            print(
                json.dumps(
                    {
                        "ends": len(names),
                        "lost": sorted(names - received)[:20],
                        "tries": receiver.tries,
                        "received again": sum(count - 1 for count in receiver.received.values()),
                        "kills": kills,
                        "seconds": round(time.monotonic() - began),
                    }
                )
            )


if __name__ == "__main__":
    main()
