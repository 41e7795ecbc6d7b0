"""The public names: sorted, importable, each what its module has; and importing the package loads nothing heavy."""

from __future__ import annotations

import ast
import difflib
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import closeout
import public_signatures

SOURCE = Path(closeout.__file__)
HOMES = {name: module for module, names in closeout._HOMES.items() for name in names.split()}
HEAVY = (
    "pydantic",
    "aiohttp",
    "asyncio",
    "jinja2",
    "yaml",
    "typer",
    "rich",
    "mcp",
    "rapidfuzz",
    "jsonschema_rs",
    "sqlite3",
)


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after this."""
    shown = f"{code}\nimport sys\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def place(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by the alphabet."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_names_are_sorted_and_listed_once() -> None:
    assert list(closeout.__all__) == sorted(set(closeout.__all__), key=place)
    assert sorted(closeout.__all__) == sorted(HOMES)


@pytest.mark.parametrize("name", closeout.__all__)
def test_every_name_is_there_and_its_module_says_so(name: str) -> None:
    value = getattr(closeout, name)
    home = import_module(f"closeout.{HOMES[name]}")
    assert value is (home if HOMES[name] == name else getattr(home, name))
    assert name in home.__all__
    assert callable(value) is False or value.__doc__, "what can be called is described"


@pytest.mark.parametrize(
    "name",
    ["Agent", "tool", "OutputFormatter", "TOOL_RESULT_MAX_LENGTH", "FORMAT_ERROR_MESSAGE", "AnswerGenerator",
     "ErrorBox", "ResponseBox", "ToolExecutor", "DEMO_SCRAPE_MAX_LENGTH", "Orchestrator", "ToolManager",
     "StreamHandler", "TaskLog",
     "BaseClient", "OpenAIClient", "AnthropicClient", "ToolOutput", "ToolTelemetry", "ResponseFormat",
     "UnifiedToolWrapper", "format_observation", "TelemetryCollector", "CacheOptimizedOutput", "AgentScratchpadUnit",
     "CotAgentRunner", "CotChatAgentRunner", "CotCompletionAgentRunner", "FunctionCallAgentRunner",
     "CotAgentOutputParser", "extract_boxed", "repair_json", "repair_arguments", "read_tool_calls", "encode", "decode",
     "count_tokens", "grade"],
)  # fmt: skip
def test_the_documented_vocabulary_is_public(name: str) -> None:
    assert name in closeout.__all__


def test_dir_shows_them_and_a_wrong_name_is_an_attribute_error() -> None:
    assert set(closeout.__all__) <= set(dir(closeout))
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        _ = closeout.Agnet


def test_the_package_evaluate_is_called_as_its_function() -> None:
    for code in (
        "from closeout import evaluate",
        "from closeout.evaluate import compare; import closeout; evaluate = closeout.evaluate",
    ):
        asked = f"{code}\nassert callable(evaluate) and evaluate.compare and evaluate.evaluate, evaluate"
        subprocess.run([sys.executable, "-c", asked], check=True)
    assert inspect.signature(closeout.evaluate) == inspect.signature(closeout.evaluate.evaluate)


def test_a_former_name_warns_at_the_line_that_uses_it_and_gives_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(closeout._RENAMED, "Toolbox", ("ToolManager", "0.4"))
    with pytest.warns(
        DeprecationWarning, match=r"closeout\.Toolbox is now closeout\.ToolManager.* until Closeout 0\.4"
    ) as seen:
        assert closeout.Toolbox is closeout.ToolManager
    assert seen[0].filename == __file__


def test_no_signature_changed_without_a_decision() -> None:
    recorded = Path(__file__).with_name("data") / "public_signatures.txt"
    changed = [
        line
        for line in difflib.unified_diff(recorded.read_text("utf-8").splitlines(), list(public_signatures.lines()), n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    assert not changed, (
        f"Public signatures changed: {changed}. If that is meant, say it in CHANGELOG.md (docs/versions.md says what "
        "is a break) and run python tests/public_signatures.py > tests/data/public_signatures.txt"
    )


def test_importing_the_package_loads_nothing_heavy() -> None:
    before = loaded_by("")
    assert not (loaded_by("import closeout") - before) & set(HEAVY)
    assert not (loaded_by("from closeout import Agent") - before) & {"pydantic", "aiohttp", "mcp", "typer", "rich"}


def test_the_package_is_typed() -> None:
    assert (SOURCE.parent / "py.typed").exists()


def test_type_checkers_and_the_reference_see_every_public_name() -> None:
    tree = ast.parse(Path(closeout.__file__).read_text("utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen >= {name for name in closeout.__all__ if not name.startswith("__")}
