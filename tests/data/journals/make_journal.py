"""Make a journal with the Closeout on PYTHONPATH: a run that ended, one that was killed, and one that waits.

PYTHONPATH=OLD/src python make_journal.py FILE.sqlite3.gz
"""

import gzip
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import closeout.journal.events
from closeout import Agent, tool
from closeout.testing import ScriptedClient, answer, call

WAITS = hasattr(closeout.journal.events, "DecisionRequested")  # the first versions have no approvals


def shop(home, *, killed=False, **policy):
    @tool(read_only=True)
    def price(item: str) -> str:
        """Return a price."""
        return f"{item} costs 5 " + "·" * 1500  # so long that it is stored by its hash

    def pay(amount: int) -> str:
        """Pay an amount."""
        return "receipt 17"

    def script(view):
        if "receipt" in view.text:
            return answer("5 für 茶")
        if "costs 5" not in view.text:
            return call("price", item="茶")
        if killed:
            os._exit(0)
        return call("pay", amount=5)

    tools = [price, tool(**policy)(pay)]
    return Agent(
        ScriptedClient(script), tools, instructions="Be exact.", dialect="function_call", name="shop", home=home
    )


def run(home, name):
    policy = {"approval": "always"} if name == "waits" else {}
    shop(home, killed=name == "killed", **policy).run_sync("Pay the 茶.", run_id=name)


if sys.argv[1] == "--run":
    run(Path(sys.argv[2]), sys.argv[3])
    sys.exit()
with tempfile.TemporaryDirectory() as folder:
    for name in ("ended", "killed", *(["waits"] if WAITS else [])):
        subprocess.run([sys.executable, __file__, "--run", folder, name], check=True)
    db = sqlite3.connect(Path(folder) / "journal.sqlite3")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute("VACUUM INTO ?", (str(Path(folder) / "copy"),))
    data = (Path(folder) / "copy").read_bytes()
    Path(sys.argv[1]).write_bytes(gzip.compress(data, 9, mtime=0))
    print(
        sys.argv[1],
        db.execute("PRAGMA user_version").fetchone()[0],
        db.execute("SELECT run_id, status FROM runs").fetchall(),
        len(data),
    )
