"""The client of the embedded model: `model="local"`, `local:small` or a `.gguf` file, run in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from closeout.codec import decode_json, encode_json
from closeout.errors import BadRequest, ContextOverflow, ModelError, ModelTimeout, ServerFailed, UsageError
from closeout.messages import Capabilities, Constraint, Delta, Message, ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry
from closeout.models.catalog import Price
from closeout.models.local.gguf import ModelFile, read_gguf
from closeout.models.local.local_engine import Engine, EngineKey, borrow, give_back
from closeout.models.local.local_machine import Speed
from closeout.models.local.weights import SHIPPED, find_weights, weights_named
from closeout.models.openai import OpenAIStream, tool_definitions
from closeout.models.retry import RetryPolicy
from closeout.models.streaming import ReplyBuilder

__all__ = ["LocalClient"]

_log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192  # tokens; 1.5B needs 28 KB of memory for each
DEFAULT_REPLY = 1024  # tokens
# A small model that repeats itself does not stop. A reply is ended if its last characters, at least this many, are one
# piece three times or more.
_REPEATED = 240
_REPEATED_CONSTRAINED = 480  # the grammar may still end a constrained reply, except within a string
_KEPT = 1500  # characters of the end that are examined, so a piece has at most a third of these
_LOOK_EVERY = 16  # chunks
_MEASURED = 32  # tokens; fewer say nothing about speed, and are read or written at once
OnStatus = Callable[[str], None]


class LocalClient(BaseClient):
    """A small model in this process, loaded by the first request. Clients of the same weights share one loaded model.

    A reply that only repeats one short piece is ended with the finish_reason "stop", or "length" if it is constrained
    and therefore incomplete.

    Args:
        model: "local", "local:small", or the path of a `.gguf` file. The file's own description decides how it is
            used: with worked examples if it has fewer than 3 billion parameters, otherwise with its own form of tools.
        threads: Threads that compute. By default one per core that is idle when the model is loaded, or fewer if
            those were faster before.
        max_context: Tokens of prompt and reply together.
        temperature: For requests without their own; by default 0.
        top_p: For requests without their own.
        max_tokens: For requests without their own; by default 1,024.
        on_status: Called in the event loop with a short text before and during something slow: downloading, loading,
            reading the prompt. Without it, a download reports its progress on stderr.
        pull: Whether to download missing weights.

    Raises:
        ModelUnavailable: The model is unknown.
        UsageError: `threads` is less than 1.
    """

    price = Price(0.0, 0.0)
    retry = RetryPolicy(retries=0)  # the same computation would fail again

    def __init__(
        self,
        model: str | Path = "local",
        *,
        threads: int | None = None,
        max_context: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        on_status: OnStatus | None = None,
        pull: bool = True,
    ) -> None:
        if threads is not None and threads < 1:
            raise UsageError(f"threads must be at least 1, got {threads}.")
        context = max_context or DEFAULT_CONTEXT
        # The two that ship are small. Any other file says what it is.
        weights = weights_named(str(model))
        own = None if weights in SHIPPED else _described(str(model))
        small = own is None or own.small
        tools = own is not None and own.takes_tools and not small
        if own is not None and own.context:
            context = min(context, own.context)
        self._own = own
        self._markers = _marker_pattern(() if own is None else own.markers)
        self.name = str(model)
        self.on_status = on_status
        self.speed = Speed(0, 0.0, 0.0)  # the speed of the last request
        self.capabilities = Capabilities(
            chat=own is None or bool(own.template),
            completions=True,
            native_tools=tools,  # small models write calls best as the worked examples do
            json_schema=True,
            grammar=True,
            known=True,
            weak=small,
            max_context=context,
            preferred_dialect="function_call" if tools else "code" if small else "cot_completion",
        )
        self._defaults = {"temperature": temperature or 0.0, "max_tokens": max_tokens or DEFAULT_REPLY}
        self.max_reply = max_tokens or DEFAULT_REPLY
        if top_p is not None:
            self._defaults["top_p"] = top_p
        self._pull = pull
        self._key = EngineKey(self.name, threads, context)
        self._engine: Engine | None = None
        self._give_back: Callable[[], Any] | None = None

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        """Wait for the model and return its reply. Failures are not retried, so `on_retry` is never called.

        The request's `timeout` starts with its generation. Cancelling the call stops the generation at the next token
        or batch of prompt tokens.

        Raises:
            ContextOverflow: The prompt is longer than the model's context.
            BadRequest: The request is not valid, or it has tools and the model's chat template no place for them.
            ModelTimeout: The reply was not complete in time.
            ModelUnavailable: The model cannot be loaded.
        """
        if self._own is not None:
            request = _fitted(request, self._own)
        job = _Job(
            asyncio.get_running_loop(),
            chat=request.prompt is None,
            beginning=(request.prompt or "")[: request.shared],
            body=_body(request, self._defaults, self._markers),
            pull=self._pull,
        )
        builder = _Builder(self.name, on_delta, self._tell, constrained=request.constraint is not None)
        if self._engine is None:
            self._engine = borrow(self._key)
            # Also called when the client is collected without `aclose`. A finalizer runs only once.
            self._give_back = weakref.finalize(self, give_back, self._engine)
        engine = self._engine
        waiting = engine.submit(job.run)
        try:
            async with asyncio.timeout(None) as deadline:
                while (news := await job.news.get()) is not None:
                    if isinstance(news, str):
                        self._tell(news)
                    elif isinstance(news, _PromptPrepared):
                        builder.prepared = news
                    elif news is _STARTED:
                        if request.timeout is not None:
                            deadline.reschedule(asyncio.get_running_loop().time() + request.timeout)
                    elif isinstance(news, BaseException):
                        raise news
                    elif builder.take(news):
                        break
        except TimeoutError:
            raise ModelTimeout(
                f"The embedded model did not finish within {request.timeout:g} seconds. Allow more, or ask for less.",
                usage=builder.usage(),
            ) from None
        except ModelError as error:
            error.usage = error.usage or builder.usage()
            raise
        finally:
            job.stop.set()
            waiting.cancel()
            self.speed = Speed(engine.threads, builder.prompt_speed, builder.reply_speed)
            engine.note_speed(self.speed)
            self.charge(builder.usage())
        return builder.reply()

    async def aclose(self) -> None:
        """Release the model; its last client frees its memory. A later request loads it again."""
        self._engine = None
        if self._give_back is not None:
            self._give_back()

    def _tell(self, status: str) -> None:
        _log.log(logging.DEBUG if status.startswith((_READING, _WRITING)) else logging.INFO, "%s", status)
        if self.on_status is not None:
            self.on_status(status)
        else:
            _print_download(status)


def _print_download(status: str) -> None:
    """Show how far a download is, for programs without `on_status`: it may take minutes."""
    found = re.fullmatch(r"Downloading .* (\d+) %", status)
    is_step = int(found[1]) % 10 == 0 if found else status.startswith(("Downloaded", "Waiting"))
    if is_step and sys.stderr is not None:
        sys.stderr.write(f"closeout: {status}\n")


def _described(model: str) -> ModelFile | None:
    """Return a model file's own description; None if it cannot be read, which loading it will report."""
    try:
        path = find_weights(model)
        return None if path is None else read_gguf(path)
    except (ModelError, OSError, ValueError):
        return None


