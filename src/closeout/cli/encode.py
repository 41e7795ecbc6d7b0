"""`closeout models encode`: print a value in one format, and compare the formats on stderr."""

from __future__ import annotations

import json as json_library
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from closeout.errors import UsageError
from closeout.results.encoding import FORMATS, Encoded, encode
from closeout.results.normal import EncodingError
from closeout.results.tokens import count
from closeout.tools.builtin.document_text import MAX_FILE_BYTES

__all__ = ["compare_formats", "encode_command"]


def encode_command(file: str, format: str, budget: int | None, json: bool) -> int:  # noqa: A002 - named as its options are
    """Print the value of a JSON or text file in a format. Return the exit code.

    Args:
        file: The file; "-" reads stdin. A file that is not JSON is a text.
        format: The format, or "auto" for the cheapest one.
        budget: The most tokens to print, or None for no limit.
        json: Print one object: `format`, `text`, `tokens`, `exact`, `lossless`, `missing`, and `formats`, the tokens
            by format (null if a format cannot hold the value).

    Raises:
        UsageError: The file cannot be read.
    """
    value = _read_value(file)
    encoded = encode(value, format, budget)
    tokens = compare_formats(value)
    if json:
        print(json_library.dumps(_report(encoded, tokens), ensure_ascii=True))
        return 0
    sys.stdout.buffer.write(encoded.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
    print(_table(encoded, tokens), file=sys.stderr)
    return 0


def compare_formats(value: Any) -> dict[str, int | None]:
    """Return the tokens (o200k) of the value by format; None if a format cannot hold it or lacks its library."""
    tokens: dict[str, int | None] = {}
    with suppress(TypeError, ValueError):
        tokens["json.dumps"] = count(json_library.dumps(value)).tokens
    for name in FORMATS:
        try:
            tokens[name] = encode(value, name).tokens
        except EncodingError:
            tokens[name] = None
    return tokens


def _read_value(file: str) -> Any:
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
            data = source.read(MAX_FILE_BYTES + 1)  # a device may have no end
    except OSError as failure:
        raise UsageError(f"{file} cannot be read: {failure.strerror}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{file} has more than {MAX_FILE_BYTES // 1_000_000} MB. Give a part of it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        raise UsageError(f"{file} is not UTF-8 text: {failure}.") from None
    try:
        return json_library.loads(text)
    except (ValueError, RecursionError):
        return text


def _report(encoded: Encoded, tokens: dict[str, int | None]) -> dict[str, Any]:
    return {
        "format": encoded.format,
        "text": str(encoded),
        "tokens": encoded.tokens,
        "exact": count(encoded).exact,
        "lossless": encoded.lossless,
        "missing": encoded.missing,
        "formats": tokens,
    }


def _table(encoded: Encoded, tokens: dict[str, int | None]) -> str:
    """Return one line per format: tokens, and the difference to compact JSON."""
    base = tokens["json"] or 0
    exact = "" if count(encoded).exact else ", estimated"
    lines = [f"{'format':<12}{'tokens':>10}{'to json':>10}   (o200k{exact})"]
    for name, found in tokens.items():
        mark = "  <" if name == encoded.format else ""
        change = f"{found / base - 1:+.1%}" if found is not None and base else ""
        lines.append(f"{name:<12}{'-' if found is None else f'{found:,}':>10}{change:>10}{mark}")
    loss = "" if encoded.lossless or encoded.missing else "; it does not decode to the value"
    lines.append(f"printed: {encoded.format}, {encoded.tokens:,} tokens{loss}")
    if encoded.missing:
        lines[-1] += f"; not shown: {encoded.missing}"
    return "\n".join(lines)
