"""A small package with the layout of `bfcl-eval`: a few tasks of each kind, two backends, and checkers as strict.

It has what Closeout reads of the package, under the same names and with the same signatures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AREA = {
    "name": "shapes.area",
    "description": "The area of a triangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "base": {"type": "integer", "description": "Its base."},
            "height": {"type": "float", "description": "Its height."},
            "unit": {"type": "string", "description": "The unit.", "enum": ["m", "cm"], "optional": True},
            "sides": {"type": "tuple", "items": {"type": "float"}, "description": "Its sides."},
            "about": {"type": "dict", "properties": {"name": {"type": "string", "required": True}}, "required": True},
        },
        "required": ["base", "height"],
    },
}
CREATE = {
    "name": "Geometry.create",
    "description": "Create a view.",
    "parameters": {
        "type": "dict",
        "properties": {
            "sizes": {"type": "ArrayList", "items": {"type": "integer"}, "description": "Its sizes."},
            "parent": {"type": "any", "description": "Where it is shown."},
        },
        "required": ["sizes", "parent"],
    },
}
ADD = {
    "name": "add",
    "description": "Add to the counter.",
    "parameters": {"type": "dict", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}
READ = {
    "name": "read",
    "description": "Read the counter.",
    "parameters": {"type": "dict", "properties": {}, "required": []},
}
HALVE = {
    "name": "halve",
    "description": "Halve a number.",
    "parameters": {"type": "dict", "properties": {"number": {"type": "float"}}, "required": ["number"]},
}


def _asked(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in texts]


_TRIANGLE = {"shapes.area": {"base": [10], "height": [5.0], "unit": ["m", ""]}}
_OTHER = {"shapes.area": {"base": [3], "height": [4.0]}}
_COUNTING = {
    "question": _asked("Add 3.", "Add 4, and read.", "Halve the sum."),
    "initial_config": {"Counter": {"value": 1}},
    "path": [],
    "involved_classes": ["Counter", "Halves"],
}
_MISSING = {
    **_COUNTING,
    "question": [*_asked("Add 3.", "Halve the sum."), []],
    "missed_function": {"2": ["halve"]},
}
TASKS: dict[str, list[dict[str, Any]]] = {
    "simple_python": [{"question": _asked("A triangle of 10 by 5 m?"), "function": [AREA]}],
    "parallel": [{"question": _asked("Triangles of 10 by 5 and 3 by 4?"), "function": [AREA]}],
    "simple_java": [{"question": _asked("Create a view of [1, 2] in `area`."), "function": [CREATE]}],
    "irrelevance": [{"question": _asked("What is love?"), "function": [AREA]}],
    "live_relevance": [{"question": _asked("Some triangle, please."), "function": [AREA]}],
    "multi_turn_base": [_COUNTING],
    "multi_turn_long_context": [_COUNTING],
    "multi_turn_miss_func": [_MISSING],
}
ANSWERS: dict[str, list[Any]] = {
    "simple_python": [[_TRIANGLE]],
    "parallel": [[_TRIANGLE, _OTHER]],
    "simple_java": [[{"Geometry.create": {"sizes": [[1, 2]], "parent": ["area"]}}]],
    "multi_turn_miss_func": [[["add(number=3)"], [], ["halve(number=4)"]]],
    "multi_turn_base": [[["add(number=3)"], ["add(number=4)", "read()"], ["halve(number=8)"]]],
    "multi_turn_long_context": [[["add(number=3)"], ["add(number=4)", "read()"], ["halve(number=8)"]]],
}

_FILES = {
    "constants/enums.py": """
from enum import Enum
class Language(Enum):
    PYTHON = "python"
    JAVA = "java"
    JAVASCRIPT = "javascript"
""",
    "constants/model_config.py": "import an_sdk_that_is_not_installed\n",
    "constants/executable_backend_config.py": """
MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Counter": "counter.json", "Halves": "halves.json"}
CLASS_FILE_PATH_MAPPING = {
    "Counter": "bfcl_eval.eval_checker.multi_turn_eval.func_source_code.counter",
    "Halves": "bfcl_eval.eval_checker.multi_turn_eval.func_source_code.counter",
}
STATELESS_CLASSES = ["Halves"]
""",
    "eval_checker/multi_turn_eval/func_source_code/counter.py": """
