"""One case: the ledger of payments, the scripted model, and the moment at which the process is cut off."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START = 100  # what is in the account
AMOUNT = 10  # of each invoice
TIMER = 1.5  # seconds
LIMIT = 6000  # characters that the model can read in the scenario "overflow"
DOCUMENTS = 4
PAGE = "The committee met and adjourned. " * 60

TASKS = {
    "pay": ("Pay the invoice N08.", ("N08",)),
    "three": ("Pay the invoices N08, N09 and N10.", ("N08", "N09", "N10")),
    "read": ("Pay the invoice N08, then read the balance of the account 'main'.", ("N08",)),
    "approval": ("Pay the invoice N08 if I approve it.", ("N08",)),
    "timer": ("Wait until the invoice N08 is due, then pay it.", ("N08",)),
    "subagent": ("Let the clerk pay the invoice N08.", ("N08",)),
    "handoff": ("Hand over to the clerk, who pays the invoice N08.", ("N08",)),
    "stream": ("Pay the invoice N08. I am watching.", ("N08",)),
    "two": ("Pay the invoices N08 and N09.", ("N08", "N09")),
    "rollback": ("Pay the invoice N08, then read the balance of the account 'main'.", ("N08",)),
    "code": ("Pay the invoices N08 and N09, one after the other.", ("N08", "N09")),
    "overflow": (f"Pay the invoice N08, then read the documents 1 to {DOCUMENTS}.", ("N08",)),
}
RECEIPT = re.compile(r"(N\d\d)(?: was paid)?: receipt (R\d+)")


@dataclass(frozen=True)
class Cut:
    """When the first process is cut off, and how.

    Args:
        at: request, pay, read (a call without an effect), or write (something made durable).
        number: which one, from 1
        when: before, during or after it; "during" a payment is after its effect, and during a request amid the reply.
        how: kill, stop (SIGSTOP, continued when another process has resumed the run), full (no space from then on), or
            power (killed, and what was not synced is lost).
    """

    at: str
    number: int
    when: str = "after"
    how: str = "kill"

    def __str__(self) -> str:
        return f"{self.how} {self.when} {self.at} {self.number}"


class CutOff(Exception):
    """The process that asked is gone: no reply."""


@dataclass
class World:
    """What is outside of the process: the bank, the model, and the hand that kills.

    Args:
        scenario: which of `TASKS`
        cut: the moment, or None for an undisturbed run
    """

    scenario: str
    cut: Cut | None = None
    ledger: list[dict[str, Any]] = field(default_factory=list)
    seen: list[tuple[float, int, float]] = field(default_factory=list)  # when was asked, by which process, its CPU time
    counts: dict[str, int] = field(default_factory=dict)
    pid: int = 0  # of the process that a cut concerns
    cut_off: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    due: float = 0.0
    malformed: bool = False

    @property
    def invoices(self) -> tuple[str, ...]:
        return TASKS[self.scenario][1]

    def reach(self, at: str, when: str, number: int, pid: int) -> None:
        """Cut off the process that asks, if it is the time. Raises `CutOff` if it was killed."""
        cut = self.cut
        if cut is None or self.cut_off.is_set() or (cut.at, cut.number, cut.when) != (at, number, when):
            return
        self.cut_off.set()
        try:
            os.kill(pid, signal.SIGSTOP if cut.how == "stop" else signal.SIGKILL)
        except ProcessLookupError:  # it has ended before
            self.cut_off.clear()
            raise CutOff from None
        if cut.how != "stop":
            raise CutOff

    def count(self, at: str, pid: int) -> int:
        with self.lock:
            self.counts[at] = number = self.counts.get(at, 0) + 1
            self.seen.append((time.monotonic(), pid, cpu_seconds(pid)))
            return number

    # -------------------------------------------------------------------------------------------- the bank

    def use(self, tool: str, arguments: Mapping[str, Any], pid: int) -> Iterator[str]:
        """Execute a call of a tool: yield its result, then continue after it was sent."""
        at = "pay" if tool == "pay" else "read"
        number = self.count(at, pid)
        self.reach(at, "before", number, pid)
        text = getattr(self, f"_{tool}")(**arguments)
        self.reach(at, "during", number, pid)
        yield text
        self._afterwards(at, number, pid)

    def _afterwards(self, at: str, number: int, pid: int) -> None:
        if self.cut is not None and (self.cut.at, self.cut.number, self.cut.when) == (at, number, "after"):
            time.sleep(0.02)  # enough to read the reply and to begin with what follows
            self.reach(at, "after", number, pid)

    def _pay(self, invoice: str, key: str = "") -> str:
        with self.lock:
            receipt = f"R{len(self.ledger) + 1}"
            self.ledger.append({"invoice": invoice, "receipt": receipt, "key": key, "time": time.monotonic()})
        return f"{invoice}: receipt {receipt}"

    def _was_paid(self, invoice: str) -> str:
        found = [entry["receipt"] for entry in self.ledger if entry["invoice"] == invoice]
        return ", ".join(f"{invoice} was paid: receipt {each}" for each in found) or f"{invoice} was not paid."

    def balance(self) -> int:
        return START - AMOUNT * len(self.ledger)

    def _balance(self, account: str) -> str:
        return f"The balance of {account} is {self.balance()}."

    def _read_document(self, number: int) -> str:
        return f"Document {number}: {PAGE}"

    # -------------------------------------------------------------------------------------------- the model

    def ask(self, body: Mapping[str, Any], pid: int) -> Iterator[tuple[int, bytes]]:
        """Answer a request to the model: yield status and bytes in two halves, then continue after they were sent."""
        number = self.count("request", pid)
        self.reach("request", "before", number, pid)
        problem = wrong_history(body["messages"]) or self._too_long(body["messages"])
        if problem:
            yield 400, json.dumps({"error": problem}).encode()
            return
        message = self._reply(body)
        if any(tool["function"]["name"] == "final_answer" for tool in body.get("tools") or ()) and "content" in message:
            message = {"calls": [("final_answer", {"answer": message["content"]})]}  # some runtimes end with a call
        write = streamed if body.get("stream") else whole
        data = write(message, tokens=sum(len(text_of(each)) for each in body["messages"]) // 4)
        yield 200, data[: len(data) // 2]
        self.reach("request", "during", number, pid)
        yield 200, data[len(data) // 2 :]
        self._afterwards("request", number, pid)

    def _too_long(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        if self.scenario != "overflow" or sum(len(text_of(message)) for message in messages) <= LIMIT:
            return None
        text = "This model's maximum context length is 1500 tokens. Please reduce the length of the messages."
        return {
            "message": text,
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }

    def _reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a careful model says: it pays what has no receipt yet, and looks first if a call has failed."""
        messages = body["messages"]
        offered = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
        text = "\n".join(map(text_of, messages))
        receipts = dict(RECEIPT.findall(text))
        if not offered or (messages[-1]["role"] == "user" and "no tools" in text_of(messages[-1])):
            return {"content": self._facts(text)}  # asked for a summary
        if "pay" not in offered and has_handed_over(messages):  # some runtimes ask once more before they hand over
            return {"content": "The clerk takes over."}
        missing = [invoice for invoice in self.invoices if invoice not in receipts]
        if self.scenario == "code":
            missing = missing[:1]  # one after the other
        if missing and self.scenario == "timer" and "is due now" not in text and "wait_until_due" in offered:
            self.due = self.due or time.monotonic() + TIMER
            return {"calls": [("wait_until_due", {"invoice": "N08"})]}
        calls = [call for invoice in missing if (call := self._next_call(invoice, messages, offered))]
        if calls:
            return {"calls": calls}
        if missing:
            return {"content": "I cannot pay."}
        if "balance" in offered and "The balance of main is" not in text:
            self.malformed, wrong = True, self.scenario == "rollback" and not self.malformed
            return {"calls": [("balance", {"konto": "main"} if wrong else {"account": "main"})]}
        read = read_so_far(text)
        if "read_document" in offered and read < DOCUMENTS:
            return {"calls": [("read_document", {"number": read + 1})]}
        return {"content": self._facts(text)}

    def _next_call(
        self, invoice: str, messages: Sequence[Mapping[str, Any]], offered: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        last, result = last_call(invoice, messages)
        paying = "pay" if "pay" in offered else next((name for name in offered if is_delegation(name)), "")
        unsure = not last and any("may or may not" in text_of(message) for message in messages)
        if "was_paid" in offered and (unsure or (last and (last != "was_paid" or "was not paid" not in result))):
            return "was_paid", {"invoice": invoice}
        if not paying:
            return None
        return paying, {"invoice": invoice} if paying == "pay" else filled(
            offered[paying], f"Pay the invoice {invoice}."
        )

    def _facts(self, text: str) -> str:
        facts = [f"{invoice}: receipt {receipt}." for invoice, receipt in dict.fromkeys(RECEIPT.findall(text))]
        balances = re.findall(r"The balance of main is \d+\.", text)
        if self.scenario == "overflow":
            facts.append(f"Documents read so far: {read_so_far(text)}.")
        return " ".join(facts + balances[-1:]) or "Nothing was done yet."


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_delegation(name: str) -> bool:
    return is_handoff(name) or any(word in name.lower() for word in ("clerk", "delegate"))


def is_handoff(name: str) -> bool:
    return any(word in name.lower() for word in ("transfer", "handoff", "hand_off"))


def read_so_far(text: str) -> int:
    return max(map(int, re.findall(r"(?:Document|Documents read so far:) (\d)[:.]", text)), default=0)


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)


