"""Random runs under `max_cost`, with models that charge real tariffs and note each request that the limit forbids."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeout import Agent, Fallback, File, Message, tool
from closeout.context.keeper import PICTURE_TOKENS, estimate_prompt
from closeout.errors import ServerFailed, StreamDropped
from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.models.catalog import PRICES, Price
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
SLACK = 1.1  # a count of tokens is an estimate until the server has made it
EVERYTHING = Capabilities(images=True, native_tools=True, chat=True, streaming=True, max_context=1_000_000)


@dataclass
class Meter:
    """What the vendors charge for one run, and where that went beyond the limit."""

    limit: float
    spent: float = 0.0
    reading: dict[int, float] = field(default_factory=dict)  # the prompts of requests under way, in US dollars
    requests: int = 0
    faults: list[str] = field(default_factory=list)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    cut_at: int = 0  # the request at which the process ends


class Vendor(ScriptedClient):
    """A scripted model that charges what it is asked, by its tariff."""

    def __init__(self, script: Any, meter: Meter, chance: random.Random, *, name: str, faults: float = 0.0) -> None:
        super().__init__(script, name=name, capabilities=EVERYTHING)
        self.price, self.retry = PRICES[name], RetryPolicy(retries=2, first_wait=0.0, longest_wait=0.0)
        self._meter, self._chance, self._faults = meter, chance, faults
        self.last = Usage()

    async def complete(self, request: ModelRequest, **options: Any) -> ModelReply:
        meter, price = self._meter, self.price
        assert isinstance(price, Price)
        prompt = estimate_prompt(request)
        meter.requests += 1
        number = meter.requests
        meter.reading[number] = prompt * price.input / 1e6
        total = meter.spent + sum(meter.reading.values())
        if total > meter.limit * SLACK:
            meter.faults.append(f"request {number} to {self.name} was sent at {total:.5f} of {meter.limit}")
        try:
            if number == meter.cut_at:
                meter.cut.set()
                await asyncio.sleep(60)
            reply = await super().complete(request)
            fault = self._chance.random()
            if fault < self._faults / 2:
                raise ServerFailed("down", status=503, usage=Usage(requests=1))
            usage = Usage(prompt, reply.usage.output_tokens, requests=1)
            if fault < self._faults:
                raise StreamDropped("cut", usage=Usage(prompt, usage.output_tokens // 2, requests=1))
        except StreamDropped as error:
            meter.spent += price.of(error.usage or Usage()).cost_usd or 0.0
            raise
        except asyncio.CancelledError:
            meter.spent += meter.reading[number]
            raise
        else:
            meter.spent += price.of(usage).cost_usd or 0.0
            self.last = usage
            return ModelReply(**{**_fields(reply), "usage": usage})
        finally:
            del meter.reading[number]


def _fields(reply: ModelReply) -> dict[str, Any]:
    return {name: getattr(reply, name) for name in reply.__dataclass_fields__}


def script(turns: int, calls: tuple[str, ...]) -> Any:
    """Return a script that calls tools in turn and then answers, at once if it has none."""

    def reply(view: RequestView) -> Any:
        done = sum(message["role"] == "tool" for message in view.messages)
        offered = [name for name in calls if name in view.tools]
        if done >= turns or not offered:
            return answer("42 " + "because " * 20)
        name = offered[done % len(offered)]
        if name == "both":
            return Turn(calls=[call("look", number=done), call("look", number=-done - 1)])
        if name == "run_program":
            return call(name, code=f"print(look(number={done}), look(number={done + 1000}))")
        if name.startswith("transfer_to"):
            return call(name)
        return call(name, number=done) if name in ("look", "show") else call(name, task=f"Find number {done}. " * 20)

    return reply


@tool(read_only=True)
def look(number: int) -> str:
    """Look."""
    return f"{number}: " + "word " * (40 + number % 7 * 60)


@tool(read_only=True)
def show(number: int) -> File:
    """Show a picture."""
    return File(f"{number}.png", PNG)


async def spend(seed: int, folder: Path) -> tuple[str, Meter, str]:
    """Execute one random run. Returns its kind, what was charged, and what is wrong with it; "" if nothing is."""
    chance = random.Random(seed)
    meter = Meter(chance.choice([0.0005, 0.002, 0.01, 0.05, 0.2]))
    features: list[str] = []

    def has(name: str, odds: float) -> bool:
        if chance.random() < odds:
            features.append(name)
            return True
        return False

    def vendor(turns: int, calls: tuple[str, ...]) -> Vendor:
        faults = 0.3 if has("retries", 0.2) else 0.0
        return Vendor(script(turns, calls), meter, chance, name=chance.choice([*PRICES]), faults=faults)

    def model(turns: int, calls: tuple[str, ...]) -> Any:
        if not has("fallback", 0.25):
            return vendor(turns, calls)
        chain = [vendor(turns, calls) for _ in range(chance.randrange(2, 4))]
        chain[0]._faults, chain[0].retry = 0.5, RetryPolicy(retries=0)
        return Fallback(chain, max_cost=meter.limit / 3 if has("leaves", 0.3) else None)

    tools: list[Any] = [look]
    successor: Any = None
    calls, options = ("look",), dict[str, Any]()
    if has("pictures", 0.25):
        tools.append(show)
        calls = ("look", "show")
    if has("sub-agents", 0.3):
        below = Agent(model(chance.randrange(5), ("look",)), [look], name="reader")
        tools.append(below.as_tool("reader", "Reads."))
        calls = (*calls, "reader")
    if has("programs", 0.1):
        options["code_mode"] = True
        calls = ("run_program",)
    if has("handoffs", 0.15):
        successor = model(chance.randrange(4), ("look",))
        options["handoffs"] = [Agent(successor, [look], name="other")]
        calls = ("look", "transfer_to_other")
    clients = model(chance.randrange(9), calls)
    agent = Agent(
        clients, tools, max_cost=meter.limit, home=folder / str(seed), config={"llm.max_retries": 0}, **options
    )
    task = "many words " * chance.choice([2, 20, 500, 3000])
    given: dict[str, Any] = {}
    if has("history", 0.2):
        given["history"] = [Message(role="user", content="old words " * 400), Message(role="assistant", content="Yes.")]
    if "pictures" in features:
        given["files"] = [File("a.png", PNG)]
    if has("resume", 0.2):
        meter.cut_at = chance.randrange(1, 6)
        run = asyncio.create_task(agent.run(task, run_id="r", **given))
        ended = asyncio.create_task(meter.cut.wait())
        await asyncio.wait((run, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if meter.cut.is_set():
            run.cancel()
            await asyncio.wait((run,))
            result = await agent.resume("r")
        else:
            result = await run
    else:
        result = await agent.run(task, run_id="r", **given)
    kind = "+".join(features) or "plain"
    if meter.faults:
        return kind, meter, meter.faults[0]
    charged = result.usage.cost_usd or 0.0
    # Nobody knows what a request cost that was cancelled, so it is charged at the most that its prompt may cost.
    if charged < meter.spent - 1e-9 if "resume" in features else abs(charged - meter.spent) > 1e-9:
        return kind, meter, f"the run says {charged}, the vendors {meter.spent}"
    if result.stop_reason == "max_cost":
        left, needed = meter.limit - max(charged, meter.spent), _next_cost([clients, successor], task, given)
        if left > needed:
            return kind, meter, f"stopped early: {left:.5f} left, and a request costs {needed:.5f} at most"
    elif result.status != "answered" and not (result.stop_reason == "model_failed" and "retries" in kind):
        return kind, meter, f"{result.status} {result.stop_reason} {result.error}"
    return kind, meter, ""


def _next_cost(models: list[Any], task: str, given: dict[str, Any]) -> float:
    """Return the most that the next request of a run that stopped costs, with a closing one's instruction."""
    clients = [each for model in models if model for each in (model.models if isinstance(model, Fallback) else [model])]
    last = max((client.last for client in clients), key=lambda usage: usage.total_tokens)
    first = estimate_prompt(ModelRequest(messages=(Message(role="user", content=task), *given.get("history", ()))))
    prompt = max(last.total_tokens + 800, first + 800) + PICTURE_TOKENS * 2 * ("files" in given)
    prices = [PRICES[client.name] for client in clients]
    read = max(max(price.input, price.cache_write or 0.0) for price in prices)
    return (prompt * read + last.output_tokens * max(price.output for price in prices)) / 1e6 * SLACK
