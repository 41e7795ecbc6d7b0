"""The offers of an MCP server besides its tools: resources and prompts, and the request that uses one of them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import quote

from closeout.file_values import File
from closeout.overrides import returned
from closeout.tools.mcp.mcp_result import McpResult

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CompleteRequestParams, GetPromptRequestParams, ReadResourceRequestParams

__all__ = [
    "InputNeeded",
    "PromptSlot",
    "PromptTemplate",
    "ResourceShelf",
    "ShelvedResource",
    "add_prompts",
    "add_resources",
    "current_request",
    "embedded",
    "in_request",
    "refuse",
]

MAX_VALUES = 100  # values of one completion: the protocol's limit

_request: ContextVar[tuple[Any, Any]] = ContextVar("closeout_mcp_request")


class InputNeeded(Exception):
    """A request needs answers of the client's person before it can continue: the client sends it again with them.

    Args:
        requests: The library's requests, by name.
        state: What the client sends back with the answers.
    """

    def __init__(self, requests: Mapping[str, Any], state: str | None = None) -> None:
        super().__init__("input needed")
        self.requests, self.state = dict(requests), state


def current_request() -> tuple[Any, Any]:
    """Return the library's context and parameters of the request that is being answered."""
    return _request.get()


def in_request(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a handler for the library, of one that takes the parameters and may raise `InputNeeded`."""
    from mcp.types import InputRequiredResult

    async def handle(context: Any, parameters: Any) -> Any:
        token = _request.set((context, parameters))
        try:
            return await handler(parameters)
        except InputNeeded as needed:
            return InputRequiredResult(input_requests=needed.requests, request_state=needed.state)
        finally:
            _request.reset(token)

    return handle


def refuse(message: str, **data: Any) -> NoReturn:
    """Refuse a request whose parameters do not fit."""
    from mcp import MCPError
    from mcp.types import INVALID_PARAMS

    raise MCPError(INVALID_PARAMS, message, data or None)


# ------------------------------------------------------------------------------------------------ resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelvedResource:
    """A resource: its address, the file that it is, and a description."""

    uri: str
    file: File
    description: str = ""


class ResourceShelf(Protocol):
    """Where a server's resources come from.

    Attributes:
        templates: Descriptions of the addresses that can be read, by their URI templates.
    """

    @property
    def templates(self) -> Mapping[str, str]: ...

    async def listed(self) -> Sequence[ShelvedResource]:
        """Return the resources that the client is shown."""
        ...

    async def find(self, uri: str) -> File | None:
        """Return the content at an address, None if the client can read nothing there."""
        ...


def add_resources(server: Server[Any], shelf: ResourceShelf) -> None:
    """Let clients list and read resources."""
    from mcp import types

    async def list_resources(_: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=each.uri,
                    name=each.file.name,
                    description=each.description or None,
                    mime_type=each.file.media_type,
                    size=each.file.size,
                )
                for each in await shelf.listed()
            ]
        )

    async def list_templates(_: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=uri.partition(":")[0], description=about)
                for uri, about in shelf.templates.items()
            ]
        )

    async def read(parameters: ReadResourceRequestParams) -> types.ReadResourceResult:
        file = await shelf.find(parameters.uri)
        if file is None:
            refuse(f"Resource not found: {parameters.uri[:200]}", uri=parameters.uri)
        content = await asyncio.to_thread(_content, parameters.uri, file)
        return types.ReadResourceResult.model_validate({"contents": [content]})

    page = types.PaginatedRequestParams
    server.add_request_handler("resources/list", page, in_request(list_resources))
    server.add_request_handler("resources/templates/list", page, in_request(list_templates))
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, in_request(read))


def _content(uri: str, file: File) -> dict[str, Any]:
    about = {"uri": uri, "mimeType": file.media_type}
    with suppress(UnicodeDecodeError):
        if not file.is_image:
            return {**about, "text": file.data.decode()}
    return {**about, "blob": base64.b64encode(file.data).decode()}


def embedded(file: File) -> dict[str, Any]:
    """Return a file as a part of a result: an image, audio, or a resource with its content."""
    kind = "image" if file.is_image else file.media_type.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": base64.b64encode(file.data).decode(), "mimeType": file.media_type}
    return {"type": "resource", "resource": _content(f"file:///{quote(file.name)}", file)}


# ------------------------------------------------------------------------------------------------ prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSlot:
    """An argument of a prompt: a description, values to choose from, and whether it must be given."""

    description: str = ""
    values: Sequence[str] = ()
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A template of messages, for the people at a client.

    Attributes:
        name: Its name.
        render: Returns the text for the arguments, or an `McpResult` whose parts are one message each; may be async.
        description: What it is for.
        slots: Its arguments, by name.
    """

    name: str
    render: Callable[[Mapping[str, str]], Any]
    description: str = ""
    slots: Mapping[str, PromptSlot] = field(default_factory=dict)

    def problem(self, arguments: Mapping[str, str]) -> str:
        """Return what is wrong with arguments, an empty text if they fit."""
        if unknown := [name for name in arguments if name not in self.slots]:
            return f"{self.name} has no argument {unknown[0][:100]!r}. It takes: {', '.join(self.slots) or 'none'}."
        missing = [name for name, slot in self.slots.items() if slot.required and name not in arguments]
        return f"{self.name} needs {missing[0]}=… as well." if missing else ""


def add_prompts(server: Server[Any], prompts: Iterable[PromptTemplate]) -> None:
    """Let clients list prompts, get them, and complete their arguments."""
    from mcp import types

    known = {each.name: each for each in prompts}

    async def list_prompts(_: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=each.name,
                    description=each.description or None,
                    arguments=[
                        types.PromptArgument(name=name, description=slot.description or None, required=slot.required)
                        for name, slot in each.slots.items()
                    ],
                )
                for each in known.values()
            ]
        )

    async def get_prompt(parameters: GetPromptRequestParams) -> types.GetPromptResult:
        prompt, arguments = known.get(parameters.name), parameters.arguments or {}
        if prompt is None:
            refuse(f"Unknown prompt: {parameters.name[:100]}. There are: {', '.join(known) or 'none'}.")
        if problem := prompt.problem(arguments):
            refuse(problem)
        rendered = await returned(prompt.render(arguments))
        parts = rendered.content if isinstance(rendered, McpResult) else [{"type": "text", "text": rendered}]
        return types.GetPromptResult.model_validate(
            {"description": prompt.description, "messages": [{"role": "user", "content": part} for part in parts]}
        )

    async def complete(parameters: CompleteRequestParams) -> types.CompleteResult:
        prompt = known.get(getattr(parameters.ref, "name", ""))
        slot = prompt.slots.get(parameters.argument.name) if prompt is not None else None
        begun = parameters.argument.value.casefold()
        fit = [each for each in (slot.values if slot is not None else ()) if each.casefold().startswith(begun)]
        found = types.Completion(values=fit[:MAX_VALUES], total=len(fit), has_more=len(fit) > MAX_VALUES)
        return types.CompleteResult(completion=found)

    server.add_request_handler("prompts/list", types.PaginatedRequestParams, in_request(list_prompts))
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, in_request(get_prompt))
    server.add_request_handler("completion/complete", types.CompleteRequestParams, in_request(complete))
