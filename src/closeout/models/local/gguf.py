"""Reads what a GGUF file says about its model: architecture, size, trained context, chat template, markers."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from closeout.models.sizes import SMALL

__all__ = ["ModelFile", "read_gguf"]

_TOKENS, _TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_WANTED = {
    "general.alignment",
    "general.architecture",
    "general.license",
    "general.name",
    "general.size_label",
    "tokenizer.chat_template",
    _TOKENS,
    _TOKEN_TYPES,
}
_CONTROL = 3  # the type of tokens that have no text of their own, such as the end of a message
_WITHOUT_A_USE = re.compile(r"\W*(unused|reserved)", re.IGNORECASE)  # thousands in some vocabularies
_MOST_KEYS = 10_000
_MOST_TENSORS = 100_000
_MOST_DIMENSIONS = 8
_LONGEST_TEXT = 1 << 20
_LONGEST_ARRAY = 10_000_000
_STRING, _ARRAY = 8, 9
# The type's number in the format's specification → how struct reads it.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file's own description. What the file does not say is empty or 0."""

    name: str
    architecture: str
    context: int  # tokens that the model was trained for
    template: str  # the chat template, Jinja text
    parameters: float  # billions, as stated or else as counted
    markers: tuple[str, ...] = ()  # texts of the chat template that become control tokens
    licence: str = ""
    cut: bool = False  # whether the file ends before its last tensor begins

    @property
    def small(self) -> bool:
        """True if worked examples and constrained decoding are needed: fewer than 3 billion parameters."""
        return self.parameters < SMALL

    @property
    def takes_tools(self) -> bool:
        """True if the chat template writes tools in the form that the model was trained for."""
        return bool(re.search(r"\btools\b", self.template))


def read_gguf(path: Path) -> ModelFile:
    """Read the description of a model file.

    Raises:
        ValueError: It is not a GGUF file, or it is damaged.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        try:
            found, tensors = _read_header(file)
            counted = sum(math.prod(shape) for shape, _ in tensors) / 1e9
            alignment = found.get("general.alignment")
            head = -(-file.tell() // (alignment or 32)) * (alignment or 32)
        except (struct.error, UnicodeDecodeError, OverflowError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    architecture = _line(found.get("general.architecture"))
    context = found.get(f"{architecture}.context_length", 0)
    return ModelFile(
        name=_line(found.get("general.name")),
        architecture=architecture,
        context=context if isinstance(context, int) else 0,
        template=str(found.get("tokenizer.chat_template", "")),
        parameters=_billions(str(found.get("general.size_label", ""))) or counted,
        markers=_markers(found.get(_TOKENS), found.get(_TOKEN_TYPES)),
        licence=_line(found.get("general.license")),
        cut=bool(tensors) and path.stat().st_size <= head + max(place for _, place in tensors),
    )


def _line(value: object) -> str:
    """Return a text that is safe to print: one line of printable characters."""
    return "".join(filter(str.isprintable, value))[:100] if isinstance(value, str) else ""


def _markers(tokens: object, types: object) -> tuple[str, ...]:
    if not isinstance(tokens, list) or not isinstance(types, list):
        return ()
    control = (token for token, kind in zip(tokens, types, strict=False) if kind == _CONTROL and len(token) > 1)
    return tuple(token for token in control if not _WITHOUT_A_USE.match(token))


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], list[tuple[tuple[int, ...], int]]]:
    """Read the wanted keys, and the shape and the place of each tensor. Leave the file at the header's end."""
    if file.read(4) != b"GGUF":
        raise ValueError("This is not a GGUF file.")
    _version, tensors, keys = struct.unpack("<IQQ", file.read(20))
    if keys > _MOST_KEYS or tensors > _MOST_TENSORS:
        raise ValueError("The file is damaged: its header is too long.")
    found: dict[str, Any] = {}
    for _ in range(keys):
        key = _text(file)
        value = _value(file, _number(file, "I"), keep=key in _WANTED)
        if key in _WANTED or key.endswith(".context_length"):
            found[key] = value
    return found, [_tensor(file) for _ in range(tensors)]


def _tensor(file: BinaryIO) -> tuple[tuple[int, ...], int]:
    _skip_text(file)
    dimensions = _number(file, "I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError("The file is damaged: a tensor has too many dimensions.")
    *shape, _type, place = struct.unpack(f"<{dimensions}QIQ", file.read(8 * dimensions + 12))
    return tuple(shape), place


def _value(file: BinaryIO, kind: int, *, keep: bool) -> Any:
    """Read a value; skip a text and an array that are not to be kept."""
    if kind == _STRING:
        return _text(file) if keep else _skip_text(file)
    if kind != _ARRAY:
        return _number(file, _format(kind))
    kind, length = _number(file, "I"), _number(file, "Q")
    if length > _LONGEST_ARRAY:
        raise ValueError("The file is damaged: an array is too long.")
    if kind in _NUMBERS:
        size = length * struct.calcsize(_format(kind))
        return list(struct.unpack(f"<{length}{_format(kind)}", file.read(size))) if keep else file.seek(size, 1)
    if kind != _STRING:
        raise ValueError(f"The file is damaged: there is no array of type {kind}.")
    if keep:
        return [_text(file) for _ in range(length)]
    for _ in range(length):
        _skip_text(file)
    return None


def _format(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"The file is damaged: there is no type {kind}.")
    return _NUMBERS[kind]


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]


def _text(file: BinaryIO) -> str:
    size = _number(file, "Q")
    if size > _LONGEST_TEXT:
        raise ValueError("The file is damaged: a text is too long.")
    data = file.read(size)
    if len(data) < size:
        raise ValueError("The file is damaged: it ends within a text.")
    return data.decode("utf-8", "replace")


def _skip_text(file: BinaryIO) -> None:
    file.seek(_number(file, "Q"), 1)


def _billions(label: str) -> float:
    """Return the parameters of a size label, such as 1.5B, 270M or 8x7B, in billions; 0 for other texts."""
    if (match := _SIZE.search(label)) is None:
        return 0.0
    experts, number, unit = match.groups()
    return int(experts or 1) * float(number) / (1 if unit in "Bb" else 1000)
