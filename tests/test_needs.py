"""Tests that need a program which `make test` does not install are marked, and skipped where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

import needs

SAMPLES = (
    "test_messages_from_outside.py::test_the_page_of_a_run_has_a_box_for_messages",
    "test_pooler.py::test_a_connection_is_left_as_it_was_found",
)


def test_with_the_programs_hidden_the_tests_that_need_them_are_skipped_and_say_what_to_install(tmp_path: Path) -> None:
    hidden = needs.path_without(needs.HIDDEN, tmp_path)
    tests = Path(__file__).parent
    chosen = [str(tests / sample) for sample in SAMPLES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-rs", *chosen, "-p", "no:cacheprovider"],
        env=os.environ | {"PATH": hidden, "TESTS_PATH_ONLY": "1", "CHROME_PATH": ""},
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for program in ("chromium", "pgbouncer"):
        assert f"apt install {program}" in done.stdout


def test_every_marker_of_a_program_is_declared_and_has_a_reason() -> None:
    declared = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")
    for name, need in needs.NEEDS.items():
        assert f'"{name}: ' in declared
        assert "install" in need.reason


def test_tests_with_a_browser_are_the_last_of_their_module(request: pytest.FixtureRequest) -> None:
    for path, items in groupby(request.session.items, key=lambda item: item.path):
        uses = ["browser" in item.fixturenames for item in items if isinstance(item, pytest.Function)]
        assert uses == sorted(uses), path
