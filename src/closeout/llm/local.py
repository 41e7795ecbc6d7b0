"""The embedded model as a client: `model="local"`, `local:small` or a `.gguf` file, run in this process.

Loading and running it is `local_engine`'s; finding and fetching its weights `weights`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeout.codec import decode_json, encode_json
from closeout.errors import BadRequest, ContextOverflow, ModelError, ModelTimeout, ServerFailed, UsageError
from closeout.llm.base import BaseClient, OnDelta, OnRetry
from closeout.llm.building import ReplyBuilder
from closeout.llm.local_engine import Engine, EngineKey, borrow, give_back
from closeout.llm.weights import weights_named
from closeout.messages import Capabilities, Constraint, ModelReply, ModelRequest, Usage

__all__ = ["LocalClient"]

_log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192  # tokens; 1.5B needs 28 KB of memory for each
DEFAULT_REPLY = 1024  # tokens
# A small model that starts to repeat itself does not stop by itself. It has started when a piece stands three times at
# the end, and over so many characters.
_REPEATED = 240
_REPEATED_BOUND = 480  # in a constrained reply: its grammar may lead it to an end, but not out of a text in quotes
_KEPT = 1500  # characters that are looked at: pieces of up to a third of it are found
_LOOK_EVERY = 16  # tokens
OnStatus = Callable[[str], None]


class LocalClient(BaseClient):
    """A small model in this process. All clients of the same weights share one loaded model and wait in turn.

    `model`: "local", "local:small", or the path of a `.gguf` file. `threads`: generation threads; more than one spin
    against each other where cores are shared. `max_context`: tokens of prompt and reply. `temperature`, `top_p` and
    `max_tokens` hold where a request does not say; the temperature is 0 unless told. `on_status` is told in a few words
    what takes long (fetching, loading), in the event loop. `pull=False` never downloads. A reply that has come to
    repeat one short piece is ended, with finish_reason "stop", or "length" if it is constrained: it is then not whole.
    Raises ModelUnavailable for an unknown model; the model itself is loaded with the first request.
    """

    def __init__(
        self,
        model: str | Path = "local",
        *,
        threads: int = 1,
        max_context: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        on_status: OnStatus | None = None,
        pull: bool = True,
    ) -> None:
        if threads < 1:
            raise UsageError(f"A model runs on at least one thread, not {threads}.")
        context = max_context or DEFAULT_CONTEXT
        weights_named(str(model))
        self.name = str(model)
        self.on_status = on_status
        self.capabilities = Capabilities(
            chat=True,
            completions=True,
            native_tools=False,  # these weights write their calls as text
            json_schema=True,
            grammar=True,
            known=True,
            weak=True,
            max_context=context,
            preferred_dialect="cot_completion",
        )
        self._defaults = {"temperature": temperature or 0.0, "max_tokens": max_tokens or DEFAULT_REPLY}
        if top_p is not None:
            self._defaults["top_p"] = top_p
        self._pull = pull
        self._key = EngineKey(self.name, threads, context)
        self._engine: Engine | None = None
        self._give_back: Callable[[], Any] = _nothing

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        """The reply to a request once its turn has come. Nothing here is worth a retry, so `on_retry` is never called.

        `timeout` counts from the start of this request's generation. A cancelled call stops the generation at its next
        token or batch of prompt tokens. Raises ContextOverflow, BadRequest, ModelTimeout, ModelUnavailable.
        """
        job = _Job(asyncio.get_running_loop(), request.prompt is None, _body(request, self._defaults), self._pull)
        builder = _Builder(self.name, on_delta, bound=request.constraint is not None)
        waiting = self._borrowed().submit(job.run)
        try:
            async with asyncio.timeout(None) as deadline:
                while (news := await job.news.get()) is not None:
                    if isinstance(news, str):
                        self._tell(news)
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
            self.charge(builder.usage())
        return builder.reply()

    async def aclose(self) -> None:
        """Gives the model back; the last client of it frees its memory. A later request loads it again."""
        self._engine = None
        self._give_back()

    def _borrowed(self) -> Engine:
        if self._engine is None:
            self._engine = borrow(self._key)
            # Also when the client is dropped without a goodbye. A finalizer runs once, however often it is called.
            self._give_back = weakref.finalize(self, give_back, self._engine)
        return self._engine

    def _tell(self, status: str) -> None:
        _log.info("%s", status)
        if self.on_status is not None:
            self.on_status(status)


def _nothing() -> None:
    pass


_STARTED = object()


@dataclass(slots=True)
class _Job:
    """One request on its way through the engine's thread; its news arrive in the event loop, None last."""

    loop: asyncio.AbstractEventLoop
    chat: bool
    body: bytes
    pull: bool
    stop: threading.Event = field(default_factory=threading.Event)
    news: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def run(self, engine: Engine) -> None:
        """In the engine's thread."""
        if self.stop.is_set():
            return
        try:
            engine.load(self._send, self.stop, pull=self.pull)
            self._send(_STARTED)
            engine.generate(chat=self.chat, body=self.body, on_chunk=self._chunk)
            self._send(None)
        except ModelError as error:
            self._send(error)
        except ValueError as error:
            self._send(BadRequest(f"The embedded model cannot read this request: {error}"))
        except Exception as error:  # the library's own failures must reach whoever waits
            self._send(ServerFailed(f"The embedded model failed: {error}"))

    def _chunk(self, chunk: bytes) -> bool:
        # An exception must not run into the library's C++ code.
        with contextlib.suppress(Exception):
            self._send(decode_json(chunk))
            return self.stop.is_set()
        return True

    def _send(self, news: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(self.news.put_nowait, news)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.stop.set()


# ------------------------------------------------------------------------------------------------ requests


def _body(request: ModelRequest, defaults: Mapping[str, Any]) -> bytes:
    body: dict[str, Any] = {**defaults, "stream": True, "return_progress": True, "timings_per_token": True}
    body["stream_options"] = {"include_usage": True}
    body["cache_prompt"] = True
    if request.prompt is not None:
        body["prompt"] = request.prompt
    else:
        body["messages"] = [_unmarked(message) for message in request.messages]
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
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


def _unmarked(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with no text in it that the library would read as a marker of the chat template."""
    content = message.get("content")
    if isinstance(content, str):
        content = _without_markers(content)
    elif isinstance(content, list):
        content = [
            {**part, "text": _without_markers(part["text"])}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
    return {**message, "content": content}


def _without_markers(text: str) -> str:
    """`<|im_end|>` and its like in a document would end the message: a zero-width space makes them plain text."""
    return re.sub(r"<(?=\|[\w ]{1,40}\|>)", "<\u200b", text) if "<|" in text else text


def _constraint(constraint: Constraint) -> dict[str, Any]:
    value = constraint.value
    if constraint.kind == "json_schema":
        return {"json_schema": dict(value) if isinstance(value, Mapping) else decode_json(value)}
    if constraint.kind == "grammar":
        return {"grammar": str(value)}
    # The library's grammar engine reads regular expressions between slashes.
    return {"grammar": f"%llguidance {{}}\nstart: /{str(value).replace('/', chr(92) + '/')}/"}


# ------------------------------------------------------------------------------------------------ replies


class _Builder:
    """Puts the reply together from the library's chunks, and counts."""

    def __init__(self, model: str, on_delta: OnDelta | None, *, bound: bool) -> None:
        """`bound`: a grammar holds the reply."""
        self._bound = bound
        self._reply = ReplyBuilder(on_delta)
        self._reply.model = model
        self._input = self._cached = self._output = 0
        self._ran = False
        self._tail = ""
        self._chunks = 0

    def take(self, chunk: Mapping[str, Any]) -> bool:
        """Adds a chunk; True once enough was read. Raises ModelError for an error chunk."""
        if "error" in chunk:
            raise _as_error(chunk["error"])
        self._count(chunk)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self._reply.add_reasoning(delta.get("reasoning_content") or "")
            text = delta.get("content") or choice.get("text") or ""
            self._reply.add_text(text)
            self._tail = (self._tail + text)[-_KEPT:]
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                self._reply.add_call(
                    call.get("index", 0),
                    call_id=call.get("id") or "",
                    name=function.get("name") or "",
                    arguments=function.get("arguments") or "",
                )
            self._reply.finish_reason = choice.get("finish_reason") or self._reply.finish_reason
        return self._reply.enough or self._repeats()

    def _repeats(self) -> bool:
        self._chunks += 1
        if self._chunks % _LOOK_EVERY or not _repeats_itself(self._tail, _REPEATED_BOUND if self._bound else _REPEATED):
            return False
        self._reply.finish_reason = "length" if self._bound else "stop"
        return True

    def _count(self, chunk: Mapping[str, Any]) -> None:
        """The counters as they grow: a reply that is cut short never gets the final ones."""
        self._ran = True
        if progress := chunk.get("prompt_progress"):
            self._input, self._cached = progress["total"], progress["cache"]
        if timings := chunk.get("timings"):
            self._output = max(self._output, timings.get("predicted_n", 0))
        if usage := chunk.get("usage"):
            self._input, self._output = usage["prompt_tokens"], usage["completion_tokens"]
            self._cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", self._cached)

    def usage(self) -> Usage:
        if not self._ran:
            return Usage()
        return Usage(self._input, self._output, self._cached, requests=1, cost_usd=0.0)

    def reply(self) -> ModelReply:
        return self._reply.reply(usage=self.usage())


def _repeats_itself(tail: str, least: int) -> bool:
    """Whether a text ends in one piece over and over, at least so many characters: the piece is as long as it is back
    to where its last 60 characters stood.
    """
    before = tail.rfind(tail[-60:], 0, len(tail) - 1)
    size = len(tail) - 60 - before
    span = max(least, 3 * size)
    return before >= 0 and span <= len(tail) and tail[-span:-size] == tail[size - span :]


def _as_error(error: Mapping[str, Any]) -> ModelError:
    message = str(error.get("message", "no word")).rstrip(".")
    if error.get("type") == "exceed_context_size_error":
        tokens, context = error.get("n_prompt_tokens", 0), error.get("n_ctx", 0)
        return ContextOverflow(
            f"The prompt has {tokens:,} tokens, the embedded model's context {context:,}. Show it less, or raise "
            "llm.max_context_length."
        )
    if error.get("code") == 400:
        return BadRequest(f"The embedded model does not take this request: {message}.")
    return ServerFailed(f"The embedded model failed: {message}.")
