"""What a shim may use: the task, the tools' effects, and a way to show the run. Needs the standard library only.

The values are those of the process's own case; a shim reads them when it builds its agent, never when it is imported.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAIN = "You are a bookkeeper. Pay what you are asked to pay, each invoice once. "
CLERK = "You are the clerk. You pay invoices, each once. "
SECOND_VERSION = "Be brief and polite. "  # what the second version of the program adds to its instructions
DELEGATED = {"subagent", "handoff"}  # scenarios in which the clerk pays


def value(name: str) -> str:
    return os.environ[f"CRASH_{name}"]


def scenario() -> str:
    return value("SCENARIO")


def task() -> str:
    return value("TASK")


def run_id() -> str:
    """Return the id of the run, the same in every process of a case: a thread, session or workflow id."""
    return value("RUN")


def folder() -> str:
    """Return the folder for what the runtime keeps, the same in every process of a case."""
    return value("HOME")


def postgres() -> str:
    """Return the address of an empty database, the same in every process of a case."""
    return value("POSTGRES")


def model_url() -> str:
    """Return the base URL of a server of OpenAI's Chat Completions, streamed or not. Any key and name will do."""
    return value("MODEL")


def instructions(agent: str = "main") -> str:
    changed = SECOND_VERSION if value("VERSION") == "2" else ""
    return (CLERK if agent == "clerk" else MAIN) + changed


def _ask(what: str, **arguments: Any) -> str:
    body = json.dumps(arguments).encode()
    request = urllib.request.Request(f"{value('TOOLS')}/{what}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.loads(reply.read())["text"])


def pay(invoice: str, key: str = "") -> str:
    """Pay an invoice.

    Args:
        invoice: the number of the invoice
        key: The id of the call, if the runtime gives its tools one. The service records it and does not use it.
    """
    return _ask("pay", invoice=invoice, key=key)


def was_paid(invoice: str) -> str:
    """Look up whether an invoice was paid.

    Args:
        invoice: the number of the invoice
    """
    return _ask("was_paid", invoice=invoice)


def balance(account: str) -> str:
    """Read the balance of an account.

    Args:
        account: the name of the account
    """
    return _ask("balance", account=account)


def read_document(number: int) -> str:
    """Read a document.

    Args:
        number: which document
    """
    return _ask("read_document", number=number)


def tell_time() -> str:
    """Tell the time. Only the second version of the program has this tool."""
    return "It is noon."


def readers(agent: str = "main") -> list[Callable[..., str]]:
    """Return the tools without effects that an agent has in this scenario."""
    tools: list[Callable[..., str]] = [was_paid]
    if agent == "main" and scenario() in {"read", "rollback"}:
        tools.append(balance)
    if agent == "main" and scenario() == "overflow":
        tools.append(read_document)
    if value("VERSION") == "2":
        tools.append(tell_time)
    return tools


def payers(agent: str = "main", tool: Any = pay) -> list[Any]:
    """Return the tool with an effect, as the shim declares it, for the agent that pays in this scenario."""
    return [tool] if (agent == "clerk") == (scenario() in DELEGATED) else []


def watch(text: str) -> None:
    """Report a piece of text that a person who watches the run sees now."""
    with open(value("WATCHED"), "a") as file:  # noqa: PTH123
        file.write(text)


@dataclass
class Shown:
    """What the runtime shows of a run when a process is done with it.

    Args:
        status: answered, waiting (for a person), timer (waits for a time), failed, or refused (another process has it).
        answer: the final answer
        history: all that the runtime shows of the run, as text: messages, calls and results
        waiting: what a person is asked, one text each
        seconds: for "timer", how long to wait until the next resume
        note: for people: the error
    """

    status: str
    answer: str = ""
    history: str = ""
    waiting: Sequence[str] = field(default_factory=tuple)
    seconds: float = 0.0
    note: str = ""


def text_of(anything: Any) -> str:
    """Return messages or other records of a runtime as text."""
    return json.dumps(anything, default=_as_text)


def _as_text(item: Any) -> Any:
    for name in ("model_dump", "to_dict", "dict", "to_json"):
        if callable(method := getattr(item, name, None)):
            try:
                return method()
            except Exception:  # another way to write it down
                continue
    return {**vars(item), "type": type(item).__name__} if hasattr(item, "__dict__") else str(item)
