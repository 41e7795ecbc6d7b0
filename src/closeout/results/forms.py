"""The forms that a value can be written in: one writer and one reader each, no choice among them.

`encoding` chooses. Values are normal (see `normal`); readers raise ValueError for text that is not in their form.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from closeout.results.budgets import More
from closeout.results.escape import escape_markers
from closeout.results.normal import (
    MAX_DEPTH,
    SURROGATE,
    EncodingError,
    compact_json,
    map_texts,
    normalise,
    without_surrogates,
)
from closeout.results.summary import summarise
from closeout.results.tokens import count_tokens

if TYPE_CHECKING:
    from closeout.results.tool_output import ToolOutput

__all__ = [
    "COMPACT_FORMAT",
    "XML_FORMAT",
    "CacheOptimizedOutput",
    "CompactForm",
    "compact_form",
    "from_columns",
    "read_compact",
    "read_csv",
    "read_json",
    "read_markdown",
    "read_raw_block",
    "read_toon",
    "read_xml",
    "read_yaml",
    "safe_yaml_form",
    "to_columns",
    "worth_lifting",
    "write_compact",
    "write_csv",
    "write_markdown",
    "write_raw_block",
    "write_safe_yaml",
    "write_tool_result",
    "write_toon",
    "write_xml",
    "write_yaml",
    "xml_form",
]


def read_json(text: str) -> Any:
    """Return the value of JSON text; NaN and the infinities are not JSON."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# ------------------------------------------------------------------------------------------------ columnar JSON

COLS, ROWS, MORE = "#cols", "#rows", "#more"
_OURS = re.compile(r"#+(?:cols|rows|more)")
_FRAME = len('{"#cols":[],"#rows":[]}')


def table_columns(rows: list[Any]) -> list[str] | None:
    """The column names of a list of objects, if the keys of each row are the first of them; else None.

    Columns that all rows have come first, in the order of the rows' keys.
    """
    if not rows or type(rows[0]) is not dict or not rows[0]:
        return None
    first = rows[0].keys()
    counts: dict[str, int] = {}
    uniform = True
    for row in rows:
        if type(row) is not dict or not row:
            return None
        uniform = uniform and row.keys() == first
        if not uniform and not counts:
            counts = dict.fromkeys(first, 0)
    if uniform:
        return list(first)
    return _nested_columns(rows, counts)


def _nested_columns(rows: list[dict[str, Any]], counts: dict[str, int]) -> list[str] | None:
    for row in rows:
        for key in row:
            counts[key] = counts.get(key, 0) + 1
    columns = sorted(counts, key=lambda key: -counts[key])
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

    Args:
        columnar: What `to_columns` returned.
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
# What XML 1.0 cannot hold even escaped: control characters, surrogates, two non-characters (its production [2]).
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _escape_xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_xml(text: str) -> str:
    """Escape text for XML content and for attributes in double quotes; what XML cannot hold becomes U+FFFD."""
    return _NOT_XML.sub("\ufffd", _escape_xml(text).replace('"', "&quot;").replace("\r", "&#13;"))


def write_xml(value: Any, name: str = "result") -> str:
    """Return one element. A string is its text; other types are named in `type`: number, bool, null, list, object, and
    json for a string that XML cannot hold. A key that is not an XML name is the `key` of an `entry` element.
    """
    parts: list[str] = []
    _element(name, "", value, parts)
    return "".join(parts)


def _element(name: str, key: str, value: Any, parts: list[str]) -> None:
    opening = f"<{name}{key}"
    if type(value) is str:
        if _NOT_XML.search(value):
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
    if _XML_NAME.fullmatch(key) and key != "entry":
        return key, ""
    if _NOT_XML.search(key):
        return "entry", f' json="{escape_xml(json.dumps(key))}"'
    text = escape_xml(key).replace("\n", "&#10;").replace("\t", "&#9;")
    return "entry", f' key="{text}"'


