"""The embedded model: one loaded model in this process, streamed, stopped, constrained, counted, shared, freed.

A model of two megabytes that writes the alphabet stands for the real ones; those run with `-m models`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cli_process import here
from closeout.errors import BadRequest, ContextOverflow, ModelTimeout, ModelUnavailable, ServerFailed, UsageError
from closeout.messages import Capabilities, Constraint, Delta, Message, ModelRequest, ToolSpec, Usage
from closeout.models.local import embedded as local
from closeout.models.local import local_engine, local_machine
from closeout.models.local.embedded import LocalClient
from closeout.models.local.gguf import read_gguf
from closeout.models.local.local_machine import Speed, Speeds, idle_cores, pick_threads, usable_cores
from closeout.models.local.prompt_states import PromptStates
from closeout.models.local.weights import models_folder
from tiny_gguf import write_model

ENDLESS = 100_000  # tokens: more than anybody waits for


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "alphabet.gguf")


@pytest.fixture
async def client(model: Path) -> AsyncIterator[LocalClient]:
    async with LocalClient(model, max_context=512) as client:
        yield client


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetition does not end a reply: this model knows nothing else."""
    monkeypatch.setattr(local, "_REPEATED", ENDLESS)


def prompt(text: str = "abc", **keys: object) -> ModelRequest:
    return ModelRequest(prompt=text, **{"max_tokens": 8, **keys})  # type: ignore[arg-type]


def chat(*texts: str, **keys: object) -> ModelRequest:
    roles = ("user", "assistant")
    messages = [Message(role=roles[i % 2], content=text) for i, text in enumerate(texts)]
    return ModelRequest(messages=messages, **{"max_tokens": 8, **keys})  # type: ignore[arg-type]


async def until(true: Callable[[], bool]) -> None:
    """Wait for what the engine's thread does after the last client is closed."""
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 30 seconds")


# ------------------------------------------------------------------------------------------------ replies


async def test_a_prompt_is_continued_and_a_chat_is_answered(client: LocalClient) -> None:
    assert (await client.complete(prompt("abc"))).text == "defghijk"
    assert (await client.complete(chat("m"))).text == "nopqrstu"


async def test_a_reply_at_its_limit_says_length_and_one_that_ends_says_stop(client: LocalClient) -> None:
    assert (await client.complete(prompt("abc"))).finish_reason == "length"
    ended = await client.complete(chat("The end."))
    assert (ended.text, ended.finish_reason) == ("", "stop")


async def test_the_reply_stops_before_a_stop_word(client: LocalClient) -> None:
    reply = await client.complete(prompt("abc", stop=("hi",), max_tokens=20))
    assert (reply.text, reply.finish_reason) == ("defg", "stop")


async def test_a_reply_that_only_repeats_itself_is_ended(client: LocalClient) -> None:
    for text, piece in (("abc!", "!"), ("0", "123456789abc")):
        reply = await client.complete(prompt(text, max_tokens=400))
        assert reply.text.startswith(piece)
        assert 240 <= len(reply.text) < 260
        assert reply.finish_reason == "stop"


@pytest.mark.parametrize("piece", ["ab", "\\boxed{47} ", "x" * 59 + "\n", " ".join(map(str, range(90)))])
def test_a_repeated_piece_is_found_whatever_its_length(piece: str) -> None:
    start = "Thought: the table has these rows.\n"
    assert local._repeats_itself((start + piece * 200)[-1500:], 240)
    assert not local._repeats_itself(start + piece * 2, 240)
    assert not local._repeats_itself(start + piece * 200 + "and then something else", 240)


def test_a_long_table_or_list_is_not_a_repetition() -> None:
    rows = "".join(f"| {number} | a cell that is the same in each row | another one |\n" for number in range(60))
    assert not any(local._repeats_itself(rows[:end][-1500:], 240) for end in range(0, len(rows), 7))
    assert not local._repeats_itself("", 240)


