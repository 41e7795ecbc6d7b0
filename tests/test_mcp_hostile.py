"""Hostile MCP servers at every moment: a sentence for each, no hang, others unharmed (bench/hostile_mcp.py: more)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

from closeout.tools.mcp import mcp_client
from hostile_mcp import KINDS, visit


@pytest.mark.timeout(300)
async def test_hostile_servers_are_named_in_a_sentence_and_harm_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mcp_client, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.2)
    monkeypatch.setattr("mcp.client.stdio.FORCE_KILL_TIMEOUT", 0.2)
    found, _ = await visit([kind for kind in KINDS if not kind.is_slow], tmp_path)
    assert len(found) >= 80
    assert [each for each in found if each.fault] == []
    assert capfd.readouterr() == ("", "")
