"""The extension of ToolExecutor that its design document shows: rules for `bing_search`."""

from __future__ import annotations

import json
from typing import Any

from closeout import ToolExecutor


class Bing(ToolExecutor):
    """Duplicates by query; no hits is a reason to ask again."""

    def get_query_str_from_tool_call(self, tool_name: str, arguments: dict[str, Any]) -> str | None:
        if tool_name == "bing_search":
            return tool_name + "_" + arguments.get("q", "")
        return super().get_query_str_from_tool_call(tool_name, arguments)

    def should_rollback_result(self, tool_name: str, result: Any, tool_result: dict[str, Any]) -> bool:
        if tool_name == "bing_search":
            data = tool_result.get("result") or {}
            if isinstance(data, str):
                try:
                    data = json.loads(data)
                except Exception:
                    data = {}
            if not data.get("webPages", {}).get("value"):
                return True
        return super().should_rollback_result(tool_name, result, tool_result)
