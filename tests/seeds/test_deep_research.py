"""What a deep-research user of MiroFlow brings besides settings: the prompt of its models, and the web as it was."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from closeout import Agent
from closeout.testing import ScriptedClient, answer, call, say
from closeout.tools.builtin.web import PageReader

PORTED = Path(__file__).parents[2] / "examples" / "ported"


async def test_the_prompt_of_models_that_were_trained_in_miroflow_is_a_settings_file() -> None:
    theirs = (
        "I delegate.\n\n<use_mcp_tool>\n<server_name>agent-browsing</server_name>\n<tool_name>search_and_browse"
        '</tool_name>\n<arguments>\n{"subtask": "Find it."}\n</arguments>\n</use_mcp_tool>'
    )
    model = ScriptedClient([say(theirs), say(r"It is \boxed{7}."), answer("7")])
    date: dict[str, Any] = {"agent": {"instructions": "Today is 2026-11-29."}}
    result = await Agent(model, config=[PORTED / "mirothinker.yaml", date], home=False).run("?")
    assert (result.answer, result.rollbacks, result.warnings) == ("7", 0, ())
    prompt = model.requests[0].messages[0].text
    parts = (
        "Today is 2026-11-29.",
        "<use_mcp_tool>",
        "### Tool name: search_and_browse",
        '"subtask"',
        "# General Objec",
    )
    assert sorted(parts, key=prompt.index) == list(parts)


async def served(request: web.Request) -> web.Response:
    if request.path == "/w/api.php":
        asked = (request.query["titles"], request.query["rvstart"], request.query["rvend"], request.query["rvlimit"])
        if asked[0] != "Panama Canal":
            return web.json_response({"query": {"pages": [{"title": asked[0], "missing": True}]}})
        assert asked[1:] == ("2016-12-01T00:00:00Z", "2017-01-01T00:00:00Z", "5")
        revision = {"revid": 7, "timestamp": "2016-12-03T10:00:00Z", "comment": "new locks"}
        return web.json_response({"query": {"pages": [{"title": asked[0], "revisions": [revision]}]}})
    if request.path.startswith("/web/20160526/"):
        raise web.HTTPFound("/web/20160601120000/http://canal.example/")
    return web.Response(text="<title>Canal</title><p>The new locks open in June.</p>", content_type="text/html")


@pytest.fixture
async def tools() -> Any:
    application = web.Application()
    application.router.add_get("/{path:.*}", served)
    async with TestServer(application) as server:
        here = str(server.make_url("/")).rstrip("/")
        module = runpy.run_path(str(PORTED / "web_history.py"))
        found = [module["search_wiki_revision"], module["search_archived_webpage"]]
        reader = PageReader(allow_private=True)
        found[0].function.__globals__.update(WIKIPEDIA=here, ARCHIVE=here, READER=reader)
        yield found


async def test_revisions_of_an_article_and_archived_pages_are_tools(tools: list[Any]) -> None:
    model = ScriptedClient(
        [
            call("search_wiki_revision", entity="Panama Canal", year=2016, month=12, max_revisions=5),
            call("search_wiki_revision", entity="Panama Kanal", year=2016, month=12),
            call("search_archived_webpage", url="http://canal.example/", year=2016, month=5, day=26),
            call("search_archived_webpage", url="http://canal.example/", year=2016, month=5, day=32),
            answer("June"),
        ]
    )
    result = await Agent(model, tools, home=False).run("When do the locks open?")
    assert result.answer == "June"
    listed, missing, page, wrong = (output for output in result.tool_outputs)
    assert listed.result[0]["comment"] == "new locks"
    assert listed.result[0]["url"].endswith("/w/index.php?oldid=7")
    assert "has no article 'Panama Kanal'" in missing.telemetry.error_message
    assert page.result["url"].endswith("/web/20160601120000/http://canal.example/")
    assert "The new locks open in June." in page.result["text"]
    assert "2016-5-32 is not a date" in wrong.telemetry.error_message
