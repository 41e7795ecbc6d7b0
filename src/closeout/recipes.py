"""Agents to be used as they are, or copied: `research` plans, sends readers that work at the same time, and reports.

Every quote of the report is looked up in what the readers have read.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from closeout.agent import Agent
from closeout.answers.citations import Claim, Report
from closeout.answers.report_page import report_html, report_markdown
from closeout.answers.structured import Json
from closeout.messages import Constraint, Message, ModelRequest, Reading, ToolCall
from closeout.run.result import RunResult
from closeout.run.strategy import AskOnce, CallFirst, ModelTurn

__all__ = ["Findings", "majority", "report_html", "report_markdown", "research", "research_agent"]

MOST_SENTENCES = 60  # from which a weak model picks
LEAD = "Write a report from the notes of your readers. Copy their quotes unchanged. Send readers for what is missing."
READ = "Find what answers the question. Note it as claims, each with the words of a result that support it."
PLAN = """Split this question into at most {most} questions that can be looked up one by one, each understandable by
itself. Write them as a JSON list of texts and nothing else.

Question: {task}"""
PICK = """{text}

Question: {task}

Pick the one or two sentences that answer the question. Say what each means."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")


class Findings(BaseModel):
    """What a reader has found."""

    claims: list[Claim] = Field(min_length=1)


@dataclass(frozen=True)
class _Lead:
    """Have the question split, send a reader for each part, and have the report written from their notes."""

    readers: int
    name = "research"
    version = "1"

    async def ask(self, turn: ModelTurn) -> Reading:
        if not turn.view.steps:
            asked = PLAN.format(most=self.readers, task=turn.task)
            reply = await turn.send(_request(turn, asked, _texts(self.readers)), purpose="plan")
            parts = Json(list[str]).read(reply.text).value or [turn.task]
            return Reading(calls=tuple(ToolCall("reader", {"task": part}) for part in parts[: self.readers]))
        notes = [Json(Findings).read(each.text).value for each in turn.view.steps[0].returns if each.ok]
        claims = [claim for note in notes if note is not None for claim in note.claims]
        if claims and turn.capabilities.weak:  # such a model writes no report of several parts
            return Reading(answer=Report(title=turn.task, claims=claims).model_dump_json())
        return turn.read(await turn.send())


@dataclass(frozen=True)
class _ResearchReader:
    """Search for the question first. A weak model then picks sentences, which cannot be misquoted."""

    first: str
    name = "reader"
    version = "1"

    async def ask(self, turn: ModelTurn) -> Reading:
        if not turn.view.steps or not turn.capabilities.weak:
            return await (CallFirst(self.first) if self.first else AskOnce()).ask(turn)
        text = "\n".join(each.text for step in turn.view.steps for each in step.returns if each.ok)
        sentences = list(dict.fromkeys(filter(None, map(str.strip, _SENTENCE_END.split(text)))))[:MOST_SENTENCES]
        parts = {"quote": {"enum": sentences}, "text": {"type": "string", "maxLength": 200}}
        note = {"type": "object", "properties": parts, "required": [*parts], "additionalProperties": False}
        picked = {"type": "array", "items": note, "minItems": 1, "maxItems": 2}
        asked = f"{PICK.format(text=text, task=turn.task)}\n\n{turn.view.note}".rstrip()
        reply = await turn.send(_request(turn, asked, picked), purpose="notes")
        found = Json(list[dict[str, str]]).read(reply.text).value or []
        claims = [{"text": each.get("text", ""), "quotes": [{"text": each.get("quote", "")}]} for each in found]
        return Reading(answer=json.dumps({"claims": claims}, ensure_ascii=False))


def _request(turn: ModelTurn, text: str, schema: dict[str, Any]) -> ModelRequest:
    constraint = Constraint("json_schema", schema) if turn.capabilities.json_schema else None
    return ModelRequest(messages=[Message(role="user", content=text)], constraint=constraint, max_tokens=600)


def _texts(most: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string", "maxLength": 120}, "minItems": 1, "maxItems": most}


def research_agent(
    model: Any = None,
    tools: Any = (),
    mcp_servers: Any = (),
    dialect: Any = None,
    instructions: str | None = None,
    *,
    first: str = "",
    readers: int = 3,
    **options: Any,
) -> Agent[Any, Report]:
    """Return the agent of `research`.

    Args:
        model: As for `Agent`.
        tools: What the readers read with.
        mcp_servers: Servers of such tools.
        dialect: As for `Agent`.
        instructions: What the readers are told beside their task.
        first: The tool that a reader calls first, with its question.
        readers: The number of readers that work at the same time.
        options: Other arguments of both agents.
    """
    told = "\n\n".join(filter(None, (READ, instructions)))
    below = {**options, "answer": Findings, "strategy": _ResearchReader(first)}
    reader = Agent(model, tools, mcp_servers, dialect, told, **below)
    tool = reader.as_tool("reader", "Looks one narrow question up and returns notes with quotes.")
    above = {**options, "answer": Report, "strategy": _Lead(readers)}
    return Agent(model, [tool], dialect=dialect, instructions=LEAD, **above)


async def research(
    question: str,
    model: Any = None,
    *,
    docs: str | Path | None = None,
    web: bool = False,
    tools: Any = (),
    first: str = "",
    readers: int = 3,
    **options: Any,
) -> RunResult[Report]:
    """Research a question, and return the run with its report. `report_markdown` and `report_html` write it as a page.

    Args:
        question: The question.
        model: As for `Agent`.
        docs: A folder of documents to search.
        web: Search and read the web; needs a search provider.
        tools: Other tools to read with.
        first: The tool that a reader calls first, with its question. Defaults to the search of `docs` or of the web.
        readers: The number of readers that work at the same time.
        options: Other arguments of `Agent`, such as `max_cost=0.50` or `listeners=[print]`.
    """
    from closeout.tools.builtin import document_tools, web_tools

    agent = Agent(model, **options)
    plain = agent.plan().client.capabilities.weak
    found = (*tools, *(document_tools(docs, plain=plain) if docs else ()), *(web_tools() if web else ()))
    first = first or ("search_documents" if docs else "web_search" if web else "")
    return await research_agent(agent.plan().client, found, first=first, readers=readers, **options).run(question)


async def majority(agent: Agent[Any, Any], task: str, *, runs: int = 3, **options: Any) -> RunResult[Any]:
    """Run a task several times at once, and return a run whose answer most of them have.

    If no two agree, the agent is asked once more, with what each run has answered and why.

    Args:
        agent: The agent.
        task: The task.
        runs: How many runs.
        options: Other arguments of `Agent.run`.
    """
    results = await asyncio.gather(*(agent.run(task, **options) for _ in range(runs)))
    answered = [each for each in results if each.answer is not None]
    votes = Counter(each.answer for each in answered)
    if not answered or len(answered) == 1 or votes.most_common(1)[0][1] > 1:
        return max(answered or results, key=lambda each: votes[each.answer])
    reports = "\n\n".join(f"{number}. {each.closing_text or each.answer}" for number, each in enumerate(answered, 1))
    return await agent.run(f"{task}\n\nSeveral attempts have answered differently. Decide:\n\n{reports}", **options)
