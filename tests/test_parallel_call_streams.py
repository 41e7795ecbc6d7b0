"""Parallel calls whose pieces are numbered and named oddly: each piece reaches its own call, or no call is made.

`STREAMS=20000 pytest tests/test_parallel_call_streams.py` runs the large edition.
"""

import json
import os
import random
from typing import Any

import pytest

from closeout import repair_arguments
from closeout.messages import ModelReply, Usage
from closeout.models.anthropic import AnthropicStream
from closeout.models.openai import OpenAIStream
from closeout.models.streaming import ReplyBuilder
from closeout.parsing.read_reply import read_reply
from closeout.parsing.readers import NativeReader

STREAMS = int(os.environ.get("STREAMS", "400"))
TEA, MILK = '{"item": "tea"}', '{"item": "milk"}'
SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["to", "amount"],
}


def piece(index: Any = None, call_id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id, "type": "function", "function": function}


def read(pieces: list[dict]) -> ModelReply:
    builder = ReplyBuilder()
    stream = OpenAIStream(builder, lambda _: None)
    for one in pieces:
        stream.take({"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]})
    stream.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return builder.reply(usage=Usage())


def calls(reply: ModelReply) -> list[tuple[str, str]]:
    return [(call.name, call.text) for call in reply.tool_calls]


BOTH = {
    "all index 0, told apart by name": [piece(0, None, "price", TEA), piece(0, None, "stock", MILK)],
    "one id for all": [piece(0, "call", "price", TEA), piece(0, "call", "stock", MILK)],
    "one id and one name for all": [piece(0, "call", "price", TEA), piece(0, "call", "price", MILK)],
    "interleaved by id, index 0": [
        piece(0, "a", "price", TEA[:5]),
        piece(0, "b", "stock", MILK[:5]),
        piece(0, "a", None, TEA[5:]),
        piece(0, "b", None, MILK[5:]),
    ],
    "a tail at another index": [
        piece(0, "a", "price", ""),
        piece(0, None, None, TEA),
        piece(0, "b", "stock", ""),
        piece(1, None, None, MILK[:4]),
        piece(2, None, None, MILK[4:]),
    ],
    "a whole call again": [piece(0, "a", "price", TEA), piece(0, "a", "price", TEA), piece(1, "b", "stock", MILK)],
    "pieces that repeat those before": [
        *(piece(0, "a", "price", TEA[:length]) for length in (1, 5, len(TEA))),
        *(piece(1, "b", "stock", MILK[:length]) for length in (5, len(MILK))),
    ],
    "an empty piece at the end": [piece(0, "a", "price", TEA), piece(1, "b", "stock", MILK), piece(2, None, None, "")],
    "an index as text": [piece("0", "a", "price", TEA), piece("1", "b", "stock", MILK)],
    "the name after the arguments": [
        piece(0, "a", None, TEA),
        piece(0, None, "price", ""),
        piece(1, "b", "stock", MILK),
    ],
}


@pytest.mark.parametrize("case", BOTH)
def test_a_piece_goes_to_the_call_with_its_id_else_its_index_else_the_last(case: str):
    reply = read(BOTH[case])
    assert [text for _, text in calls(reply)] == [TEA, MILK]
    assert len({call.id for call in reply.tool_calls}) == 2


LOST = {
    "two open calls, neither id nor index": [
        piece(0, "a", "price", TEA[:5]),
        piece(0, "b", "stock", MILK[:5]),
        piece(0, None, None, TEA[5:]),
        piece(0, None, None, MILK[5:]),
    ],
    "arguments without a name": [piece(0, "a", "price", TEA), piece(1, "b", None, MILK)],
    "the end of one call in the other": [piece(0, "a", "price", TEA[:5]), piece(1, "b", "stock", MILK + TEA[5:])],
}


@pytest.mark.parametrize("case", LOST)
def test_a_reply_with_a_piece_of_no_certain_call_makes_no_call_and_is_asked_for_again(case: str):
    reading = read_reply(read(LOST[case]), NativeReader(), ())
    assert reading.calls == ()
    assert [defect.code for defect in reading.defects] == ["malformed_call"]


def anthropic(*events: tuple[str, dict]) -> ModelReply:
    builder = ReplyBuilder()
    stream = AnthropicStream(builder)
    for kind, more in (*events, ("message_delta", {"delta": {"stop_reason": "tool_use"}})):
        stream.take({"type": kind, **more})
    return builder.reply(usage=Usage())


def start(index: int, call_id: str, name: str, given: dict | None = None) -> tuple[str, dict]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": given or {}}
    return "content_block_start", {"index": index, "content_block": block}


def grow(index: int, text: str) -> tuple[str, dict]:
    return "content_block_delta", {"index": index, "delta": {"type": "input_json_delta", "partial_json": text}}


def test_anthropic_blocks_that_share_an_index_are_two_calls():
    reply = anthropic(start(0, "a", "price"), grow(0, TEA), start(0, "b", "stock"), grow(0, MILK))
    assert calls(reply) == [("price", TEA), ("stock", MILK)]
    lost = anthropic(start(0, "a", "price"), grow(0, TEA[:5]), start(0, "b", "stock"), grow(0, TEA[5:]), grow(0, MILK))
    assert (lost.tool_calls, lost.finish_reason) == ((), "malformed_call")


def test_an_input_that_anthropic_sends_whole_and_again_in_pieces_is_one_input():
    assert calls(anthropic(start(0, "a", "price", {"item": "tea"}), grow(0, TEA))) == [("price", TEA)]
    assert calls(anthropic(start(0, "a", "price", {"item": "tea"}))) == [("price", '{"item":"tea"}')]
    other = anthropic(start(0, "a", "price", {"item": "tea"}), grow(0, MILK))
    assert (other.tool_calls, other.finish_reason) == ((), "malformed_call")


def pieces_of(chance: random.Random, written: list[tuple[str, str]]) -> list[dict]:
    """The pieces of calls, split, reordered between the calls, and numbered by a server with some fault."""
    fault = chance.choice(("none", "one index", "no index", "one id", "no ids", "other tails", "ids only", "shifted"))
    lanes = []
    for number, (name, text) in enumerate(written):
        cuts = sorted(chance.sample(range(len(text) + 1), chance.randrange(5)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        head = piece(number, f"id{number}", name, "" if chance.random() < 0.5 else parts.pop(0))
        repeats, unnumbered = chance.random() < 0.3, chance.random() < 0.5
        own = f"id{number}" if repeats or fault == "ids only" else None
        lane = [head, *(piece(number, own, None, part) for part in parts)]
        for place, one in enumerate(lane):
            if fault in ("one index", "ids only"):
                one["index"] = 0
            elif fault == "no index":
                one["index"] = None
            elif fault == "one id" and one["id"]:
                one["id"] = "call"
            elif fault == "no ids":
                one["id"], one["index"] = None, 0 if unnumbered else number
            elif fault == "other tails" and place:
                one["index"] = chance.choice((number, number + 1, 9))
                one["id"] = f"id{number}" if one["index"] < len(written) else one["id"]
            elif fault == "shifted":
                one["index"] = number + place
                one["id"] = f"id{number}"
        lanes.append(lane)
    if chance.random() < 0.4:
        return [one for lane in lanes for one in lane]
    result = []
    while lanes := [lane for lane in lanes if lane]:
        result.append(chance.choice(lanes).pop(0))
    return result


def test_no_call_is_made_that_no_piece_spelled_out():
    made = 0
    for seed in range(STREAMS):
        chance = random.Random(seed)
        written = []
        for number in range(chance.randint(2, 5)):
            to = chance.choice(("ann", "bob", 'a"b\\c', "}{", "ünï", ""))
            values = {"to": to, "amount": number * 100 + chance.randrange(100)}
            written.append((chance.choice(("pay", "refund", "price")), json.dumps(values)))
        pieces = pieces_of(chance, written)
        reading = read_reply(read(pieces), NativeReader(), ())
        for call in reading.calls:
            fitted = repair_arguments(call.arguments, SCHEMA)
            if fitted.ok:
                made += 1
                assert (call.name, json.dumps(fitted.arguments)) in written, (seed, pieces)
    assert made > STREAMS  # more than half of the calls are made: the rest cannot be placed
