"""Seed 001: the chain-of-thought runners, in the order of its sections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import closeout
from closeout import (
    Agent,
    AssistantPromptMessage,
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


def test_a_method_that_no_run_calls_is_said_with_what_to_write_instead() -> None:
    with pytest.warns(UserWarning, match=r"Mine\._handle_invoke_action is never called\. Pass tool_executor="):

        class Mine(CotChatAgentRunner):
            def _handle_invoke_action(self, action: Any) -> str:
                return ""
