"""The citations of a served agent's answer, as the official clients of OpenAI and Anthropic see them."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from closeout import Agent, tool
from closeout.testing import ScriptedClient, call, say
from serving import serving

ANSWER = 'It opened in 1832 [r1: "opened in 1832"], with locks [r2: "47 locks"]. Later [r2: "in no result"].'
ASKED: Any = [{"role": "user", "content": "When?"}]


@tool(read_only=True)
def fetch(url: str) -> str:
    """Fetch a page."""
    return "The canal opened in 1832."


@tool(read_only=True)
def lookup(name: str) -> str:
    """Look up a document."""
    return "It has 47 locks."


def agent() -> Agent[Any]:
    script = [call("fetch", url="https://example.org/canal"), call("lookup", name="canal"), say(ANSWER)]
    return Agent(ScriptedClient(script * 4, by="question"), [fetch, lookup], name="helper")


def expected(run_id: str) -> list[tuple[str, str, str]]:
    return [
        ("opened in 1832", "https://example.org/canal", 'r1: fetch {"url":"https://example.org/canal"}'),
        ("47 locks", f"/viewer/#/run/{run_id}/sources?c=2", 'r2: lookup {"name":"canal"}'),
    ]


async def test_openai_clients_get_annotations_whole_and_streamed() -> None:
    async with (
        serving(agent()) as served,
        openai.DefaultAsyncHttpxClient(verify=False) as http,
        openai.AsyncOpenAI(base_url=served.base_url, api_key="k", max_retries=0, http_client=http) as client,
    ):

        def found(annotations: Any, run_id: str) -> None:
            shown = [(ANSWER[each.start_index : each.end_index], each.url, each.title) for each in annotations]
            assert shown == expected(run_id)

        chat = await client.chat.completions.create(model="helper", messages=ASKED)
        annotations = chat.choices[0].message.annotations or []
        assert {each.type for each in annotations} == {"url_citation"}
        found([each.url_citation for each in annotations], chat.id.removeprefix("chatcmpl-"))

        pieces, run_id = [], ""
        async for chunk in await client.chat.completions.create(model="helper", messages=ASKED, stream=True):
            run_id = chunk.id.removeprefix("chatcmpl-")
            pieces += (chunk.choices[0].delta.model_extra or {}).get("annotations", ())
        assert [(each["url_citation"]["url"], each["url_citation"]["title"]) for each in pieces] == [
            each[1:] for each in expected(run_id)
        ]

        response = await client.responses.create(model="helper", input="When?")
        run_id = response.id.removeprefix("resp_")
        found(response.output[-1].content[0].annotations, run_id)  # type: ignore[union-attr]
        events = [event async for event in await client.responses.create(model="helper", input="When?", stream=True)]
        added = [event for event in events if event.type == "response.output_text.annotation.added"]
        assert [each.annotation_index for each in added] == [0, 1]
        whole: Any = next(event.response for event in events if event.type == "response.completed")
        assert [each.annotation.model_dump() for each in added] == [
            each.model_dump() for each in whole.output[-1].content[0].annotations
        ]


async def test_anthropic_clients_get_citations_whole_and_streamed() -> None:
    async with (
        serving(agent()) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
    ):
        message = await client.messages.create(model="helper", max_tokens=9, messages=ASKED)
        async with client.messages.stream(model="helper", max_tokens=9, messages=ASKED) as stream:
            streamed = await stream.get_final_message()
    for each in (message, streamed):
        (block,) = each.content
        assert {citation.type for citation in block.citations} == {"search_result_location"}
    assert [(c.cited_text, c.source, c.title) for c in message.content[0].citations] == expected(
        message.id.removeprefix("msg_")
    )
    assert [c.cited_text for c in streamed.content[0].citations] == ["opened in 1832", "47 locks"]
