"""The tools, resources and prompts that the scenarios of bench/conformance.py call by their names.

All of it passes through `make_server`, and over HTTP through the endpoint of `closeout serve`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp import MCPError, types
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

from closeout import File, RunContext, tool
from closeout.errors import ToolError
from closeout.tools.mcp.mcp_offers import (
    InputNeeded,
    PromptSlot,
    PromptTemplate,
    ShelvedResource,
    current_request,
)
from closeout.tools.mcp.mcp_result import McpResult
from closeout.tools.mcp.mcp_served_tasks import ServedTask, TaskBegun, require_tasks, takes_tasks
from closeout.tools.mcp.mcp_server import call_failure, call_result, make_server


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    + _chunk(b"IEND", b"")
)
WAV = b"RIFF" + struct.pack("<I", 38) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
WAV += b"data" + struct.pack("<I", 2) + b"\x80\x80"

# ------------------------------------------------------------------------------------------------ tools


@tool(read_only=True)
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(read_only=True)
def test_image_content() -> File:
    """Return an image."""
    return File("red.png", PNG)


@tool(read_only=True)
def test_audio_content() -> File:
    """Return audio."""
    return File("beep.wav", WAV, media_type="audio/wav")


@tool(read_only=True)
def test_embedded_resource() -> File:
    """Return a file."""
    return File("embedded.txt", "This is an embedded resource content.")


@tool(read_only=True)
def test_multiple_content_types() -> dict[str, Any]:
    """Return a text with files."""
    return {"text": "Multiple content types test:", "files": [File("red.png", PNG), File("data.json", '{"test": 1}')]}


@tool(read_only=True)
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(read_only=True)
async def test_tool_with_progress(context: RunContext) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        context.progress(done, 100)
        await asyncio.sleep(0.05)
    return "done"


@tool(read_only=True)
def test_missing_capability() -> str:
    """Need a client that samples."""
    context, _ = current_request()
    abilities = context.session.client_capabilities
    if abilities is None or abilities.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", needed)
    return "ok"


# ------------------------------------------------------------------------------------------------ questions


def form(message: str, **fields: Mapping[str, Any]) -> types.ElicitRequest:
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


def needed(state: str | None = None, **requests: Any) -> dict[str, Any]:
    """Return the client's answers to the requests that it has the abilities for, and ask for them if they lack."""
    context, sent = current_request()
    abilities = context.session.client_capabilities
    can = {"elicitation/create": abilities.elicitation, "sampling/createMessage": abilities.sampling}
    asked = {name: each for name, each in requests.items() if can.get(each.method, abilities.roots) is not None}
    given = {name: each for name, each in (sent.input_responses or {}).items() if name in asked}
    if any(getattr(each, "action", "accept") != "accept" for each in given.values()):
        raise ToolError("The person declined.")
    if given.keys() != asked.keys():
        raise InputNeeded(asked, state)
    return given


NAME = {"type": "string"}
name_form = form("What is your name?", name=NAME)
roots = types.ListRootsRequest()


@tool(read_only=True)
def test_input_required_result_elicitation() -> str:
    """Ask for a name."""
    answers = needed(user_name=name_form)
    name = (answers["user_name"].content or {}).get("name")
    if not isinstance(name, str):
        raise InputNeeded({"user_name": name_form})
    return f"Hello, {name}!"


@tool(read_only=True)
def test_input_required_result_sampling() -> str:
    """Ask the client's model."""
    return str(needed(capital_question=sampling("What is the capital of France?"))["capital_question"].content.text)


@tool(read_only=True)
def test_input_required_result_list_roots() -> list[str]:
    """Ask for the roots."""
    return [str(root.uri) for root in needed(client_roots=roots)["client_roots"].roots]


@tool(read_only=True)
def test_input_required_result_request_state() -> str:
    """Ask, with a state."""
    needed("asked", confirm=form("Please confirm", ok={"type": "boolean"}))
    return "state-ok" if current_request()[1].request_state == "asked" else "the state is lost"


@tool(read_only=True)
def test_input_required_result_tampered_state() -> str:
    """Ask, with a state."""
    needed("asked", confirm=form("Please confirm", ok={"type": "boolean"}))
    return "done"


@tool(read_only=True)
def test_input_required_result_multiple_inputs() -> list[str]:
    """Ask for three things."""
    return sorted(needed("asked", user_name=name_form, greeting=sampling("Generate a greeting"), client_roots=roots))


