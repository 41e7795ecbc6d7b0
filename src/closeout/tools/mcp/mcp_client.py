"""Connect to one MCP server: start it, list and call its tools, connect again if it ends or forgets the session.

A session must be entered and left in the same task, because it holds cancel scopes. So each session has a task of its
own that does only that; calls may come from any task.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from closeout.errors import ToolError, UsageError
from closeout.messages import ToolPolicy, ToolSpec
from closeout.redaction import redact
from closeout.results.escape import escape_markers
from closeout.results.normal import texts_in
from closeout.tools.call_records import MAX_EXTENSION, Progress, extensible_timeout
from closeout.tools.mcp.mcp_answers import CallAnswers, roots_of
from closeout.tools.mcp.mcp_config import McpServerConfig
from closeout.tools.mcp.mcp_logins import read_login
from closeout.tools.mcp.mcp_mending import broken_rule, end_request, first_error, use_valid_parts
from closeout.tools.mcp.mcp_pages import all_pages
from closeout.tools.mcp.mcp_resources import call_resource_tool, resource_tools
from closeout.tools.mcp.mcp_result import McpResult
from closeout.tools.run_context import RunContext
from closeout.tools.running import MAY_HAVE_EFFECT, CallUnsure
from closeout.tools.schema import is_json_schema, without_titles
from closeout.visible import visible

if TYPE_CHECKING:
    import httpx2
    from mcp import Client, MCPError, types
    from mcp.client.extension import ClientExtension
    from mcp.client.session import ClientSession
    from mcp.shared.dispatcher import ProgressFnT

__all__ = [
    "POLICY_KEY",
    "STATED_FIELDS",
    "LoginNeeded",
    "McpServer",
    "McpServerFailed",
    "ServerOffer",
    "require_mcp",
    "wait_out",
]

# The key in a tool's `_meta` under which a Closeout server states its policy.
POLICY_KEY = "closeout/policy"
STATED_FIELDS = ("aliases", "duplicate_key", "empty_at", "check_content")

PROBE_SECONDS = 3.0  # Seconds for a server that let a call time out to show that it still answers.
BROKEN_SECONDS = 0.5  # Seconds for a broken stream to say why.
MAX_TOOLS = 1_000  # Tools of one server; every request would carry them.
MAX_ERROR = 2_000  # characters of an error of the protocol
MAX_DESCRIPTION = 10_000  # characters; every request carries it
MAX_SCHEMA = 200_000  # Characters that the parameters of a tool may take.
CLOSED = "Connection closed"  # the library's message
NO_RESULT = ("SSE stream", "Unexpected content type")  # how the library begins if an answer over HTTP has no result
SESSION_HEADER = "mcp-session-id"
# Codes of servers that do not know a session: that of the specification's own servers, which others use for a timeout,
# and "invalid request".
SESSION_UNKNOWN = (-32001, -32600)
_UNDERSTOOD = re.compile(r"-3260[123]\b")  # the server read the message: no such method, invalid parameters, failed
STDERR_KEPT = 4_000  # Bytes of the end of a server's error output, for a message.
STDERR_SHOWN = 600  # characters of it in a message
MAX_EVENT_BYTES = 256_000_000  # Bytes of one result over streamable HTTP.
LINES_SHOWN = 4
CONNECT_SECONDS = 30.0
# Statuses of a server that may be starting, and seconds after which it is tried again.
STARTING, START_WAITS = (429, 502, 503, 504), (0.5, 2.0, 5.0)
USE_SECONDS = 60.0  # Seconds that a request other than a call of a tool may take.
# Seconds that an event stream may be silent: a slow tool may be, and calls have their own deadlines.
SILENCE_SECONDS = 86_400.0


Outcome = TypeVar("Outcome")
# The name and the arguments of a call, as a server gets them.
_Sent = tuple[str, dict[str, Any]]


class McpServerFailed(ToolError):
    """A server could not be started or reached. The text names it and says why."""

    status: int | None = None  # The status of its last HTTP answer, if that was an error.


class MissingLogin(NamedTuple):
    """Why there is no login, if a person must sign in, and the rights that the login must have."""

    problem: str
    by_person: bool
    scope: str = ""


class LoginNeeded(McpServerFailed):
    """A person must sign in to a server first. The text names the command.

    Attributes:
        server: The server's name.
        url: Its address.
        scope: The rights that the login must have besides those that it has; empty if any login is enough.
        is_sure: False if a call that it ended may have had its effect.
    """

    def __init__(self, config: McpServerConfig, missing: MissingLogin, *, is_sure: bool = True) -> None:
        super().__init__(missing.problem)
        self.server, self.url, self.is_sure = config.name, config.address, is_sure
        self.scope = missing.scope


def require_mcp() -> None:
    """Raise `UsageError` if the extra `mcp` is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise UsageError("MCP servers need the extra 'mcp': pip install 'closeout[mcp]'.")


