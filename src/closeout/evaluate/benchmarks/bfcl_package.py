"""The installed package `bfcl-eval`: its data files, its simulated backends and its checkers.

Nothing else of it is imported: it depends on the SDKs of a dozen vendors and on torch.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

from closeout.errors import UsageError

__all__ = ["Backends", "check_calls", "check_conversation", "read_lines"]

MODEL = "closeout"  # The name of the model for the package's checkers.
_CHECKERS = "bfcl_eval.eval_checker"
_MODELS = "bfcl_eval.constants.model_config"
_UTILS = f"{_CHECKERS}.multi_turn_eval.multi_turn_utils"

Calls = Sequence[tuple[str, Mapping[str, Any]]]


def _folder() -> Path:
    found = find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations:
        raise UsageError(
            "bfcl needs BFCL's files: pip install --no-deps bfcl-eval, and pip install mpmath for its calculator. "
            "Its other dependencies are not used."
        )
    return Path(found.submodule_search_locations[0])


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the records of a data file.

    Raises:
        UsageError: The package is not installed, or it is another version.
    """
    file = _folder() / "data" / name
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"bfcl needs bfcl-eval with the data of BFCL v4; {name} cannot be read: {error}") from None


@cache
def _ast_checker() -> ModuleType:
    """Import the checker of calls without the package's table of models, which imports every vendor's SDK.

    The checker reads one fact in that table: whether a model's API wants `_` for the dots in names, as ours do.
    """
    table = ModuleType(_MODELS)
    vars(table)["MODEL_CONFIG_MAPPING"] = {MODEL: SimpleNamespace(underscore_to_dot=True)}
    name = f"{_CHECKERS}.ast_eval.ast_checker"
    before = {each: sys.modules.pop(each, None) for each in (_MODELS, name)}
    sys.modules[_MODELS] = table
    try:
        return import_module(name)
    finally:
        for each, module in before.items():  # as if it had not been imported: others may want the whole package
            sys.modules.pop(each, None)
            if module is not None:
                sys.modules[each] = module


def check_calls(entry: Mapping[str, Any], calls: Calls, right: Sequence[Any], category: str) -> str:
    """Return what BFCL's checker says against the calls of a single-turn task; empty if they are right."""
    language = import_module("bfcl_eval.constants.enums").Language(
        {"simple_java": "java", "simple_javascript": "javascript"}.get(category, "python")
    )
    written = [{name: dict(arguments)} for name, arguments in calls]
    found = _ast_checker().ast_checker(entry["function"], written, right, language, category, MODEL)
    return "" if found["valid"] else _reason(found["error"])


def check_conversation(entry: Mapping[str, Any], turns: Sequence[Calls], right: Sequence[Any], category: str) -> str:
    """Return what BFCL's checker says against the calls of a multi-turn task, by turn; empty if they are right.

    It makes the calls again in backends of its own, which it keeps as globals under the name of the model.
    """
    check = import_module(f"{_CHECKERS}.multi_turn_eval.multi_turn_checker").multi_turn_checker
    written = [[[_as_code(name, arguments)] for name, arguments in turn] for turn in turns]
    model = f"{MODEL}{uuid4().hex}"
    try:
        found = check(written, right, dict(entry), category, model)
    finally:
        kept = vars(import_module(_UTILS))
        for name in [name for name in kept if name.startswith(model)]:
            del kept[name]
    return "" if found["valid"] else _reason(found["error_message"])


def _as_code(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({','.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _reason(error: Any) -> str:
    return " ".join(map(str, error)) if isinstance(error, list) else str(error)


class Backends:
    """The simulated backends of one trial of a multi-turn task.

    Args:
        entry: The task as the data file has it.
        long_context: Fill the backends with much irrelevant data.
    """

    def __init__(self, entry: Mapping[str, Any], *, long_context: bool) -> None:
        self._entry = entry
        self._long_context = long_context
        self._methods: dict[str, Any] = {}
        config = import_module("bfcl_eval.constants.executable_backend_config")
        self._modules: Mapping[str, str] = config.CLASS_FILE_PATH_MAPPING
        self._stateless: Sequence[str] = config.STATELESS_CLASSES
        files = [config.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name] for name in entry["involved_classes"]]
        self.functions = [function for file in files for function in read_lines(f"multi_turn_func_doc/{file}")]

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a method. Its failure is a result, as in BFCL."""
        if not self._methods:
            self._start()
        try:
            result = self._methods[name](**arguments)
        except Exception as error:
            return f"Error during execution: {error}"
        return result if isinstance(result, str | dict) else str(result)

    def _start(self) -> None:
        for name in self._entry["involved_classes"]:
            backend = getattr(import_module(self._modules[name]), name)()
            if name not in self._stateless:
                state = copy.deepcopy(self._entry["initial_config"].get(name, {}))
                backend._load_scenario(state, long_context=self._long_context)
            methods = inspect.getmembers(backend, inspect.ismethod)
            self._methods |= {method: bound for method, bound in methods if not method.startswith("_")}
