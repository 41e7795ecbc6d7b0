"""The forms that a value can be written in, and their readers; no choice among them.

`encoding` chooses. Values are normal (see `normal`); readers raise ValueError for text that is not in their form. The
original systems' fixed forms are for others to read: with a parser of Base64 and JSON, of YAML, of XML.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import Any

from closeout.parsing.json_text import STRICT
from closeout.results.budgets import More
from closeout.results.escape import escape_markers
from closeout.results.normal import SURROGATE, EncodingError, compact_json, map_texts, without_surrogates
from closeout.results.summary import summarise
from closeout.results.tokens import count_tokens

__all__ = [
    "compact_text",
    "escape_attribute",
    "escape_xml",
    "from_columns",
    "read_json",
    "read_raw_block",
    "read_toon",
    "safe_yaml_text",
    "to_columns",
    "tool_result_text",
    "worth_lifting",
    "write_compact",
    "write_raw_block",
    "write_safe_yaml",
    "write_tool_result",
    "write_toon",
]


def read_json(text: str) -> Any:
    """Return the value of JSON text; NaN and the infinities are not JSON."""
    return STRICT.decode(text)


# ------------------------------------------------------------------------------------------------ columnar JSON

COLS, ROWS, MORE = "#cols", "#rows", "#more"
_OURS = re.compile(r"#+(?:cols|rows|more)")
_FRAME = len('{"#cols":[],"#rows":[]}')


def table_columns(rows: list[Any]) -> list[str] | None:
    """The column names of a list of two or more objects, if the keys of each row are the first of them; else None.

    Columns that all rows have come first, in the order of the rows' keys.
    """
    if not all(type(row) is dict and row for row in rows):
        return None
    first = rows[0].keys()
    if all(row.keys() == first for row in rows):
        return list(first)
    columns = [name for name, _ in Counter(key for row in rows for key in row).most_common()]
    places = {name: place for place, name in enumerate(columns)}
    fits = all(places[key] < len(row) for row in rows for key in row)
    return columns if fits else None


def to_columns(value: Any) -> Any:
    """Return a value with every list of like objects as `{"#cols": [names], "#rows": [[cells]]}`, if that is shorter.

    A row may end early: the keys that it has no cells for are absent. A key that looks like one of ours gets one more
    "#". If a list was cut, `#more` says how many rows are missing.
    """
    if type(value) is dict:
        return {f"#{key}" if _OURS.fullmatch(key) else key: to_columns(item) for key, item in value.items()}
    if type(value) is not list:
        return value
    more = value[-1] if value and type(value[-1]) is More else None
    rows = value if more is None else value[:-1]
    columns = table_columns(rows) if len(rows) > 1 else None
    if columns is None or (len(rows) - 1) * sum(len(name) + 3 for name in columns) <= _FRAME:
        return [to_columns(item) for item in value]
    table = {COLS: columns, ROWS: [[to_columns(row[name]) for name in columns[: len(row)]] for row in rows]}
    return table if more is None else {**table, MORE: more.number}


def from_columns(value: Any) -> Any:
    """Undo `to_columns`: return the value that was passed to it."""
    if type(value) is list:
        return [from_columns(item) for item in value]
    if type(value) is not dict:
        return value
    if COLS in value and ROWS in value:
        return _from_rows(value[COLS], value[ROWS])
    return {key[1:] if _OURS.fullmatch(key) else key: from_columns(item) for key, item in value.items()}


def _from_rows(columns: Any, rows: Any) -> list[dict[str, Any]]:
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise ValueError("A columnar table needs a list of names in #cols and a list of lists in #rows.")
    if any(not isinstance(row, list) or len(row) > len(columns) for row in rows):
        raise ValueError("A row of a columnar table has more cells than the table has columns.")
    return [dict(zip(columns, map(from_columns, row), strict=False)) for row in rows]


# ------------------------------------------------------------------------------------------------ raw block

LIFT_LENGTH = 80  # characters; shorter strings stay in the head
LIFT_ESCAPES = 4  # signs that JSON would escape
_RAW_REFERENCE = re.compile(r"#+raw:\d+")
_RAW_BLOCK = re.compile(r"\n#raw:(\d+) (\d+)\n")


def worth_lifting(text: str) -> bool:
    """Return whether a string is long and full of escapes in JSON, so that it is better written verbatim."""
    if len(text) < LIFT_LENGTH:
        return False
    escapes = text.count("\n") + text.count('"') + text.count("\\") + text.count("\t") + text.count("\r")
    return escapes >= LIFT_ESCAPES and (text.isascii() or not SURROGATE.search(text))


def write_raw_block(columnar: Any) -> str:
    """Return one line of columnar JSON, then the long texts lifted out of it, verbatim, each with its length.

    Code and pages need no escapes there. A string that looks like a reference gets one more "#".
    """
    lifted: list[str] = []

    def lift(text: str) -> str:
        if worth_lifting(text):
            lifted.append(text)
            return f"#raw:{len(lifted)}"
        return f"#{text}" if _RAW_REFERENCE.fullmatch(text) else text

    head = compact_json(map_texts(columnar, lift))
    return head + "".join(f"\n#raw:{number} {len(text)}\n{text}" for number, text in enumerate(lifted, 1))


def read_raw_block(text: str) -> Any:
    """Return the columnar value of a block."""
    line_end = text.find("\n")
    head = read_json(text if line_end < 0 else text[:line_end])
    texts: dict[str, str] = {}
    at = len(text) if line_end < 0 else line_end
    while at < len(text):
        found = _RAW_BLOCK.match(text, at)
        if found is None or found.end() + int(found[2]) > len(text):
            raise ValueError(f"A raw block breaks off or its length is wrong, at character {at}.")
        at = found.end() + int(found[2])
        texts[f"#raw:{int(found[1])}"] = text[found.end() : at]

    def lower(text: str) -> str:
        if not _RAW_REFERENCE.fullmatch(text):
            return text
        if text.startswith("##"):
            return text[1:]
        if text not in texts:
            raise ValueError(f"The block refers to {text}, which is not in it.")
        return texts[text]

    return map_texts(head, lower)


# ------------------------------------------------------------------------------------------------ XML

_XML_NAME = re.compile(r"(?!xml)[A-Za-z_][A-Za-z0-9_.-]*", re.IGNORECASE)
# Characters that XML 1.0 forbids even escaped: control characters, surrogates, two non-characters (production [2]).
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _escape_xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_xml(text: str) -> str:
    """Escape text for XML content and for attributes in double quotes; what XML cannot hold becomes U+FFFD."""
    return _NOT_XML.sub("\ufffd", _escape_xml(text).replace('"', "&quot;").replace("\r", "&#13;"))


def _element(value: Any, name: str, key: str = "") -> str:
    """Return one element. A string is its text; other types are named in `type`: number, bool, null, list, object, and
    json for a string that XML cannot hold. A key that is not an XML name, or is the name of a tag that models know, is
    the `key` of an `entry` element.
    """
    if value is None:
        return f'<{name}{key} type="null"/>'
    if type(value) is dict:
        kind, content = "object", "".join(_element(item, *_tag(child)) for child, item in value.items())
    elif type(value) is list:
        kind, content = "list", "".join(_element(item, "item") for item in value)
    elif type(value) is not str:
        kind, content = "bool" if isinstance(value, bool) else "number", compact_json(value)
    elif _NOT_XML.search(value):
        kind, content = "json", _escape_xml(json.dumps(value))
    else:
        return f"<{name}{key}>{escape_xml(value)}</{name}>"
    return f'<{name}{key} type="{kind}">{content}</{name}>'


def _tag(key: str) -> tuple[str, str]:
    """The name of the element for a key, and its attribute."""
    if _XML_NAME.fullmatch(key) and key != "entry" and escape_markers(f"<{key}>") == f"<{key}>":
        return key, ""
    if _NOT_XML.search(key):
        return "entry", f' json="{escape_xml(json.dumps(key))}"'
    return "entry", f' key="{escape_attribute(key)}"'


# ------------------------------------------------------------------------------------------------ TOON


def _toon() -> Any:
    try:
        import toon_format
    except ImportError as failure:
        raise EncodingError('TOON needs its package: pip install "closeout[toon]". Or use columns.') from failure
    return toon_format


def write_toon(value: Any) -> str:
    """Return the value in TOON. Raises `EncodingError` if it is not installed, or cannot hold the value."""
    toon = _toon()
    try:
        return str(toon.encode(value))
    except (ValueError, TypeError, RecursionError) as failure:
        raise EncodingError(f"TOON cannot hold this value: {failure}. Use json.") from failure


def read_toon(text: str) -> Any:
    """Return the value of TOON text."""
    return _toon().decode(text)


# ------------------------------------------------------------------------------------------------ the seed's forms

_ESCAPES = str.maketrans({"\\": "\\\\", "|": "\\p", "\n": "\\n", "\r": "\\r"})


def write_compact(value: Any) -> str:
    """The compact form of a normal value, with its own summary and token count."""
    return compact_text(value, summarise(value), count_tokens(compact_json(value)), "")


def write_safe_yaml(value: Any) -> str:
    """The safe-YAML form of a normal value, with its own summary and token count."""
    return safe_yaml_text(value, summarise(value), count_tokens(compact_json(value)))


def write_tool_result(value: Any) -> str:
    """The XML form of a normal value, with its own summary and token count, for no named tool."""
    return tool_result_text("", value, summarise(value), count_tokens(compact_json(value)))


def compact_text(result: Any, summary: str, tokens: int, error_code: str) -> str:
    """Return `res:<base64 of JSON>|sum:…|tok:…|err:…`, with `|`, line ends and `\\` in the summary escaped."""
    data = base64.b64encode(compact_json(result).encode()).decode()
    return f"res:{data}|sum:{_escape(summary)}|tok:{tokens}|err:{_escape(error_code)}"


def _escape(text: str) -> str:
    return without_surrogates(text).translate(_ESCAPES)


def safe_yaml_text(result: Any, summary: str, tokens: int) -> str:
    """Return `result:` with `data`, `summary` and `tokens` as YAML. Raises `EncodingError` if YAML cannot hold it."""
    import yaml

    whole = {"result": {"data": result, "summary": without_surrogates(summary), "tokens": tokens}}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(whole, Dumper=dumper, allow_unicode=True, sort_keys=False, width=1 << 30)
    except (yaml.YAMLError, RecursionError, UnicodeError) as failure:
        raise EncodingError(f"YAML cannot hold this value: {failure}. Use json.") from failure
    return str(text).removesuffix("\n")


def tool_result_text(tool_name: str, result: Any, summary: str, tokens: int, latency_ms: float = 0.0) -> str:
    """Return `<tool_result name="…">` with summary, data and metadata, XML-escaped; nothing in it forges a marker."""
    latency = f' latency="{latency_ms:.2f}"' if latency_ms else ""
    return (
        f'<tool_result name="{escape_attribute(tool_name)}">\n'
        f"  <summary>{escape_markers(escape_xml(summary))}</summary>\n"
        f"  {escape_markers(_element(result, 'data'))}\n"
        f'  <metadata tokens="{tokens}"{latency}/>\n</tool_result>'
    )


def escape_attribute(text: str) -> str:
    """Escape text for an attribute in double quotes that may hold line breaks and tabs."""
    return escape_xml(text).replace("\n", "&#10;").replace("\t", "&#9;")