class Counter:
    def _load_scenario(self, scenario, long_context=False):
        self.value, self.noise = scenario["value"], ["x"] * 100 if long_context else []
    def add(self, number):
        self.value += number
        return {"value": self.value}
    def read(self):
        return self.value
class Halves:
    def halve(self, number):
        return number / 2
""",
    "eval_checker/ast_eval/ast_checker.py": """
from bfcl_eval.constants.enums import Language
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING
def ast_checker(func_description, model_output, possible_answer, language, test_category, model_name):
    if len(model_output) != len(possible_answer):
        return {"valid": False, "error": ["Wrong number of functions."]}
    assert MODEL_CONFIG_MAPPING[model_name].underscore_to_dot
    left = list(model_output)
    for each in possible_answer:
        (name, parameters), = each.items()
        found = [output for output in left if _matches(output, name.replace(".", "_"), parameters, language)]
        if not found:
            return {"valid": False, "error": [f"No match for {name}."]}
        left.remove(found[0])
    return {"valid": True, "error": []}
def _matches(output, name, parameters, language):
    (called, values), = output.items()
    if language is Language.JAVA:
        values = {key: eval(value) if key == "sizes" else value for key, value in values.items()}
    return (
        called == name
        and all(value in parameters.get(key, ()) for key, value in values.items())
        and all(key in values or "" in right for key, right in parameters.items())
    )
""",
    "eval_checker/multi_turn_eval/multi_turn_utils.py": "",
    "eval_checker/multi_turn_eval/multi_turn_checker.py": """
from importlib import import_module
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
def multi_turn_checker(decoded, right, test_entry, test_category, model_name):
    for turn, (steps, wanted) in enumerate(zip(decoded, right, strict=True)):
        made, ours = _run([call for step in steps for call in step], test_entry, f"{model_name}_eval")
        expected, theirs = _run(wanted, test_entry, f"{model_name}_ground_truth_eval")
        if any(vars(ours[name]) != vars(theirs[name]) for name in ours):
            return {"valid": False, "error_message": f"Another state after turn {turn}."}
        if any(result not in made for result in expected):
            return {"valid": False, "error_message": f"A result is missing in turn {turn}."}
    return {"valid": True}
def _run(calls, entry, prefix):
    kept, backends, methods = vars(multi_turn_utils), {}, {}
    for name in entry["involved_classes"]:
        if f"{prefix}_{name}" not in kept:
            kept[f"{prefix}_{name}"] = backend = getattr(import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                backend._load_scenario(dict(entry["initial_config"].get(name, {})))
        backends[name] = kept[f"{prefix}_{name}"]
        names = [each for each in ("add", "read", "halve") if hasattr(backends[name], each)]
        methods |= {each: getattr(backends[name], each) for each in names}
    return [str(eval(call, methods)) for call in calls], backends
""",
}


def write_package(folder: Path) -> None:
    """Write the package into a folder."""
    package = folder / "bfcl_eval"
    lines: dict[str, list[Any]] = {
        "multi_turn_func_doc/counter.json": [ADD, READ],
        "multi_turn_func_doc/halves.json": [HALVE],
    }
    for category, tasks in TASKS.items():
        ids = [f"{category}_{number}" for number in range(len(tasks))]
        lines[f"BFCL_v4_{category}.json"] = [{"id": i, **task} for i, task in zip(ids, tasks, strict=True)]
        if category in ANSWERS:
            answers = zip(ids, ANSWERS[category], strict=True)
            lines[f"possible_answer/BFCL_v4_{category}.json"] = [
                {"id": i, "ground_truth": right} for i, right in answers
            ]
    files = {f"data/{name}": "".join(json.dumps(each) + "\n" for each in records) for name, records in lines.items()}
    for name, text in {**_FILES, **files}.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    for file in [*package.rglob("*.py")]:
        for parent in file.relative_to(folder).parents:
            if parent != Path():
                (folder / parent / "__init__.py").touch()
