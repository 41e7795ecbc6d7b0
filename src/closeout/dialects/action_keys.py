"""The names that actions go by: keys of the JSON form, wrappers around it, and the one test for "final answer"."""

from __future__ import annotations

import re

__all__ = ["ANSWER_KEYS", "INPUT_KEYS", "NAME_KEYS", "NATIVE_TAGS", "WRAPPER_KEYS", "is_final_answer", "is_no_action"]

# In priority: the first key that is there counts. The first of each is what the prompts teach.
NAME_KEYS = ("action", "action_name", "tool", "tool_name", "function_name", "name", "function")
INPUT_KEYS = (
    "action_input",
    "actionInput",
    "tool_input",
    "tool_args",
    "tool_arguments",
    "input",
    "arguments",
    "args",
    "parameters",
    "params",
    "kwargs",
)
WRAPPER_KEYS = frozenset({"tool_call", "tool_calls", "function_call", "function", "action", "tool"})
ANSWER_KEYS = frozenset({"final_answer", "answer"})
NATIVE_TAGS = ("tool_call", "function_call", "functioncall", "tool_use")

_NO_ACTION = re.compile(
    r"(?:|none|null|n/?a|no (?:further |more )?(?:action|tool)s?)(?: (?:is|are))?(?: (?:needed|required|necessary))?"
)
_DROPPED = str.maketrans("", "", " \t\r\n_-.")


def is_final_answer(name: str) -> bool:
    """Whether a name means that the answer follows: "Final Answer", "final_answer", "FinalAnswer." and the like."""
    return len(name) <= 64 and name.strip().casefold().translate(_DROPPED) == "finalanswer"


def is_no_action(name: str) -> bool:
    """Whether a name says that there is no action: empty, None, null, N/A, "no action needed"."""
    return len(name) <= 64 and _NO_ACTION.fullmatch(name.strip(" \t\r\n`\"'.()").casefold()) is not None
