"""Templates need their slots; earlier answers have the label that the prompt teaches; system notices survive."""

from __future__ import annotations

from typing import Any

import pytest

import closeout
from closeout import Agent, AppRunner, BaseAgentRunner, CotCompletionAgentRunner, RunResult, tool
from closeout.dialects.text_chat import fit_history
from closeout.errors import ConfigError
from closeout.testing import ScriptedClient, answer, call, serve_script

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
COMPLETION = "{{instruction}} {{tools}} {{historic_messages}} {{query}} {{agent_scratchpad}}"
HISTORY = [
    {"role": "system", "content": "The shop is closed."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "It was Ada."},
    {"role": "developer", "content": "The user is a guest."},
]


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"the value of {key} is {len(key)}"


async def requests_of(dialect: str, *, stream: bool = False, history: Any = HISTORY) -> tuple[RunResult, list[Any]]:
    requests: list[Any] = []

    def script(request: Any) -> Any:
        requests.append(request)
        return call("look", key="abc") if len(requests) == 1 else answer("3")

    async with serve_script(script) as server:
        agent = Agent("openai:scripted", [look], dialect=dialect, base_url=server.base_url, api_key="k", stream=stream)
        return await agent.run("What is abc?", history=history), requests


@pytest.mark.parametrize(
    ("name", "template", "slot"),
    [
        ("function_call", "Be good.", "instruction"),
        ("cot_chat", "{{tools}}", "instruction"),
        ("cot_chat", "{{instruction}} {{tool_names}}", "tools"),
        ("mcp_xml", "{{instruction}}", "servers"),
        *(
            ("cot_completion", COMPLETION.replace("{{" + slot + "}}", ""), slot)
            for slot in ("instruction", "tools", "historic_messages", "query", "agent_scratchpad")
        ),
    ],
)
def test_a_template_without_a_required_slot_is_refused_when_the_agent_is_made(
    name: str, template: str, slot: str
) -> None:
    with pytest.raises(ConfigError, match=f"template '{name}' has no slot '{slot}'.*Add {{{{ {slot} }}}}"):
        Agent(ScriptedClient([]), dialect=name, config={"prompts": {name: template}}, home=False)


def test_a_slot_in_a_condition_or_with_a_filter_counts() -> None:
    template = COMPLETION.replace("{{tools}}", "{% if tools %}{{ tools | upper }}{% endif %}")
    Agent(ScriptedClient([]), dialect="cot_completion", config={"prompts": {"cot_completion": template}}, home=False)


async def test_a_runners_own_template_needs_its_slots_too() -> None:
    runner = CotCompletionAgentRunner(ScriptedClient([]), home=False, prompts={"first_prompt": "{{instruction}}"})
    with pytest.raises(ConfigError, match="no slot 'tools'"):
        [event async for event in runner.run("What?")]


@STREAMED
async def test_an_earlier_answer_has_the_label_that_the_completion_prompt_teaches(stream: bool) -> None:
    result, requests = await requests_of("cot_completion", stream=stream)
    assert result.answer == "3"
    for request in requests:
        assert "Question: Who?\n\nFinal Answer: It was Ada.\n\n" in request.prompt
    _, requests = await requests_of(
        "cot_completion", history=[HISTORY[1], {"role": "assistant", "content": "Thought: I know.\nFinal Answer: Ada"}]
    )
    assert requests[0].prompt.count("Final Answer: Ada") == 1


@STREAMED
@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_system_notices_in_the_history_reach_the_model(dialect: str, stream: bool) -> None:
    result, requests = await requests_of(dialect, stream=stream)
    assert result.answer == "3"
    for request in requests:
        assert "The shop is closed." in request.text
        assert "The user is a guest." in request.text
    if dialect in ("cot_chat", "mcp_xml"):
        roles = [message["role"] for message in requests[0].messages]
        assert roles == ["system", "user", "assistant", "user"]
        assert requests[0].messages[-1]["content"] == "System notice: The user is a guest.\nWhat is abc?"


def test_notices_survive_a_budget_that_leaves_out_their_turn() -> None:
    later = [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Now it is open."}]
    kept = fit_history([*HISTORY[:3], *later], 12, len)
    assert [message.text for message in kept] == ["The shop is closed.", "And now?", "Now it is open."]


def test_the_runners_bases_are_public() -> None:
    assert issubclass(BaseAgentRunner, AppRunner)
    assert {"AppRunner", "BaseAgentRunner"} <= set(closeout.__all__)


@STREAMED
async def test_an_app_runner_can_be_written_from_scratch(stream: bool) -> None:
    class OneShot(AppRunner):
        async def run(self, query: str, **options: Any) -> Any:
            events = Agent(ScriptedClient([answer("3")]), home=False, stream=stream).stream(query, **options)
            async for event in events:
                yield event
            self._result = events.result

    runner = OneShot()
    assert [event async for event in runner.run("What?")]
    assert runner.result.answer == "3"
