"""Pydantic AI with the harness's step persistence in SQLite; agents and tools as in pydantic_ai_bare.

https://github.com/pydantic/pydantic-ai-harness/tree/main/pydantic_ai_harness/step_persistence ("Failure recovery"):
after a crash, look at list_unresolved_tool_effects, then pass the history of continue_run to a new run.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kit
import pydantic_ai_bare as bare
from pydantic_ai_bare import decide
from pydantic_ai_harness import StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run

__all__ = ["decide"]
NOT_OFFERED = bare.NOT_OFFERED
plain = bare.capabilities


def store() -> SqliteStepStore:
    return SqliteStepStore(database=f"{kit.folder()}/steps.sqlite")


def capabilities(name: str) -> list[Any]:
    return [*plain(name), StepPersistence(store=store(), agent_name=name)]


bare.capabilities = capabilities


async def start() -> kit.Shown:
    kept = {"conversation_id": kit.run_id(), "event_stream_handler": bare.handler()}
    return bare.shown(await bare.agent().run(kit.task(), **kept))


async def resume() -> kit.Shown:
    if bare.kept("answer.json").exists() or bare.kept("waiting.json").exists():
        return await bare.resume()
    runs = await store().list_runs(conversation_id=kit.run_id())
    unresolved = [one for run in await store().list_runs() for one in await effects(run)]
    notes = [f"The tool {one.tool_name} ({one.tool_call_id}) may or may not have run." for one in unresolved]
    history, prompt = None, kit.task()
    for run in runs:
        with suppress(LookupError):  # no snapshot: killed before the first one
            history = await continue_run(store(), run_id=run.run_id, include_interrupted=True)
            prompt = "Continue."
    kept = {"conversation_id": kit.run_id(), "event_stream_handler": bare.handler()}
    return bare.shown(await bare.agent().run("\n".join([prompt, *notes]), message_history=history, **kept))


async def effects(run: Any) -> list[Any]:
    return list(await store().list_unresolved_tool_effects(run_id=run.run_id))
