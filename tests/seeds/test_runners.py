"""Runners: a conversation in one dialect, its prompts, and a run as the stream of the one loop."""

import pytest

from closeout import (
    AgentScratchpadUnit,
    Boxed,
    CotAgentRunner,
    CotChatAgentRunner,
    CotCompletionAgentRunner,
    FunctionCallAgentRunner,
    UserPromptMessage,
    tool,
)
from closeout.dialects.text_chat import fit_history
from closeout.errors import UsageError
from closeout.journal.events import RunEnded, TurnAccepted
from closeout.messages import Message
from closeout.testing import ScriptedClient, answer, call

RUNNERS = [CotChatAgentRunner, CotCompletionAgentRunner, FunctionCallAgentRunner]
HISTORY = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Who?"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    },
    {"role": "assistant", "content": "It was Ada."},
]
UNITS = [
    AgentScratchpadUnit(
        thought="I look.",
        action_str='{"action": "lookup", "action_input": {"q": "é"}}',
        observation="{{query}} found",
        action=AgentScratchpadUnit.Action("lookup", {"q": "é"}),
    ),
    AgentScratchpadUnit(agent_response="42", action=AgentScratchpadUnit.Action("Final Answer", "42")),
]


@tool
def lookup(q: str) -> str:
    """Look something up."""
    return f"{q} is 42"


def runner(kind, script=(), **options):
    return kind(ScriptedClient(list(script)), [lookup], "Be {{tools}} good.", home=False, **options)


def prepared(kind, **options):
    """A runner in the middle of a question."""
    made = runner(kind, history=HISTORY, **options)
    made._query = "Why {{agent_scratchpad}}?"
    made._agent_scratchpad = list(UNITS)
    return made


async def play(made, question):
    return [event async for event in made.run(question)]


# ------------------------------------------------------------------------------------------------ prompts


def test_a_unit_is_final_without_an_action_or_with_the_final_one():
    assert AgentScratchpadUnit().is_final()
    assert not UNITS[0].is_final()
    assert UNITS[1].is_final()
    assert UNITS[0].action.to_dict() == {"action": "lookup", "action_input": {"q": "é"}}


@pytest.mark.parametrize("kind", [CotChatAgentRunner, CotCompletionAgentRunner])
def test_the_instruction_prompt_holds_instruction_tools_and_names(kind):
    later = "{{historic_messages}}{{query}}{{agent_scratchpad}}" if kind is CotCompletionAgentRunner else ""
    made = runner(kind, prompts={"first_prompt": "{{instruction}} | {{tools}} | {{tool_names}}" + later})
    text = made._organize_instruction_prompt()
    assert text.startswith("Be {{tools}} good. | [")
    assert '"name": "lookup"' in text
    assert text.endswith("| lookup" + later)


@pytest.mark.parametrize("kind", [CotChatAgentRunner, CotCompletionAgentRunner])
def test_the_historic_prompt(kind):
    made = runner(kind, history=HISTORY)
    assert made._organize_historic_prompt() == "Question: Who?\n\nFinal Answer: It was Ada.\n\n"
    other = [{"role": "user", "content": "Else?"}]
    assert made._organize_historic_prompt(other) == "Question: Else?\n\n"
    assert made._organize_historic_prompt(current_session_messages=other) == "Question: Else?\n\n"
    assert made._organize_historic_prompt([]) == ""


def test_the_completion_form_is_one_user_message():
    (message,) = prepared(CotCompletionAgentRunner)._organize_prompt_messages()
    text = message["content"]
    assert message["role"] == "user"
    assert text.startswith("Be {{tools}} good.")
    assert text.count("Question: Why {{agent_scratchpad}}?") == 1
    assert text.index("It was Ada.") < text.index("Question: Why")
    assert text.endswith(
        'Thought: I look.\nAction: {"action": "lookup", "action_input": {"q": "é"}}\n'
        "Observation: {{query}} found\nFinal Answer: 42\nThought:"
    )


