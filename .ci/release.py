"""Build the wheel, install it into an empty environment without extras, and use it as a new user would.

python .ci/release.py [FOLDER]     the wheel and the source archive stay in FOLDER (dist)

It needs only Python and pip's package index, and is what the release workflow runs on Linux, macOS and Windows. The
README's Python example must answer against a scripted server, and `import` must take no longer than pydantic's. With a
tag in `RELEASE_TAG`, the tag must be the wheel's version, and CHANGELOG.md must have a dated section for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 10  # of each import; the fastest counts, since noise only adds

EXAMPLE = """
import sys
from closeout.testing import Turn, answer, call, serve_script

turns = [Turn(calls=[call("population", city="Bern"), call("population", city="Geneva")]), answer("337,000")]
with serve_script(turns) as server:
    import os
    os.environ.update(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="key")
    exec(compile(open(sys.argv[1], encoding="utf-8").read(), "README.md", "exec"), {"__name__": "__main__"})
"""

IMPORTS = """
import subprocess, sys, time

def fastest(code):
    best = float("inf")
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        best = min(best, time.perf_counter() - began)
    return best

bare = fastest("pass")
ratio = (fastest("from closeout import Agent") - bare) / (fastest("import pydantic; pydantic.BaseModel") - bare)
print(f"from closeout import Agent: {ratio:.2f} of import pydantic")
sys.exit(ratio > 1)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output. Ends the script with that output if the command fails."""
    home = {"CLOSEOUT_HOME": str(cwd / "home"), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=os.environ | home,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        sys.exit(f"{' '.join(str(each) for each in command)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path) -> Path:
    """Make an empty virtual environment. Returns its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def check_changelog(version: str, tag: str) -> None:
    """Refuse a tag that is not the version, or a version that the changelog calls unreleased."""
    if tag != f"v{version}":
        sys.exit(f"The tag is {tag} and the version is {version}. Tag v{version}, or change the version.")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no dated section for {version}. Write '## {version}, YYYY-MM-DD'.")


def main() -> None:
    """Build, install, try."""
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        builder = environment(work / "builder")
        run(builder, "-m", "pip", "install", "-q", "build", cwd=work)
        run(builder, "-m", "build", "--outdir", dist, ROOT, cwd=work)
        wheel = max(dist.glob("closeout-*.whl"), key=lambda path: path.stat().st_mtime)
        version = wheel.name.split("-")[1]
        if tag := os.environ.get("RELEASE_TAG"):
            check_changelog(version, tag)

        python = environment(work / "user")
        run(python, "-m", "pip", "install", "-q", wheel, cwd=work)
        example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
        if example is None:
            sys.exit("README.md has no example in Python.")
        (work / "example.py").write_text(example[1], "utf-8")
        answered = run(python, "-c", EXAMPLE, work / "example.py", cwd=work)
        if "337000" not in answered:
            sys.exit(f"The README's example printed {answered!r}, without 337000.")
        print(f"README: {answered.strip()}")
        print(run(python, "-c", IMPORTS, str(ROUNDS), cwd=work).strip())
        shown = run(python, "-m", "closeout", "--version", cwd=work).strip()
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed and tried as {shown}")


if __name__ == "__main__":
    main()
