"""Files that clients of a served agent send: in the parts of their APIs, as files of the run."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from closeout import Agent, RunContext, tool
from closeout.journal.store import open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from serving import serving
from test_run_files_served import PICTURE
from test_serve_crash import client_of


@tool
def show_sizes(context: RunContext) -> dict[str, int]:
    """Tell the files that there are, and their sizes."""
    return {name: file.size for name, file in context.files.items()}


def reader(view: RequestView) -> Turn:
    result = view.messages[-1]["content"] if view.messages[-1]["role"] == "tool" else ""
    return answer(str(result)) if result else Turn(calls=[call("show_sizes")])


SALES = "month,sales\n五月,310\n"
CONTENT = base64.b64encode(SALES.encode()).decode()
URI = f"data:text/csv;base64,{CONTENT}"
PNG = base64.b64encode(bytes.fromhex(PICTURE)).decode()


async def test_clients_send_files_in_the_parts_that_their_apis_have(home: Path) -> None:
    model = ScriptedClient(reader)
    async with serving(Agent(model, [show_sizes], home=home)) as served, client_of(served.base_url) as client:

        async def post(path: str, body: Any) -> Any:
            async with served.http.post(f"{served.url}{path}", json=body) as response:
                return await response.json()

        ask = {"type": "text", "text": "Which files?"}
        chat = [{"type": "file", "file": {"filename": "销售.csv", "file_data": URI}}, ask]
        chat += [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]
        message: Any = {"role": "user", "content": chat}
        found = await client.chat.completions.create(model="agent", messages=[message])
        sizes = {"销售.csv": len(SALES.encode()), "file.png": len(PICTURE) // 2}
        assert json.loads(found.choices[0].message.content or "") == sizes
        assert "五月,310" in str(model.requests[0].messages[-1]["content"])
        document = {"type": "document", "title": "a.csv", "source": {"type": "base64", "data": CONTENT}}
        body = {"model": "agent", "max_tokens": 99, "messages": [{"role": "user", "content": [document, ask]}]}
        assert "a.csv" in (await post("/v1/messages", body))["content"][0]["text"]
        started = await post("/v1/runs", {"task": "Which files?", "files": [{"name": "../b.csv", "data": CONTENT}]})
        await served.host.wait(started["run_id"])
        assert "_b.csv" in open_store(home).run(started["run_id"]).answer

        part = {"type": "input_file", "filename": "c.csv", "file_data": URI}
        asked: Any = [{"role": "user", "content": [part, {"type": "input_text", "text": "Which files?"}]}]
        first = await client.responses.create(model="agent", input=asked)
        second = await client.responses.create(model="agent", input="And now?", previous_response_id=first.id)
        assert "c.csv" in first.output_text
        assert "c.csv" in second.output_text
        for wrong, said in (
            ({"file_id": "file-1"}, "without content. Send it as Base64"),
            ({"file_data": "?"}, "is not Base64"),
            ({"filename": "x.txt", "file_data": base64.b64encode(b" ").decode()}, "x.txt"),
        ):
            body = {"model": "agent", "input": [{"role": "user", "content": [{"type": "input_file", **wrong}, ask]}]}
            error = (await post("/v1/responses", body))["error"]["message"]
            assert said in error
            assert "closeout-files" not in error


async def test_a_flood_of_files_is_refused_before_they_are_named(home: Path) -> None:
    async with serving(Agent(ScriptedClient([]), home=home)) as served:
        body = {"task": "Which files?", "files": [{"name": "a.txt", "data": "eA=="}] * 20_000}
        async with served.http.post(f"{served.url}/v1/runs", json=body) as response:
            assert (response.status, "may have 50 files" in await response.text()) == (400, True)
