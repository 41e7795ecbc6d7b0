"""The layout of the packages: imports point downwards, no two files import each other, every name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import closeout

ROOT = Path(closeout.__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "closeout").rglob("*.py")
}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def imported(name: str) -> set[str]:
    """The modules of this package that a module imports, in functions and for type checkers too."""
    found = set()
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= below or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    # The top of the package names every public thing and imports none of them before it is used.
    return (found & MODULES.keys()) - {name, "closeout"}


def test_no_two_files_import_each_other() -> None:
    graph = {name: imported(name) for name in MODULES if name != "closeout"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        raise AssertionError(" imports ".join(circle.args[1])) from None


def test_no_module_has_the_name_of_another() -> None:
    names = defaultdict(list)
    for name, path in MODULES.items():
        if path.stem != "__init__" or name.count(".") == 1:
            names[name.rpartition(".")[2]].append(name)
    assert {name: found for name, found in names.items() if len(found) > 1} == {}


def test_no_class_has_the_name_of_another() -> None:
    names = defaultdict(list)
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                names[node.name.lstrip("_")].append(f"{module}.{node.name}")
    assert {name: found for name, found in names.items() if len(found) > 1} == {}


def test_every_package_says_what_belongs_in_it() -> None:
    packages = {
        name: ast.get_docstring(trees()[name]) or "" for name, path in MODULES.items() if path.stem == "__init__"
    }
    for name, text in packages.items():
        assert len(text.split()) >= 5, f"{name} needs a docstring that says what belongs in it, got {text!r}"


MOST_LINES = 108_100  # docs/design/packages.md says when to change it


def test_the_package_does_not_grow_unnoticed() -> None:
    lines = sum(path.read_text("utf-8").count("\n") for path in MODULES.values())
    print(f"{lines:,} of at most {MOST_LINES:,} lines")
    assert lines <= MOST_LINES
