"""The page "Everything an Agent takes", from `AgentSpec` and the docstring of `Agent`.

python tests/agent_arguments.py > docs/agent-arguments.md
"""

from __future__ import annotations

import inspect
import re

from closeout import Agent
from closeout.spec import AgentSpec

HEAD = """# Everything an Agent takes

`Agent(…)` takes these arguments, and nothing else: an unknown one is an error that names the nearest. All may be left
out. They say *who* the agent is, *how* it runs, and *where* its runs are kept. The same settings can be in a
[file](configuration.md); what is passed to `run` holds for one run. This page is generated from the code.
"""


def described() -> dict[str, str]:
    """The arguments of `Agent` with their descriptions, in the order of its docstring."""
    text = inspect.getdoc(Agent) or ""
    block = text.partition("Args:\n")[2].partition("\nRaises:")[0]
    found = re.findall(r"^    (\w+): ((?:.+\n?(?:        .*\n?)*))", block, re.MULTILINE)
    return {name: " ".join(about.split()) for name, about in found}


def groups() -> list[tuple[str, list[str]]]:
    """The groups of `AgentSpec`: a comment of its source, and the fields below it."""
    found: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(AgentSpec).splitlines():
        if heading := re.fullmatch(r"    # (.+)\.", line):
            found.append((heading[1], []))
        elif (field := re.match(r"    (\w+): .+ = ", line)) and found:
            found[-1][1].append(field[1])
    return found


def page() -> str:
    about = described()
    about.pop("unknown")
    rows = {name: f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in about.items()}
    parts = [HEAD]
    listed = groups()
    known = {name for _, names in listed for name in names}
    listed[1][1].extend(name for name in about if name not in known)  # limits and settings, which are no fields
    for heading, names in listed:
        lines = [rows[name] for name in names if name in rows]
        parts.append("\n".join([f"## {heading}", "", "| argument | what it is |", "|---|---|", *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
