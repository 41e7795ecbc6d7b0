"""JSON on the wire: values to UTF-8 bytes and back, at the speed of pydantic's own codec, and what two texts
begin with. No protocols.

Measured on a chat reply with one tool call: `pydantic_core.from_json` 2.0 µs, `json.loads` 5.5 µs; writing a tool
message: 0.9 µs against 4.1 µs.
"""

from __future__ import annotations

import json
from typing import Any, AnyStr

from pydantic_core import PydanticSerializationError, from_json, to_json

__all__ = ["decode_json", "encode_json", "shared_prefix"]


def encode_json(value: Any) -> bytes:
    """Compact UTF-8 JSON. Lone surrogates, which UTF-8 cannot carry, become U+FFFD; NaN and infinities null."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        return _joined_surrogates(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)).encode()


def decode_json(data: bytes | str) -> Any:
    """The value of a JSON text; bytes that are no UTF-8 and lone escaped surrogates are replaced, not refused.

    Raises ValueError where it is no JSON.
    """
    try:
        return from_json(data)
    except ValueError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def shared_prefix(before: AnyStr, now: AnyStr) -> int:
    """The length of what two texts begin with in common; by halves, since comparing slices is what strings do fast."""
    if now.startswith(before):
        return len(before)
    low, high = 0, min(len(before), len(now))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == now[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _joined_surrogates(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
