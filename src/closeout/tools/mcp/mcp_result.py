"""The result of an MCP tool: text, images, audio, resources and structured content."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from closeout.codec import value_or_text
from closeout.file_values import NO_FILES, File, FileView, safe_file_name
from closeout.parsing.numbers import exact_or_text
from closeout.results.normal import map_texts

if TYPE_CHECKING:
    from closeout.results.tool_output import ToolOutput

__all__ = ["McpResult"]

MIN_BASE64 = 256  # characters; shorter texts that look like base64 may be ids
_BASE64 = re.compile(r"(?:data:(?P<mime>[\w.+/-]+)[^,]{0,100};base64,)?(?P<data>[A-Za-z0-9+/_\r\n-]+={0,2})\s*")


@dataclass(frozen=True, slots=True)
class McpResult:
    """The whole result of a call.

    Attributes:
        content: Every part, as the protocol writes it in JSON.
        structured: The structured content, or None.
        broken_rule: The rule that the result breaks, of the protocol or of the tool's output schema; "" if it is valid.
    """

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Any = None
    broken_rule: str = ""

    @property
    def text(self) -> str:
        """All text, including that of resources, joined by line breaks."""
        return "\n".join(text for part in self.content if (text := _text_of(part)))

    @property
    def images(self) -> tuple[Mapping[str, Any], ...]:
        """Images as OpenAI `image_url` parts, for models that take them."""
        return self._images({})

    def _images(self, files: Mapping[int, File]) -> tuple[Mapping[str, Any], ...]:
        """Return the images with the names of the files that the run keeps, by the indexes of their parts."""
        return tuple(
            {
                "type": "image_url",
                "image_url": {"url": f"data:{part.get('mimeType', 'image/png')};base64,{part['data']}"},
                **({"name": files[index].name} if index in files else {}),
            }
            for index, part in enumerate(self.content)
            if part.get("type") == "image" and "data" in part
        )

    @property
    def value(self) -> Any:
        """The JSON value to show a model: structured content, else the text, with an entry for each other part.

        Text that repeats the structured content is shown once. Binary data is named by type and size only.
        """
        return self._shown({})

    def _shown(self, files: Mapping[int, File]) -> Any:
        """Return the value with the names of the files that the run keeps, by the indexes of their parts."""
        outlined = [
            {**_outline(part), "file": files[index].name} if index in files else _outline(part)
            for index, part in enumerate(self.content)
        ]
        others = [each for each in outlined if each.get("type") != "text"]
        if self.broken_rule:  # all of it: nobody knows which part is right
            note = f"The call was made, but its result breaks a rule: {self.broken_rule}"
            said = {} if self.structured is None else {"result": _without_base64(self.structured, self._data)}
            return {**said, "content": outlined, "note": note}
        if self.structured is not None:
            shown = _without_base64(exact_or_text(self.structured, self.text), self._data)
            if isinstance(shown, Mapping) and set(shown) == {"result"}:  # how servers wrap what is not an object
                shown = shown["result"]
            others = others if self._repeats_structure else outlined
            return {"result": shown, "content": others} if others else shown
        if not others:
            return self.text
        if len(others) < len(self.content):
            return outlined
        return others[0] if len(others) == 1 else others

    @property
    def _repeats_structure(self) -> bool:
        """True if the text is the structured content again, whole or an item in each part, or if there is no text."""
        texts = [text for part in self.content if (text := _text_of(part))]
        wanted = [self.structured]
        if isinstance(self.structured, Mapping) and set(self.structured) == {"result"}:
            wanted.append(self.structured["result"])
        read = [value_or_text(self.text), [value_or_text(text) for text in texts], self.text]
        return not texts or any(each == value for each in read for value in wanted)

    @property
    def is_plain(self) -> bool:
        """True if `value` is complete: only text, or structured content without binary data."""
        if self.broken_rule or any(part.get("type") != "text" for part in self.content):
            return False
        return self.structured is None or _without_base64(self.structured, self._data) == self.structured

    @property
    def _data(self) -> frozenset[str]:
        """The binary data of all parts."""
        found = (part.get("data") or (part.get("resource") or {}).get("blob") for part in self.content)
        return frozenset(data for data in found if isinstance(data, str))

    def output(self, view: FileView = NO_FILES) -> ToolOutput:
        """Return the result with all its parts: `result` is `value`, `metadata` has "content" and "images".

        Args:
            view: The files of the run. Binary parts become files of it, as far as there is room.
        """
        from closeout.results.summary import summarise
        from closeout.results.tool_output import ToolOutput

        files = self._files(view)
        value = self._shown(files)
        whole = {**self.to_json(), "images": [dict(image) for image in self._images(files)]}
        names = ", ".join(file.name for file in files.values())
        summary = f"{summarise(value)}\nFiles: {names}" if names else summarise(value)
        output = ToolOutput(result=value, metadata=whole, files=tuple(files.values()))
        return output.with_written("", summary=summary)

    def _files(self, view: FileView) -> dict[int, File]:
        """Return the files in the parts that the run has room for, by the indexes of the parts."""
        found: dict[int, File] = {}
        for index, part in enumerate(self.content):
            inner = part.get("resource")
            inner = inner if isinstance(inner, Mapping) else part
            data = inner.get("blob", inner.get("data"))
            try:
                content = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
            except ValueError:
                continue
            taken = [*view, *(file.name for file in found.values())]
            file = File(safe_file_name(_file_name(part, inner), taken), content)
            added = sum(each.size for each in found.values())
            if content and not view.refusal(file.name, file.size, [each.name for each in found.values()], added):
                found[index] = file
        return found

    def to_json(self) -> dict[str, Any]:
        """Return everything, as it is stored."""
        whole: dict[str, Any] = {"content": [dict(part) for part in self.content]}
        if self.structured is not None:
            whole["structured_content"] = self.structured
        return whole


def _without_base64(value: Any, known: frozenset[str]) -> Any:
    """The value with type and size in place of binary data: `known`, data URIs, and long texts in base64."""

    def outline(text: str) -> str:
        if len(text) < MIN_BASE64 and text not in known:
            return text
        found = _BASE64.fullmatch(text)
        if found is None or not (text in known or found["mime"] or _looks_encoded(found["data"])):
            return text
        kind = f"{found['mime']}, " if found["mime"] else ""
        return f"[{kind}{_size(found['data']):,} bytes: not shown]"

    return map_texts(value, outline)


def _looks_encoded(data: str) -> bool:
    """Return True if a text mixes letters and digits as base64 does: words, hexadecimal and sequences do not."""
    return all(re.search(pattern, data) for pattern in ("[a-f]", "[g-z]", "[A-F]", "[G-Z]", "[0-9]"))


def _text_of(part: Mapping[str, Any]) -> str:
    if part.get("type") == "text":
        return str(part.get("text") or "")
    resource = part.get("resource")
    return str(resource.get("text") or "") if isinstance(resource, Mapping) else ""


def _outline(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part without its binary data."""
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text", "")}
    if kind in ("image", "audio"):
        return {"type": kind, "mime_type": part.get("mimeType"), "bytes": _size(part.get("data"))}
    resource = part.get("resource")
    if isinstance(resource, Mapping):
        shown = {"type": kind, "uri": resource.get("uri"), "mime_type": resource.get("mimeType")}
        if "blob" in resource:
            return {**shown, "bytes": _size(resource["blob"])}
        return {**shown, "text": resource.get("text", "")}
    return {key: value for key, value in part.items() if key not in ("_meta", "annotations", "icons")}


def _file_name(part: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    """Return the last part of a resource's address, else the kind of the part with the suffix of its media type."""
    last = unquote(urlsplit(str(inner.get("uri") or "")).path).rstrip("/").rpartition("/")[2]
    suffix = mimetypes.guess_extension(str(inner.get("mimeType") or "")) or ""
    return last or f"{part.get('type') or 'file'}{suffix}"


def _size(data: Any) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=") if isinstance(data, str) else 0