def read_xml(text: str, child: str | None = None) -> Any:
    """Return the value that `write_xml` wrote, or that of the root's first `child`."""
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
    return _xml_value(found)


def _xml_value(element: Any) -> Any:
    kind = element.get("type")
    if kind == "object":
        return {_xml_key(child): _xml_value(child) for child in element}
    if kind == "list":
        return [_xml_value(child) for child in element]
    text = element.text or ""
    if kind is None:
        return text
    return None if kind == "null" else json.loads(text)


def _xml_key(element: Any) -> str:
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
    """Return CSV (RFC 4180) with "\\n" between lines. Lossy: cells are text, nested values compact JSON."""
    header, rows = _table(value)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return out.getvalue().removesuffix("\n")


def read_csv(text: str) -> list[dict[str, str]]:
    """Return rows of text cells by column name."""
    try:
        header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    except csv.Error as failure:  # a cell of more than 128 KB
        raise ValueError(str(failure)) from failure
    return [dict(zip(header, row, strict=False)) for row in rows]


def write_markdown(value: Any) -> str:
    """Return a pipe table. Lossy: cells are text; `|` and the backslash are escaped, a line break is `<br>`."""
    header, rows = _table(value)
    lines = [_markdown_line(header), "|" + "---|" * len(header)]
    lines.extend(_markdown_line(row) for row in rows)
    return "\n".join(lines)


