"""A home behind PgBouncer in transaction mode: any transaction may be executed on another connection."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from closeout import Agent
from closeout.journal.store import close_stores
from closeout.testing import RequestView, ScriptedClient, answer, call
from pgbouncer_server import pooler
from postgres_server import PostgresServer

pytestmark = pytest.mark.pgbouncer

WORKER = """
import asyncio, sys
from test_pooler import agent

async def main():
    await asyncio.gather(*(agent(sys.argv[1]).run(f"{sys.argv[2]} {number}") for number in range(12)))

asyncio.run(main())
"""


async def pay(key: str) -> str:
    """Pay."""
    return "receipt"


def script(view: RequestView) -> object:
    paid = sum(message["role"] == "tool" for message in view.messages)
    return answer("done") if paid == 2 else call("pay", key=str(paid))


def agent(home: str) -> Agent:
    return Agent(ScriptedClient(script), [pay], home=home, dialect="function_call")


def test_tenants_share_one_connection_and_nothing_else(postgres: PostgresServer, home: Path) -> None:
    with pooler(postgres, size=1) as url:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, f"{url}&schema={tenant}", tenant], cwd=Path(__file__).parent
            )
            for tenant in ("pool_a", "pool_b")
            for _ in range(2)
        ]
        assert [worker.wait(60) for worker in workers] == [0] * 4
    for tenant in ("pool_a", "pool_b"):
        rows = postgres.execute(f"SELECT split_part(task, ' ', 1), status, count(*) FROM {tenant}.runs GROUP BY 1, 2")
        assert rows == [(tenant, "answered", 24)]
        assert postgres.execute(f"SELECT count(*) FROM {tenant}.leases WHERE until > now()") == [(0,)]
        postgres.execute(f"DROP SCHEMA {tenant} CASCADE")
    assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


async def test_a_worker_behind_a_pooler_looks_by_itself_and_the_log_says_so(
    postgres: PostgresServer, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "closeout")
    with pooler(postgres) as url:
        address = f"{url}&schema=pool_work"
        run_id = await agent(address).submit("Pay.")
        worker = asyncio.create_task(agent(address).work(until_idle=True))
        assert (await agent(address).result(run_id, timeout=30)).status == "answered"
        await worker
        close_stores()
    postgres.execute("DROP SCHEMA pool_work CASCADE")
    assert "behind a connection pooler" in caplog.text


def test_a_connection_is_left_as_it_was_found(postgres: PostgresServer, home: Path) -> None:
    with pooler(postgres, size=1) as url:
        asyncio.run(agent(f"{url}&schema=pool_left").run("Pay."))
        close_stores()
        import psycopg

        with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
            names = ("search_path", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
            assert [db.execute(f"SHOW {name}").fetchone() for name in names] == [
                ('"$user", public',), ("0",), ("0",), ("on",)
            ]  # fmt: skip
            assert db.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
            assert db.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)
    postgres.execute("DROP SCHEMA pool_left CASCADE")
