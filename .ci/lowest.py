"""Print a pip constraints file that pins every dependency in pyproject.toml to its lower bound.

The tools for development and documentation, and the clients that tests use, are not pinned: they are no part of what
is tested.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "pyproject.toml"
project = tomllib.loads(path.read_text("utf-8"))["project"]
extras = project["optional-dependencies"]
optional = [each for name, group in extras.items() if name not in ("all", "dev", "clients", "docs") for each in group]
for requirement in dict.fromkeys([*project["dependencies"], *optional]):
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?[>=]=([\w.]+)(?:; .+)?", requirement)
    if found is None:
        sys.exit(f"{path.name}: '{requirement}' has no plain lower bound. Write it like name>=1.2.")
    print(f"{found[1]}=={found[2]}")