def last_call(invoice: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the name and the result of the last call that concerns an invoice."""
    results = {m["tool_call_id"]: text_of(m) for m in messages if m["role"] == "tool"}
    last = "", ""
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            delegated = is_delegation(function["name"]) and not is_handoff(function["name"])
            if (function["name"] in {"pay", "was_paid"} and invoice in function["arguments"]) or delegated:
                last = function["name"], results.get(call["id"], "")
    return last


def has_handed_over(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last message is the result of a handoff."""
    last = messages[-1].get("tool_call_id")
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    return last is not None and any(call["id"] == last and is_handoff(call["function"]["name"]) for call in calls)


def wrong_history(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the error of OpenAI's server for calls without results, and for results without calls."""
    open_calls: set[str] = set()
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                text = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                return {"message": text, "type": "invalid_request_error", "param": "messages", "code": None}
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each id: "
            text += ", ".join(sorted(open_calls))
            return {"message": text, "type": "invalid_request_error", "param": "messages", "code": None}
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return None


def filled(function: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return arguments for a sub-agent or a handoff, whatever its parameters are called."""
    schema = function.get("parameters") or {}
    names = schema.get("required") or list(schema.get("properties") or {})[:1]
    found: dict[str, Any] = {}
    for name in names:
        parameter = schema["properties"].get(name, {})
        kind = parameter.get("type", "string")
        if "enum" in parameter:
            found[name] = next((each for each in parameter["enum"] if "clerk" in str(each)), parameter["enum"][0])
        elif kind == "string":
            found[name] = "clerk" if "agent" in name or "member" in name else text
        else:
            found[name] = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}}.get(kind)
    return found


def _message(reply: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("content")}
    if reply.get("calls"):
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:20]}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for name, arguments in reply["calls"]
        ]
    return message


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}


def _envelope(kind: str, choice: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:12]}",
        "object": kind,
        "created": int(time.time()),
        "model": "scripted",
        "choices": [{"index": 0, **choice}],
        **more,
    }


def whole(reply: Mapping[str, Any], *, tokens: int) -> bytes:
    finish = "tool_calls" if reply.get("calls") else "stop"
    choice = {"message": _message(reply), "finish_reason": finish}
    return json.dumps(_envelope("chat.completion", choice, usage=_usage(tokens))).encode()


def streamed(reply: Mapping[str, Any], *, tokens: int) -> bytes:
    """Return the same as server-sent events: the text word by word, each call in two pieces."""
    message = _message(reply)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in re.findall(r"\s*\S+", message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        head = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    choices = [{"delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": "tool_calls" if reply.get("calls") else "stop"})
    envelope = _envelope("chat.completion.chunk", {})  # all chunks of a reply have the same id
    events = [{**envelope, "choices": [{"index": 0, **choice}]} for choice in choices]
    events.append({**envelope, "choices": [], "usage": _usage(tokens)})
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