def test_the_completion_form_fills_a_template_with_all_slots_in_one_pass():
    template = "{{instruction}}{{tools[:0]}}\n{{historic_messages}}Question: {{query}}\n{{agent_scratchpad}}"
    made = prepared(CotCompletionAgentRunner, prompts={"first_prompt": template})
    rest = "\n{{historic_messages}}Question: {{query}}\n{{agent_scratchpad}}"
    assert made._organize_instruction_prompt() == f"Be {{{{tools}}}} good.{rest}"
    (message,) = made._organize_prompt_messages()
    earlier = "Question: Who?\n\nFinal Answer: It was Ada.\n\n"
    assert message["content"].startswith(f"Be {{{{tools}}}} good.\n{earlier}Question: Why {{{{agent")


@pytest.mark.parametrize(
    "template",
    [
        "{{instruction}}{{tools}}\n{{historic_messages}}\n{{query}}\n{{agent_scratchpad}}\nThought:",
        "{{instruction}}{{tools}}\n{{historic_messages}}\nQuestion: {{query}}\nThought: {{agent_scratchpad}}\n",
        "{{instruction}}{{tools}}\n{{historic_messages}}\nQuestion: {{query}}\n{{agent_scratchpad}}",
    ],
)
def test_label_and_primer_occur_once(template):
    made = prepared(CotCompletionAgentRunner, prompts={"first_prompt": template})
    (message,) = made._organize_prompt_messages()
    assert message["content"].count("Question: Why") == 1
    assert message["content"].rstrip().endswith("\nFinal Answer: 42\nThought:")
    made._agent_scratchpad = None
    (message,) = made._organize_prompt_messages()
    assert message["content"].rstrip().endswith("Question: Why {{agent_scratchpad}}?\nThought:")


def test_the_chat_form_ends_in_the_scratchpad_and_a_short_message():
    messages = prepared(CotChatAgentRunner)._organize_prompt_messages()
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert messages[3]["content"] == "Why {{agent_scratchpad}}?"
    assert messages[4]["content"].startswith("Thought: I look.\nAction: {")
    assert messages[4]["content"].endswith("Final Answer: 42")
    assert len(messages[5]["content"]) < 80
    custom = prepared(CotChatAgentRunner, prompts={"next_iteration": "continue"})
    assert custom._organize_prompt_messages()[5]["content"] == "continue"


def test_history_is_cut_by_whole_oldest_turns():
    turns = [
        message
        for n in range(5)
        for message in (
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "t", "arguments": "{}"}}]},
            {"role": "tool", "content": "r"},
            {"role": "assistant", "content": f"answer {n}"},
        )
    ]
    for budget in range(0, 600, 20):
        kept = fit_history(turns, budget, len)
        assert len(kept) % 4 == 0
        assert kept[0]["content"].startswith("question")
        assert kept[-1]["content"] == "answer 4"
    assert len(fit_history(turns, 0, len)) == 4
    assert len(fit_history(turns, None, len)) == 20


# ------------------------------------------------------------------------------------------------ running


@pytest.mark.parametrize("kind", RUNNERS)
async def test_a_run_is_the_stream_of_the_one_loop(kind):
    made = runner(kind, [call("lookup", q="it"), answer("42")])
    with pytest.raises(UsageError, match="No run has ended"):
        _ = made.result
    events = await play(made, "How much?")
    assert made.result.answer == "42"
    assert isinstance(events[-1], RunEnded)
    assert [e.tool_calls()[0].name for e in events if isinstance(e, TurnAccepted) and e.calls] == ["lookup"]
    assert [unit.observation for unit in made._agent_scratchpad] == ["it is 42", None]
    assert made._agent_scratchpad[-1].is_final()


@pytest.mark.parametrize("kind", RUNNERS)
async def test_the_next_question_sees_every_step_and_answer_before(kind):
    client = ScriptedClient([call("lookup", q="it"), answer("42"), answer("43")])
    made = kind(client, [lookup], home=False)
    await play(made, "How much?")
    await play(made, "And one more?")
    assert made.result.answer == "43"
    last = client.requests[-1]
    text = last.prompt or "\n".join(str(dict(message)) for message in last.messages)
    for piece in ("How much?", "lookup", "it is 42", "boxed{42}", "And one more?"):
        assert piece in text.replace("\\\\", "\\")
    assert [m["content"] for m in made.history if m["role"] == "user"] == ["How much?", "And one more?"]


