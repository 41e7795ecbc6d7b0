"""The lower bounds of the dependencies: documented, and pinned for `make test-lowest`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from closeout.cli import environment

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = {
    name: group
    for name, group in PROJECT["optional-dependencies"].items()
    if name not in ("all", "dev", "clients", "docs")
}
REQUIREMENTS = list(dict.fromkeys([*PROJECT["dependencies"], *(each for group in EXTRAS.values() for each in group)]))


def lowest(pyproject: Path) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(ROOT / ".ci" / "lowest.py"), str(pyproject)]
    return subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)


def test_the_documentation_states_every_lower_bound_with_a_reason():
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert re.findall(r"^\| `([^`]+[>=]=[^`]+)` \| \S.*\|$", page, re.MULTILINE) == REQUIREMENTS


def test_the_extra_all_holds_every_extra_so_that_the_lowest_versions_of_all_are_tested():
    assert PROJECT["optional-dependencies"]["all"] == [f"closeout[{','.join(EXTRAS)}]"]


def test_doctor_says_of_every_extra_what_it_adds():
    assert set(environment.EXTRAS) == set(EXTRAS)


def test_every_dependency_is_pinned_to_its_lower_bound():
    done = lowest(ROOT / "pyproject.toml")
    pinned = [re.sub(r"\[.*\]|;.*", "", each).replace(">=", "==") for each in REQUIREMENTS]  # a pin names no extra
    assert done.stdout.split() == pinned


def test_a_requirement_without_a_lower_bound_is_named(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["rich"]\n[project.optional-dependencies]\n', "utf-8"
    )
    done = lowest(tmp_path / "pyproject.toml")
    assert done.returncode == 1
    assert done.stderr == "pyproject.toml: 'rich' has no plain lower bound. Write it like name>=1.2.\n"
