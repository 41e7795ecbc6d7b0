"""Every test has a home of its own, so that nothing is left behind and tests can run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from closeout.journal.store import close_stores

# A test that is slow on a busy machine is not wrong.
settings.register_profile("closeout", deadline=None)
settings.load_profile("closeout")


SEARCH = ("SEARXNG_BASE_URL", "SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which this test's runs are kept."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CLOSEOUT_HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # search keeps its index of a read-only home there
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "DEMO_MODE", *SEARCH):
        monkeypatch.delenv(name, raising=False)
    yield folder
    close_stores()
