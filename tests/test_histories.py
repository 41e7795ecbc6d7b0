"""Each message of a history passes the same door as a new one."""

import base64
import json

import pytest

from closeout import Agent
from closeout.errors import BadRequest, UsageError
from closeout.testing import ScriptedClient, answer, serve_script

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()}}
SHOWN = [
    {"role": "user", "content": [{"type": "text", "text": "What colour?"}, PICTURE]},
    {"role": "assistant", "content": "Red."},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def sent(history, *, images, home=False):
    """Return the messages that a server gets, and the result."""
    async with serve_script([answer("ok")]) as server:
        config = {"llm": {"images": images}}
        agent = Agent("openai:m", base_url=server.base_url, api_key="k", config=config, home=home)
        result = await agent.run("Sum up.", history=history)
        return json.loads(server.requests[-1].body)["messages"], result


async def test_pictures_of_a_history_reach_only_a_model_that_takes_them():
    with_pictures, result = await sent(SHOWN, images=True)
    assert (PICTURE in with_pictures[-3]["content"], result.warnings) == (True, ())
    without, result = await sent(SHOWN, images=False)
    assert without[-3]["content"] == [
        {"type": "text", "text": "What colour?"},
        {"type": "text", "text": "[a picture, left out]"},
    ]
    assert "pictures in message" in result.warnings[0]


async def test_a_session_keeps_its_pictures_for_a_model_that_takes_them(tmp_path):
    async with serve_script([answer("ok")]) as server:
        for images in (True, False, True):
            config = {"llm": {"images": images}}
            agent = Agent("openai:m", base_url=server.base_url, api_key="k", config=config, home=tmp_path)
            await agent.session("chat", history=SHOWN).run("And now?")
            assert ("image_url" in str(server.requests[-1].body)) == images


async def test_a_call_without_a_result_gets_one():
    messages, result = await sent([{"role": "assistant", "content": None, "tool_calls": [CALL]}], images=False)
    assert [(m["role"], m.get("tool_call_id")) for m in messages[-3:]] == [
        ("assistant", None),
        ("tool", "c1"),
        ("user", None),
    ]
    assert result.warnings == ("Call c1 in message 1 of the history has no result. The model is told so.",)


async def test_a_result_without_a_call_is_refused_with_its_number():
    with pytest.raises(UsageError, match="Message 2 of history is the result of a call"):
        await sent(
            [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c9", "content": "y"}], images=False
        )


async def test_a_picture_that_the_server_refuses_does_not_end_the_run(tmp_path):
    def vendor(view):
        if any(isinstance(message.get("content"), list) and PICTURE in message["content"] for message in view.messages):
            raise BadRequest("Could not process this.", status=400)
        return answer("ok")

    agent = Agent(ScriptedClient(vendor), home=tmp_path)
    result = await agent.run("Sum up.", history=SHOWN)
    assert result.answer == "ok"
    assert "The server may not take these pictures; the run continues without them." in result.warnings
