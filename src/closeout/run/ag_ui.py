"""A run in the events of AG-UI 1.0 (https://docs.ag-ui.com), made from the chunks of its `PageStream`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from closeout.run.page_stream import Chunk, PageStream

__all__ = ["AgUiEvents", "ag_ui_messages"]

DENIED = "The call was not approved."
# The events of a chunk, each with the fields that it has from the chunk.
_PLAIN: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "text-start": (("TEXT_MESSAGE_START", {"messageId": "id"}),),
    "text-delta": (("TEXT_MESSAGE_CONTENT", {"messageId": "id", "delta": "delta"}),),
    "text-end": (("TEXT_MESSAGE_END", {"messageId": "id", "metadata": "providerMetadata"}),),
    "reasoning-start": (("REASONING_START", {"messageId": "id"}), ("REASONING_MESSAGE_START", {"messageId": "id"})),
    "reasoning-delta": (("REASONING_MESSAGE_CONTENT", {"messageId": "id", "delta": "delta"}),),
    "reasoning-end": (
        ("REASONING_MESSAGE_END", {"messageId": "id", "metadata": "providerMetadata"}),
        ("REASONING_END", {"messageId": "id"}),
    ),
}
_ROLES = {"TEXT_MESSAGE_START": "assistant", "REASONING_MESSAGE_START": "reasoning"}


class AgUiEvents:
    """Translates the chunks of a run.

    What the run waits for at its end are the interrupts of RUN_FINISHED. Files and other data are CUSTOM events named
    `closeout.file`, `closeout.message` and so on.

    Args:
        stream: Where the chunks come from.
        thread_id: The conversation, as the page calls it.
        run_id: The run, as the page calls it. Defaults to its own id.
    """

    def __init__(self, stream: PageStream, thread_id: str = "", run_id: str = "") -> None:
        self._stream = stream
        self._about = {"threadId": thread_id or stream.run_id, "runId": run_id or stream.run_id}
        self._called: set[str] = set()

    def start(self) -> Chunk:
        """Return the event that begins every stream."""
        return {"type": "RUN_STARTED", **self._about}

    def translate(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Yield the events of chunks."""
        return (event for chunk in chunks for event in self._events(str(chunk["type"]), chunk))

    def _events(self, kind: str, chunk: Chunk) -> Iterator[Chunk]:
        place = chunk.get("toolCallId", "")
        for name, fields in _PLAIN.get(kind, ()):
            role = {"role": _ROLES[name]} if name in _ROLES else {}
            yield {"type": name, **role, **{field: chunk[of] for field, of in fields.items() if of in chunk}}
        if kind == "tool-input-available" and place not in self._called:
            self._called.add(place)
            yield {"type": "TOOL_CALL_START", "toolCallId": place, "toolCallName": chunk["toolName"]}
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": place, "delta": _json(chunk["input"])}
            yield {"type": "TOOL_CALL_END", "toolCallId": place}
        elif kind.startswith("tool-output-"):
            yield {"type": "TOOL_CALL_RESULT", "messageId": f"{place}:result", **_result(place, chunk)}
        elif kind == "file" or (kind.startswith("data-") and kind != "data-question"):
            value = {name: each for name, each in chunk.items() if name != "type"}
            yield {"type": "CUSTOM", "name": f"closeout.{kind.removeprefix('data-')}", "value": value}
        elif kind == "error":
            yield {"type": "RUN_ERROR", "message": chunk["errorText"]}
        elif kind in ("finish", "abort"):
            end = {"result": chunk["messageMetadata"]} if "messageMetadata" in chunk else {}
            yield {"type": "RUN_FINISHED", **self._about, "outcome": self._outcome(kind), **end}

    def _outcome(self, kind: str) -> dict[str, Any]:
        pending = self._stream.pending
        if kind == "abort":
            return {"type": "cancelled"}
        if not pending:
            return {"type": "success"}
        found = []
        for each in pending.values():
            text = str(each.arguments.get("question") or each.reason or f"Wait: {each.kind}")
            about = {"id": each.id, "reason": each.kind, "message": text, "metadata": {"closeout": {"tool": each.tool}}}
            if each.kind == "approval":
                about["toolCallId"] = f"{self._stream.run_id}:{each.id}"
            found.append(about)
        return {"type": "interrupt", "interrupts": found}


def ag_ui_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a page in the form of AG-UI, as its clients have them after the streams."""
    found = []
    for message in messages:
        if message["role"] == "user":
            text = "".join(part["text"] for part in message["parts"] if part["type"] == "text")
            found.append({"id": message["id"], "role": "user", "content": text})
            continue
        for part in message["parts"]:
            place = part.get("toolCallId", "")
            if part["type"] in ("text", "reasoning"):
                role = "assistant" if part["type"] == "text" else "reasoning"
                found.append({"id": part["id"], "role": role, "content": part["text"]})
            elif place:
                function = {"name": part["type"].removeprefix("tool-"), "arguments": _json(part["input"])}
                call = {"id": place, "type": "function", "function": function}
                found.append({"id": place, "role": "assistant", "toolCalls": [call]})
                if part["state"].startswith("output-"):
                    found.append({"id": f"{place}:result", **_result(place, part)})
    return found


def _result(place: str, about: Mapping[str, Any]) -> dict[str, Any]:
    content = about["output"] if "output" in about else about.get("errorText", DENIED)
    return {"toolCallId": place, "content": _json(content), "role": "tool"}


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
