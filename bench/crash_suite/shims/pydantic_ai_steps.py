"""Pydantic AI with the harness's step persistence in SQLite; agents and tools as in pydantic_ai_bare.

https://github.com/pydantic/pydantic-ai-harness/tree/main/pydantic_ai_harness/step_persistence ("Failure recovery"):
after a crash, look at list_unresolved_tool_effects, then pass the history of continue_run to a new run. A completed
call is no proof that its result is in that history (recovery.py), so those that are not are named, too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kit
import pydantic_ai_bare as bare
from pydantic_ai import DeferredToolResults
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai_harness import StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run

NOT_OFFERED = bare.NOT_OFFERED
plain = bare.capabilities


def store() -> SqliteStepStore:
    return SqliteStepStore(database=f"{kit.folder()}/steps.sqlite")


def capabilities(name: str) -> list[Any]:
    return [*plain(name), StepPersistence(store=store(), agent_name=name)]


bare.capabilities = capabilities


async def drive(prompt: str | None, **more: Any) -> kit.Shown:
    kept = {"conversation_id": kit.run_id(), "event_stream_handler": bare.handler()}
    return bare.shown(await bare.agent().run(prompt, **kept, **more))


async def start() -> kit.Shown:
    return await drive(kit.task())


async def resume() -> kit.Shown:
    """Continue after the last snapshot, and tell the model which calls may have run."""
    if bare.kept("answer.json").exists():
        return bare.answered()
    decided = bare.kept("approved.json").exists()
    if bare.kept("waiting.json").exists() and not decided:
        return bare.waiting()
    history, prompt = None, kit.task()
    for run in await store().list_runs(conversation_id=kit.run_id()):
        with suppress(LookupError):  # no snapshot: killed before the first one
            history = await continue_run(store(), run_id=run.run_id, include_interrupted=True)
            prompt = "Continue."
    returned = {part.tool_call_id for each in history or () for part in each.parts if isinstance(part, ToolReturnPart)}
    doubtful = {one for run in await store().list_runs() for one in await effects(run.run_id) if one[1] not in returned}
    notes = [f"The tool {name} ({call}) may or may not have run." for name, call in sorted(doubtful)]
    if decided and not notes and history is not None and history[-1] == bare.history()[-1]:
        return await decide()  # nothing of it has run yet
    return await drive("\n".join([prompt, *notes]), message_history=history)


async def effects(run_id: str) -> list[tuple[str, str]]:
    """Return name and id of each call whose effect is unresolved, or was completed."""
    unresolved = await store().list_unresolved_tool_effects(run_id=run_id)
    completed = [each for each in await store().list_events(run_id=run_id) if each.kind == "tool_call_completed"]
    return [(each.tool_name, each.tool_call_id) for each in (*unresolved, *completed)]


async def decide() -> kit.Shown:
    bare.keep("approved.json", b"true")
    history = bare.history()
    approved = DeferredToolResults(approvals={call.tool_call_id: True for call in history[-1].tool_calls})
    return await drive(None, message_history=history, deferred_tool_results=approved)