def _markdown_line(row: list[Any]) -> str:
    cells = (_cell(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in row)
    return "|" + "|".join("<br>".join(cell.splitlines()) for cell in cells) + "|"


def read_markdown(text: str) -> list[dict[str, str]]:
    """Return rows of text cells by column name."""
    lines = text.split("\n")
    header = _cells(lines[0])
    return [dict(zip(header, _cells(line), strict=False)) for line in lines[2:]]


def _cells(line: str) -> list[str]:
    """The cells of a line, in one pass: a search for each pipe would be quadratic in a line without any."""
    pieces = re.split(r"(\\.|\|)", line.removeprefix("|"))
    cells, cell = [], ""
    for piece in pieces:
        if piece == "|":
            cells.append(cell.replace("<br>", "\n"))
            cell = ""
        else:
            cell += piece
    return [re.sub(r"\\(.)", r"\1", cell) for cell in cells]


# ------------------------------------------------------------------------------------------------ TOON, YAML


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


def write_yaml(value: Any) -> str:
    """Return the value in YAML. Raises `EncodingError` if YAML cannot hold it."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(value, Dumper=dumper, allow_unicode=True, sort_keys=False, width=1 << 30)
    except (yaml.YAMLError, RecursionError, UnicodeError) as failure:
        raise EncodingError(f"YAML cannot hold this value: {failure}. Use json.") from failure
    return str(text).removesuffix("...\n").removesuffix("\n")


def read_yaml(text: str) -> Any:
    """Return the value of YAML text nested at most MAX_DEPTH levels, without aliases."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):  # the loader itself overflows the C stack on deep nesting
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH + 2:  # the safe_yaml form wraps its value twice
                    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                raise ValueError("it has an alias, which this form never has")
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as failure:
        raise ValueError(str(failure)) from failure


# ------------------------------------------------------------------------------------------------ the seed's forms

COMPACT_FORMAT = "res:{result}|sum:{summary}|tok:{tokens}|err:{error_code}"
XML_FORMAT = (
    '<tool_result name="{tool_name}">\n  <summary>{summary}</summary>\n  {result}\n'
    '  <metadata tokens="{tokens}"{latency}/>\n</tool_result>'
)

_ESCAPES = {"\\": "\\\\", "|": "\\p", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {written: sign for sign, written in _ESCAPES.items()}


class CompactForm(NamedTuple):
    """What a compact form says. `error_code` is "" for a call that succeeded."""

    result: Any
    summary: str
    tokens: int
    error_code: str


def compact_form(output: ToolOutput) -> str:
    """`res:<base64 of JSON>|sum:…|tok:…|err:…`; `|`, line ends, `\\` in the summary are escaped, so it reads back."""
    telemetry = output.telemetry
    return _compact(normalise(output.result), output.summary, telemetry.output_tokens, telemetry.error_code or "")


def safe_yaml_form(output: ToolOutput) -> str:
    """`result:` with `data`, `summary` and `tokens`, as YAML that any safe loader reads."""
    return _safe_yaml(normalise(output.result), output.summary, output.telemetry.output_tokens)


def xml_form(output: ToolOutput) -> str:
    """`<tool_result name="…">` with summary, data and token count, XML-escaped. Latency is shown in DETAILED only."""
    telemetry = output.telemetry
    latency = f' latency="{telemetry.latency_ms:.2f}"' if output.response_format == "detailed" else ""
    result = normalise(output.result)
    return _xml(telemetry.tool_name, result, output.summary, telemetry.output_tokens, latency)


class CacheOptimizedOutput:
    """A text whose first bytes depend on nothing but the tool, so that a provider's prompt cache can hold them."""

    @staticmethod
    def stable_prefix(tool_name: str) -> str:
        """The opening tag for a tool.

        >>> CacheOptimizedOutput.stable_prefix("search")
        '<tool_result name="search">'
        """
        return f'<tool_result name="{_attribute(tool_name)}">'

    @staticmethod
    def format_with_stable_prefix(output: ToolOutput) -> str:
        """The summary between the tool's own tags. No text in it can close them or pass for another marker."""
        prefix = CacheOptimizedOutput.stable_prefix(output.telemetry.tool_name)
        return f"{prefix}\n  <summary>{escape_markers(escape_xml(output.summary))}</summary>\n</tool_result>"


def write_compact(value: Any) -> str:
    """The compact form of a normal value, with its own summary and token count."""
    return _compact(value, summarise(value), count_tokens(compact_json(value)), "")


def read_compact(text: str) -> CompactForm:
    """What `compact_form` wrote. Raises ValueError for other text."""
    parts = dict(part.partition(":")[::2] for part in text.split("|"))
    if list(parts) != ["res", "sum", "tok", "err"]:
        raise ValueError("The text is not res:…|sum:…|tok:…|err:….")
    result = json.loads(base64.b64decode(parts["res"], validate=True))
    return CompactForm(result, _unescape(parts["sum"]), int(parts["tok"]), _unescape(parts["err"]))


def write_safe_yaml(value: Any) -> str:
    """The safe-YAML form of a normal value, with its own summary and token count."""
    return _safe_yaml(value, summarise(value), count_tokens(compact_json(value)))


def write_tool_result(value: Any) -> str:
    """The XML form of a normal value, with its own summary and token count, for no named tool."""
    return _xml("", value, summarise(value), count_tokens(compact_json(value)), "")


def _compact(result: Any, summary: str, tokens: int, error_code: str) -> str:
    return COMPACT_FORMAT.format(
        result=base64.b64encode(compact_json(result).encode()).decode(),
        summary=_escape(summary),
        tokens=tokens,
        error_code=_escape(error_code),
    )


def _escape(text: str) -> str:
    return re.sub(r"[\\|\n\r]", lambda found: _ESCAPES[found[0]], without_surrogates(text))


def _unescape(text: str) -> str:
    return re.sub(r"\\[\\pnr]", lambda found: _UNESCAPES[found[0]], text)


def _safe_yaml(result: Any, summary: str, tokens: int) -> str:
    return write_yaml({"result": {"data": result, "summary": without_surrogates(summary), "tokens": tokens}})


def _xml(tool_name: str, result: Any, summary: str, tokens: int, latency: str) -> str:
    return XML_FORMAT.format(
        tool_name=_attribute(tool_name),
        summary=escape_xml(summary),
        result=write_xml(result, "data"),
        tokens=tokens,
        latency=latency,
    )


def _attribute(text: str) -> str:
    return escape_xml(text).replace("\n", "&#10;").replace("\t", "&#9;")
