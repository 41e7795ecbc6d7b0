"""The pages of examples/webapp, with the npm packages that they are made of, in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench" / "web_pages.py"


@pytest.mark.slow
@pytest.mark.npm
@pytest.mark.chromium
@pytest.mark.timeout(300)
def test_what_the_pages_show_equals_the_record(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    with (tmp_path / "output").open("w+") as output:
        ended = subprocess.run(
            [sys.executable, BENCH, "--conversations", "4"], stdout=output, stderr=output, timeout=280
        )
        output.seek(0)
        assert ended.returncode == 0, output.read()
