"""A served agent behind LangChain's client, which builds on the `openai` package."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import Agent
from closeout.testing import ScriptedClient
from serving import serving
from test_serve_openai import lookup, turns

langchain_openai: Any = pytest.importorskip("langchain_openai")  # it has no wheels for the newest Python


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
async def test_langchain_gets_the_answer_and_no_calls_to_run(responses: bool) -> None:
    async with serving(Agent(ScriptedClient(turns), [lookup], name="helper")) as served:
        model = langchain_openai.ChatOpenAI(
            model="helper", base_url=served.base_url, api_key="a key", use_responses_api=responses
        )
        whole = await model.ainvoke("What is k1?")
        assert whole.text == "42"
        assert whole.tool_calls == []  # the agent has made its calls itself
        assert "".join([chunk.text async for chunk in model.astream("What is k2?")]) == "42"
        await model.root_async_client.close()
        model.root_client.close()