@tool(read_only=True)
def test_input_required_result_multi_round() -> str:
    """Ask twice."""
    if current_request()[1].request_state not in ("one", "two"):
        raise InputNeeded({"step1": form("Step 1: What is your name?", name=NAME)}, "one")
    if current_request()[1].request_state == "one":
        needed("one", step1=form("Step 1: What is your name?", name=NAME))
        raise InputNeeded({"step2": form("Step 2: What is your favorite color?", color=NAME)}, "two")
    return str(needed("two", step2=form("Step 2: What is your favorite color?", color=NAME))["step2"].content)


@tool(read_only=True)
def test_input_required_result_capabilities() -> list[str]:
    """Ask for what the client can answer."""
    return sorted(needed(user_name=name_form, greeting=sampling("Generate a greeting")))


# ------------------------------------------------------------------------------------------------ tasks


class Tasks:
    """Tasks in memory."""

    def __init__(self) -> None:
        self._shown: dict[str, ServedTask] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, dict[str, asyncio.Future[Any]]] = {}

    def begin(self, work: Callable[[Callable[..., Awaitable[Any]]], Awaitable[str]]) -> ServedTask:
        name, now = f"task-{len(self._shown) + 1}", time.time()
        task = self._shown[name] = ServedTask(id=name, status="working", begun=now, changed=now, kept_ms=3_600_000)

        async def ask(**requests: Any) -> dict[str, Any]:
            futures = self._answers[name] = {each: asyncio.get_running_loop().create_future() for each in requests}
            self._change(name, "input_required", requests=requests)
            await asyncio.wait(futures.values())
            self._change(name, "working")
            return {each: future.result() for each, future in futures.items()}

        async def run() -> None:
            try:
                result = call_result(await work(ask))
            except ToolError as error:
                result = call_failure(str(error))
            except MCPError as error:
                self._change(name, "failed", error={"code": error.error.code, "message": error.error.message})
                return
            self._change(name, "completed", result=result)

        self._running[name] = asyncio.create_task(run())
        return task

    def _change(self, name: str, status: Any, **fields: Any) -> None:
        old = self._shown[name]
        self._shown[name] = ServedTask(
            id=name, status=status, begun=old.begun, changed=time.time(), kept_ms=old.kept_ms, **fields
        )

    async def find(self, task: str) -> ServedTask | None:
        return self._shown.get(task)

    async def answer(self, task: str, responses: Mapping[str, Any]) -> None:
        for name, value in responses.items():
            self._answers[task][name].set_result(value)
        left = {name: each for name, each in self._shown[task].requests.items() if name not in responses}
        if left:
            self._change(task, "input_required", requests=left)
        else:
            self._change(task, "working")

    async def cancel(self, task: str) -> None:
        self._running[task].cancel()
        self._change(task, "cancelled")


tasks = Tasks()


async def _as_task(work: Callable[..., Awaitable[str]], *, is_required: bool = False) -> str:
    if is_required:
        require_tasks()
    if takes_tasks():
        raise TaskBegun(tasks.begin(work))

    async def ask(**requests: Any) -> dict[str, Any]:
        return needed(**requests)

    return await work(ask)


@tool(read_only=True)
def greet(name: str) -> str:
    """Greet."""
    return f"Hello, {name}!"


@tool(read_only=True)
async def slow_compute(seconds: float = 0, label: str = "") -> str:
    """Take some time."""

    async def work(_: Any) -> str:
        await asyncio.sleep(seconds)
        return f"{label} computed for {seconds:g} s"

    return await _as_task(work)


@tool(read_only=True)
async def failing_job() -> str:
    """Fail after a second."""

    async def work(_: Any) -> str:
        await asyncio.sleep(1)
        raise ToolError("The job failed.")

    return await _as_task(work, is_required=True)


@tool(read_only=True)
async def protocol_error_job() -> str:
    """Fail as the server does."""

    async def work(_: Any) -> str:
        raise MCPError(types.INTERNAL_ERROR, "The job broke.")

    return await _as_task(work)


@tool
async def confirm_delete(filename: str = "a") -> str:
    """Ask before deleting."""

    async def work(ask: Any) -> str:
        answer = (await ask(confirm=form(f"Delete {filename}?", confirm={"type": "boolean"})))["confirm"]
        return "deleted" if answer.action == "accept" else "kept"

    return await _as_task(work)


@tool(read_only=True)
async def multi_input() -> str:
    """Ask for two things at once."""

    async def work(ask: Any) -> str:
        return ", ".join(sorted(await ask(first=form("First?", value=NAME), second=form("Second?", value=NAME))))

    return await _as_task(work)


@tool(read_only=True)
async def test_tool_with_task() -> str:
    """Ask for a name, then work as a task."""
    require_tasks()
    name = (needed("asked", user_name=name_form)["user_name"].content or {}).get("name")

    async def work(_: Any) -> str:
        return f"Hello, {name}!"

    return await _as_task(work)