async def test_deltas_arrive_one_by_one_and_are_the_reply(client: LocalClient) -> None:
    seen: list[Delta] = []
    reply = await client.complete(prompt("abc"), on_delta=lambda delta: seen.append(delta))
    assert "".join(delta.text for delta in seen) == reply.text
    assert len(seen) == 8


async def test_on_delta_cuts_the_reply_where_it_has_enough(client: LocalClient) -> None:
    seen: list[str] = []

    def until_f(delta: Delta) -> bool:
        seen.append(delta.text)
        return delta.text == "f"

    reply = await client.complete(prompt("abc", max_tokens=400), on_delta=until_f)
    assert (reply.text, reply.finish_reason) == ("def", "cut")
    assert seen == ["d", "e", "f"]
    assert reply.usage.output_tokens == 3
    assert reply.usage.input_tokens == 4  # the begin of text, and three bytes


async def test_a_second_request_reads_only_what_is_new(client: LocalClient) -> None:
    first = await client.complete(prompt("abcdefgh", max_tokens=1))
    second = await client.complete(prompt("abcdefghijkl", max_tokens=1))
    assert first.usage.cache_read_tokens < 3
    assert second.usage.cache_read_tokens == first.usage.input_tokens
    assert second.usage.input_tokens == first.usage.input_tokens + 4


async def test_the_usage_counts_every_request_and_costs_nothing(client: LocalClient) -> None:
    replies = [await client.complete(prompt(text)) for text in ("abc", "xyz")]
    assert client.usage == replies[0].usage + replies[1].usage
    assert (client.usage.requests, client.usage.cost_usd) == (2, 0.0)


# ------------------------------------------------------------------------------------------------ constraints


async def test_a_grammar_binds_the_reply(client: LocalClient) -> None:
    constraint = Constraint("grammar", 'root ::= "yes" | "no"')
    assert (await client.complete(prompt(constraint=constraint))).text in ("yes", "no")


async def test_a_reply_states_how_likely_each_of_its_tokens_is_if_it_is_asked_to(client: LocalClient) -> None:
    def asked(text: str) -> ModelRequest:
        return prompt(
            constraint=Constraint("grammar", f"root ::= {json.dumps(text)}"), extra_body={"logprobs": 1}, max_tokens=99
        )

    text = 'ab "c"\\\nd'
    reply = await client.complete(asked(text))
    assert reply.tokens is not None
    assert (reply.text, "".join(reply.tokens.texts)) == (text, text)
    assert len(reply.tokens.logprobs) == len(reply.tokens.texts)
    assert all(value <= 0 for value in reply.tokens.logprobs)
    free = await client.complete(prompt(max_tokens=4, extra_body={"logprobs": 1}))
    other = await client.complete(asked(f"{free.text[::-1]}"))
    same = await client.complete(asked(free.text))
    assert free.tokens is not None
    assert same.tokens is not None
    assert other.tokens is not None
    assert sum(same.tokens.logprobs[:1]) > sum(other.tokens.logprobs[:1])
    assert (await client.complete(prompt(max_tokens=4))).tokens is None


async def test_a_constrained_reply_that_repeats_itself_in_a_text_is_ended_as_not_whole(client: LocalClient) -> None:
    """The grammar would let it go on for ever. Up to that length it may still be led to an end."""
    endless = Constraint("grammar", 'root ::= "(" [a-z]* ")"')
    reply = await client.complete(prompt("abc", constraint=endless, max_tokens=900))
    assert 480 <= len(reply.text) < 540
    assert reply.finish_reason == "length"
    bounded = Constraint("grammar", 'root ::= "(" [a-z]{1,400} ")"')
    reply = await client.complete(prompt("abc", constraint=bounded, max_tokens=900))
    assert (len(reply.text), reply.finish_reason) == (402, "stop")


async def test_a_regular_expression_binds_the_reply(client: LocalClient) -> None:
    reply = await client.complete(prompt(constraint=Constraint("regex", "[0-9]{2}/[0-9]{3}")))
    left, slash, right = reply.text.partition("/")
    assert (len(left), slash, len(right)) == (2, "/", 3)
    assert (left + right).isdigit()


