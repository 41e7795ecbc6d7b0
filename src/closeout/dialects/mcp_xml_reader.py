"""Reads replies with `<use_mcp_tool>` tags, while they stream in. Everything behind the first call is not trusted."""

from __future__ import annotations

import re
from typing import Literal

from closeout.dialects.examples import LOCAL_SERVER
from closeout.dialects.function_call import EMPTY, read_native_calls, read_object
from closeout.dialects.protocol import ReadEvent
from closeout.dialects.react_parser import TRUNCATED
from closeout.dialects.thinking import ThinkingSplitter, split_thinking
from closeout.messages import Defect, Delta, ModelReply, Reading, Repair, ToolCall

__all__ = ["McpXmlReader"]

_OPEN = "<use_mcp_tool>"
_OPENING = re.compile(r"<use_mcp_tool>", re.IGNORECASE)
_SERVER = re.compile(r"<server_name>([^<]{0,200})</server_name>", re.IGNORECASE)
_TOOL = re.compile(r"<tool_name>([^<]{0,200})</tool_name>", re.IGNORECASE)
_ARGUMENTS = re.compile(r"<arguments>", re.IGNORECASE)
_ARGUMENTS_END = re.compile(r"</arguments>", re.IGNORECASE)
_CLOSING = re.compile(r"</use_mcp_tool>", re.IGNORECASE)
_INVENTED = re.compile(r"^[ \t]*(?:Observation\s*:|<tool_(?:result|response)>)", re.IGNORECASE | re.MULTILINE)
_LONGEST_HEAD = 1000  # characters of server and tool name, tags and blanks among them
_HINT = "Write one <use_mcp_tool> block with server_name, tool_name and arguments, the arguments one JSON object."


class McpXmlReader:
    """One reply, one call."""

    __slots__ = ("_buffer", "_named", "_part", "_splitter", "complete")

    def __init__(self) -> None:
        self._splitter = ThinkingSplitter()
        self._buffer = ""  # what was not told yet
        self._part = "text"  # then "head", "arguments", "tail" of the call
        self._named = False
        self.complete = False

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return [ReadEvent(delta.kind, delta.text, delta.index)] if delta.text else []
        events: list[ReadEvent] = []
        for thinking, piece in self._splitter.feed(delta.text):
            if thinking:
                events.append(ReadEvent("reasoning", piece))
            elif not self.complete:
                self._buffer += piece
                events += self._tell()
        return events

    def _tell(self) -> list[ReadEvent]:
        events: list[ReadEvent] = []
        if self._part == "text":
            self._tell_up_to(_OPENING, _OPEN, "text", "head", events)
        if self._part == "head":
            self._tell_head(events)
        if self._part == "arguments":
            self._tell_up_to(_ARGUMENTS_END, "</arguments>", "tool_arguments", "tail", events)
        if self._part == "tail":
            self.complete = _CLOSING.search(self._buffer) is not None
            self._buffer = self._buffer[-_LONGEST_HEAD:]
        return events

    def _tell_up_to(
        self,
        ending: re.Pattern[str],
        tag: str,
        kind: Literal["text", "tool_arguments"],
        after: str,
        events: list[ReadEvent],
    ) -> None:
        """Tells the text before a tag, and all but a possible beginning of the tag while there is none."""
        found = ending.search(self._buffer)
        end = found.start() if found else _before_part(self._buffer, tag)
        if end:
            events.append(ReadEvent(kind, self._buffer[:end]))
        self._buffer = self._buffer[found.end() if found else end :]
        if found:
            self._part = after

    def _tell_head(self, events: list[ReadEvent]) -> None:
        if not self._named and (tool := _TOOL.search(self._buffer)):
            self._named = True
            events.append(ReadEvent("tool_name", tool[1].strip()))
        if arguments := _ARGUMENTS.search(self._buffer):
            self._buffer, self._part = self._buffer[arguments.end() :], "arguments"
        elif _CLOSING.search(self._buffer):
            self.complete = True
        else:
            self._buffer = self._buffer[-_LONGEST_HEAD:]

    def close(self, reply: ModelReply) -> Reading:
        thinking, text = split_thinking(reply.text)
        reasoning = "\n".join(part for part in (reply.reasoning, thinking) if part)
        opening = _OPENING.search(text)
        if invented := _INVENTED.search(text, 0, opening.start() if opening else len(text)):
            hint = "You wrote a tool's result yourself. Write one call, then stop and wait for its result."
            defect = Defect("invented_observation", hint, invented.span())
            return Reading(text[: invented.start()].strip(), reasoning, defects=(defect,))
        truncated = reply.finish_reason in TRUNCATED and not self.complete
        if opening is not None:
            return _read_call(text, opening, reasoning, truncated)
        if reply.tool_calls:
            calls, defects = read_native_calls(reply)
            repairs = (Repair("dialect:function_call", "reply"),) if calls else ()
            return Reading(text, reasoning, tuple(calls[:1]), defects=tuple(defects), repairs=repairs, raw=text)
        cut = (Defect("truncated", "Your last reply was cut off at the length limit. Give it again, shorter."),)
        if not text.strip():
            return Reading("", reasoning, defects=cut if truncated else (EMPTY,), raw=text)
        return Reading(text, reasoning, answer=text, defects=cut if truncated else (), raw=text)


def _before_part(text: str, tag: str) -> int:
    """Where the end of a text may begin a tag; the text's length if it does not."""
    start = text.rfind("<", max(0, len(text) - len(tag)))
    return start if start >= 0 and tag.startswith(text[start:].casefold()) else len(text)


def _read_call(text: str, opening: re.Match[str], reasoning: str, truncated: bool) -> Reading:
    closing = _CLOSING.search(text, opening.end())
    # Without the closing tag the reply ended at it, as at a stop word, or was cut off.
    end = closing.start() if closing else len(text)
    thought = text[: opening.start()].strip()
    raw = text[: closing.end() if closing else end]
    tool = _TOOL.search(text, opening.end(), end)
    arguments = _ARGUMENTS.search(text, opening.end(), end)
    if closing is None and truncated:
        hint = "Your last call was cut off at the length limit. Write it again, shorter."
        return Reading(thought, reasoning, defects=(Defect("truncated", hint),), raw=raw)
    if tool is None or not tool[1].strip():
        return Reading(thought, reasoning, defects=(Defect("broken_action", _HINT, (opening.start(), end)),), raw=raw)
    written = ""
    if arguments is not None:
        ended = _ARGUMENTS_END.search(text, arguments.end(), end)
        written = text[arguments.end() : ended.start() if ended else end].strip()
    value = {} if written in ("", "null") else read_object(written)
    server = _SERVER.search(text, opening.end(), end)
    server_name = server[1].strip() if server else ""
    call = ToolCall(
        tool[1].strip(),
        written if value is None else value,
        server_name=None if server_name in ("", LOCAL_SERVER) else server_name,
        text=written,
    )
    return Reading(thought, reasoning, (call,), raw=raw)
