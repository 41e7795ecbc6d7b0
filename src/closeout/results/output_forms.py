"""Write a whole `ToolOutput` in one of three fixed forms, or with a prefix that depends on the tool alone."""

from __future__ import annotations

from closeout.results.escape import escape_markers
from closeout.results.normal import normalise
from closeout.results.text_encodings import compact_text, escape_attribute, escape_xml, safe_yaml_text, tool_result_text
from closeout.results.tool_output import ToolOutput

__all__ = ["CacheOptimizedOutput", "compact_form", "safe_yaml_form", "xml_form"]


def compact_form(output: ToolOutput) -> str:
    """`res:<base64 of JSON>|sum:…|tok:…|err:…`; `|`, line ends, `\\` in the summary are escaped, so it reads back."""
    telemetry = output.telemetry
    return compact_text(normalise(output.result), output.summary, telemetry.output_tokens, telemetry.error_code or "")


def safe_yaml_form(output: ToolOutput) -> str:
    """`result:` with `data`, `summary` and `tokens`, as YAML that any safe loader reads."""
    return safe_yaml_text(normalise(output.result), output.summary, output.telemetry.output_tokens)


def xml_form(output: ToolOutput) -> str:
    """`<tool_result name="…">` with summary, data and token count, XML-escaped. Latency is shown in DETAILED only."""
    telemetry = output.telemetry
    latency_ms = telemetry.latency_ms if output.response_format == "detailed" else 0.0
    result = normalise(output.result)
    return tool_result_text(telemetry.tool_name, result, output.summary, telemetry.output_tokens, latency_ms)


class CacheOptimizedOutput:
    """A text whose first bytes depend only on the tool, so that a provider's prompt cache can hold them."""

    @staticmethod
    def stable_prefix(tool_name: str) -> str:
        """The opening tag for a tool.

        >>> CacheOptimizedOutput.stable_prefix("search")
        '<tool_result name="search">'
        """
        return f'<tool_result name="{escape_attribute(tool_name)}">'

    @classmethod
    def format_with_stable_prefix(cls, output: ToolOutput) -> str:
        """The summary between the tool's own tags. No text in it can close them or pass for another marker."""
        prefix = cls.stable_prefix(output.telemetry.tool_name)
        return f"{prefix}\n  <summary>{escape_markers(escape_xml(output.summary))}</summary>\n</tool_result>"
