"""Repair near-misses of models: tool names, argument names and types. Pure functions; every repair has a name.

What a tool is, and how its calls are governed, is in `closeout.tools`.
"""

from closeout.repair.argument_repair import RepairedArguments, repair_arguments
from closeout.repair.names import ResolvedName, resolve_tool_name
from closeout.repair.schema_rules import SchemaRules

__all__ = [
    "RepairedArguments",
    "ResolvedName",
    "SchemaRules",
    "repair_arguments",
    "resolve_tool_name",
]
