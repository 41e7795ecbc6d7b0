"""What every program has: the model's address, the tools, the instructions, and the loop over questions.

It needs the standard library only, because it runs in the virtual environment of each framework.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

SERVER = os.environ.get("WEAK_MODELS_SERVER", "")
BASE_URL = f"{SERVER}/v1"
API_KEY = "none"
MODEL = os.environ.get("WEAK_MODELS_NAME", "local")  # the server takes any name
MAX_REQUESTS = 10  # for a question
MAX_TOKENS = 512  # of a reply
INSTRUCTIONS = (
    "You answer questions about documents that you have not read. Always call search_documents first, once for each "
    "fact that the question needs, and use calculate for arithmetic. When you have found everything, answer with the "
    "bare number or name."
)


def search_documents(query: str) -> str:
    """Search the documents for a name or key words. Returns the passages that fit best.

    Args:
        query: A name or a few key words.
    """
    return _use("search_documents", query=query)


def read_document(name: str) -> str:
    """Read a document.

    Args:
        name: The document's file name or title, as the search shows it.
    """
    return _use("read_document", name=name)


def calculate(expression: str) -> str:
    """Calculate arithmetic exactly. Knows + - * / // % ** ( ), sqrt, round, min, max, sum, mean, log, sin, pi and more.

    Args:
        expression: Numbers and operators only.
    """
    return _use("calculate", expression=expression)


# Their descriptions have no examples: small models copy them ("(1914 - 1832) * 2" made this one double its results).
TOOLS = [search_documents, read_document, calculate]


def _use(tool: str, **arguments: Any) -> str:
    """Ask the benchmark, which has the documents, to run a tool. An error comes back as text."""
    body = json.dumps(arguments, default=str).encode()
    request = urllib.request.Request(f"{SERVER}/tools/{tool}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response))


def answer_questions(ask: Callable[[str], Any], package: str) -> None:
    """Answer the questions that arrive on standard input, one JSON text per line, until it ends.

    Args:
        ask: Answers a question. It returns the answer, or the answer and a mapping of usage.
        package: The distribution whose version is reported.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what frameworks print
    print(json.dumps({"version": version(package)}), file=replies, flush=True)
    for line in sys.stdin:
        try:
            answer = ask(json.loads(line))
            text, usage = answer if isinstance(answer, tuple) else (answer, None)
            reply = {"answer": None if text is None else str(text), "usage": usage}
        except Exception as error:
            traceback.print_exc()
            reply = {"answer": None, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)
