"""A value as XML that reads back, and as CSV or Markdown table for people. JSON forms live in `encoding`."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any
from xml.sax.saxutils import escape as _escape_xml

from closeout.outputs.columns import table_columns
from closeout.outputs.normal import compact_json

__all__ = ["escape_xml", "read_csv", "read_markdown", "read_xml", "write_csv", "write_markdown", "write_xml"]

_NAME = re.compile(r"(?!xml)[A-Za-z_][A-Za-z0-9_.-]*", re.IGNORECASE)
# What XML 1.0 cannot hold even escaped: control characters, surrogates, two non-characters (its production [2]).
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escape_xml(text: str) -> str:
    """Text for XML content and for attributes in double quotes; what XML cannot hold becomes U+FFFD."""
    return _NO_XML.sub("\ufffd", _escape_xml(text, {'"': "&quot;", "\r": "&#13;", "\n": "\n"}))


# ------------------------------------------------------------------------------------------------ XML


def write_xml(value: Any, name: str = "result") -> str:
    """One element. A string is its text; other kinds say so in `type`: number, bool, null, list, object, and json for a
    string that XML cannot hold. A key that is no XML name stands in `key` of an `entry` element.
    """
    parts: list[str] = []
    _element(name, "", value, parts)
    return "".join(parts)


def _element(name: str, key: str, value: Any, parts: list[str]) -> None:
    opening = f"<{name}{key}"
    if type(value) is str:
        if _NO_XML.search(value):
            parts.append(f'{opening} type="json">{_escape_xml(json.dumps(value))}</{name}>')
        else:
            parts.append(f"{opening}>{escape_xml(value)}</{name}>")
    elif type(value) is dict:
        parts.append(f'{opening} type="object">')
        for child, item in value.items():
            _element(*_tag(child), item, parts)
        parts.append(f"</{name}>")
    elif type(value) is list:
        parts.append(f'{opening} type="list">')
        for item in value:
            _element("item", "", item, parts)
        parts.append(f"</{name}>")
    elif value is None:
        parts.append(f'{opening} type="null"/>')
    else:
        kind = "bool" if isinstance(value, bool) else "number"
        parts.append(f'{opening} type="{kind}">{compact_json(value)}</{name}>')


def _tag(key: str) -> tuple[str, str]:
    if _NAME.fullmatch(key) and key != "entry":
        return key, ""
    if _NO_XML.search(key):
        return "entry", f' json="{escape_xml(json.dumps(key))}"'
    text = escape_xml(key).replace("\n", "&#10;").replace("\t", "&#9;")
    return "entry", f' key="{text}"'


def read_xml(text: str, child: str | None = None) -> Any:
    """The value that `write_xml` wrote, or that of the root's first `child`. Raises ValueError for other text."""
    from xml.etree import ElementTree

    if "<!" in text:
        raise ValueError("The text declares a document type or holds a comment, which this form never has.")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - no declarations, so no entities to expand
    except ElementTree.ParseError as failure:
        raise ValueError(f"The text is not the XML form: {failure}") from failure
    found = root if child is None else root.find(child)
    if found is None:
        raise ValueError(f"The text has no <{child}> element.")
    return _value(found)


def _value(element: Any) -> Any:
    kind = element.get("type")
    if kind == "object":
        return {_key(child): _value(child) for child in element}
    if kind == "list":
        return [_value(child) for child in element]
    text = element.text or ""
    if kind is None:
        return text
    return None if kind == "null" else json.loads(text)


def _key(element: Any) -> str:
    if element.get("json") is not None:
        return str(json.loads(element.get("json")))
    return str(element.tag if element.get("key") is None else element.get("key"))


# ------------------------------------------------------------------------------------------------ tables


def _table(value: Any) -> tuple[list[str], list[list[Any]]]:
    """Any value as header and rows: objects by their keys, lists by place, one object as key and value."""
    if isinstance(value, dict):
        return ["key", "value"], [[key, item] for key, item in value.items()]
    rows = value if isinstance(value, list) else [value]
    if rows and all(isinstance(row, dict) for row in rows):
        columns = table_columns(rows) or list(dict.fromkeys(key for row in rows for key in row))
        return columns, [[row.get(name, "") for name in columns] for row in rows]
    if rows and all(isinstance(row, list) for row in rows):
        width = max(map(len, rows))
        return [str(place + 1) for place in range(width)], [row + [""] * (width - len(row)) for row in rows]
    return ["value"], [[row] for row in rows]


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)


def write_csv(value: Any) -> str:
    """RFC 4180 with "\\n" between lines. Lossy: cells are text, nested values compact JSON."""
    header, rows = _table(value)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return out.getvalue().removesuffix("\n")


def read_csv(text: str) -> list[dict[str, str]]:
    """Rows of text cells by column name."""
    header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    return [dict(zip(header, row, strict=False)) for row in rows]


def write_markdown(value: Any) -> str:
    """A pipe table. Lossy: cells are text; a line break in a cell is `<br>`, a pipe `\\|`, a backslash doubled."""
    header, rows = _table(value)
    lines = [_line(header), "|" + "---|" * len(header)]
    lines.extend(_line(row) for row in rows)
    return "\n".join(lines)


def _line(row: list[Any]) -> str:
    cells = (_cell(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in row)
    return "|" + "|".join("<br>".join(cell.splitlines()) for cell in cells) + "|"


def read_markdown(text: str) -> list[dict[str, str]]:
    """Rows of text cells by column name."""
    lines = text.split("\n")
    header = _cells(lines[0])
    return [dict(zip(header, _cells(line), strict=False)) for line in lines[2:]]


def _cells(line: str) -> list[str]:
    cells = re.findall(r"((?:[^|\\]|\\.)*)\|", line.removeprefix("|"))
    return [re.sub(r"\\(.)", r"\1", cell.replace("<br>", "\n")) for cell in cells]
