"""The settings of an agent are one record: a new option is one field, which sub-agents of the settings have too."""

from __future__ import annotations

from inspect import signature

from closeout import Agent
from closeout.assembly.assembler import OWN_ALONE
from closeout.spec import SPEC_FIELDS, AgentSpec
from closeout.testing import ScriptedClient


def test_every_field_is_an_argument_of_the_agent() -> None:
    assert SPEC_FIELDS - signature(Agent).parameters.keys() == frozenset()
    assert OWN_ALONE.keys() <= SPEC_FIELDS


def test_the_plan_holds_the_settled_spec() -> None:
    agent = Agent(ScriptedClient([]), name="clerk", instructions="Be brief.", forms=[], listeners=[print])
    spec = agent.plan().spec
    assert isinstance(spec, AgentSpec)
    assert (spec.name, spec.instructions, spec.forms, spec.listeners) == ("clerk", "Be brief.", (), (print,))
