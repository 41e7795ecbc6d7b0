"""The settings of an agent are one record: a new option is one field, which sub-agents of the settings have too."""

from __future__ import annotations

from inspect import signature

from closeout import Agent
from closeout.assembly.assembler import OWN_ALONE
from closeout.spec import SPEC_FIELDS, AgentSpec
from closeout.testing import ScriptedClient

# Parameters that are settings, which `config` has too.
SETTINGS = {
    "budget",
    "context_compress_limit",
    "keep_tool_result",
    "max_cost",
    "max_seconds",
    "max_tokens",
    "max_turns",
    "temperature",
}


def test_every_parameter_is_a_setting_or_a_field() -> None:
    assert signature(Agent).parameters.keys() - SPEC_FIELDS == {*SETTINGS, "config", "unknown"}
    assert OWN_ALONE.keys() <= SPEC_FIELDS


def test_the_plan_holds_the_settled_spec() -> None:
    agent = Agent(ScriptedClient([]), name="clerk", instructions="Be brief.", forms=[], listeners=[print])
    spec = agent.plan().spec
    assert isinstance(spec, AgentSpec)
    assert (spec.name, spec.instructions, spec.forms, spec.listeners) == ("clerk", "Be brief.", (), (print,))
