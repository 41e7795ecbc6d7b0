"""The tools for pictures and recordings in a run: a file that the model cannot take is opened by its name."""

from __future__ import annotations

from typing import Any

from closeout import Agent, Boxed, Capabilities, File
from closeout.testing import RequestView, ScriptedClient, answer, call, say, serve_script

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")


async def test_a_recording_of_the_task_is_transcribed_over_http() -> None:
    heard: list[Any] = []

    def reply(view: RequestView) -> Any:
        content = view.messages[-1]["content"]
        if isinstance(content, list):
            heard.extend(part for part in content if part["type"] == "input_audio")
            return say("We meet at nine.")
        return answer("nine") if "We meet at nine." in view.text else call("transcribe", audio="talk.wav")

    with serve_script(reply) as server:
        agent = Agent("openai:m", ["transcribe"], answer=Boxed(), base_url=f"{server.url}/v1", api_key="k", home=False)
        result = await agent.run("When?", files=[File("talk.wav", b"RIFF\x24\0\0\0WAVEfmt ")])
    assert (result.answer, result.warnings) == ("nine", ())
    assert [part["input_audio"]["format"] for part in heard] == ["wav"]


async def test_the_model_is_told_which_tool_opens_a_file_that_it_cannot_take() -> None:
    model = ScriptedClient([answer("1")], capabilities=Capabilities(known=True))
    agent = Agent(model, ["ask_about_image", "transcribe"], answer=Boxed(), home=False)
    await agent.run("?", files=[File("a.png", PNG), File("b.mp3", b"ID3\x03\0")])
    shown = model.requests[0].messages[-1].text
    assert "[an image, which ask_about_image can open by this name]" in shown
    assert "[audio, which transcribe can open by this name]" in shown
