"""Reads what a GGUF file says about its model: architecture, size, trained context, chat template."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from closeout.models.sizes import SMALL

__all__ = ["ModelFile", "read_gguf"]

_WANTED = {
    "general.architecture",
    "general.name",
    "general.size_label",
    "tokenizer.chat_template",
}
_MOST_KEYS = 10_000
_LONGEST_TEXT = 1 << 20
_LONGEST_ARRAY = 10_000_000
_STRING, _ARRAY = 8, 9
# The type's number in the format's specification → how struct reads it.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])", re.IGNORECASE)
_SMALL_FILE = 2_200_000_000  # bytes: about 3 billion parameters in 4 to 5 bits


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file's own description. What the file does not say is empty or 0."""

    name: str
    architecture: str
    context: int  # tokens that the model was trained for
    template: str  # the chat template, Jinja text
    parameters: float  # billions
    size: int  # bytes

    @property
    def small(self) -> bool:
        """Whether worked examples and constrained decoding are needed: fewer than 3 billion parameters."""
        return self.parameters < SMALL if self.parameters else self.size < _SMALL_FILE

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template writes tools in the form that the model was trained for."""
        return bool(re.search(r"\btools\b", self.template))


def read_gguf(path: Path) -> ModelFile:
    """Read the description of a model file.

    Raises:
        ValueError: It is not a GGUF file, or it is damaged.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        try:
            found = _read_keys(file)
        except (struct.error, UnicodeDecodeError, OverflowError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    architecture = str(found.get("general.architecture", ""))
    context = found.get(f"{architecture}.context_length", 0)
    return ModelFile(
        name=str(found.get("general.name", "")),
        architecture=architecture,
        context=context if isinstance(context, int) else 0,
        template=str(found.get("tokenizer.chat_template", "")),
        parameters=_billions(str(found.get("general.size_label", ""))),
        size=path.stat().st_size,
    )


def _read_keys(file: BinaryIO) -> dict[str, Any]:
    magic, _version, _tensors, keys = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or keys > _MOST_KEYS:
        raise ValueError("This is not a GGUF file.")
    found: dict[str, Any] = {}
    for _ in range(keys):
        key = _text(file)
        value = _value(file, _number(file, "I"), keep=key in _WANTED)
        if key in _WANTED or key.endswith(".context_length"):
            found[key] = value
    return found


def _value(file: BinaryIO, kind: int, *, keep: bool) -> Any:
    """Read a value; skip an array, and a text that is not to be kept."""
    if kind == _STRING:
        return _text(file) if keep else _skip_text(file)
    if kind != _ARRAY:
        return _number(file, _format(kind))
    kind, length = _number(file, "I"), _number(file, "Q")
    if length > _LONGEST_ARRAY:
        raise ValueError("The file is damaged: an array is too long.")
    if kind in _NUMBERS:
        file.seek(length * struct.calcsize(_format(kind)), 1)
        return None
    if kind != _STRING:
        raise ValueError(f"The file is damaged: there is no array of type {kind}.")
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
    """The parameters of a size label, such as 1.5B, 270M or 8x7B, in billions; 0 if it is none."""
    if (match := _SIZE.search(label)) is None:
        return 0.0
    experts, number, unit = match.groups()
    return int(experts or 1) * float(number) / (1 if unit in "Bb" else 1000)
