"""The crash suite for all runtimes: it sees what a loop without a record does twice, and that Closeout does not."""

import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parent.parent / "bench" / "crash_suite"


@pytest.mark.slow  # imports Closeout in a process of its own, and starts seven more
@pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped and watched as on Linux")
def test_only_a_run_with_a_record_survives_being_killed_amid_a_payment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(SUITE))
    from endpoints import Server
    from judge import Case, Runtime
    from world import Cut

    cuts = (Cut("pay", 1, "during"), Cut("request", 2, "before"))
    found = {}
    server = Server()
    try:
        for shim in ("bare_loop", "closeout_sqlite"):
            runtime = Runtime(shim, sys.executable, None, tmp_path / "log", None)
            try:
                found[shim] = [sorted(Case(runtime, server, "pay", cut).judge().faults) for cut in cuts]
            finally:
                runtime.close()
    finally:
        server.close()
    assert found == {"bare_loop": [["twice", "untold"]] * 2, "closeout_sqlite": [[], []]}
