"""Leads one agent from its task to its answer: attempts, turns, rollbacks, closing. One loop for every agent.

Main agent and sub-agents, every dialect, streaming and not, live and replayed: this is the loop. What a reply says is
the dialect's business, how a call is governed the executor's, what counts as an answer the contract's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from closeout.context.eviction import EvictionPolicy
from closeout.context.history import History
from closeout.dialects.protocol import get_dialect
from closeout.errors import ContextOverflow, ModelError
from closeout.journal.events import (
    AnswerSeen,
    AttemptEnded,
    AttemptStarted,
    Evicted,
    Noted,
    Repaired,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.messages import Message, ModelReply, ModelRequest, Reading, Repair
from closeout.orchestrator.closing import Closed, Closing
from closeout.orchestrator.loops import LoopWatch
from closeout.orchestrator.model_door import JournaledClient
from closeout.orchestrator.plan import AgentPlan
from closeout.orchestrator.review import RollBack, review_outcomes, review_reply
from closeout.orchestrator.rollback import RollbackPolicy
from closeout.orchestrator.scope import Scope
from closeout.orchestrator.streaming import ReplyListener
from closeout.orchestrator.tool_door import ToolDoor
from closeout.tools.executor import CallOutcome, ToolExecutor

__all__ = ["Ending", "Orchestrator"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an attempt stopped acting; `text` is the reply that is to be its answer, if it is one."""

    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an agent ended. `answer` None: there is none, `error` says why if something failed."""

    answer: str | None
    stop_reason: str
    value: Any = None
    summary: str = ""
    experience: str | None = None
    error: str = ""
    candidates: tuple[tuple[str, float], ...] = ()


class Orchestrator:
    """Leads the agent of a plan through one task, in a scope of a run's journal."""
