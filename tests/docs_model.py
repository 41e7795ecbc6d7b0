"""The model of the documentation's examples: what it replies to each question.

Examples name a real model, as a reader's program does. The tests point `OPENAI_BASE_URL` at a server with this script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from closeout.errors import BadRequest
from closeout.testing import Turn, answer, call, say
from closeout.testing.script import RequestView, ScriptItem

CITY = '{"name": "Zurich", "country": "Switzerland", "inhabitants": 443000}'

REPLIES: Mapping[str, Sequence[ScriptItem]] = {
    "Bern and Geneva together?": [
        Turn(calls=[call("population", city="Bern"), call("population", city="Geneva")]),
        answer("337,000"),
    ],
    "Which city in Switzerland has the most inhabitants?": [say(CITY)],
    "Write a haiku about lighthouses.": [answer("Light over dark waves")],
    "成都和重庆一共有多少人？": [
        Turn(calls=[call("population", city="成都"), call("population", city="重庆")]),
        answer("53,379,000"),
    ],
    "我叫小明。": [say("你好，小明。")],
    "我叫什么？": [say("你叫小明。")],
    "《围城》": [say('{"title": "围城", "author": "钱锺书", "year": 1947}')],
    "翻译成英文": [answer("A sentence.")],
    "My name is Anna.": [say("Hello, Anna.")],
    "Who am I?": [say("You are Anna.")],
    "Ship order 1047.": [say("Order 1047 is on its way.")],
    "squared?": [answer("144")],
    "a large lamp cost?": [call("price", item="lamp", size="large"), answer("80")],
    "Ask the clerk what a lamp costs.": [call("clerk", task="What does a lamp cost?"), answer("40")],
    "What does a lamp cost?": [call("price", item="lamp"), answer("40")],
}


def reply(request: RequestView) -> ScriptItem | Callable[[RequestView], ScriptItem]:
    """Return the next turn for the newest question: one turn for each reply that the model has already given to it."""
    asked = max(index for index, message in enumerate(request.messages) if message["role"] == "user")
    question = str(request.messages[asked]["content"])
    given = sum(message["role"] == "assistant" for message in request.messages[asked:])
    for known, turns in REPLIES.items():
        if known in question:
            return turns[min(given, len(turns) - 1)]
    raise BadRequest(f"No reply is written for this question: {question[:200]!r}. Add it to tests/docs_model.py.")
