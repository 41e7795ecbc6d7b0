"""Every test has a home of its own, so that nothing is left behind and tests can run side by side."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import needs
from closeout.homes import DatabaseHome, Home, as_home
from closeout.journal.ledger import close_ledgers
from closeout.journal.store import close_stores
from postgres_server import PostgresServer, started_server

if TYPE_CHECKING:
    from aiohttp.test_utils import TestClient

    from viewer_pages import Viewer

# A test that is slow on a busy machine is not wrong.
settings.register_profile("closeout", deadline=None)
settings.load_profile("closeout")


# Under `nohup`, or in the background of a script, signals are ignored, also in the programs that tests start.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, None)  # Windows has no SIGHUP
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# Tests start hundreds of programs. Each would compile this package again where Python may not write bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collected tests, hundreds of megabytes, out of every search for garbage, now and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


IN_MEMORY = "closeout-tests-"


def _memory() -> Path | None:
    """Return the folder whose files are kept in memory, None if there is none with room in which programs may run."""
    folder = Path("/dev/shm")
    if sys.platform != "linux" or not os.access(folder, os.W_OK):
        return None
    found = os.statvfs(folder)
    usable = not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= 1 << 30
    return folder.resolve() if usable else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of the tests in memory: no commit waits for a disk. With --basetemp=FOLDER they stay there."""
    if config.option.basetemp is None and (memory := _memory()):
        config.option.basetemp = tempfile.mkdtemp(prefix=IN_MEMORY, dir=memory)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose fixtures need a program. Those with a browser come last in their module: its loop stays."""
    for item in items:
        needs.mark(item)
    modules = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (modules[item.path], "browser" in getattr(item, "fixturenames", ())))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Keep what a module has imported and left out of later searches too: one of thousands of tests takes seconds."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a program which this machine lacks."""
    if reason := needs.skip_reason(item):
        pytest.skip(reason)


BUDGET = 2.0  # seconds of a test without the mark `slow`


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that took longer than the budget. They do not fail: a busy machine is no fault of a test."""
    reports = [each for each in terminalreporter.stats.get("passed", ()) if each.when == "call"]
    over = [each for each in reports if each.duration > BUDGET and "slow" not in each.keywords]
    if over:
        terminalreporter.section(f"{len(over)} tests took more than {BUDGET:g} s without the mark `slow`")
    for each in sorted(over, key=lambda each: -each.duration)[:40]:
        terminalreporter.write_line(f"{each.duration:6.1f} s  {each.nodeid}")


# Seconds after which another process may continue the runs of a dead one: more than any machine stalls for. A test that
# kills a process ends its leases itself: `end_leases`.
LEASE = 60
_numbers = count()
SEARCH = ("SEARXNG_BASE_URL", "SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY")


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this test. pytest's own looks at all others and makes a link: half of what an empty test costs."""
    base = tmp_path_factory.getbasetemp()
    folder = base / f"t{next(_numbers)}"
    folder.mkdir(mode=0o700)
    yield folder
    if IN_MEMORY in str(base):
        shutil.rmtree(folder, ignore_errors=True)


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
    close_ledgers()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, one for each process that runs tests. Without PostgreSQL the test is skipped."""
    server = started_server()
    yield server
    server.remove()


@pytest.fixture
def database(postgres: PostgresServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabaseHome]:
    """A home in a database, of this test alone."""
    schema = f"test_{next(_numbers)}"
    url = postgres.url(schema=schema, lease=LEASE)
    monkeypatch.setenv("CLOSEOUT_HOME", url)
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent / "data"))  # the search index and evaluations
    found = as_home(url)
    assert isinstance(found, DatabaseHome)
    yield found
    close_stores()
    close_ledgers()
    postgres.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture(params=["folder", "database"])
def any_home(request: pytest.FixtureRequest, home: Path) -> Home:
    """A home of each kind."""
    kind: Home = home if request.param == "folder" else request.getfixturevalue("database")
    return kind


@pytest.fixture
def skip_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clocks of the process forward, those of event loops too: minutes pass at once, at a chosen moment.

    So a test of a time limit can have one of minutes, which a slow machine does not reach by itself.
    """
    monotonic, perf_counter, ahead = time.monotonic, time.perf_counter, 0.0

    def skip(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead)
    monkeypatch.setattr(time, "perf_counter", lambda: perf_counter() + ahead)
    return skip


# ------------------------------------------------------------------------------------------------ the viewer
# What only these fixtures need is imported when a test asks for them.


@pytest.fixture
async def client(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestClient]:
    """A client of the viewer's server, which indexes all runs at once. Tests of other servers define their own."""
    from aiohttp.test_utils import TestClient, TestServer

    from viewer_server import viewer_app

    monkeypatch.setattr("closeout.server.viewer.routes.INDEX_SECONDS", 60.0)
    async with TestClient(TestServer(viewer_app(home))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium."""
    from viewer_pages import open_chromium

    with open_chromium() as browser:
        yield browser


@pytest.fixture
def viewer(home: Path, browser: Any) -> Iterator[Viewer]:
    """The viewer of this test's runs in the browser."""
    from viewer_pages import watched_viewer

    with watched_viewer(home, browser) as viewer:
        yield viewer
