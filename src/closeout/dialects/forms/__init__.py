"""Tool calls written as text: every family's form behind one reader. The streaming ReAct dialect is elsewhere."""

from closeout.dialects.forms.detector import FormDetector
from closeout.dialects.forms.reader import read_tool_calls
from closeout.dialects.forms.records import Block, Form, Found, ToolCallsRead
from closeout.dialects.forms.table import families, forms_of
from closeout.dialects.forms.toolbox import Toolbox

__all__ = [
    "Block",
    "Form",
    "FormDetector",
    "Found",
    "ToolCallsRead",
    "Toolbox",
    "families",
    "forms_of",
    "read_tool_calls",
]
