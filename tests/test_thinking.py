"""Reasoning tags in text: what is reasoning, what is the reply, and tags that an answer only talks about."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout import read_tool_calls
from closeout.dialects.protocol import get_dialect
from closeout.messages import Delta, ModelReply
from closeout.parsing.read_reply import read_reply
from closeout.parsing.reasoning import ThinkingSplitter, split_reasoning, split_thinking

FENCED = "Templates cut it out:\n\n```jinja\n{{ content.split('</think>')[-1] }}\n```\nThat is all."

# Each is an answer that speaks of tags: nothing of it is reasoning.
QUOTED = {
    "tag": "Models write `<think>` before and `</think>` behind it.",
    "pair": "They write `<think>…</think>` first.",
    "in a longer span": "They write `text <think> more </think> text` first.",
    "double backticks": "Write ``<think>`` or ``a ` <think>`` so.",
    "fence": "An example:\n```xml\n<think>\nhm\n</think>\n```\nThen the answer.",
    "tildes": "~~~\n<thinking>a</thinking>\n~~~\nok",
    "indented fence": "1. So:\n   ```\n   <think>\n   ```\n2. Done",
    "fence on one line": "```<think>a</think>``` is how",
    "longer fence": "````\n```\n<think>\n```\n</think>\n````\nok",
    "fence left open": "So:\n```\n<think>\nhm\n</think>\n42",
    "only a closing tag": FENCED,
    "in Chinese": "模型先写 `<think>`，再写 `</think>`。",
}

# The reasoning, and the reply.
THOUGHT = {
    "plain": ("<think>hm</think>42", "hm", "42"),
    "code behind it": ("<think>hm</think>`42`", "hm", "`42`"),
    "fence behind it": ("<think>hm</think>\n```\n<think>\n```", "hm", "```\n<think>\n```"),
    "fence left open in it": ("<think>so:\n```py\nx = 1\n</think>42", "so:\n```py\nx = 1", "42"),
    "quoted closing tag in it": (
        "<think>they end with `</think>`, yes</think>42",
        "they end with `</think>`, yes",
        "42",
    ),
    "quoted opening tag in it": ("<think>the `<think>` tag</think>42", "the `<think>` tag", "42"),
    "lone backtick in it": ("<think>don`t</think>It is `42`", "don`t", "It is `42`"),
    "opened by the prompt": ("hm</think>42", "hm", "42"),
    "opened by the prompt, tag quoted": ("the `<think>` tag</think>42", "the `<think>` tag", "42"),
    "opened by the prompt, lone backtick": ("don`t</think>It is `42`", "don`t", "It is `42`"),
    "opened by the prompt, fence left open": ("so:\n```py\nx</think>42", "so:\n```py\nx", "42"),
    "opened by the prompt, fence closed": ("so:\n```py\nx\n```\n</think>42", "so:\n```py\nx\n```", "42"),
    "cut off": ("<think>hm", "hm", ""),
    "lone backtick before": ("a ` b <think>hm</think>\n42", "hm", "a ` b \n42"),
    "backtick on the line before": ("a ` b\n<think>hm</think>` 42", "hm", "a ` b\n` 42"),
}


PARTS = ("<thi", "\r\n", "`" * 17, "x" * 90)


def streamed(text: str, size: int) -> list[tuple[bool, str]]:
    splitter = ThinkingSplitter()
    pieces = [piece for at in range(0, len(text), size) for piece in splitter.feed(text[at : at + size])]
    return together(pieces + splitter.flush())


def together(pieces: list[tuple[bool, str]]) -> list[tuple[bool, str]]:
    result: list[tuple[bool, str]] = []
    for thinking, piece in pieces:
        if result and result[-1][0] is thinking:
            result[-1] = (thinking, result[-1][1] + piece)
        else:
            result.append((thinking, piece))
    return result


@pytest.mark.parametrize("text", QUOTED.values(), ids=QUOTED)
def test_a_tag_that_is_quoted_as_code_is_text(text):
    assert split_thinking(text) == ("", text)
    assert split_reasoning(text)[:2] == ("", text)
    assert read_tool_calls(text).content == text
    for size in (1, 2, 3, 7, len(text)):
        assert streamed(text, size) == [(False, text)]


@pytest.mark.parametrize("text", QUOTED.values(), ids=QUOTED)
@pytest.mark.parametrize("name", ["function_call", "cot_chat", "mcp_xml"])
def test_an_answer_that_explains_the_tags_is_whole_in_every_dialect(name, text):
    reading = get_dialect(name).reader(()).close(ModelReply(f"<think>hm</think>\n{text}"))
    assert (reading.answer, reading.reasoning) == (text, "hm")


@pytest.mark.parametrize(("text", "reasoning", "said"), THOUGHT.values(), ids=THOUGHT)
def test_a_tag_that_is_not_quoted_divides_thought_from_answer(text, reasoning, said):
    assert split_thinking(text) == (reasoning, said)
    found = split_reasoning(text)
    assert (found.reasoning, found.content.strip()) == (reasoning, said)


SHOWN = {name: case for name, case in THOUGHT.items() if "by the prompt" not in name}  # tells its reasoning in time


@pytest.mark.parametrize(("text", "reasoning", "said"), SHOWN.values(), ids=SHOWN)
def test_a_stream_is_divided_as_the_whole_text_is(text, reasoning, said):
    for size in (1, 2, 5, len(text)):
        pieces = streamed(text, size)
        assert "".join(piece for thinking, piece in pieces if thinking).strip() == reasoning
        assert "".join(piece for thinking, piece in pieces if not thinking).strip() == said


def test_code_streams_as_it_arrives():
    reader = get_dialect("function_call").reader(())
    for piece in ("It is `4", "2`", "\n```py\n", "x\n``", "`"):
        assert "".join(event.text for event in reader.feed(Delta("text", piece))) == piece


@given(
    st.lists(
        st.sampled_from(
            (*"` a思<\n\ud800", "<think>", "</think>", "<reasoning>", "``", "```", "~~~", "\n  ```", "</", *PARTS)
        ),
        max_size=14,
    ).map("".join),
    st.integers(1, 9),
)
def test_any_way_of_cutting_a_stream_gives_the_same(text, size):
    assert streamed(text, size) == streamed(text, len(text) or 1)
    told = "".join(piece for _, piece in streamed(text, size))
    assert len(told) <= len(text)


CHANNELS = {
    "Harmony": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
    "Harmony, its first header in the prompt": "hm<|end|><|start|>assistant<|channel|>final<|message|>42",
    "Harmony, with a preamble": "<|channel|>commentary<|message|>hm<|end|><|channel|>final<|message|>42",
    "Harmony without its tokens": "analysishm\n\nassistantfinal42",
    "Kimi K3": "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>42<|close|>response<|sep|>",
    "Kimi K3, begun by the prompt": "hm<|close|>think<|sep|><|open|>response<|sep|>42<|close|>response<|sep|>",
    "a closing tag with two slashes": "hm<//think>42",
    "marks of a response": "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>42<|END_RESPONSE|>",
    "marks of a turn": "<|im_start|>assistant\n<think>hm</think>42<|im_end|>\n<|im_start|>user",
}


@pytest.mark.parametrize("name", CHANNELS)
def test_the_answer_of_a_reply_in_channels_is_what_its_final_channel_says(name):
    for dialect in ("function_call", "mcp_xml"):
        reading = read_reply(ModelReply(CHANNELS[name], finish_reason="stop"), get_dialect(dialect).reader(()), ())
        assert (reading.answer, reading.reasoning) == ("42", "hm")


def test_a_text_that_mentions_channels_is_left_as_it_is():
    for text in (
        "Harmony writes <|channel|>final<|message|> before the answer.",
        "The analysis shows that assistantfinal is one word.",
        "A turn ends with `<|im_end|>`.",
    ):
        reading = read_reply(ModelReply(text, finish_reason="stop"), get_dialect("function_call").reader(()), ())
        assert (reading.answer, reading.reasoning, reading.repairs) == (text, "", ())
