"""What it costs to import the package and to ask the command line for help, beside what it cannot do without.

Each is a fresh interpreter with a warm disk cache; the best of several interleaved runs counts, since noise only adds.

    python bench/import_time.py
"""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS = 15


def seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


COMMANDS = {
    "python": ("-c", "pass"),
    "import pydantic": ("-c", "import pydantic; pydantic.BaseModel"),
    "from closeout import Agent": ("-c", "from closeout import Agent"),
    "import closeout": ("-c", "import closeout"),
    "import typer": ("-c", "import typer"),
    "closeout --help": ("-m", "closeout", "--help"),
}


def main() -> None:
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            best[name] = min(best[name], seconds(*command))
    bare = best["python"]
    for name, value in best.items():
        print(f"{name:<28}{value * 1000:7.1f} ms, {(value - bare) * 1000:7.1f} ms beyond a bare interpreter")
    agent = (best["from closeout import Agent"] - bare) / (best["import pydantic"] - bare)
    print(
        f"bench import_time: `from closeout import Agent` {agent:.2f} of `import pydantic`, "
        f"`closeout --help` {best['closeout --help'] / best['import typer']:.2f} of an interpreter with typer"
    )


if __name__ == "__main__":
    main()
