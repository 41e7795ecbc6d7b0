"""The design's own three forms of a whole output (compact, safe YAML, XML) and the stable-prefix form, all escaped.

The default for a model is `present`; these are for those who want exactly these texts.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from closeout.outputs.escape import escape_markers
from closeout.outputs.markup import escape_xml, read_xml, write_xml
from closeout.outputs.normal import SURROGATE, compact_json, normalise
from closeout.outputs.summary import summarise
from closeout.outputs.tokens import count_tokens

if TYPE_CHECKING:
    from closeout.outputs.models import ToolOutput

__all__ = [
    "COMPACT_FORMAT",
    "XML_FORMAT",
    "CacheOptimizedOutput",
    "CompactForm",
    "compact_form",
    "read_compact",
    "safe_yaml_form",
    "xml_form",
]

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


# ------------------------------------------------------------------------------------------------ of outputs


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


# ------------------------------------------------------------------------------------------------ of values


def write_compact_value(value: Any) -> str:
    """The compact form of a normal value, with its own summary and token count."""
    return _compact(value, summarise(value), count_tokens(compact_json(value)), "")


def read_compact(text: str) -> CompactForm:
    """What `compact_form` wrote. Raises ValueError for other text."""
    parts = dict(part.partition(":")[::2] for part in text.split("|"))
    if list(parts) != ["res", "sum", "tok", "err"]:
        raise ValueError("The text is not res:…|sum:…|tok:…|err:….")
    result = json.loads(base64.b64decode(parts["res"], validate=True))
    return CompactForm(result, _unescape(parts["sum"]), int(parts["tok"]), _unescape(parts["err"]))


def write_safe_yaml_value(value: Any) -> str:
    """The safe-YAML form of a normal value, with its own summary and token count."""
    return _safe_yaml(value, summarise(value), count_tokens(compact_json(value)))


def write_tool_result_value(value: Any) -> str:
    """The XML form of a normal value, with its own summary and token count, for no named tool."""
    return _xml("", value, summarise(value), count_tokens(compact_json(value)), "")


def read_tool_result_value(text: str) -> Any:
    """The data of an XML form. Raises ValueError for other text."""
    return read_xml(text, "data")


def _compact(result: Any, summary: str, tokens: int, error_code: str) -> str:
    return COMPACT_FORMAT.format(
        result=base64.b64encode(compact_json(result).encode()).decode(),
        summary=_escape(summary),
        tokens=tokens,
        error_code=_escape(error_code),
    )


def _escape(text: str) -> str:
    return re.sub(r"[\\|\n\r]", lambda found: _ESCAPES[found[0]], SURROGATE.sub("\ufffd", text))


def _unescape(text: str) -> str:
    return re.sub(r"\\[\\pnr]", lambda found: _UNESCAPES[found[0]], text)


def _safe_yaml(result: Any, summary: str, tokens: int) -> str:
    from closeout.outputs.encoding import encode_normal

    whole = {"result": {"data": result, "summary": SURROGATE.sub("\ufffd", summary), "tokens": tokens}}
    return str(encode_normal(whole, "yaml", None))


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