# ------------------------------------------------------------------------------------------------ older protocols


@tool(read_only=True)
async def test_sampling(prompt: str) -> str:
    """Ask the client's model."""
    context, _ = current_request()
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    reply = await context.session.create_message([message], max_tokens=100, related_request_id=context.request_id)
    return f"LLM response: {reply.content.text}"


async def _asked(message: str, schema: dict[str, Any]) -> str:
    context, _ = current_request()
    reply = await context.session.elicit_form(message, {"type": "object", **schema}, context.request_id)
    return f"Elicitation completed: action={reply.action}, content={json.dumps(reply.content)}"


@tool(read_only=True)
async def test_elicitation(message: str) -> str:
    """Ask the client's person."""
    return await _asked(message, {"properties": {"username": NAME, "email": NAME}, "required": ["username", "email"]})


@tool(read_only=True)
async def test_elicitation_sep1034_defaults() -> str:
    """Ask with defaults."""
    choices = ["active", "inactive", "pending"]
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": choices, "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await _asked("Check the defaults.", {"properties": fields})


@tool(read_only=True)
async def test_elicitation_sep1330_enums() -> str:
    """Ask with choices."""
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    names = ["Option One", "Option Two", "Option Three"]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await _asked("Choose.", {"properties": fields})


@tool(read_only=True)
async def test_tool_with_logging() -> str:
    """Log."""
    context, _ = current_request()
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", text, related_request_id=context.request_id)
        await asyncio.sleep(0.05)
    return "done"


# ------------------------------------------------------------------------------------------------ resources, prompts


class Resources:
    """Two resources and a template."""

    templates: Mapping[str, str] = {"test://template/{id}/data": "Data for an id"}
    _files: Mapping[str, File] = {
        "test://static-text": File("static.txt", "This is the content of the static text resource."),
        "test://static-binary": File("static.png", PNG),
    }

    async def listed(self) -> list[ShelvedResource]:
        return [ShelvedResource(uri=uri, file=file, description="A test resource") for uri, file in self._files.items()]

    async def find(self, uri: str) -> File | None:
        if uri.startswith("test://template/") and uri.endswith("/data"):
            found = uri.removeprefix("test://template/").removesuffix("/data")
            return File("data.json", json.dumps({"id": found, "templateTest": True, "data": f"Data for ID: {found}"}))
        return self._files.get(uri)


def _with_resource(arguments: Mapping[str, str]) -> McpResult:
    text = "Embedded resource content for testing."
    resource = {"uri": arguments["resourceUri"], "mimeType": "text/plain", "text": text}
    said = {"type": "text", "text": "Please process the embedded resource above."}
    return McpResult(content=({"type": "resource", "resource": resource}, said))


def _with_image(_: Any) -> McpResult:
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    return McpResult(content=(image, {"type": "text", "text": "Please analyze the image above."}))


def _with_question(_: Any) -> str:
    answers = needed(user_context=form("What context should the prompt use?", context=NAME))
    return f"The context: {(answers['user_context'].content or {}).get('context')}"


def _with_arguments(arguments: Mapping[str, str]) -> str:
    return f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"


PROMPTS = (
    PromptTemplate(
        name="test_simple_prompt", description="A test prompt", render=lambda _: "This is a simple prompt for testing."
    ),
    PromptTemplate(
        name="test_prompt_with_arguments",
        description="A test prompt",
        render=_with_arguments,
        slots={"arg1": PromptSlot(values=("paris", "park", "party")), "arg2": PromptSlot()},
    ),
    PromptTemplate(
        name="test_prompt_with_embedded_resource",
        description="A test prompt",
        render=_with_resource,
        slots={"resourceUri": PromptSlot()},
    ),
    PromptTemplate(name="test_prompt_with_image", description="A test prompt", render=_with_image),
    PromptTemplate(name="test_input_required_result_prompt", description="A test prompt", render=_with_question),
)

TOOLS = [each for each in list(globals().values()) if hasattr(each, "spec") and hasattr(each, "call")]


async def _nothing(context: Any, parameters: Any) -> types.EmptyResult:
    return types.EmptyResult()


def fixture() -> Server[Any]:
    """Return the server."""
    server = make_server(TOOLS, name="fixture", resources=Resources(), prompts=PROMPTS, tasks=tasks)
    # What Closeout does not offer, because its lists do not change and logs are on their way out of the protocol.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _nothing)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, _nothing)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, _nothing)
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="fixture"))
    return server
