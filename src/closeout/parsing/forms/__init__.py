"""Tool calls written as text: every family's form behind one reader.

The dialects' own streaming readers are in `closeout.parsing.react` and `closeout.parsing.use_mcp_tool`.
"""

from closeout.parsing.forms.channels import split_channels
from closeout.parsing.forms.form import Block, Form, Found, ToolCallsRead
from closeout.parsing.forms.json_values import Source
from closeout.parsing.forms.offered import OfferedNames
from closeout.parsing.forms.reader import FormDetector, read_tool_calls
from closeout.parsing.forms.registry import check_forms, families, forms_of

__all__ = [
    "Block",
    "Form",
    "FormDetector",
    "Found",
    "OfferedNames",
    "Source",
    "ToolCallsRead",
    "check_forms",
    "families",
    "forms_of",
    "read_tool_calls",
    "split_channels",
]