class ServerOffer(NamedTuple):
    """The tools that a server offers, under their own names, and one sentence for each that is left out."""

    tools: tuple[ToolSpec, ...]
    problems: tuple[str, ...] = ()


class McpServer:
    """A server and its live session, one for each event loop that uses it.

    Args:
        config: How to reach it.
        on_change: Called with the new offer when the server says that its tools have changed.
    """

    def __init__(self, config: McpServerConfig, on_change: Callable[[ServerOffer], None] | None = None) -> None:
        self.config = config
        self._on_change = on_change
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slot] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self.config.name

    async def open(self) -> ServerOffer:
        """Start the server if it does not run, and return its tools. Raises `McpServerFailed`."""
        session = await self._live()
        return _offer(session)

    async def call(
        self, name: str, arguments: Mapping[str, Any], policy: ToolPolicy, progress: Progress | None = None
    ) -> McpResult:
        """Call a tool.

        A server that dies meanwhile is started once more; a session that it has forgotten is initialised again. The
        call is then repeated if the policy allows that.

        Args:
            name: The tool's own name.
            arguments: Arguments that fit its schema.
            policy: The tool's policy.
            progress: Receives the call's progress, which also extends its deadline.

        Raises:
            ToolError: The tool failed, the server did, or there was no answer in time.
        """
        timeout = self.config.timeout or policy.timeout
        session = await self._live()
        try:
            return await session.call(name, arguments, timeout, progress)
        except CallUnsure as late:
            if policy.crash_rule == "rerun":
                raise ToolError(str(late)) from None
            raise CallUnsure(f"{late} {MAY_HAVE_EFFECT}") from None
        except _Died as death:
            try:
                session = await self._live(dead=session)
            except McpServerFailed as error:
                if isinstance(error, LoginNeeded) and (death.is_forgotten or policy.crash_rule == "rerun"):
                    raise
                unsure = ToolError if policy.crash_rule == "rerun" else CallUnsure
                raise unsure(f"MCP server {self.name!r} ended during the call of {name}. {error}") from None
            if policy.crash_rule != "rerun":
                raise self._not_repeated(name, death) from None
        except LoginNeeded as needed:
            if needed.is_sure or policy.crash_rule == "rerun":
                raise
            raise CallUnsure(f"The call of {name} was cut off. {MAY_HAVE_EFFECT} {needed}") from None
        try:
            return await session.call(name, arguments, timeout, progress)
        except _Died as death:
            verb = "forgot its session" if death.is_forgotten else "ended"
            raise ToolError(f"MCP server {self.name!r} {verb} twice during the call of {name}.{death}") from None

    async def use(self, act: Callable[[Client], Awaitable[Outcome]]) -> Outcome:
        """Start the server if it does not run, and use its client beside the tools.

        Raises:
            ToolError: The server failed. Other errors of `act` are raised as they are.
        """
        from mcp import MCPError

        session = await self._live()
        try:
            async with asyncio.timeout(self.config.timeout or USE_SECONDS):
                return await session.use(act)
        except _Died as death:
            raise ToolError(f"MCP server {self.name!r} ended.{death}") from None
        except MCPError as error:
            raise ToolError(redact(error.message, self.config.secrets)) from None
        except TimeoutError:
            raise ToolError(f"MCP server {self.name!r} did not answer in time.") from None

    def _not_repeated(self, name: str, death: _Died) -> ToolError:
        if death.is_forgotten:
            return ToolError(
                f"MCP server {self.name!r} refused the call of {name}, perhaps because it had forgotten the session."
                f"{death} It is connected again. Make the call again if it is still needed."
            )
        return CallUnsure(
            f"MCP server {self.name!r} ended during the call of {name}.{death} It is connected again. {MAY_HAVE_EFFECT}"
        )

    async def aclose(self) -> None:
        """End this event loop's session and its server process. `open` and `call` start them again."""
        slot = self._slots.pop(asyncio.get_running_loop(), None)
        if slot is not None and slot.session is not None:
            await slot.session.close()

    async def _live(self, dead: _ServerSession | None = None) -> _ServerSession:
        """Return the live session; a new one if it is missing, `dead` or does not answer."""
        slot = self._slots.setdefault(asyncio.get_running_loop(), _Slot())
        async with slot.lock:
            old = slot.session
            if old is not None and old is not dead and not old.ended and await old.answers():
                return old
            slot.session = None
            if old is not None:
                await old.close()
            for wait in (*START_WAITS, None):
                session = _ServerSession(self.config, self._changed)
                try:
                    await session.start()
                    break
                except McpServerFailed as error:
                    if wait is None or error.status not in STARTING:
                        raise
                    await asyncio.sleep(wait)
            slot.session = session
            if old is not None:  # the new session may offer other tools
                self._changed(session)
            return session

    def _changed(self, session: _ServerSession) -> None:
        if self._on_change is not None:
            self._on_change(_offer(session))


