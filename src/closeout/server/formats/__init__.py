"""The request formats of the proxy: Chat Completions, Responses, Anthropic Messages. No I/O.

A format reads a request as messages and tools, reads a reply, and writes one: whole, or piece by piece.
"""

from collections.abc import Sequence

from closeout.server.formats.anthropic_messages import AnthropicMessages
from closeout.server.formats.chat_completions import ChatCompletions
from closeout.server.formats.format import Format, NativeFormat, RequestTools, Writer, with_hint
from closeout.server.formats.openai_responses import Responses

__all__ = ["FORMATS", "Format", "NativeFormat", "RequestTools", "Writer", "with_hint"]

FORMATS: Sequence[Format] = (ChatCompletions(), Responses(), AnthropicMessages())
"""The formats of the proxy."""