_STARTED = object()
_READING = "reading the prompt"
_PREPARING = "preparing the instructions; only the first run does this"
_WRITING = "writing the reply"


@dataclass(frozen=True, slots=True)
class _PromptPrepared:
    """The fixed beginning of the prompt was read now, not by an earlier run."""

    tokens: int
    speed: float  # tokens per second


@dataclass(slots=True)
class _Job:
    """A request in the engine's thread. It sends status texts, chunks and errors to the event loop, and None last."""

    loop: asyncio.AbstractEventLoop
    chat: bool
    beginning: str  # the beginning of the prompt, shared with other runs
    body: bytes
    pull: bool
    stop: threading.Event = field(default_factory=threading.Event)
    news: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def run(self, engine: Engine) -> None:
        """Execute the request, in the engine's thread."""
        if self.stop.is_set():
            return
        try:
            engine.load(self._send, self.stop, pull=self.pull)
            progress = _ReadingProgress(_PREPARING, self._send)
            if self.beginning and engine.prepare(self.beginning, partial(self._pass_on, to=progress.take_from)):
                self._send(_PromptPrepared(progress.read, progress.speed))
            if self.stop.is_set():
                return
            self._send(_STARTED)
            engine.generate(chat=self.chat, body=self.body, on_chunk=partial(self._pass_on, to=self._send))
            self._send(None)
        except ModelError as error:
            self._send(error)
        except ValueError as error:
            found = re.search(r"Jinja Exception: (.+)", str(error))
            reason = f"its chat template says: {found[1]}" if found else error
            self._send(BadRequest(f"The embedded model cannot read this request: {reason}"))
        except Exception as error:  # the event loop waits for any failure of the library
            self._send(ServerFailed(f"The embedded model failed: {error}"))

    def _pass_on(self, chunk: bytes, to: Callable[[Any], None]) -> bool:
        # An exception must not reach the library's C++ code.
        with contextlib.suppress(Exception):
            to(decode_json(chunk, keep_surrogates=True))
            return self.stop.is_set()
        return True

    def _send(self, news: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(self.news.put_nowait, news)
        except RuntimeError:  # the event loop is closed
            self.stop.set()


# ------------------------------------------------------------------------------------------------ requests


def _fitted(request: ModelRequest, own: ModelFile) -> ModelRequest:
    """Return a request that a file's chat template can write, in place of one that the library would cut silently."""
    if request.prompt is not None:
        return request
    if request.tools and not own.takes_tools:
        raise BadRequest(
            f"The chat template of {own.name or 'this model'} has no place for tools. "
            "Use the dialect cot_chat or cot_completion, which write them as text."
        )
    if own.template:
        return request
    # The library would take another family's markers. A model without a template only continues texts.
    parts = [f"{str(message['role']).capitalize()}: {Message(message).text}\n" for message in request.messages]
    stop = (*request.stop, *(f"\n{role}:" for role in ("User", "Assistant", "System", "Tool")))
    return replace(request, messages=(), prompt="".join([*parts, "Assistant:"]), stop=stop)


def _body(request: ModelRequest, defaults: Mapping[str, Any], markers: re.Pattern[str]) -> bytes:
    body: dict[str, Any] = {
        **defaults,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "timings_per_token": True,
        "cache_prompt": True,
    }
    if request.prompt is not None:
        body["prompt"] = request.prompt
    else:
        body["messages"] = [_unmarked(message, markers) for message in request.messages]
        if request.tools:
            body["tools"] = tool_definitions(request.tools)
            body["tool_choice"] = request.tool_choice or "auto"
    if request.stop:
        body["stop"] = list(request.stop)
    for key in ("temperature", "top_p", "max_tokens"):
        if (value := getattr(request, key)) is not None:
            body[key] = value
    if request.constraint is not None:
        body |= _constraint(request.constraint)
    body.update(request.extra_body)
    return encode_json(body)


def _marker_pattern(markers: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of what the library reads as a marker of a chat template: `<|im_end|>` and the file's own."""
    return re.compile("|".join([r"<\|[\w ]{1,40}\|>", *map(re.escape, markers)]))


def _unmarked(message: Mapping[str, Any], markers: re.Pattern[str]) -> dict[str, Any]:
    """Return the message with a zero-width space in each marker, which would otherwise end the message."""
    content = message.get("content")
    if isinstance(content, str):
        content = markers.sub(_broken, content)
    elif isinstance(content, list):
        content = [
            {**part, "text": markers.sub(_broken, part["text"])}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
    return {**message, "content": content}


def _broken(marker: re.Match[str]) -> str:
    return f"{marker[0][0]}\u200b{marker[0][1:]}"


def _constraint(constraint: Constraint) -> dict[str, Any]:
    value = constraint.value
    if constraint.kind == "json_schema":
        return {"json_schema": dict(value) if isinstance(value, Mapping) else decode_json(value)}
    if constraint.kind == "grammar":
        return {"grammar": str(value)}
    # The library's grammar engine reads regular expressions between slashes.
    return {"grammar": f"%llguidance {{}}\nstart: /{str(value).replace('/', chr(92) + '/')}/"}


# ------------------------------------------------------------------------------------------------ replies


@dataclass(slots=True)
class _ReadingProgress:
    """Tells how much of a prompt has been read and how long the rest takes, from the library's progress reports."""

    what: str
    tell: OnStatus
    read: int = 0  # tokens, those from the cache not counted
    speed: float = 0.0  # tokens per second; 0 if too few were read to tell
    told: bool = False

    def take_from(self, chunk: Mapping[str, Any]) -> None:
        """Read the report in a chunk, if it has one."""
        if not (progress := chunk.get("prompt_progress")):
            return
        total, cached, done = progress["total"], progress.get("cache", 0), progress["processed"]
        seconds = progress.get("time_ms", 0) / 1000
        self.read = done - cached
        if self.read >= _MEASURED and seconds > 0:
            self.speed = self.read / seconds
        if total - cached < _MEASURED:
            return
        left = f" ({(total - done) / self.speed:.0f} s left)" if self.speed and done < total else ""
        self.tell(f"{self.what}: {done:,} of {total:,} tokens{left}")
        self.told = True


class _Builder:
    """Builds the reply from the library's chunks, which have OpenAI's shape, and counts tokens."""

    def __init__(self, model: str, on_delta: OnDelta | None, tell: OnStatus, *, constrained: bool) -> None:
        self.prepared = _PromptPrepared(0, 0.0)
        self.reply_speed = 0.0
        self._tell = tell
        self._reading = _ReadingProgress(_READING, tell)
        self._constrained = constrained
        self._on_delta = on_delta
        self._reply = ReplyBuilder(self._show)
        self._reply.model = model
        self._stream = OpenAIStream(self._reply, lambda field: None)
        self._input = self._cached = self._output = 0
        self._ran = False
        self._tail = ""
        self._chunks = 0

    def take(self, chunk: dict[str, Any]) -> bool:
        """Add a chunk and return whether to stop. Raises ModelError for an error chunk."""
        if "error" in chunk:
            raise _as_error(chunk["error"])
        self._count(chunk)
        self._stream.take(chunk)
        return self._reply.enough or self._repeats()

    def _show(self, delta: Delta) -> bool | None:
        if delta.kind == "text":
            self._tail = (self._tail + delta.text)[-_KEPT:]
        return None if self._on_delta is None else self._on_delta(delta)

    def _repeats(self) -> bool:
        self._chunks += 1
        least = _REPEATED_CONSTRAINED if self._constrained else _REPEATED
        if self._chunks % _LOOK_EVERY or not _repeats_itself(self._tail, least):
            return False
        self._reply.finish_reason = "length" if self._constrained else "stop"
        return True

    def _count(self, chunk: Mapping[str, Any]) -> None:
        """Read the growing counters: a reply that is stopped early never gets the final ones."""
        self._ran = True
        if progress := chunk.get("prompt_progress"):
            self._input, self._cached = progress["total"], progress["cache"]
        self._reading.take_from(chunk)
        if timings := chunk.get("timings"):
            written = timings.get("predicted_n", 0)
            if written and not self._output and self._reading.told:
                self._tell(_WRITING)
            self._output = max(self._output, written)
            if self._output >= _MEASURED:
                self.reply_speed = float(timings.get("predicted_per_second", 0.0))
        if usage := chunk.get("usage"):
            self._input, self._output = usage["prompt_tokens"], usage["completion_tokens"]
            self._cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", self._cached)

    @property
    def prompt_speed(self) -> float:
        """Tokens of the prompt read per second; 0 if too few were read to tell."""
        return max(self._reading.speed, self.prepared.speed)

    def usage(self) -> Usage:
        if not self._ran:
            return Usage()
        cached = max(0, self._cached - self.prepared.tokens)
        return Usage(self._input, self._output, cache_read_tokens=cached, requests=1, cost_usd=0.0)

    def reply(self) -> ModelReply:
        return self._reply.reply(usage=self.usage(), tokens=self._stream.tokens)


def _repeats_itself(tail: str, least: int) -> bool:
    """Tell whether the last `least` characters of a text are one piece repeated.

    The length of the piece is the distance from the last 60 characters back to their previous occurrence.
    """
    before = tail.rfind(tail[-60:], 0, len(tail) - 1)
    size = len(tail) - 60 - before
    span = max(least, 3 * size)
    return before >= 0 and span <= len(tail) and tail[-span:-size] == tail[size - span :]


def _as_error(error: Mapping[str, Any]) -> ModelError:
    message = str(error.get("message", "no reason given")).rstrip(".")
    if error.get("type") == "exceed_context_size_error":
        tokens, context = error.get("n_prompt_tokens", 0), error.get("n_ctx", 0)
        return ContextOverflow(
            f"The prompt has {tokens:,} tokens, the embedded model's context {context:,}. Shorten the prompt, or raise "
            "llm.max_context_length."
        )
    if error.get("code") == 400:
        return BadRequest(f"The embedded model rejects this request: {message}.")
    return ServerFailed(f"The embedded model failed: {message}.")