@dataclass(slots=True)
class _Slot:
    session: _ServerSession | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Died(Exception):
    """The session ended during a call. The text is the end of the server's error output, ready for a message."""

    def __init__(self, text: str = "", *, is_forgotten: bool = False) -> None:
        super().__init__(text)
        self.is_forgotten = is_forgotten  # the server runs, but no longer knows the session


async def wait_out(tasks: Collection[asyncio.Task[None]]) -> None:
    """Wait until all tasks have ended, even if cancelled, and raise the cancellation then.

    `gather` would cancel the tasks too, also those that have not begun.
    """
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _ServerSession:
    """One session and the task that owns it."""

    def __init__(self, config: McpServerConfig, on_change: Callable[[_ServerSession], None]) -> None:
        import anyio

        self.config = config
        self.loop = asyncio.get_running_loop()
        self._connecting = anyio.CancelScope()  # respects the library's shields, which `Task.cancel` ignores
        self.tools: list[types.Tool] = []
        self._resource_tools: frozenset[str] = frozenset()  # names of those tools that read its resources
        self.is_cut = False  # the server has more tools than are listed
        self.refused: list[str] = []  # what is wrong with entries of the list
        self._on_change = on_change
        self._changed = asyncio.Event()  # the server says that its tools have changed, or the session must stop
        self._errors = _ErrorTail()
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._is_stopping = False
        self._doubtful = False  # a call timed out: the server may hang
        self._has_overflowed = False  # it ended because of a result that the library does not read
        self._task: asyncio.Task[None] | None = None
        self._in_flight: list[_Sent] = []
        self._asking = asyncio.Lock()  # held by the call that may ask
        self._answers: CallAnswers | None = None

    @property
    def ended(self) -> bool:
        return self._task is None or self._task.done() or self._is_stopping

    async def start(self) -> None:
        """Connect and list the tools. Raises `McpServerFailed`."""
        self._task = asyncio.create_task(self._own(), name=f"mcp:{self.config.name}")
        try:
            async with asyncio.timeout(self.config.start_timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise McpServerFailed(
                f"MCP server {self.config.name!r} ({self.config.address}) was not ready within "
                f"{self.config.start_timeout:g} s.{self._errors.odd}{self._errors.quoted()} A longer "
                "start_timeout can be given."
            ) from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def call(
        self, name: str, arguments: Mapping[str, Any], timeout: float | None, receiver: Progress | None
    ) -> McpResult:
        """Call a tool, and answer the server's questions during the call if its entry allows them."""
        client = self._client
        if client is None or self.ended:
            raise _Died(self._errors.quoted())
        if not self.config.may_ask:
            return await self._call(client, name, arguments, timeout, receiver, answers=None)
        answers = CallAnswers(self.config, RunContext.current())
        await answers.begin()
        # The questions of older protocols do not say which call they belong to.
        turn: AbstractAsyncContextManager[Any] = nullcontext() if _has_rounds(client) else self._asking
        async with turn:
            self._answers = answers
            try:
                return await self._call(client, name, arguments, timeout, receiver, answers=answers)
            finally:
                answers.over.set()
                self._answers = None

    async def use(self, act: Callable[[Client], Awaitable[Outcome]]) -> Outcome:
        if self._client is None or self.ended:
            raise _Died(self._errors.quoted())
        outcome: Outcome = await self._unless_ended(asyncio.ensure_future(act(self._client)), None)
        return outcome

    async def _call(
        self,
        client: Client,
        name: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        receiver: Progress | None,
        answers: CallAnswers | None,
    ) -> McpResult:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        deadline, extend = extensible_timeout(timeout, receiver)
        has_progressed = False

        def alive(message: str, done: float = 0, total: float | None = None) -> None:
            nonlocal has_progressed
            has_progressed = True
            extend(done, total, message)

        async def report(progress: float, total: float | None, message: str | None) -> None:  # the library's names
            alive(message or "", progress, total)

        self._errors.forgotten, self._errors.post_status, self._errors.odd = False, None, ""
        schema = next((tool.input_schema for tool in self.tools if tool.name == name), None)
        sent = _as_named(arguments, schema)
        sent_call = (name, sent)
        self._in_flight.append(sent_call)
        if answers is not None:
            answers.alive = alive
        request = asyncio.ensure_future(self._sent(client, name, sent, report, answers))
        try:
            async with deadline:
                result = await self._unless_ended(request, answers)
        except _Died:
            raise await self._lost(sent_call, answers) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and error.message == CLOSED:  # servers use the code for their own errors
                raise await self._lost(sent_call, answers) from None
            told = visible(redact(error.message, self.config.secrets)[:MAX_ERROR], keep="\n\t")
            if self._errors.forgotten or (error.code in SESSION_UNKNOWN and self._errors.has_session):
                self._stop()
                refused = self._errors.forgotten and (self._errors.post_status or 0) < 500
                raise _Died(f" It said: {told}", is_forgotten=refused) from None
            if self._errors.login:
                failed = self._login_failed(sent_call, answers)
                self._errors.login = None  # other calls of the session may still be allowed
                raise failed from None
            raise self._call_error(name, error, told) from None
        except (RuntimeError, ValueError, TimeoutError) as error:  # too late, or a result that breaks its schema
            if deadline.expired():
                if answers is not None:
                    await answers.give_up_task()
                within = f"{timeout:g} s"
                if has_progressed and timeout is not None:
                    within += f" of its last report of progress, or {timeout * MAX_EXTENSION:g} s in all"
                about = f"{name} did not answer within {within} (MCP server {self.config.name!r})."
                raise CallUnsure(f"{about}{self._errors.odd}") from None
            # a result that breaks the protocol or its own schema
            raise CallUnsure(f"{name} gave a result that cannot be used: {first_error(error)}.") from None
        finally:
            self._in_flight.remove(sent_call)
        content = tuple(part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content)
        outcome = McpResult(content, result.structured_content, broken_rule(result))
        if result.is_error:
            raise ToolError(outcome.text or f"{name} failed and said nothing.")
        return outcome

    def _call_error(self, name: str, error: MCPError, told: str) -> ToolError:
        """Return the error for a call that was answered with one, or with what cannot be read."""
        from mcp.types import PARSE_ERROR

        status = self._errors.post_status
        about = f"MCP server {self.config.name!r} answered HTTP {status}: " if status else ""
        if error.code == PARSE_ERROR or error.message.startswith(NO_RESULT):
            return CallUnsure(f"{about}{name} gave a result that cannot be used: {told}")
        return (CallUnsure if (status or 0) >= 500 else ToolError)(f"{about}{told}")

    async def _sent(
        self, client: Client, name: str, sent: dict[str, Any], report: ProgressFnT, answers: CallAnswers | None
    ) -> types.CallToolResult:
        """Make a call, whose server may ask if there are `answers`."""
        from mcp import MCPError
        from mcp.types import HEADER_MISMATCH

        if name in self._resource_tools:
            return await call_resource_tool(client, name, sent)
        call = partial(client.call_tool, name, sent, progress_callback=report)

        async def send(responses: types.InputResponses | None, state: str | None) -> types.Result:
            call_once = partial(
                client.session.call_tool,
                name,
                sent,
                progress_callback=report,
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
                allow_claimed=True,
            )
            try:
                return await call_once()
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            # The protocol's remedy: the tool's schema has changed.
            await all_pages(client.list_tools, "tools", MAX_TOOLS)
            return await call_once()

        if answers is None:
            return await call()
        if _has_rounds(client):
            return await answers.in_rounds(client.session, send)
        try:
            return await call()
        except MCPError as error:
            if not await answers.opened(error):
                raise
        return await call()

    async def _elicit(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        """Answer a question that arrives as a request of its own."""
        return _no_call() if self._answers is None else await self._answers.elicit(params)

    async def _sample(self, context: Any, params: Any) -> types.CreateMessageResult | types.ErrorData:
        return _no_call() if self._answers is None else await self._answers.sampled(params)

    async def _list_roots(self, context: Any) -> types.ListRootsResult:
        return roots_of(self.config)

    async def _unless_ended(self, request: asyncio.Future[Any], answers: CallAnswers | None) -> Any:
        """The result of a request. Raises `_Died` if the session's own task ends before: a transport may just break."""
        assert self._task is not None
        stopped = () if answers is None else (answers.stopped,)
        try:
            await asyncio.wait((request, self._task, *stopped), return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            if answers is not None and answers.stopped.done():
                raise answers.stopped.result()
            raise _Died
        except asyncio.CancelledError:
            if answers is not None and answers.is_to_end():
                await answers.give_up_task()
            raise
        finally:
            if not request.done():
                if answers is None or not answers.stopped.done():
                    self._doubtful = True  # usually a deadline has passed: probe the server before the next call
                request.cancel()
                with suppress(Exception, asyncio.CancelledError):
                    await asyncio.wait((request,))

    def _login_failed(self, call: _Sent, answers: CallAnswers | None) -> ToolError:
        """Return the error for a call that ended because of a login."""
        assert self._errors.login is not None
        missing = self._errors.login
        if not missing.by_person:
            return ToolError(missing.problem)
        # Equal calls cannot be told apart. A call that has become a task is asked for again by its id.
        is_sure = call in self._errors.refused and self._in_flight.count(call) == 1
        self._errors.refused = [each for each in self._errors.refused if each != call]
        return LoginNeeded(self.config, missing, is_sure=is_sure or (answers is not None and answers.task is not None))

    async def _lost(self, call: _Sent, answers: CallAnswers | None) -> Exception:
        """Return the error for a call that was running when the session ended."""
        if self.config.transport == "sse" and self._task is not None:
            await asyncio.wait((self._task,), timeout=BROKEN_SECONDS)  # the task knows why
        if self._errors.login:
            return self._login_failed(call, answers)
        if not self._has_overflowed:
            return _Died(await self._last_words())
        return ToolError(
            f"MCP server {self.config.name!r} sent a result of more than 1 MB over SSE, which the mcp library does not "
            f"read, and the call of {call[0]} was lost with it. Ask for less at once, or connect over streamable HTTP "
            "(a URL that usually ends in /mcp)."
        )

    async def answers(self) -> bool:
        """Return True if the server still answers; asked only after a call that timed out."""
        if not self._doubtful or self._client is None:
            return True
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._client.list_tools()
        except Exception:  # any error means that it does not answer
            return False
        self._doubtful = False
        return True

    def _stop(self) -> None:
        self._is_stopping = True
        self._changed.set()

    async def close(self) -> None:
        """End the session and wait for its server process, even if cancelled: a process must not outlive the loop.

        The library bounds each step of a server's end, so this takes a few seconds at worst.
        """
        self._stop()
        task = self._task
        if task is None:
            return
        if not self._ready.done():
            self._connecting.cancel()
        await wait_out((task,))

    async def _own(self) -> None:
        """Hold the session open until it must stop. Failures before it is ready are raised by `start`."""
        try:
            with self._connecting:
                async with AsyncExitStack() as stack:
                    stack.callback(self._errors.release)
                    transport = _open_transport(self.config, self._errors, stack)
                    client = await stack.enter_async_context(
                        _client_class(self.refused)(
                            transport,
                            cache=None,
                            message_handler=self._note_message,
                            elicitation_callback=None if self.config.elicitation == "refuse" else self._elicit,
                            sampling_callback=self._sample if self.config.sampling else None,
                            extensions=_extensions(self.config),
                            list_roots_callback=None if self.config.roots is None else self._list_roots,
                        )
                    )
                    self._errors.release()
                    await self._list(client)
                    self._client = client
                    self._ready.set_result(None)
                    await self._follow(client)
            self._ready.cancel()  # a finished one ignores it
        except asyncio.CancelledError:
            self._ready.cancel()
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # The library reads events of up to 1 MB over SSE.
            self._has_overflowed = any(type(e).__name__ == "SSEError" and "limit" in str(e) for e in _leaves(error))
            if not self._ready.done():
                self._ready.set_exception(self._failure(error, await self._last_words()))
                self._ready.exception()  # nobody may be waiting any more, which asyncio would report
        finally:
            self._client = None

    async def _list(self, client: Client) -> None:
        self.refused.clear()
        tools, self.is_cut = await all_pages(client.list_tools, "tools", MAX_TOOLS)
        found = resource_tools(client, [tool.name for tool in tools]) if self.config.resources else []
        self._resource_tools = frozenset(tool.name for tool in found)
        self.tools = [*tools, *found]

    async def _note_message(self, message: Any) -> None:
        """Note that the server's tools have changed, or that it sent what is not a message."""
        if isinstance(message, Exception):
            self._errors.odd = " It sends what is not a message of the protocol."
            if self._client is not None:
                end_request(self._client.session, message)
        if type(message).__name__ == "ToolListChangedNotification":
            self._changed.set()

    async def _follow(self, client: Client) -> None:
        """List the tools again whenever they change, until the session must stop."""
        subscription = asyncio.create_task(self._subscribe(client))
        try:
            await self._changed.wait()
            while not self._is_stopping:
                self._changed.clear()
                with suppress(Exception):  # the tools stay as they are; the next call shows what is wrong
                    await self._list(client)
                    self._on_change(self)
                await self._changed.wait()
        finally:
            subscription.cancel()

    async def _subscribe(self, client: Client) -> None:
        """Follow the changes that newer servers report on a stream of their own."""
        with suppress(Exception):  # an older protocol sends notifications instead
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._changed.set()

    def _failure(self, error: BaseException, last_words: str) -> McpServerFailed:
        about = f"MCP server {self.config.name!r} ({self.config.address})"
        if isinstance(error, McpServerFailed):
            return error
        if self._errors.login:
            missing = self._errors.login
            return LoginNeeded(self.config, missing) if missing.by_person else McpServerFailed(missing.problem)
        verb = "started" if self.config.transport == "stdio" else "reached"
        cause = f"{_reason(error, self._errors.status)}.{last_words}"
        if self._errors.status == 401:
            cause += f" If it wants a login: closeout mcp login {self.config.address}"
        failed = McpServerFailed(f"{about} could not be {verb}: {redact(cause, self.config.secrets)}")
        failed.status = self._errors.status
        return failed

    async def _last_words(self) -> str:
        """The end of the error output, after a moment for the dying process to write it."""
        await asyncio.to_thread(self._errors.settle)
        return str(redact(self._errors.quoted(), self.config.secrets))


# ------------------------------------------------------------------------------------------------ transports


def _open_transport(
    config: McpServerConfig, errors: _ErrorTail, stack: AsyncExitStack
) -> AbstractAsyncContextManager[Any]:
    """Return the transport to a server; entering it connects."""
    _keep_quiet()
    if config.transport == "stdio":
        from mcp import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=_program(config), args=list(config.args), env=dict(config.env), cwd=config.cwd,
            encoding_error_handler="replace",
        )  # fmt: skip
        return stdio_client(parameters, errlog=errors.open())
    if config.transport == "sse":
        from mcp.client.sse import sse_client

        from closeout.tools.mcp.mcp_oauth import auth_for

        return sse_client(
            config.url, headers=dict(config.headers), timeout=CONNECT_SECONDS, sse_read_timeout=SILENCE_SECONDS,
            auth=auth_for(config, errors.note_login),
        )  # fmt: skip
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from closeout.tools.mcp.mcp_oauth import auth_for

    http = httpx2.AsyncClient(
        auth=auth_for(config, errors.note_login),
        headers=dict(config.headers),
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS),
        event_hooks={"response": [partial(errors.note, config)]},
    )
    stack.push_async_callback(http.aclose)
    return streamable_http_client(config.url, http_client=http, max_sse_event_size=MAX_EVENT_BYTES)


def _program(config: McpServerConfig) -> str:
    """Return the full path of the command. Raises `McpServerFailed` if it is not found."""
    if config.cwd and not Path(config.cwd).is_dir():
        raise McpServerFailed(
            f"MCP server {config.name!r} could not be started: its cwd {config.cwd!r} does not exist."
        )
    found = shutil.which(config.command, path=config.env.get("PATH"))
    if found is None and config.cwd and (beside := Path(config.cwd, config.command)).is_file():
        found = str(beside)
    if found is None and config.command in ("python", "python3"):
        found = sys.executable
    if found is None:
        raise McpServerFailed(
            f"MCP server {config.name!r} could not be started: the command {config.command!r} was not found. "
            "Install it or give its full path."
        )
    return found


def _keep_quiet() -> None:
    """The library logs what servers send. Unless the program sets up logging, that must not reach the terminal."""
    for name in ("mcp", "client", "httpx2"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())


def _reason(error: BaseException, status: int | None = None) -> str:
    """Return the first real cause in a tree of exceptions, as a sentence without its full stop.

    `status` is that of the server's last answer over HTTP, if it was an error.
    """
    causes = list(_leaves(error))
    cause = causes[0] if causes else error
    status = getattr(getattr(cause, "response", None), "status_code", status)
    if status in (401, 403):
        return f"it answered HTTP {status}; give its key in headers={{'Authorization': 'Bearer …'}}"
    if status is not None:
        return f"it answered HTTP {status}"
    text = str(cause).strip().rstrip(".").splitlines()
    if isinstance(cause, ValidationError):
        return f"its answer breaks the protocol: {first_error(cause)}"
    if text and text[0] == CLOSED:
        return "it ended before it was ready"
    return visible(text[0][:300]) if text else type(cause).__name__


def _client_class(refused: list[str]) -> type[Client]:
    """Return a client that reads answers which break the protocol in part, from the first one on."""
    from mcp import Client

    class PatientClient(Client):
        async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
            session = await super()._build_session(exit_stack)
            use_valid_parts(session, refused)
            return session

    return PatientClient


def _extensions(config: McpServerConfig) -> list[ClientExtension] | None:
    if not config.tasks:
        return None
    from closeout.tools.mcp.mcp_tasks import TasksExtension

    return [TasksExtension()]


def _no_call() -> types.ErrorData:
    from mcp.types import INVALID_REQUEST, ErrorData

    return ErrorData(code=INVALID_REQUEST, message="No call is under way that could ask.")


def _has_rounds(client: Client) -> bool:
    """Return True if a call that needs input ends with what it needs, as since the protocol of 2026-07-28."""
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS

    return client.protocol_version in MODERN_PROTOCOL_VERSIONS


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    elif not isinstance(error, asyncio.CancelledError):
        yield error


class _ErrorTail:
    """The errors of a server: the end of its error output, or the status of its last HTTP answer.

    A thread drains the output, so that the process never waits and no terminal shows it.
    """

    def __init__(self) -> None:
        self._writer: TextIO | None = None
        self._drained: threading.Thread | None = None
        self._kept = b""
        self.status: int | None = None
        self.forgotten = False  # the last answer over HTTP refused a message of the session
        self.has_session = False
        self.post_status: int | None = None  # the status of the last message, if the server refused it
        self.odd = ""  # what it sends instead of messages, as a sentence that starts with a blank
        self.login: MissingLogin | None = None  # the library may not pass it on
        self.refused: list[_Sent] = []  # calls that a server refused for want of a login

    def note_login(self, problem: str, *, is_missing: bool, refused: httpx2.Request, scope: str = "") -> None:
        """Remember that a login is missing or failed."""
        self.login = MissingLogin(problem, is_missing, scope)
        with suppress(ValueError, LookupError, TypeError):
            params = json.loads(refused.content)["params"]
            self.refused.append((params["name"], params.get("arguments") or {}))

    async def note(self, config: McpServerConfig, response: httpx2.Response) -> None:
        """Remember the last answer over HTTP if it was an error: the library does not pass it on."""
        self.status = status = response.status_code if response.status_code >= 400 else None
        if response.request.method == "POST":
            self.post_status = status
        if status == 401 and self.login is None:
            from closeout.tools.mcp.mcp_oauth import wants_login

            if (problem := wants_login(config, response)) and read_login(config.url) is None:
                self.note_login(problem, is_missing=True, refused=response.request)
        self.has_session = self.has_session or SESSION_HEADER in response.request.headers
        # A new session shows if that is why: servers refuse an unknown one with any status and in any words.
        if status in (None, 405, 429) or self.login is not None or SESSION_HEADER not in response.request.headers:
            return
        try:
            body = (await response.aread()).decode("utf-8", "replace")
        except Exception:  # the answer broke off
            body = ""
        self.forgotten = self.forgotten or not _UNDERSTOOD.search(body)

    def open(self) -> TextIO:
        """Return the file that the process writes its errors to."""
        receive, send = os.pipe()
        self._writer = os.fdopen(send, "w", encoding="utf-8", errors="replace")
        self._drained = threading.Thread(target=self._drain, args=(receive,), name="closeout-mcp-stderr", daemon=True)
        self._drained.start()
        return self._writer

    def _drain(self, receive: int) -> None:
        with os.fdopen(receive, "rb", buffering=0) as pipe:
            while chunk := pipe.read(65_536):
                self._kept = (self._kept + chunk)[-STDERR_KEPT:]

    def release(self) -> None:
        """Close our end once the process has its own, so that the pipe ends with the process."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()

    def settle(self) -> None:
        """Wait a moment for the rest of the output of a process that ends."""
        self.release()
        if self._drained is not None:
            self._drained.join(0.5)

    def quoted(self) -> str:
        """Return the last words as a sentence that starts with a blank, or ""."""
        lines = [" ".join(line.split()) for line in self._kept.decode("utf-8", "replace").splitlines()]
        words = " / ".join([line for line in lines if line][-LINES_SHOWN:])
        return f" Its last words: {words[-STDERR_SHOWN:]}." if words else ""


# ------------------------------------------------------------------------------------------------ tools


def _offer(session: _ServerSession) -> ServerOffer:
    """The tools of a session that can be offered, and why each of the others cannot."""
    config, tools = session.config, session.tools
    about = f"MCP server {config.name!r}"
    offered: dict[str, ToolSpec] = {}
    problems = [f"{about}: {problem}; not offered." for problem in session.refused]
    if session.is_cut:
        problems.append(f"{about} has more than {MAX_TOOLS:,} tools; only the first {MAX_TOOLS:,} are offered.")
    again = Counter(tool.name for tool in tools)
    for tool in tools:
        if not tool.name:  # a model's API would refuse the whole request
            problems.append(f"{about} has a tool without a name; not offered.")
        elif tool.name in offered:
            if count := again.pop(tool.name, 0):
                named = f"{count} tools named {visible(tool.name[:100])!r}"
                problems.append(f"{about} has {named}; only the first is offered.")
        elif tool.execution is not None and tool.execution.task_support == "required":
            problems.append(f"{about}: {tool.name} runs only as a task, which is not supported; not offered.")
        else:
            spec, wrong = _spec(config, tool)
            if spec is not None:
                offered[tool.name] = spec
            if wrong:
                problems.append(f"{about}: the parameters of {tool.name} {wrong}.")
    return ServerOffer(tuple(offered.values()), tuple(problems))


def _spec(config: McpServerConfig, tool: types.Tool) -> tuple[ToolSpec | None, str]:
    """The tool as it is offered, if it is, and what is wrong with its parameters."""
    sent = {key: value for key, value in (tool.input_schema or {}).items() if value is not None}
    schema: dict[str, Any] = _escaped(without_titles(sent, describe=_harmless))
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA:
        return None, f"take {size:,} characters, which is more than {MAX_SCHEMA:,}; not offered"
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    wrong = ""
    if not is_json_schema(schema):
        wrong = "are not a self-contained JSON Schema; it is offered with the valid part of them"
        schema = _valid_properties(schema)
    spec = ToolSpec(
        name=tool.name,
        description=_harmless((tool.description or tool.title or "").strip()),
        parameters=schema,
        server_name=config.name,
        policy=_policy(tool),
    )
    return spec, wrong


def _valid_properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with the valid parts of its properties."""
    found: dict[str, Any] = {
        key: schema[key] for key in ("$defs", "definitions") if is_json_schema({key: schema.get(key)})
    }
    properties: dict[str, Any] = {}
    given = schema["properties"]
    for name, each in given.items() if isinstance(given, dict) else ():
        told = each.items() if isinstance(each, dict) else ()
        kept = {k: value for k, value in told if k in ("type", "description", "enum") and is_json_schema({k: value})}
        properties[name] = each if is_json_schema({**found, "properties": {name: each}}) else kept
    required = [name for name in schema.get("required") or () if name in properties]
    return {**found, "type": "object", "properties": properties, "required": required}


def _harmless(description: str) -> str:
    """A server's description as it enters the prompt, where it must not open a turn, a call or a result."""
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[:MAX_DESCRIPTION]} …"
    return escape_markers(description)


