"""A scripted model that types, so that the page can be tried without a key."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from closeout.messages import Delta, ModelReply, ModelRequest
from closeout.testing import ScriptedClient, Turn, call, say
from closeout.testing.script import RequestView, as_turn

WORDS_A_SECOND = float(os.environ.get("DEMO_SPEED", "40"))


def reply_to(request: RequestView) -> Any:
    asked = [each for each in request.messages if each.role == "user" and not each.text.startswith("Images from")]
    said = [each for each in request.messages if each.role == "tool" or each is asked[-1]]
    question, last = asked[-1].text, said[-1].text
    first = said[-1] is asked[-1]
    if "refund" in question.lower():
        if first:
            return Turn("I look at the order first.", calls=[call("find_order", number="4711")])
        if '"price"' in last:
            return call("refund", order="4711", amount=42.5, reason="The glass arrived broken.")
        return say(f"Done. {last}" if "were refunded" in last else "I did not refund anything.")
    if "draw" in question.lower():
        if first:
            return Turn("I draw the chart.", calls=[call("sales_chart")])
        return say("Here are the sales of this year. June was the best month so far.")
    if "where" in question.lower():
        if "4711" not in question and first:
            return call("ask_user", question="Which order do you mean?", options=["4711", "4712"])
        if first or last in ("4711", "4712"):
            return call("find_order", number=last if last in ("4711", "4712") else "4711")
        return say(f"The order is known: {last}")
    return say(f"You said: {question}\n\n" + "I can find orders, refund them, and draw the sales. " * 8)


class DemoModel(ScriptedClient):
    def __init__(self) -> None:
        super().__init__(lambda request: as_turn(reply_to(request)), name="demo")

    async def complete(self, request: ModelRequest, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
        reply = await super().complete(request)
        for word in re.findall(r"\s*\S+", reply.text) if on_delta is not None else ():
            on_delta(Delta("text", word))
            await asyncio.sleep(1 / WORDS_A_SECOND)
        return reply