@pytest.mark.parametrize("as_chat", [True, False])
async def test_a_json_schema_binds_the_reply(client: LocalClient, as_chat: bool) -> None:
    make = chat if as_chat else prompt
    reply = await client.complete(
        make("abc", constraint=Constraint("json_schema", {"enum": ["Oslo", "Bergen"]}), max_tokens=60)
    )
    assert json.loads(reply.text) in ("Oslo", "Bergen")


@pytest.mark.parametrize(
    "constraint", [Constraint("grammar", "root ::= ((("), Constraint("json_schema", {"type": "no such type"})]
)
async def test_a_broken_constraint_is_a_bad_request(client: LocalClient, constraint: Constraint) -> None:
    with pytest.raises(BadRequest):
        await client.complete(chat("abc", constraint=constraint))
    assert (await client.complete(prompt("abc"))).text == "defghijk"


# ------------------------------------------------------------------------------------------------ hostile input


async def test_a_prompt_beyond_the_context_is_an_overflow(client: LocalClient) -> None:
    with pytest.raises(ContextOverflow, match=r"context 512.*llm\.max_context_length"):
        await client.complete(prompt("x" * 5000))


@pytest.mark.parametrize("text", ["\ud800 lone", "\0", "数据 🚀", "", "\\", '"}],'])
async def test_any_text_is_taken(client: LocalClient, text: str) -> None:
    await client.complete(chat(text + "a"))
    await client.complete(prompt(text + "a"))


async def test_markers_of_the_chat_template_in_a_text_stay_text(client: LocalClient) -> None:
    """This tokenizer has none, so the bytes are counted: a zero-width space of three bytes keeps the marker apart."""
    plain = await client.complete(chat("<x|im_end|>"))
    marked = await client.complete(chat("<|im_end|>"))
    assert marked.usage.input_tokens == plain.usage.input_tokens - 1 + 3
    parts = await client.complete(
        ModelRequest(messages=[Message(role="user", content=[{"type": "text", "text": "<|im_end|>"}])], max_tokens=1)
    )
    assert parts.usage.input_tokens == marked.usage.input_tokens


async def test_a_files_own_markers_in_a_text_stay_text(model: Path, tmp_path: Path) -> None:
    """`</s>` is the control token that ends a reply. As text it has one token for each byte."""
    own = write_model(tmp_path / "own.gguf", template="{{ messages[0]['content'] }}")
    async with LocalClient(own) as client:
        reply = await client.complete(chat("</s>a"))
        assert reply.usage.input_tokens == 1 + len("</s>a") + 3  # the beginning, and a zero-width space
    assert {"<s>", "</s>"} <= set(read_gguf(model).markers)


async def test_tools_and_tool_messages_are_taken(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        Message(role="user", content="a"),
        Message(role="assistant", content=None, tool_calls=[call]),
        Message(role="tool", tool_call_id="1", content="b"),
    ]
    async with LocalClient(write_model(tmp_path / "tools.gguf", template=TOOLS_TEMPLATE)) as client:
        with_tools = ModelRequest(messages=messages, tools=(ToolSpec("f", "does"),), max_tokens=2)
        reply = await client.complete(with_tools)
        plain = await client.complete(replace(with_tools, tools=()))
    assert reply.usage.input_tokens > plain.usage.input_tokens + len("does")


# ------------------------------------------------------------------------------------------------ time


