"""What an MCP tool gave back, whole: text, images, audio, resources, structured content. No connection here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.outputs.models import ToolOutput

__all__ = ["McpResult"]


@dataclass(frozen=True, slots=True)
class McpResult:
    """`content` holds every part as the protocol writes it in JSON; `structured` is the structured content or None."""

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Any = None

    @property
    def text(self) -> str:
        """All text, resources' included, joined by line breaks."""
        return "\n".join(text for part in self.content if (text := _text_of(part)))

    @property
    def images(self) -> tuple[Mapping[str, Any], ...]:
        """Images as OpenAI `image_url` parts, for models that take them."""
        return tuple(
            {
                "type": "image_url",
                "image_url": {"url": f"data:{part.get('mimeType', 'image/png')};base64,{part['data']}"},
            }
            for part in self.content
            if part.get("type") == "image" and "data" in part
        )

    @property
    def value(self) -> Any:
        """The JSON value to show a model: structured content, else the text, with a line for what is not text.

        Servers repeat structured content as text; it is shown once. Binary data is named by kind and size only.
        """
        others = [_outline(part) for part in self.content if part.get("type") != "text"]
        if self.structured is not None:
            shown = self.structured
            if isinstance(shown, Mapping) and set(shown) == {"result"}:  # how servers wrap what is no object
                shown = shown["result"]
            return {"result": shown, "content": others} if others else shown
        if not others:
            return self.text
        if len(others) < len(self.content):
            return [_outline(part) for part in self.content]
        return others[0] if len(others) == 1 else others

    @property
    def is_plain(self) -> bool:
        """Whether `value` says all there is: only text, or structured content with its text."""
        return all(part.get("type") == "text" for part in self.content)

    def output(self) -> ToolOutput:
        """The result with all its parts: `result` is `value`, `metadata` holds "content" (whole) and "images"."""
        from closeout.outputs.models import ToolOutput, format_observation
        from closeout.outputs.summary import summarise

        value = self.value
        whole = {**self.to_json(), "images": [dict(image) for image in self.images]}
        output = ToolOutput(result=value, summary=summarise(value), metadata=whole)
        output.observation = format_observation(output)
        return output

    def to_json(self) -> dict[str, Any]:
        """Everything, as it is stored."""
        whole: dict[str, Any] = {"content": [dict(part) for part in self.content]}
        if self.structured is not None:
            whole["structured_content"] = self.structured
        return whole


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


def _size(base64: Any) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=") if isinstance(base64, str) else 0
