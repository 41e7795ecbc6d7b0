"""Google's Agent Development Kit with its sessions in SQLite, and resumable.

https://adk.dev/runtime/resume/: ResumabilityConfig, then run_async with the id of the invocation and no message;
tools "may run more than once", and "Do not modify a stopped agent workflow before resuming it". …/sessions/session/
(DatabaseSessionService), …/tools-custom/confirmation/ (its known limitations), …/workflows/collaboration/
(single_turn), …/agents/custom-agents/ (transfer_to_agent), …/context/compaction/, …/runtime/runconfig/ (streaming),
…/agents/models/litellm/.
"""

from __future__ import annotations

from typing import Any

import kit
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App, EventsCompactionConfig, ResumabilityConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.adk.tools.tool_context import ToolContext
from google.genai.types import Content, Part

NOT_OFFERED = {
    "timer": "no durable timer",
    "approval": "the documentation says that confirmations do not support DatabaseSessionService",
    "code": "the documentation says not to modify a stopped workflow before resuming it",
}
PLACE = {"app_name": "suite", "user_id": "user"}


def pay(invoice: str, tool_context: ToolContext) -> str:
    """Pay an invoice."""
    return kit.pay(invoice, tool_context.function_call_id or "")


def model() -> LiteLlm:
    return LiteLlm(model="openai/scripted", api_base=kit.model_url(), api_key="key")


def agent(name: str = "main", **more: Any) -> LlmAgent:
    scenario = kit.scenario()
    if name == "main" and scenario == "subagent":
        more["sub_agents"] = [agent("clerk", description="Pays invoices.", mode="single_turn")]
    if name == "main" and scenario == "handoff":
        more["sub_agents"] = [agent("clerk", description="Pays invoices.")]
    tools: list[Any] = [*kit.readers(name), *kit.payers(name, pay)]
    return LlmAgent(name=name, model=model(), instruction=kit.instructions(name), tools=tools, **more)


def runner(service: DatabaseSessionService) -> Runner:
    options: dict[str, Any] = {}
    if kit.scenario() == "overflow":
        summarizer = LlmEventSummarizer(llm=model())
        options["events_compaction_config"] = EventsCompactionConfig(
            token_threshold=1000, event_retention_size=2, summarizer=summarizer
        )
    app = App(name="suite", root_agent=agent(), resumability_config=ResumabilityConfig(is_resumable=True), **options)
    return Runner(app=app, session_service=service)


def text(event: Any) -> str:
    parts = event.content.parts if event.content and event.content.parts else []
    return "".join(part.text or "" for part in parts)


def answers(session: Any) -> list[str]:
    others = ("user", "clerk") if kit.scenario() == "subagent" else ("user",)
    return [
        text(each) for each in session.events if each.author not in others and each.is_final_response() and text(each)
    ]


async def drive() -> kit.Shown:
    """Begin the run, resume its invocation, or show its answer."""
    service = DatabaseSessionService(db_url=f"sqlite+aiosqlite:///{kit.folder()}/sessions.db")
    session = await service.get_session(**PLACE, session_id=kit.run_id())
    if session is None:
        session = await service.create_session(**PLACE, session_id=kit.run_id())
    if not answers(session):
        given: dict[str, Any] = {"new_message": Content(role="user", parts=[Part(text=kit.task())])}
        if session.events:
            given = {"invocation_id": session.events[-1].invocation_id}
        if kit.scenario() == "stream":
            given["run_config"] = RunConfig(streaming_mode=StreamingMode.SSE)
        async for event in runner(service).run_async(user_id="user", session_id=kit.run_id(), **given):
            if event.partial:
                kit.watch(text(event))
        session = await service.get_session(**PLACE, session_id=kit.run_id())
    history = kit.text_of([event.model_dump(mode="json") for event in session.events])
    return kit.Shown("answered" if answers(session) else "failed", "".join(answers(session)[-1:]), history)


start = resume = drive
