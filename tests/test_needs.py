"""Tests that need a program which `make test` does not install are marked, and skipped where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs

SAMPLES = (
    "test_flow_lives.py::test_files_have_the_labels_of_what_left_them",
    "test_python_isolation.py",
    "test_pooler.py::test_a_connection_is_left_as_it_was_found",
)


def test_with_the_programs_hidden_the_tests_that_need_them_are_skipped_and_say_what_to_install(tmp_path: Path) -> None:
    hidden = needs.path_without(needs.HIDDEN, tmp_path)
    tests = Path(__file__).parent
    chosen = [str(tests / sample) for sample in SAMPLES if (tests / sample.partition("::")[0]).exists()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-rs", *chosen, "-p", "no:cacheprovider"],
        env=os.environ | {"PATH": hidden, "TESTS_PATH_ONLY": "1", "CHROME_PATH": ""},
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for program in ("bubblewrap", "pgbouncer"):
        assert f"apt install {program}" in done.stdout


def test_every_marker_of_a_program_is_declared_and_has_a_reason() -> None:
    declared = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")
    for name, need in needs.NEEDS.items():
        assert f'"{name}: ' in declared
        assert "install" in need.reason