def _escaped(schema: Any) -> Any:
    """A schema whose names, values, defaults and examples are as harmless as its descriptions."""
    if isinstance(schema, str):
        return escape_markers(schema)
    if isinstance(schema, list):
        return [_escaped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        escape_markers(key): _escaped(value)
        for key, value in schema.items()
        # An escaped pattern would match other texts; the server checks its own.
        if key != "pattern" or not isinstance(value, str) or escape_markers(value) == value
    }


def _as_named(arguments: Any, schema: Any) -> Any:
    """The arguments of a call with the names and values of the server's own schema, which the model saw escaped."""
    originals = {escape_markers(text): text for text in texts_in(schema)}

    def named(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {originals.get(key, key): named(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [named(each) for each in value]
        return originals.get(value, value) if isinstance(value, str) else value

    return named(arguments)


def _policy(tool: types.Tool) -> ToolPolicy:
    """Return what the server hints at. A tool without hints may be destructive: the specification's default."""
    stated = _stated_policy(tool)
    hints = tool.annotations
    if hints is None:
        return replace(stated, effects_known=False)
    read_only = bool(hints.read_only_hint)
    adds_here = hints.open_world_hint is False and hints.destructive_hint is False
    return replace(
        stated,
        read_only=read_only,
        effects="none" if read_only else "local" if adds_here else None,
        idempotent=read_only or bool(hints.idempotent_hint),
        destructive=bool(hints.destructive_hint) and not read_only,
        effects_known=read_only or hints.destructive_hint is not None,
    )


def _stated_policy(tool: types.Tool) -> ToolPolicy:
    """Return the policy that a Closeout server states beside a tool; the default for anything malformed."""
    stated = (tool.meta or {}).get(POLICY_KEY)
    known = (tool.input_schema or {}).get("properties")
    if not isinstance(stated, Mapping) or not isinstance(known, Mapping):
        return ToolPolicy()
    aliases = stated.get("aliases")
    policy = ToolPolicy(
        aliases={name: _texts(others) for name, others in aliases.items()} if isinstance(aliases, Mapping) else {},
        duplicate_key=_texts(stated.get("duplicate_key")) or None,
        empty_at=_texts(stated.get("empty_at")),
        check_content=stated.get("check_content") is True,
    )
    named = {*policy.aliases, *(policy.duplicate_key or ())}
    return policy if named <= known.keys() else ToolPolicy()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
