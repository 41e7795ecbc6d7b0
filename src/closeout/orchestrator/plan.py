"""What an agent is, settled before it runs: model, dialect, tools, contract, limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from closeout.answers.contracts import AnswerContract
from closeout.config import AgentSettings, LLMSettings
from closeout.llm.base import BaseClient
from closeout.messages import ToolSpec
from closeout.orchestrator.limits import Limits
from closeout.tools.manager import ToolManager

__all__ = ["AgentPlan", "differences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """One agent, ready to be led by an Orchestrator. `dialect` is a name that is settled, never "auto"."""

    name: str
    client: BaseClient
    dialect: str
    manager: ToolManager
    contract: AnswerContract
    limits: Limits
    instructions: str = ""
    description: str = ""
    settings: AgentSettings = field(default_factory=AgentSettings)
    llm: LLMSettings = field(default_factory=LLMSettings)
    prompts: Mapping[str, str] = field(default_factory=dict)
    may_switch_dialect: bool = False
    remember_dialect: Callable[[str], None] | None = None  # told of a switch, for the next run at the same endpoint
    stream: bool = False
    # The last one, and what it was made of: the same objects in every run.
    _fingerprints: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list, repr=False)

    @property
    def agent(self) -> AgentSettings:
        """The settings under the name that the AnswerGenerator reads them by."""
        return self.settings

    def offered_tools(self) -> tuple[ToolSpec, ...]:
        """What the model is told of, sorted by name. The manager must be open."""
        return tuple(self.manager.specs())

    def full_instructions(self) -> str:
        """The agent's instructions and, last, how the answer is to be written."""
        return "\n\n".join(part for part in (self.instructions.strip(), self.contract.instruction()) if part)

    def fingerprint(self, tools: tuple[ToolSpec, ...]) -> dict[str, Any]:
        """What must be the same for a record of this agent to be continued by it; short, readable, JSON-able."""
        made_of = (tools, self.client, self.dialect, self.instructions, self.contract, self.prompts)
        if self._fingerprints:
            known, fingerprint = self._fingerprints[-1]
            if all(map(is_, known, made_of)):
                return fingerprint
        fingerprint = {
            "model": self.client.name,
            "dialect": self.dialect,
            "instructions": _digest(self.instructions),
            "answer": _digest(self.contract.instruction()),
            "tools": {tool.name: _digest([tool.description, tool.parameters]) for tool in tools},
            "prompts": _digest(self.prompts),
        }
        self._fingerprints[:] = [(made_of, fingerprint)]
        return fingerprint


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, each as a short sentence."""
    found = []
    for key in sorted({*recorded, *now} - {"tools"}):
        was, is_ = recorded.get(key), now.get(key)
        if was != is_:
            shown = f": {was} then, {is_} now" if key in ("model", "dialect") else " differ"
            found.append(f"{key}{shown}")
    then, today = recorded.get("tools") or {}, now.get("tools") or {}
    found += [f"tool {name}: gone" for name in sorted(set(then) - set(today))]
    found += [f"tool {name}: new" for name in sorted(set(today) - set(then))]
    found += [f"tool {name}: changed" for name in sorted(set(then) & set(today)) if then[name] != today[name]]
    return found


_ENCODER = json.JSONEncoder(sort_keys=True, default=str)


def _digest(value: Any) -> str:
    return hashlib.sha256(_ENCODER.encode(value).encode("utf-8", "backslashreplace")).hexdigest()[:16]