async def test_a_cancelled_call_stops_the_generation(model: Path, endless: None) -> None:
    async with LocalClient(model, max_context=200_000) as client:
        started = asyncio.Event()
        task = asyncio.create_task(client.complete(prompt("abc", max_tokens=ENDLESS), on_delta=lambda _: started.set()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The one thread is free again: it would be busy for minutes otherwise.
        assert (await asyncio.wait_for(client.complete(prompt("abc")), 60)).text == "defghijk"
        assert client.usage.requests == 2


async def test_a_call_cancelled_while_it_waits_never_runs(model: Path, endless: None) -> None:
    async with LocalClient(model, max_context=200_000) as client:
        started = asyncio.Event()
        first = asyncio.create_task(
            client.complete(prompt("abc", max_tokens=ENDLESS), on_delta=lambda _: started.set())
        )
        await started.wait()
        second = asyncio.create_task(client.complete(prompt("abc", max_tokens=ENDLESS)))
        await asyncio.sleep(0)
        for task in (second, first):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert client.usage.requests == 1


async def test_a_deadline_passes(model: Path, endless: None) -> None:
    async with LocalClient(model, max_context=200_000) as client:
        with pytest.raises(ModelTimeout, match=r"within 0\.2 seconds") as caught:
            await client.complete(prompt("abc", max_tokens=ENDLESS, timeout=0.2))
        assert caught.value.usage is not None
        assert caught.value.usage.requests == 1


async def test_concurrent_requests_wait_in_turn(model: Path) -> None:
    async with LocalClient(model) as one, LocalClient(model) as two:
        replies = await asyncio.gather(*(client.complete(prompt("abc")) for client in (one, two) * 5))
    assert {reply.text for reply in replies} == {"defghijk"}


# ------------------------------------------------------------------------------------------------ loading and freeing


async def test_clients_of_the_same_weights_share_one_model_until_the_last_is_closed(model: Path) -> None:
    told: list[str] = []
    one, two = LocalClient(model, on_status=told.append), LocalClient(model, on_status=told.append)
    assert not local_engine._engines
    await one.complete(prompt())
    await two.complete(prompt())
    (engine,) = local_engine._engines.values()
    assert (engine.users, told) == (2, ["Loading alphabet.gguf"])
    await one.aclose()
    await one.aclose()
    assert engine.users == 1
    await two.aclose()
    assert not local_engine._engines


async def test_a_model_that_is_freed_right_after_loading_does_not_hang(model: Path) -> None:
    key = local_engine.EngineKey(str(model), 1, 256)
    for _ in range(3):
        engine = local_engine.borrow(key)
        freed = engine.submit(lambda engine: engine.load(lambda _: None, threading.Event()))
        local_engine.give_back(engine)
        await asyncio.wait_for(asyncio.wrap_future(freed), 60)


async def test_a_closed_client_loads_the_model_again_when_asked(model: Path) -> None:
    told: list[str] = []
    client = LocalClient(model, on_status=told.append)
    for _ in range(2):
        assert (await client.complete(prompt())).text == "defghijk"
        await client.aclose()
    assert told == ["Loading alphabet.gguf"] * 2


async def test_a_client_that_is_dropped_gives_the_model_back(model: Path) -> None:
    client = LocalClient(model)
    await client.complete(prompt())
    assert local_engine._engines
    del client
    gc.collect()
    assert not local_engine._engines


@pytest.mark.skipif(sys.platform == "win32", reason="a Unix socket")
async def test_the_librarys_own_server_is_private_and_refuses_requests_without_the_key(model: Path) -> None:
    async with LocalClient(model, max_context=300) as client:
        await client.complete(prompt())
        library = next(iter(local_engine._engines.values()))._library
        assert library is not None
        folder = Path(library._folder)
        assert (folder / "s.sock").is_socket()
        assert stat.S_IMODE(await asyncio.to_thread(lambda: folder.stat().st_mode)) == 0o700
        with contextlib.closing(local_engine._Connection(library._folder, "")) as connection:
            connection.request("GET", "/slots")
            assert connection.getresponse().status == 401
    await until(lambda: not folder.exists())


# ------------------------------------------------------------------------------------------------ prompts read once

BEGINNING = "".join(chr(ord("a") + i % 26) for i in range(1500))


def shared(rest: str = "", **keys: object) -> ModelRequest:
    return prompt(BEGINNING + rest, shared=len(BEGINNING), **keys)


async def read_by_a_new_process(model: Path, told: list[str]) -> Usage:
    """Ask a client whose model is loaded only for this request."""
    async with LocalClient(model, max_context=2048, on_status=told.append) as client:
        reply = await client.complete(shared("abc"))
    assert reply.text == "defghijk"
    return reply.usage


async def test_the_fixed_beginning_of_a_prompt_is_read_once_and_then_restored_from_disk(model: Path) -> None:
    told: list[str] = []
    first = await read_by_a_new_process(model, told)
    assert first.cache_read_tokens < 3
    assert [text for text in told if text.startswith("preparing the instructions; only the first run does this")]
    told.clear()
    second = await read_by_a_new_process(model, told)
    assert second.cache_read_tokens >= len(BEGINNING)
    assert second.input_tokens == first.input_tokens
    assert told == ["Loading alphabet.gguf"]


async def test_a_damaged_state_is_deleted_and_the_prompt_read_again(model: Path) -> None:
    told: list[str] = []
    await read_by_a_new_process(model, told)
    (file,) = (models_folder() / "prompts").glob("*.state")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    assert (await read_by_a_new_process(model, told)).cache_read_tokens < 3
    assert (await read_by_a_new_process(model, told)).cache_read_tokens >= len(BEGINNING)


async def test_a_state_that_the_engine_refuses_is_made_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptStates, "key", staticmethod(lambda *_: "k"))
    states = PromptStates(models_folder() / "prompts")
    name = states.begin()
    (states.folder / name).write_bytes(b"not a state")
    states.finish("k", name)
    assert (await read_by_a_new_process(model, [])).cache_read_tokens < 3
    assert (await read_by_a_new_process(model, [])).cache_read_tokens >= len(BEGINNING)


async def test_runs_of_one_process_share_the_beginning_and_keep_their_own_prompts(model: Path) -> None:
    other = "".join(chr(ord("z") - i % 26) for i in range(1500))
    async with LocalClient(model, max_context=2048) as client:
        history = await client.complete(prompt("qrstuv" * 60))
        await client.complete(shared("a"))
        await client.complete(prompt(other, shared=len(other)))
        assert (await client.complete(shared("b"))).usage.cache_read_tokens >= len(BEGINNING)
        again = await client.complete(prompt("qrstuv" * 60 + "w"))
        assert again.usage.cache_read_tokens >= history.usage.input_tokens - 1


async def test_a_models_folder_that_cannot_be_written_only_costs_time(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOSEOUT_MODELS", str(tmp_path / "file" / "models"))
    for _ in range(2):
        assert (await read_by_a_new_process(model, [])).cache_read_tokens < 3


async def test_a_request_can_be_stopped_while_its_beginning_is_read(model: Path) -> None:
    def stop(text: str) -> None:
        if text.startswith("preparing"):
            task.cancel()

    async with LocalClient(model, max_context=2048, on_status=stop) as client:
        task = asyncio.create_task(client.complete(shared("abc")))
        with pytest.raises(asyncio.CancelledError):
            await task
        client.on_status = None
        assert (await client.complete(shared("abc"))).text == "defghijk"


async def test_progress_says_how_much_of_the_prompt_is_read(model: Path) -> None:
    told: list[str] = []
    async with LocalClient(model, max_context=2048, on_status=told.append) as client:
        await client.complete(prompt("abc" * 200))
    assert told[0] == "Loading alphabet.gguf"
    assert any(re.match(r"reading the prompt: \d+ of 601 tokens", text) for text in told)
    assert told[-1] == "writing the reply"


def test_the_states_used_longest_ago_are_deleted_beyond_the_limit(tmp_path: Path) -> None:
    states = PromptStates(tmp_path / "prompts", most_bytes=250)
    for age, key in enumerate(("old", "middle", "new")):
        name = states.begin()
        (states.folder / name).write_bytes(key.encode() * 25)
        states.finish(key, name)
        (kept,) = states.folder.glob(f"{key}-*")
        os.utime(kept, (age, age))
        if key == "middle":
            assert states.find("old")  # its time is now
    assert [bool(states.find(key)) for key in ("old", "middle", "new")] == [True, False, True]


# ------------------------------------------------------------------------------------------------ the machine


def test_all_idle_cores_are_used_unless_fewer_were_faster() -> None:
    assert pick_threads(8, {}) == 8
    assert pick_threads(0, {}) == 1
    slow, fast = Speed(8, 90.0, 5.0), Speed(4, 80.0, 20.0)
    assert pick_threads(8, {8: slow, 4: fast}) == 4
    assert pick_threads(8, {4: fast}) == 8  # not tried yet
    assert pick_threads(2, {8: slow, 4: fast}) == 2
    assert 1 <= idle_cores(usable_cores()) <= usable_cores()


def test_the_best_speeds_are_kept_for_each_model_and_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    file.write_text("[1, 2")
    speeds = Speeds(file, "a.gguf", "engine 1")
    assert speeds.read() == {}
    speeds.keep(Speed(2, 40.0, 10.0))
    speeds.keep(Speed(2, 30.0, 12.0))
    speeds.keep(Speed(1, 20.0, 9.0))
    Speeds(file, "b.gguf", "engine 1").keep(Speed(2, 99.0, 99.0))
    assert speeds.read() == {1: Speed(1, 20.0, 9.0), 2: Speed(2, 40.0, 12.0)}
    assert Speeds(file, "a.gguf", "engine 2").read() == {}


async def test_the_speed_that_a_client_reaches_is_kept(model: Path) -> None:
    async with LocalClient(model, threads=1, max_context=2048) as client:
        await client.complete(prompt("abc" * 200, max_tokens=40))
    await until(lambda: 1 in local_engine.speeds_of(str(model)))
    assert local_engine.speeds_of(str(model))[1].prompt > 0


def test_child_processes_do_not_inherit_how_our_threads_wait() -> None:
    assert "GOMP_SPINCOUNT" not in os.environ


def test_ctrl_c_stays_pythons_even_where_the_library_takes_it() -> None:
    set_handler, get_handler = ctypes.pythonapi.PyOS_setsig, ctypes.pythonapi.PyOS_getsig
    with local_engine._signals_kept():
        before = get_handler(signal.SIGINT)
        set_handler(signal.SIGINT, 1)  # SIG_IGN, behind Python's back
    assert get_handler(signal.SIGINT) == before


def test_a_process_that_forgets_to_close_ends_cleanly_and_says_nothing(model: Path) -> None:
    script = (
        "import asyncio, sys; from closeout.models.local.embedded import LocalClient\n"
        "from closeout.messages import ModelRequest\n"
        "client = LocalClient(sys.argv[1])\n"
        "print(asyncio.run(client.complete(ModelRequest(prompt='abc', max_tokens=3))).text)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(model)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "def\n", "")


async def test_a_file_that_is_not_a_model_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("These are notes.")
    async with LocalClient(path) as client:
        with pytest.raises(ModelUnavailable, match=r"notes\.gguf cannot be loaded: it is damaged, or not a GGUF model"):
            await client.complete(prompt())


async def test_without_the_library_the_error_says_how_to_get_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    async with LocalClient(model, max_context=256) as client:
        with pytest.raises(ModelUnavailable, match=r"pip install 'closeout\[local\]'"):
            await client.complete(prompt())


async def test_missing_weights_are_not_fetched_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSEOUT_MODELS", str(tmp_path))
    async with LocalClient("local", pull=False) as client:
        with pytest.raises(ModelUnavailable, match="closeout models pull local"):
            await client.complete(prompt())


async def test_missing_weights_are_fetched_with_a_word_on_how_far(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from closeout.models.local.weights import KNOWN_WEIGHTS, PullProgress

    def pull(name: str, *, on_progress, stop) -> Path:  # type: ignore[no-untyped-def]
        for size in (0, 558_660_384):
            on_progress(PullProgress("downloading", KNOWN_WEIGHTS[name], size))
        return model

    monkeypatch.setenv("CLOSEOUT_MODELS", str(tmp_path))
    monkeypatch.setattr(local_engine, "pull_weights", pull)
    told: list[str] = []
    async with LocalClient("local", max_context=256, on_status=told.append) as client:
        await client.complete(prompt())
    title = "Downloading Qwen2.5-Coder-1.5B-Instruct Q4_K_M (1,117 MB)"
    assert told == [f"{title}: 0 %", f"{title}: 50 %", "Loading alphabet.gguf"]


async def test_a_failure_of_the_library_reaches_who_waits(client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(local_engine.Engine, "generate", fail)
    with pytest.raises(ServerFailed, match="out of luck"):
        await client.complete(prompt())


def test_what_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(ModelUnavailable, match="Use one of local, local:small"):
        LocalClient("locl")
    with pytest.raises(UsageError, match="threads must be at least 1"):
        LocalClient("local", threads=0)


def test_it_says_what_it_can() -> None:
    capabilities = LocalClient("local").capabilities
    assert capabilities == Capabilities(
        completions=True,
        native_tools=False,
        json_schema=True,
        grammar=True,
        known=True,
        weak=True,
        max_context=8192,
        preferred_dialect="code",
    )


# ------------------------------------------------------------------------------------------------ other weights

STRICT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('No system role.') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
)
TOOLS_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}{{ message['content'] }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("described", "weak", "native", "dialect"),
    [
        ({}, True, False, "code"),
        ({"size_label": "7B"}, False, False, "cot_completion"),
        ({"size_label": "7B", "template": TOOLS_TEMPLATE}, False, True, "function_call"),
        ({"size_label": "8x1.5B", "template": TOOLS_TEMPLATE}, False, True, "function_call"),
        ({"size_label": "500M", "template": TOOLS_TEMPLATE}, True, False, "code"),
    ],
)
def test_a_files_own_description_decides_how_it_is_used(tmp_path: Path, described, weak, native, dialect) -> None:  # type: ignore[no-untyped-def]
    able = LocalClient(write_model(tmp_path / "own.gguf", **described)).capabilities
    assert (able.weak, able.native_tools, able.preferred_dialect, able.max_context) == (weak, native, dialect, 2048)


def test_a_file_is_described_by_its_header(model: Path) -> None:
    found = read_gguf(model)
    assert (found.architecture, found.context, found.small) == ("llama", 2048, True)
    assert found.parameters == pytest.approx(0.0005, rel=0.05)  # counted: the file does not state its size
    assert "message['content']" in found.template


async def test_tools_are_refused_if_the_chat_template_has_no_place_for_them(client: LocalClient) -> None:
    """The library would leave them out of the prompt, and the model would never hear of them."""
    with pytest.raises(BadRequest, match="has no place for tools"):
        await client.complete(replace(chat("a"), tools=(ToolSpec("f", "does"),)))


async def test_a_file_without_a_chat_template_is_asked_in_plain_text(tmp_path: Path) -> None:
    """The library would take the markers of another family, and a model that does not know them does not stop."""
    async with LocalClient(write_model(tmp_path / "base.gguf", template="")) as client:
        assert not client.capabilities.chat
        reply = await client.complete(chat("abc", "de.", "f"))
        written = await client.complete(prompt("User: abc\nAssistant: de.\nUser: f\nAssistant:"))
        assert (reply.text, reply.usage.input_tokens) == (written.text, written.usage.input_tokens)
        ended = await client.complete(chat("abc", constraint=Constraint("regex", "x\nUser: more")))
        assert (ended.text, ended.finish_reason) == ("x", "stop")


@pytest.mark.parametrize("roles", [("system", "user"), ("user", "assistant", "user")])
async def test_a_template_that_knows_no_system_role_takes_instructions(tmp_path: Path, roles: tuple[str, ...]) -> None:
    messages = [Message(role=role, content="abc") for role in roles]
    async with LocalClient(write_model(tmp_path / "strict.gguf", template=STRICT_TEMPLATE)) as client:
        assert (await client.complete(ModelRequest(messages=messages, max_tokens=3))).text == "abc"


async def test_a_template_says_what_it_does_not_take(tmp_path: Path) -> None:
    messages = [Message(role="user", content="a"), Message(role="user", content="b")]
    async with LocalClient(write_model(tmp_path / "strict.gguf", template=STRICT_TEMPLATE)) as client:
        with pytest.raises(BadRequest, match=r"its chat template says: Roles must alternate\.$"):
            await client.complete(ModelRequest(messages=messages, max_tokens=3))


async def test_the_first_token_is_not_doubled_by_a_template_that_writes_it(tmp_path: Path) -> None:
    text = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    read = []
    for name, template in (("once", text), ("twice", "{{ bos_token }}" + text)):
        async with LocalClient(write_model(tmp_path / f"{name}.gguf", template=template)) as client:
            read.append((await client.complete(chat("abc"))).usage.input_tokens)
    assert read == [4, 4]


async def test_a_file_that_the_library_refuses_is_described(tmp_path: Path) -> None:
    invalid = write_model(tmp_path / "invalid.gguf", template="{% for message in messages %}{{ message['content'] ")
    async with LocalClient(invalid) as client:
        with pytest.raises(ModelUnavailable, match=r"its chat template is invalid, .* its architecture \(llama\)"):
            await client.complete(prompt())


def test_a_damaged_header_is_an_error_of_one_kind(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()[:3000]
    path = tmp_path / "damaged.gguf"
    for size in (0, 3, 24, 60, 100, 1000, 2000):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError):
            read_gguf(path)
    for place in range(4, 400, 7):
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        with contextlib.suppress(ValueError):
            read_gguf(path)
    assert LocalClient(path).capabilities.weak  # loading it says what is wrong


# ------------------------------------------------------------------------------------------------ commands


def test_models_bench_measures_and_keeps_the_speeds_and_doctor_shows_them(model: Path) -> None:
    before = here("doctor", "-m", str(model))
    assert f"speed: not measured yet: closeout models bench {model}" in before.out
    done = here("models", "bench", str(model))
    assert (done.code, done.err.count("Measuring")) == (0, len({1, max(1, usable_cores() // 2), usable_cores()}))
    assert re.search(r"^ +1 +[\d.]+ t/s +[\d.]+ t/s$", done.out, re.MULTILINE)
    assert 1 in local_engine.speeds_of(str(model))
    after = here("doctor", "-m", str(model))
    assert re.search(r"speed: \d+ tokens/s of prompt, \d+ of reply with \d+ thread", after.out)


def test_models_bench_in_json_says_what_would_make_it_faster(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(local_machine, "idle_cores", lambda cores: 1)
    monkeypatch.setattr(local_engine, "processor_flags", lambda: frozenset({"avx2", "avx512f", "amx_int8"}))
    shown = here("models", "bench", str(model), "--json").json
    assert [speed["threads"] for speed in shown["speeds"]] == [1, 2]
    assert "Other programs keep 1 of 2 cores busy. A run would use 1 thread now." in shown["advice"]
    assert any("AMX-INT8" in text for text in shown["advice"])


def test_models_bench_says_that_weights_are_missing() -> None:
    done = here("models", "bench", "local")
    assert done.code != 0
    assert "closeout models pull local" in done.err


# ------------------------------------------------------------------------------------------------ the real ones


@pytest.mark.models
@pytest.mark.parametrize("name", ["local", "local:small"])
async def test_the_real_weights_answer(name: str) -> None:
    async with LocalClient(name) as client:
        question = Message(role="user", content="What is the capital of France? Answer in one word.")
        reply = await client.complete(ModelRequest(messages=[question], max_tokens=5))
        again = await client.complete(ModelRequest(messages=[question], max_tokens=5))
    assert "Paris" in reply.text
    assert again.text == reply.text
    assert again.usage.cache_read_tokens > 10
    assert again.usage != Usage()
