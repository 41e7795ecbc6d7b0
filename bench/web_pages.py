"""Conversations in examples/webapp under a real browser: what the page shows must equal the record.

    cd examples/webapp && npm install && npm run build
    python bench/web_pages.py --conversations 200

Each conversation sends up to three messages to the scripted model. Meanwhile the user stops the answer, loads the page
again, opens a second tab, or the server is killed and started again. At the end, every tab is compared with what
the journal says, read without the code that serves pages.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from playwright.sync_api import TimeoutError  # noqa: A004, E402

from closeout.journal import events as ev  # noqa: E402
from closeout.journal.store import Store  # noqa: E402
from viewer_pages import open_chromium  # noqa: E402

WEBAPP = ROOT / "examples" / "webapp"
MESSAGES = (
    "Where is order 4711?",
    "Where is it?",
    "Refund order 4711, the glass was broken.",
    "Draw the sales.",
    "Tell me.",
)
# What a page shows of each message: texts, calls with their state, questions and how it ended.
SHOWN = """() => [...document.querySelectorAll(".message")].flatMap((message) =>
  [...message.querySelectorAll(".text, .card .head, .card summary, .card.ask .body > p:only-of-type, .note")]
    .filter((each) => !(each.matches(".card.ask p") && each.closest("[aria-label=Approval]")))
    .map((each) => [message.classList[1], each.innerText.replace(/\\s+/g, " ").trim()]))"""
ENDS = {"cancelled": "Stopped.", "interrupted": "Interrupted."}


class Server:
    """The example, as a process of its own."""

    def __init__(self, home: Path, *, speed: int = 200) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.env = {**os.environ, "CLOSEOUT_HOME": str(home), "DEMO_SPEED": str(speed)}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(self.port), "--log-level", "critical"]
        self.process = subprocess.Popen(command, cwd=WEBAPP, env=self.env)
        while self.process.poll() is None:
            with suppress(OSError):  # it does not listen yet
                urllib.request.urlopen(f"{self.url}agent/healthz", timeout=60).close()
                return
            time.sleep(0.05)
        raise SystemExit(f"The example exited with {self.process.returncode} before it answered.")

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(30)


def in_record(store: Store, chat: str) -> list[list[str]]:
    """What a page should show of a chat, from the events of its runs."""
    found: list[list[str]] = []
    runs = sorted(store.runs_under(chat), key=lambda run: int(run.run_id.rpartition(".")[2]))
    for run in runs:
        asked: dict[str, str] = {}
        calls: dict[str, list[str]] = {}
        ended: ev.RunEnded | None = None
        texts: list[str] = []
        for row in store.rows_from(run.run_id, 0):
            match row.event:
                case ev.RunStarted(task=task):
                    found.append(["user", task])
                case ev.ModelReplied(tool_calls=made, text=text) if made and text:
                    found.append(["assistant", text])
                    texts.append(text)
                case ev.DecisionRequested(kind="approval") as asking:
                    calls[asking.request] = ["assistant", f"{asking.name} needs your approval"]
                    found.append(calls[asking.request])
                case ev.DecisionRequested(kind="question") as asking:
                    asked[asking.request] = json.loads(asking.arguments)["question"]
                    found.append(["assistant", asked[asking.request]])
                case ev.DecisionMade(verdict="answer") as made:
                    found.append(["user", made.text])
                case ev.DecisionMade(verdict="deny") as made:
                    calls[made.request][1] = calls[made.request][1].split()[0] + " declined"
                case ev.ToolStarted(name=name, handle=handle) if name != "ask_user":
                    if handle not in calls:
                        calls[handle] = ["assistant", ""]
                        found.append(calls[handle])
                    calls[handle][1] = f"{name} running"
                case ev.ToolFinished(name=name, handle=handle, ok=ok) if name != "ask_user":
                    calls[handle][1] = f"{name} {'done' if ok else 'failed'}"
                case ev.RunResumed():
                    ended = None
                case ev.RunEnded() as end:
                    ended = end
                case ev.ReplyStreamed(offset=offset, text=text):
                    texts = [*([] if offset == 0 else texts), text]
        for each in calls.values() if ended is not None and ended.status != "waiting" else ():
            if each[1].endswith(("running", "needs your approval")):
                each[1] = f"{each[1].split()[0]} failed"
        if ended is not None and ended.status in ev.REPLIED:
            found.append(["assistant", ended.closing_text or ended.answer or ""])
        elif ended is not None and ended.status in ENDS:
            found.append(["assistant", ENDS[ended.status]])
    return [[who, " ".join(text.split())] for who, text in found]


class Conversation:
    """One chat, in one tab or two, and what happens to it."""

    def __init__(self, context: Any, server: Server, dice: random.Random, seen: Counter[str]) -> None:
        self.server, self.dice, self.seen = server, dice, seen
        self.chat = f"chat-{dice.getrandbits(48):x}"
        self.tabs = [self._tab(context)]
        if dice.random() < 0.3:
            seen["second tabs"] += 1
            self.tabs.append(self._tab(context))

    def _tab(self, context: Any) -> Any:
        page = context.new_page()
        page.goto(f"{self.server.url}?chat={self.chat}")
        page.wait_for_selector(".log")
        return page

    def status(self, page: Any) -> str:
        return str(page.get_attribute(".log", "data-status"))

    def wait(self, page: Any, *, until: tuple[str, ...] = ("ready",)) -> None:
        page.wait_for_function(
            "states => states.includes(document.querySelector('.log')?.dataset.status)", arg=[*until], timeout=60_000
        )

    def run(self) -> None:
        for _ in range(self.dice.randint(1, 3)):
            page = self.dice.choice(self.tabs)
            self._write(page, self.dice.choice(MESSAGES))
            page.keyboard.press("Enter")
            self.seen["messages"] += 1
            self._disturb(page)
            self.wait(page)
            self._decide(page)

    def _write(self, page: Any, message: str) -> None:
        for _ in range(30):
            self.wait(page)
            self._decide(page)
            with suppress(TimeoutError):  # the other tab's run asks something, of which this one has just heard
                page.get_by_label("Message").fill(message, timeout=2_000)
                return
        shown = page.locator(".log").inner_text()
        raise SystemExit(f"{self.chat} takes no message; it is {self.status(page)} and shows\n{shown}")

    def _decide(self, page: Any) -> None:
        for _ in range(3):
            approval = page.get_by_role("button", name=self.dice.choice(["Approve", "Decline"]))
            option = page.locator(".message:last-child .ask .row button", has_text="471")
            kind, button = ("approvals", approval) if approval.count() else ("questions", option)
            if not button.count():
                return
            with suppress(TimeoutError):  # it was decided in the other tab just now
                button.first.click(timeout=2_000)
                self.seen[kind] += 1
            page.wait_for_timeout(50)
            self.wait(page)

    def _disturb(self, page: Any) -> None:
        page.wait_for_timeout(self.dice.randint(0, 700))
        match self.dice.random():
            case x if x < 0.2:
                stop = page.get_by_role("button", name="Stop")
                with suppress(TimeoutError):  # the answer was faster
                    stop.click(timeout=500)
                    self.seen["stops"] += 1
            case x if x < 0.45:
                self.seen["reloads"] += 1
                page.reload()
                page.wait_for_selector(".log")
            case x if x < 0.55:
                self.seen["kills"] += 1
                self.server.stop(signal.SIGKILL)
                self.server.start()
                page.wait_for_timeout(300)

    def differences(self, store: Store) -> list[str]:
        """Compare every tab, once it has been looked at, with the record, and then the page that is loaded again."""
        found = []
        for number, page in enumerate(self.tabs):
            shown, status, record = list[list[str]](), "", list[list[str]]()
            for _ in range(300):  # news for the other tab are under way
                shown, status, record = page.evaluate(SHOWN), self.status(page), in_record(store, self.chat)
                if (shown, status) == (record, "ready"):
                    break
                page.wait_for_timeout(100)
            else:
                found.append(f"tab {number} of {self.chat} is {status}\n  shows  {shown}\n  record {record}")
        page = self.tabs[0]
        page.reload()
        page.wait_for_selector(".log")
        self.wait(page)
        if page.evaluate(SHOWN) != in_record(store, self.chat):
            found.append(
                f"{self.chat} loaded again\n  shows  {page.evaluate(SHOWN)}\n  record {in_record(store, self.chat)}"
            )
        for page in self.tabs:
            page.close()
        return found


def over_ag_ui(context: Any, server: Server) -> None:
    """Go through a file, an approval and a question with AG-UI's own client."""
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{server.url}ag-ui.html")
    page.wait_for_selector("#log[data-status=ready]")

    def send(text: str, expected: str) -> None:
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")
        page.get_by_text(expected).first.wait_for()
        page.wait_for_selector("#log[data-status=ready]")

    page.locator("#file").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"Order 4711."})
    send("Draw the sales.", "June was the best month")
    assert page.locator("a.file").count() == 2
    send("Refund order 4711.", "destructive")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Done. 42.50 EUR").wait_for()
    send("Where is it?", "Which order do you mean?")
    send("4711", "The order is known")
    shown = page.locator("#log .message").all_inner_texts()
    page.reload()
    page.wait_for_selector("#log[data-status=ready]")
    assert page.locator("#log .message").all_inner_texts() == shown, shown
    assert not problems, problems
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seen, wrong = Counter[str](), list[str]()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open_chromium() as browser:
        server = Server(Path(folder))
        store = Store(Path(folder))
        context = browser.new_context(viewport={"width": 1000, "height": 800})
        context.set_default_timeout(60_000)
        try:
            over_ag_ui(context, server)
            for number in range(1, options.conversations + 1):
                conversation = Conversation(context, server, random.Random(f"{options.seed}.{number}"), seen)
                conversation.run()
                if found := conversation.differences(store):
                    wrong.append(f"{number}: " + "\n".join(found))
                    print(wrong[-1], flush=True)
                if number % 20 == 0:
                    print(f"{number} conversations, {len(wrong)} differ, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            server.stop()
    print(f"{options.conversations - len(wrong)} of {options.conversations} equal the record; {dict(seen)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
