"""The request formats of the proxy: Chat Completions, Responses, Anthropic Messages. No I/O.

A format reads a request as messages and tools, reads a reply, and writes one: whole, or piece by piece.
"""

from closeout.errors import UsageError
from closeout.server.formats.anthropic_messages import AnthropicMessages
from closeout.server.formats.chat_completions import ChatCompletions
from closeout.server.formats.format import Format, NativeFormat, RequestTools, Writer, with_hint
from closeout.server.formats.format_check import check_format
from closeout.server.formats.openai_responses import Responses

__all__ = [
    "FORMATS",
    "Format",
    "NativeFormat",
    "RequestTools",
    "Writer",
    "check_format",
    "register_format",
    "with_hint",
]

_BUILT_IN: tuple[Format, ...] = (ChatCompletions(), Responses(), AnthropicMessages())

FORMATS: list[Format] = [*_BUILT_IN]
"""The formats of the proxy."""


def register_format(form: Format) -> None:
    """Let the proxies that this process starts from now on take requests in a format, or in a new version of it.

    Raises:
        UsageError: A built-in format has its path.
    """
    if any(each.path == form.path for each in _BUILT_IN):
        raise UsageError(f"{form.path!r} is the path of a built-in format. Give yours another path.")
    FORMATS[:] = [*(each for each in FORMATS if each.path != form.path), form]
