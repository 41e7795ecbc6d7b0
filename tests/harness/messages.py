"""Sends messages to a run that is killed at every one of its writes and resumed; prints what was sent and received.

Run as a script: it forks a child for each kill point, so that the dead process is really dead. Prints one JSON object.

    python tests/harness/messages.py FOLDER STRIDE
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash import install

from closeout import Agent, tool
from closeout.errors import RunNotFound
from closeout.journal import events as ev
from closeout.journal.inbox import mailbox_of
from closeout.journal.store import Store, close_stores, open_store
from closeout.messages import ModelReply, ModelRequest
from closeout.run import request_deadline
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

WORDS = ("m1", "m2", "m3", "m4")
request_deadline.WATCH_SECONDS = 0.01


class Hesitant(ScriptedClient):
    """A model that thinks for ever until somebody interrupts it with the third message."""

    async def complete(self, request: ModelRequest, **options: Any) -> ModelReply:
        text = "\n".join(message.text for message in request.messages)
        if "[clerk] done" in text and "m3" not in text:
            await asyncio.sleep(60)
        return await super().complete(request, **options)


def next_turn(view: RequestView) -> Turn:
    for name in ("look", "clerk"):
        if f"[{name}] done" not in view.text:
            return Turn(calls=[call(name, task="go")])
    return answer(" ".join(word for word in WORDS if word in view.text))


def agent_for(folder: Path) -> Agent:
    @tool(read_only=True, inline=True)
    def look(task: str) -> str:
        """Look."""
        return "[look] done"

    def clerks_turn(view: RequestView) -> Turn:
        return answer("[clerk] done") if "[look] done" in view.text else Turn(calls=[call("look", task="x")])

    home = folder / "home"
    clerk = Agent(ScriptedClient(clerks_turn, name="clerk"), [look], home=home)
    return Agent(Hesitant(next_turn), [look, clerk.as_tool("clerk", "Does it.")], home=home)


def sent_to(store: Store) -> list[dict[str, Any]]:
    return [json.loads(body) for body in store.messages(store.number_of("crash"))]


def sender(folder: Path) -> Callable[[Any], None]:
    """A listener that plays the user. What was sent before a crash is not sent again."""
    store = open_store(folder / "home")

    def send(text: str, **options: Any) -> None:
        if all(each["text"] != text for each in sent_to(store)):
            mailbox_of(store, "crash").send(text, **options)

    def listen(event: Any) -> None:
        main = getattr(event, "agent", "") == "main"
        match event:
            case ev.TurnAccepted(turn=0) if main:
                send("m1")
                send("m2")
            case ev.AgentStarted():
                send("mc", to="clerk")
            case ev.ModelRequested(turn=2) if main:
                send("m3", interrupt=True)
            case ev.ModelReplied() if main and "m1 m2 m3" in event.text and "m4" not in event.text:
                send("m4")

    return listen


async def lead(folder: Path) -> dict[str, Any]:
    agent, listeners = agent_for(folder), [sender(folder)]
    try:
        open_store(folder / "home").run("crash")
        result = await agent.resume("crash", listeners=listeners)
    except RunNotFound:
        result = await agent.run("Go", run_id="crash", listeners=listeners)
    store = open_store(folder / "home")
    received = [row.event for row in store.rows("crash") if isinstance(row.event, ev.MessageReceived)]
    users = [message.text for message in result.messages if message.role == "user"]
    return {
        "answer": result.answer,
        "warnings": list(result.warnings),
        "sent": sorted(each["id"] for each in sent_to(store)),
        "received": sorted(event.id for event in received),
        "main": [text for text in users if text in WORDS],
    }


def forked(act: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        act()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def main(folder: Path, stride: int) -> None:
    def undisturbed() -> None:
        writes = install(0, flushed=False)
        found = asyncio.run(lead(folder / "whole"))
        (folder / "whole.json").write_text(json.dumps({**found, "writes": writes()}))

    asyncio.run(lead(folder / "imports"))  # what is imported here need not be imported in each child
    close_stores()
    assert forked(undisturbed) == 0
    whole = json.loads((folder / "whole.json").read_text())
    problems: list[str] = []
    for at in range(1, whole["writes"] + 1, stride):
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)

        def killed(at: int = at, place: Path = place) -> None:
            install(at, flushed=at % 2 == 0)
            asyncio.run(lead(place))

        def resumed(place: Path = place) -> None:
            (folder / "resumed.json").write_text(json.dumps(asyncio.run(lead(place))))

        status = forked(killed)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            problems.append(f"{at}: not killed, {status}")
        if forked(resumed) != 0:
            problems.append(f"{at}: not resumed")
            continue
        found = json.loads((folder / "resumed.json").read_text())
        if found["answer"] != whole["answer"] or found["main"] != whole["main"] or found["sent"] != found["received"]:
            problems.append(f"{at}: {found}")
    print(json.dumps({**whole, "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    close_stores()
