"""The research recipe: a question is split, readers work at the same time, and every quote of the report opens."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from cli_process import here
from closeout import Report, tool
from closeout.messages import Capabilities, ModelReply, ModelRequest
from closeout.recipes import report_html, report_markdown, research
from closeout.testing import RequestView, ScriptedClient, Turn, call, say, serve_script

CANAL = "# Canal\n\nThe <b>canal</b> was opened on 30 May 1832. It has 47 locks and is 1.5 m deep."
BRIDGE = "# Bridge\n\nThe bridge fell in 1907."


def documents(folder: Path) -> Path:
    folder.mkdir()
    (folder / "canal.md").write_text(CANAL, "utf-8")
    (folder / "bridge.md").write_text(BRIDGE, "utf-8")
    return folder


def notes(*found: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [{"text": text, "quotes": [{"text": quote, "handle": handle}]} for text, quote, handle in found]


OPENED = ("It opened in 1832.", "opened on 30 May 1832", "r1")
FELL = ("It fell in 1907.", "The bridge fell in 1907", "r1")


def script(view: RequestView) -> Turn:
    if "Split this question" in view.text:
        return say('["When did the canal open?", "When did the bridge fall?"]')
    if "notes of your readers" in view.text:
        return say(json.dumps({"title": "Two *dates*", "claims": notes(OPENED, FELL)}))
    return say(json.dumps({"claims": notes(OPENED if "canal open" in view.question else FELL)}))


async def test_a_report_is_written_from_the_notes_of_readers(tmp_path: Path) -> None:
    model = ScriptedClient(script)
    result = await research("Canal and bridge?", model, docs=documents(tmp_path / "docs"), home=tmp_path / "home")
    assert isinstance(result.value, Report)
    handles = [citation.source.handle for citation in result.citations if citation.source]
    assert handles == ["r1:reader/r1", "r2:reader/r1"]
    text = report_markdown(result)
    assert text.startswith("# Two \\*dates\\*\n\nIt opened in 1832. [1]\n\nIt fell in 1907. [2]\n\n## Sources\n\n1. ")
    page = report_html(result)
    assert re.search(r'<p>It opened in 1832\.<sup><a href="#s1">\[1\]</a></sup></p>', page)
    assert "was <mark>opened on 30 May 1832</mark>. It has" in page
    assert "<b>" not in page


async def test_a_weak_model_picks_sentences_and_the_report_is_made_of_them(tmp_path: Path) -> None:
    def pick(view: RequestView) -> Turn:
        if "Split this question" in view.text:
            return say("I cannot split that.")
        sentence = next(each for each in (CANAL, BRIDGE) if "1832" in each).split("\n\n")[1].split(". ")[0] + "."
        return say(json.dumps([{"quote": sentence.replace("<b>", "").replace("</b>", ""), "text": "In 1832."}]))

    model = ScriptedClient(pick, capabilities=Capabilities(weak=True, json_schema=True))
    result = await research("When did the canal open?", model, docs=documents(tmp_path / "docs"), home=False)
    assert result.value is not None
    assert [claim.text for claim in result.value.claims] == ["In 1832."]
    assert all(citation.source for citation in result.citations)
    constraint = model.requests[-1].constraint
    assert constraint is not None
    assert isinstance(constraint.value, dict)
    picked = constraint.value["items"]["properties"]["quote"]["enum"]
    assert any("30 May 1832" in each for each in picked)
    assert any(each.endswith("locks and is 1.5 m deep.") for each in picked), "a sentence does not end within a number"


async def test_it_takes_tools_and_limits(tmp_path: Path) -> None:
    @tool(read_only=True)
    def look(name: str) -> str:
        """Look a thing up."""
        return "The bridge fell in 1907."

    def read(view: RequestView) -> Turn:
        if "Split this question" in view.text:
            return say('["When did the bridge fall?"]')
        if "notes of your readers" in view.text:
            return say(json.dumps({"title": "Bridge", "claims": notes(FELL)}))
        return say(json.dumps({"claims": notes(FELL)})) if "fell in 1907" in view.text else call("look", name="bridge")

    result = await research("The bridge?", ScriptedClient(read), tools=[look], home=False)
    assert [citation.source.tool for citation in result.citations if citation.source] == ["look"]
    options: Any = {"config": {"agent": {"max_tokens": 10}}}
    stopped = await research("The bridge?", ScriptedClient(read), tools=[look], home=False, **options)
    assert (stopped.stop_reason, report_markdown(stopped), report_html(stopped)) == ("max_tokens", "", "")


async def test_readers_work_at_the_same_time(tmp_path: Path) -> None:
    class Together(ScriptedClient):
        """A model that answers a reader only when the other one asks, too."""

        met = asyncio.Barrier(2)

        async def complete(self, request: ModelRequest, **how: Any) -> ModelReply:
            asked = "\n".join(message.text for message in request.messages)
            if "Split this question" not in asked and "notes of your readers" not in asked:
                async with asyncio.timeout(300):
                    await self.met.wait()
            return await super().complete(request, **how)

    model = Together(script)
    result = await research("Canal and bridge?", model, docs=documents(tmp_path / "docs"), home=False)
    assert len(result.citations) == 2


def test_research_without_anything_to_read_is_refused_at_once() -> None:
    refused = here("research", "Canal and bridge?", "-m", "openai:m", "--base-url", "http://127.0.0.1:1/v1")
    assert (refused.code, refused.out) == (2, "")
    assert "Pass --docs FOLDER, --web or --mcp SERVER." in refused.err


def test_the_command_prints_the_report_and_writes_the_page(tmp_path: Path) -> None:
    folder, page = documents(tmp_path / "docs"), tmp_path / "report.html"
    with serve_script(script, by="question") as server:
        options = ("--docs", str(folder), "-m", "openai:m", "--base-url", server.base_url, "--html", str(page))
        shown = here("research", "Canal and bridge?", *options)
    assert shown.code == 0, shown.err
    assert "It opened in 1832. [1]" in shown.out
    assert "<mark>opened on 30 May 1832</mark>" in page.read_text("utf-8")
    run_id = re.findall(r"closeout runs (\S+)", shown.err)[-1]
    assert here("runs", "cite", run_id).code == 0
    again = here("resume", run_id)
    assert "It opened in 1832. [1]" in again.out
