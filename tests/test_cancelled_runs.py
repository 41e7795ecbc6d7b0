"""A run cancelled at any loop iteration leaves nothing behind and can be resumed (tests/harness/cancelling.py)."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import cancelling

from closeout import Agent, tool
from closeout.testing import ScriptedClient, call


def test_a_run_cancelled_at_any_iteration_is_resumed_and_pays_once(tmp_path: Path) -> None:
    tried, found = cancelling.cancelled(tmp_path, 20, seed=1, server=False, until=math.inf)
    assert found == {}
    assert tried == 20


def test_a_cancelled_run_ends_its_mcp_server_and_books_once(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    tried, found = cancelling.cancelled(tmp_path, 1, seed=2, server=True, until=math.inf)
    assert found == {}
    assert tried == 1


def test_the_rig_finds_a_payment_that_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "PAYING", {"on_crash": "rerun"})
    folders = ((at, tmp_path / f"at{at}") for at in range(6, 40))
    assert any("paid" in str(cancelling.cancel_at(folder, (at,), server=False)) for at, folder in folders)


def test_ctrl_c_says_how_to_continue_the_run(home: Path) -> None:
    @tool
    async def wait() -> str:
        """Wait until somebody presses Ctrl-C."""
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(600)
        return ""

    agent = Agent(ScriptedClient([call("wait")]), [wait], home=home)
    with pytest.raises(KeyboardInterrupt) as stopped:
        agent.run_sync("Wait.", run_id="dock-1")
    assert stopped.value.__notes__ == ["Run dock-1 was cancelled. To continue it: closeout resume dock-1"]
