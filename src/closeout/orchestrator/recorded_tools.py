"""Tools of servers as a run's record has them, so that a replay knows them without starting a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from closeout.errors import ToolError
from closeout.messages import ToolPolicy, ToolSpec
from closeout.tools.manager import ToolManager

__all__ = ["RecordedTools", "dump_specs", "load_specs"]


class RecordedTools(ToolManager):
    """An agent's own tools, and beside them those that its servers offered then. Nothing of it can be called."""

    def __init__(self, own: ToolManager, recorded: Sequence[ToolSpec]) -> None:
        super().__init__()
        names = {spec.name for spec in recorded}
        kept = [spec for spec in own.specs() if spec.name not in names]
        self._all = tuple(sorted((*kept, *recorded), key=lambda spec: spec.name))

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._all

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        raise ToolError(f"{spec.name} is not called in a replay: the record has no result of this call.")


def dump_specs(tools: Sequence[ToolSpec]) -> str:
    """The tools of servers as JSON text; empty where there are none. Local tools are in the agent itself."""
    foreign = [asdict(tool) for tool in tools if tool.server_name is not None]
    return json.dumps(foreign, ensure_ascii=False, default=str) if foreign else ""


def load_specs(text: str) -> list[ToolSpec]:
    """The tools that `dump_specs` wrote."""
    return [_spec(record) for record in json.loads(text)] if text else []


def _spec(record: Mapping[str, Any]) -> ToolSpec:
    given = record["policy"]
    policy: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    policy["aliases"] = {name: tuple(others) for name, others in policy["aliases"].items()}
    return ToolSpec(**{**record, "policy": ToolPolicy(**policy)})