async def test_a_subclass_writes_its_own_prompts():
    class Own(CotCompletionAgentRunner):
        def _organize_instruction_prompt(self):
            return "It's mine: action_input\n{{historic_messages}}Question: {{query}}\n{{agent_scratchpad}}"

        def _organize_historic_prompt(self, current_session_messages=None):
            return "(a long story)\n"

    client = ScriptedClient([answer("1")])
    await play(Own(client, home=False), "What?")
    assert client.requests[0].prompt == "It's mine: action_input\n(a long story)\nQuestion: What?\nThought:"


async def test_a_subclass_builds_on_the_messages_of_its_base():
    class Own(CotCompletionAgentRunner):
        def _organize_historic_prompt(self, current_session_messages=None):
            messages = self._organize_historic_prompt_messages(current_session_messages)
            return "".join(f"{m['role']}: {m['content']}\r\n" for m in messages)

    history = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It was 'Ada'."}]
    client = ScriptedClient([answer("1")])
    await play(Own(client, history=history, home=False), "What?")
    assert "user: Who?\r\nassistant: It was 'Ada'.\r\n" in client.requests[0].prompt


async def test_a_subclass_of_the_cot_runner_only_writes_the_messages():
    with pytest.raises(TypeError, match="abstract"):
        CotAgentRunner()

    class Own(CotAgentRunner):
        def _organize_prompt_messages(self):
            return [UserPromptMessage(content=f"{self._organize_instruction_prompt()}\n\n{self._query}")]

    client = ScriptedClient([answer("42")])
    runner = Own(client, [], "Be brief.", home=False)
    async for _ in runner.run("What is a?"):
        pass
    assert runner.result.answer == "42"
    assert client.requests[0].messages[0].text.startswith("Be brief.")


# ------------------------------------------------------------------------------------------------ overridden methods


@pytest.mark.parametrize("kind", RUNNERS)
async def test_the_messages_that_a_subclass_organizes_are_sent(kind):
    class Own(kind):
        def _organize_prompt_messages(self):
            messages = super()._organize_prompt_messages()
            last = messages[-1]
            return [*messages[:-1], Message({**last, "content": f"{last['content']} (my own ending)"})]

    client = ScriptedClient([call("lookup", q="it"), answer("42")])
    made = Own(client, [lookup], "Be brief.", answer=Boxed(), home=False)
    await play(made, "How much?")
    assert made.result.answer == "42"
    for request in client.requests:
        text = request.prompt or request.messages[-1].text
        assert text.endswith("(my own ending)")
        everything = text + str(request.messages) + str(request.tools)
        for piece in ("Be brief.", "boxed{", "read_result", "How much?"):
            assert piece in everything, "super() keeps the answer's form and all tools"
    assert "it is 42" in (client.requests[1].prompt or str(client.requests[1].messages))


@pytest.mark.parametrize("kind", [CotChatAgentRunner, CotCompletionAgentRunner])
async def test_the_instruction_that_a_subclass_organizes_is_sent(kind):
    class Own(kind):
        def _organize_instruction_prompt(self):
            return f"My own beginning. {super()._organize_instruction_prompt()}"

    client = ScriptedClient([call("lookup", q="it"), answer("42")])
    made = Own(client, [lookup], "Be brief.", answer=Boxed(), home=False)
    await play(made, "How much?")
    assert made.result.answer == "42"
    for request in client.requests:
        text = request.prompt or request.messages[0].text
        assert text.startswith("My own beginning.")
        for piece in ("Be brief.", "boxed{", "read_result", "lookup"):
            assert piece in text


@pytest.mark.parametrize("kind", RUNNERS)
async def test_a_rollback_changes_the_request_of_a_subclass_that_builds_its_own(kind):
    class Own(kind):
        def _organize_prompt_messages(self):
            return [Message(role="user", content=f"{self._query} {len(self._agent_scratchpad)}\nThought:")]

    client = ScriptedClient(["", answer("42")])
    made = Own(client, [lookup], home=False)
    await play(made, "How much?")
    first, second = (request.prompt or str(request.messages) for request in client.requests)
    assert "How much? 0" in first
    assert "reply was empty" in second
