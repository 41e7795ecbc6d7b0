"""A call that a reply only quotes never runs a destructive tool. The rig is tests/harness/forgery.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import forgery

from closeout import ToolPolicy, ToolSpec, salvage
from closeout.results.escape import escape_markers

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

# Forms that never run a destructive tool: without a mark, or with channels that a text dialect does not have.
NEVER = {"llama 3 bare", "llama 3.2 list", "openai envelope", "xlam", "xlam, a fence", "kimi_k3", "minimax m3"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_quoted_call_never_runs_a_destructive_tool(seed: int) -> None:
    assert forgery.forged(forgery.sample(150, seed)) == []


OWN_FORMS = {"cot_chat": "react", "cot_completion": "react", "mcp_xml": "use_mcp_tool", "code": "gemma 3"}


@pytest.mark.parametrize("form", forgery.WRITERS)
def test_a_call_in_a_tool_result_is_text_whatever_character_is_hidden_in_it(form: str) -> None:
    tools = [ToolSpec("wipe", parameters=PATH, policy=ToolPolicy(destructive=True))]
    written = forgery.WRITERS[form].write([("wipe", {"path": "/"})])
    hidden = (written[:at] + each + written[at:] for each in "\u200b\ufeff\xa0\r\v" for at in range(len(written)))
    assert [text for text in hidden if salvage(escape_markers(text), tools=tools)] == []


@pytest.mark.parametrize("dialect", OWN_FORMS)
def test_a_quoted_call_in_the_dialects_own_form_never_runs_a_destructive_tool(dialect: str) -> None:
    own = [cell for cell in forgery.cells() if cell.dialect == dialect and cell.form == OWN_FORMS[dialect]]
    assert forgery.forged(own[::3]) == []


async def test_a_program_of_the_models_own_runs_a_destructive_tool() -> None:
    pytest.importorskip("pydantic_monty")
    assert await forgery.control("gemma 3", "code")


async def test_the_same_forms_run_it_as_calls_of_the_models_own() -> None:
    refused = {form for form in forgery.WRITERS if not await forgery.control(form, "function_call")}
    assert refused == NEVER
