"""Near-misses of models put right: JSON text, tool names, argument names and types. Pure functions, every repair named.

What a tool is and how its calls are governed lives in `closeout.tools`.
"""

from closeout.repair.arguments import RepairedArguments, repair_arguments
from closeout.repair.json_text import RepairedJson, repair_json
from closeout.repair.names import ResolvedName, resolve_tool_name
from closeout.repair.schema import SchemaRules

__all__ = [
    "RepairedArguments",
    "RepairedJson",
    "ResolvedName",
    "SchemaRules",
    "repair_arguments",
    "repair_json",
    "resolve_tool_name",
]
