"""Runs under DBOS and Temporal with executors that are killed: do all end, and is any payment made twice?

    python bench/engines.py dbos --runs 500 --kills 60
    TEMPORAL_ADDRESS=localhost:7233 python bench/engines.py temporal

Each run makes three or four payments. A quarter of them need an approval, wait for a timer, or wait for a signal. One
executor is killed and never returns; two others are killed again and again, and started again. Without
TEMPORAL_ADDRESS, Temporal's part is played by the small server of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from harness import engine_runs  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("dbos", "temporal"))
    parser.add_argument("--runs", type=int, default=80)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    database, address = PostgresServer(), os.environ.get("TEMPORAL_ADDRESS", "")
    server = None
    try:
        database.start()
        database.execute("CREATE DATABASE engine")
        os.environ["CLOSEOUT_HOME"] = database.url(schema="runs", lease=3)
        if options.engine == "dbos":
            address = f"postgresql+psycopg://closeout@/engine?host={database.folder}"
        elif not address:
            server = subprocess.Popen([sys.executable, TESTS / "temporal_server.py"], stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            address = server.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PAID"] = str(Path(folder) / "paid")
            driven = engine_runs.drive(
                options.engine,
                address,
                Path(folder),
                count=options.runs,
                kills=options.kills,
                seconds=options.seconds,
            )
            print(json.dumps({"engine": options.engine, "runs": options.runs, **asyncio.run(driven)}))
    finally:
        if server is not None:
            server.kill()
        database.remove()


if __name__ == "__main__":
    main()
