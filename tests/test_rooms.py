"""The layout of the packages: imports point downwards, no two files import each other, every name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import closeout

ROOT = Path(closeout.__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "closeout").rglob("*.py")
}


class Module(NamedTuple):
    doc: str
    classes: list[str]
    imported: set[str]


@cache
def modules() -> dict[str, Module]:
    """Return the facts that the tests ask of each file: its syntax tree would slow every later garbage collection."""
    return {name: read(name, ast.parse(path.read_text("utf-8"))) for name, path in MODULES.items()}


def read(name: str, tree: ast.Module) -> Module:
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Module(ast.get_docstring(tree) or "", classes, imported(name, tree))


def imported(name: str, tree: ast.Module) -> set[str]:
    """The modules of this package that a module imports, in functions and for type checkers too."""
    found = set()
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= below or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    # The top of the package names every public thing and imports none of them before it is used.
    return (found & MODULES.keys()) - {name, "closeout"}


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        below = ast.iter_child_nodes(node)
        left += [each for each in below if isinstance(each, (ast.stmt, ast.ExceptHandler, ast.match_case))]


def test_no_two_files_import_each_other() -> None:
    graph = {name: module.imported for name, module in modules().items() if name != "closeout"}
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
    for name, module in modules().items():
        for each in module.classes:
            names[each.lstrip("_")].append(f"{name}.{each}")
    assert {name: found for name, found in names.items() if len(found) > 1} == {}


def test_every_package_says_what_belongs_in_it() -> None:
    packages = {name: modules()[name].doc for name, path in MODULES.items() if path.stem == "__init__"}
    for name, text in packages.items():
        assert len(text.split()) >= 5, f"{name} needs a docstring that says what belongs in it, got {text!r}"


def test_every_module_says_what_lives_there() -> None:
    assert [name for name, module in modules().items() if not module.doc] == []


MOST_LINES = 106_300  # docs/design/packages.md says when to change it


def test_the_package_does_not_grow_unnoticed() -> None:
    lines = sum(path.read_text("utf-8").count("\n") for path in MODULES.values())
    print(f"{lines:,} of at most {MOST_LINES:,} lines")
    assert lines <= MOST_LINES
