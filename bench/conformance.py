"""Run the official conformance suite of the Model Context Protocol against Closeout's MCP client and server.

The suite is an npm package. It is installed, with the Node that it needs, into a directory that is deleted afterwards;
`--prefix DIRECTORY` keeps it for the next time. For each scenario of a client it starts a server and
bench/_conformance_client.py; those of a server run against bench/_conformance_server.py: a served agent, and a fixture
with the tools, resources and prompts that the scenarios call by their names.

    python bench/conformance.py [--side client|server] [--only PREFIX …] [--prefix DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
SUITE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"  # the first with the requirements of 2026-07-28, which are frozen
NODE = "22"  # the suite does not run on Node 20
REVISIONS = ("2026-07-28", "2025-11-25")
SECONDS = 60
# What an agent with one tool can answer. The other scenarios call tools, resources and prompts by their names.
OF_AGENTS = {
    "2026-07-28": (
        "server-stateless", "tools-list", "caching", "sep-2164-resource-not-found", "server-sse-multiple-streams",
        "dns-rebinding-protection",
    ),
    "2025-11-25": (
        "server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "dns-rebinding-protection",
    ),
}  # fmt: skip
# Beyond the requirements of a revision: extensions, and scenarios of after its release.
MORE_OF_SERVERS = {
    "2026-07-28": (
        "tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal",
        "tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications",
        "tasks-required-task-error", "tasks-mrtr-composition", "http-header-validation",
    ),
    "2025-11-25": ("server-session-lifecycle",),
}  # fmt: skip
# Scenarios that the library answers by itself, or the fixture with its objects alone: they say little about Closeout.
OF_LIBRARY = frozenset(
    {
        "ping", "server-initialize", "server-session-lifecycle", "server-sse-multiple-streams", "tools-call-sampling",
        "tools-call-elicitation", "tools-call-with-logging", "logging-set-level", "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums", "resources-subscribe", "resources-unsubscribe",
        "input-required-result-tampered-state", "input-required-result-unsupported-methods",
    }
)  # fmt: skip
AT_ONCE = 2


@dataclass(frozen=True)
class Outcome:
    """One scenario at one revision: the number of its checks, those that passed, and what failed first."""

    revision: str
    scenario: str
    passed: bool
    good: int
    checks: int
    failure: str


class Suite:
    """The installed suite."""

    def __init__(self, prefix: Path) -> None:
        modules = prefix / "node_modules"
        self._node = modules / "node" / "bin" / "node"
        self._program = modules / SUITE / "dist" / "index.js"
        if not self._program.exists():
            npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(prefix)]
            subprocess.run([*npm, f"{SUITE}@{VERSION}", f"node@{NODE}"], check=True, stdout=subprocess.DEVNULL)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._node), str(self._program), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
        except subprocess.TimeoutExpired:  # a failed scenario: the others are still measured
            return subprocess.CompletedProcess(command, 1, "", f"it took more than {2 * SECONDS} seconds")

    def scenarios(self, revision: str, side: str) -> list[str]:
        """The scenarios of a client or a server that a revision of the protocol requires."""
        listed = self._run("list", f"--{side}", "--requirements", revision).stdout
        section = listed.partition(f"{side.capitalize()} scenarios")[2].partition("Run and reported")[0]
        required = section.partition(" scenarios (")[0].splitlines()
        return [line.strip()[2:] for line in required if line.strip().startswith("- ")]

    def run(self, revision: str, scenario: str, folder: Path) -> Outcome:
        client = shlex.join([sys.executable, str(HERE / "_conformance_client.py")])
        return self._outcome(("client", "--command", client), revision, scenario, folder)

    def run_server(self, url: str, revision: str, scenario: str, folder: Path) -> Outcome:
        return self._outcome(("server", "--url", url), revision, scenario, folder)

    def _outcome(self, tested: Sequence[str], revision: str, scenario: str, folder: Path) -> Outcome:
        done = self._run(
            *tested, "--scenario", scenario, "--spec-version", revision, "--force",
            "--timeout", str(SECONDS * 1000), "--output-dir", str(folder),
        )  # fmt: skip
        found = [each for file in folder.rglob("checks.json") for each in json.loads(file.read_text("utf-8"))]
        good = sum(each["status"] == "SUCCESS" for each in found)
        bad = [each for each in found if each["status"] == "FAILURE"]
        said = bad[0].get("errorMessage") or bad[0].get("description", "") if bad else ""
        if done.returncode and not said:
            said = (done.stderr.strip() or f"the {tested[0]} failed").splitlines()[-1]
        return Outcome(revision, scenario, done.returncode == 0, good, good + len(bad), " ".join(said.split()))


def table(outcomes: Sequence[Outcome]) -> str:
    """The table of docs/mcp.md."""
    lines = ["| revision | scenario | checks passed | |", "|---|---|---|---|"]
    lines += [
        f"| {each.revision} | {each.scenario} | {each.good} of {each.checks} | "
        f"{'passes' if each.passed else 'fails: ' + each.failure[:120]}"
        f"{' (of the library)' if each.scenario in OF_LIBRARY else ''} |"
        for each in outcomes
    ]
    return "\n".join(lines)


def measured(prefix: Path, only: Sequence[str]) -> list[Outcome]:
    suite = Suite(prefix)
    wanted = [
        (revision, scenario)
        for revision in REVISIONS
        for scenario in suite.scenarios(revision, "client")
        if not only or scenario.startswith(tuple(only))
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda number: suite.run(*wanted[number], Path(folder, str(number))), range(len(wanted))))


def measured_server(prefix: Path, only: Sequence[str], kind: str) -> list[Outcome]:
    """The outcomes of a server: "agent" or "fixture"."""
    suite, command = Suite(prefix), [sys.executable, str(HERE / "_conformance_server.py"), kind]
    wanted = [
        (revision, scenario)
        for revision in REVISIONS
        for scenario in (
            OF_AGENTS[revision]
            if kind == "agent"
            else (*suite.scenarios(revision, "server"), *MORE_OF_SERVERS[revision])
        )
        if not only or scenario.startswith(tuple(only))
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            numbers = range(len(wanted))
            return list(pool.map(lambda n: suite.run_server(url, *wanted[n], Path(folder, str(n))), numbers))
        finally:
            server.terminate()


def counted(side: str, found: Sequence[Outcome], revision: str) -> str:
    """The summary line of a side at a revision."""
    more = [each for each in found if each.revision == revision and each.scenario in MORE_OF_SERVERS[revision]]
    required = [each for each in found if each.revision == revision and each not in more]
    line = f"conformance: {side}, {revision}: {sum(each.passed for each in required)} of {len(required)} scenarios"
    for name in ("tasks", ""):
        those = [each for each in more if each.scenario.startswith("tasks") == bool(name)]
        if those:
            line += f", {name or 'others'} {sum(each.passed for each in those)} of {len(those)}"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("client", "server"), help="only one side")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios whose names begin so")
    parser.add_argument("--prefix", type=Path, help="where the suite is kept")
    options = parser.parse_args()
    if shutil.which("npm") is None:
        print("conformance: not run, npm was not found. The suite is an npm package.")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        prefix, tested = options.prefix or Path(folder), {}
        try:
            if options.side != "server":
                tested["client"] = measured(prefix, options.only)
            if options.side != "client":
                tested["served agent"] = measured_server(prefix, options.only, "agent")
                tested["server"] = measured_server(prefix, options.only, "fixture")
        except subprocess.CalledProcessError:
            print(f"conformance: not run, npm could not install {SUITE}@{VERSION}.")
            return 0
    for side, found in tested.items():
        print(table(found))
        for revision in REVISIONS:
            print(counted(side, found, revision))
    print(f"suite {VERSION}, mcp {version('mcp')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
