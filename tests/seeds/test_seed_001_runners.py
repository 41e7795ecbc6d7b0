"""Seed 001: the chain-of-thought runners, in the order of its sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import closeout
from closeout import (
    Agent,
    AgentScratchpadUnit,
    AssistantPromptMessage,
    Boxed,
    CotChatAgentRunner,
    CotCompletionAgentRunner,
    PromptMessage,
    SystemPromptMessage,
    TextPromptMessageContent,
    UserPromptMessage,
    tool,
)
from closeout.testing import ScriptedClient, answer, call


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"{key} is unknown"


class Ported(CotCompletionAgentRunner):
    """The three methods, as code outside of this project has them."""

    def _organize_instruction_prompt(self) -> str:
        assert self.app_config.agent
        assert self.app_config.agent.prompt
        tools = [{"name": each.name} for each in self._prompt_messages_tools]
        return (
            self.app_config.agent.prompt.first_prompt.replace("{{instruction}}", self._instruction)
            .replace("{{tools}}", json.dumps(tools))
            .replace("{{tool_names}}", ", ".join(each.name for each in self._prompt_messages_tools))
        )

    def _organize_historic_prompt(self, current_session_messages: Any = None) -> str:  # type: ignore[override]
        text = ""
        for message in self._organize_historic_prompt_messages(current_session_messages):
            if isinstance(message, UserPromptMessage):
                text += f"Question: {message.content}\n\n"
            elif isinstance(message, AssistantPromptMessage) and isinstance(message.content, str):
                text += message.content + "\n\n"
            elif isinstance(message, AssistantPromptMessage):
                for content in message.content:
                    if isinstance(content, TextPromptMessageContent):
                        text += content.data
        return text

    def _organize_prompt_messages(self) -> list[PromptMessage]:
        steps = "".join(
            f"Thought: {unit.thought}\n\nAction: {unit.action_str}\n\nObservation: {unit.observation}\n\n"
            for unit in self._agent_scratchpad
        )
        prompt = (
            self._organize_instruction_prompt()
            .replace("{{historic_messages}}", self._organize_historic_prompt())
            .replace("{{agent_scratchpad}}", steps)
            .replace("{{query}}", f"Question: {self._query}")
        )
        return [UserPromptMessage(content=prompt)]


async def asked(runner: Any, question: str) -> None:
    async for _ in runner.run(question):
        pass


async def test_the_shipped_first_prompt_is_text_with_six_slots_that_a_port_replaces() -> None:
    model = ScriptedClient([call("look", key="a"), answer("1"), answer("2")])
    runner = Ported(model, [look], "Be kind.", home=False)
    assert "{%" not in runner.app_config.agent.prompt.first_prompt
    await asked(runner, "What is a?")
    await asked(runner, "And b?")
    first, second, third = (request.prompt or "" for request in model.requests)
    assert first.startswith("Be kind.")
    assert "{{" not in first
    assert first.count("Question:") == 1
    assert first.rstrip().endswith("Thought:")
    assert "Observation: a is unknown" in second
    assert third.index("Question: What is a?") < third.index("Question: And b?")


async def test_a_prompt_that_holds_a_slot_or_lacks_the_question_is_refused() -> None:
    class Unfilled(Ported):
        def _organize_prompt_messages(self) -> list[PromptMessage]:
            return [UserPromptMessage(content=self._organize_instruction_prompt() + self._query)]

    class Questionless(CotChatAgentRunner):
        def _organize_prompt_messages(self) -> list[PromptMessage]:
            return [SystemPromptMessage(content="Answer.")]

    for kind, problem in ((Unfilled, "holds the slot {{historic_messages}}"), (Questionless, "lacks the question")):
        runner = kind(ScriptedClient([answer("1")]), [look], home=False)
        await asked(runner, "What is a?")
        assert problem in runner.result.error
    quoting = Ported(ScriptedClient([answer("1")]), [look], home=False)
    await asked(quoting, "What does {{query}} mean?")
    assert quoting.result.answer == "1"


async def test_text_parts_of_a_list_are_typed_and_pictures_are_left_out() -> None:
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "this"},
    ]
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": parts}]
    model = ScriptedClient([answer("1")])
    await asked(Ported(model, [look], home=False, history=history), "What is a?")
    assert "see this" in (model.requests[0].prompt or "")
    assert "base64" not in (model.requests[0].prompt or "")


def test_prompt_messages_have_the_class_of_their_role() -> None:
    chat = CotChatAgentRunner(ScriptedClient([]), [look], "Be kind.", home=False)
    assert [type(each) for each in chat._organize_prompt_messages()] == [SystemPromptMessage, UserPromptMessage]
    whole = CotCompletionAgentRunner(ScriptedClient([]), [look], "Be kind.", home=False)
    assert [type(each) for each in whole._organize_prompt_messages()] == [UserPromptMessage]
    assert isinstance(TextPromptMessageContent(data="a"), dict)
    assert closeout.PromptMessage is PromptMessage


async def test_a_settings_file_names_the_template_first_prompt(tmp_path: Path) -> None:
    slots = "{{ tools }} {{ tool_names }} {{ historic_messages }} {{ query }} {{ agent_scratchpad }}"
    file = tmp_path / "settings.yaml"
    file.write_text(f'prompts:\n  first_prompt: "MINE {{{{ instruction }}}} {slots}"\n')
    model = ScriptedClient([answer("1")])
    await asked(CotCompletionAgentRunner(model, [look], "I", config=file, home=False), "?")
    assert (model.requests[0].prompt or "").startswith("MINE I")
    model = ScriptedClient([answer("1")])
    await Agent(model, [look], dialect="cot_completion", instructions="I", config=file, home=False).run("?")
    assert (model.requests[0].prompt or "").startswith("MINE I")


async def test_a_turn_of_a_subclass_writes_only_what_is_new() -> None:
    class Chat(CotChatAgentRunner):
        def _organize_prompt_messages(self) -> list[PromptMessage]:
            return [*super()._organize_prompt_messages()]

    model = ScriptedClient([*(call("look", key=str(n)) for n in range(5)), answer("1")])
    agent: Agent[Any] = Chat(model, [look], home=False).agent
    assert (await agent.run("?")).answer == "1"
    earlier, later = (list(model.requests[n].messages) for n in (-2, -1))
    assert all(old is new for old, new in zip(earlier, later, strict=False))


def test_a_runner_runs_from_code_that_is_not_async() -> None:
    runner = Ported(ScriptedClient([answer("1"), answer("2")]), [look], home=False)
    assert [runner.run_sync(question).answer for question in ("One?", "Two?")] == ["1", "2"]


class Upstream(CotChatAgentRunner):
    """Overrides what other runners of Dify have beside the methods of the article."""

    def _init_react_state(self, query: str) -> None:
        super()._init_react_state(f"{query} (in full)")

    def _fill_in_inputs_from_external_data_tools(self, instruction: str, inputs: Mapping[str, Any]) -> str:
        return super()._fill_in_inputs_from_external_data_tools(instruction, {**inputs, "house": "Closeout"})

    def _organize_system_prompt(self) -> SystemPromptMessage:
        return SystemPromptMessage(content=f"SYSTEM {super()._organize_system_prompt().content}")

    def _organize_user_query(self, query: str, prompt_messages: list[PromptMessage]) -> list[PromptMessage]:
        return super()._organize_user_query(f"Asked: {query}", prompt_messages)

    def _format_assistant_message(self, agent_scratchpad: list[AgentScratchpadUnit]) -> str:
        return f"STEPS {super()._format_assistant_message(agent_scratchpad)}"

    def _convert_dict_to_action(self, action: dict[str, Any]) -> AgentScratchpadUnit.Action:
        return super()._convert_dict_to_action({**action, "action": action["action"].removeprefix("my_")})

    def _handle_invoke_action(self, action: Any, *rest: Any, **options: Any) -> tuple[Any, Any]:
        observation, meta = super()._handle_invoke_action(action, *rest, **options)
        return f"invoked: {observation}", meta


def test_every_other_method_of_difys_runners_is_called_too() -> None:
    model = ScriptedClient([call("my_look", key="a"), answer("1")])
    runner = Upstream(model, [look], "For {{who}} of {{house}}.", answer=Boxed(), home=False)
    assert runner.run_sync("What is a?", inputs={"who": "Ada"}).answer == "1"
    first, second = model.requests
    assert first.messages[0].text.startswith("SYSTEM")
    assert "For Ada of Closeout." in first.messages[0].text
    assert first.messages[1].text == "Asked: What is a?"
    assert second.messages[2].text.startswith("STEPS Thought: I know what to do.")
    assert "Observation: invoked: a is unknown" in second.messages[2].text
    assert second.messages[: len(first.messages)] == list(first.messages)


async def test_a_runner_has_the_other_ways_to_run_of_its_agent() -> None:
    runner = CotChatAgentRunner(ScriptedClient(lambda view: answer("1")), [look], answer=Boxed(), home=False)
    assert [each.answer async for each in runner.map(["one", "two"])] == ["1", "1"]
    assert (await runner.session("s").run("three")).answer == "1"
    assert runner.as_tool("clerk", "Finds things.").spec.name == "clerk"
    with pytest.raises(AttributeError, match="resme"):
        _ = runner.resme
