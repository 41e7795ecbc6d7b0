"""Servers that refuse requests by random rules, in random words: do runs still end with the right answer?

Each of the servers has one rule, of which it speaks in one of five languages or in no language at all, with and without
codes, names of fields and limits. A run makes five calls, two of them with effects. Reported are the answered runs, the
refused requests, the effects that were made twice, and the tools that were left out without being the cause.

With `--proxy`, a client that knows no refusals sends its requests through `closeout models proxy`. What a client
sends is then too long or not: it alone can make its conversation shorter.

    python bench/refusals.py [--servers 200] [--seed 0] [--protocol openai|anthropic] [--proxy] [--verbose]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import aiohttp
from aiohttp import web
from pydantic import BaseModel, Field

from closeout import Agent, Boxed, ToolManager, tool
from closeout.answers.boxed import extract_boxed
from closeout.errors import BadRequest, ServerFailed
from closeout.journal.store import close_stores, open_store
from closeout.server.proxy.proxy_server import Proxy
from closeout.server.serving import proxy_app
from closeout.server.upstream import Upstream
from closeout.testing import RequestView, Turn, answer, call, serve_script

ANSWER = "4711"
KEYWORDS = ("pattern", "format", "default", "$ref", "anyOf", "maxItems", "minimum", "title", "enum", "prefixItems")
OPTIONS = {
    "openai": ("temperature", "top_p", "tool_choice", "stop", "max_tokens", "stream_options", "stream"),
    "anthropic": ("temperature", "top_p", "tool_choice", "stop_sequences", "stream"),  # it requires max_tokens
}
PROMPT = "What does the ledger say?"
TEXT = "Line by line, the ledger says what was bought and what was sold. " * 40

# How servers speak: a sentence that says nothing, and one about something ({}).
LANGUAGES = {
    "en": ("Bad request.", "Invalid value for {}."),
    "de": ("Die Anfrage ist ungültig.", "Das Feld {} wird nicht unterstützt."),
    "fr": ("Requête incorrecte.", "La valeur de {} n'est pas acceptée."),
    "zh": ("请求参数错误。", "参数 {} 不合法。"),
    "ja": ("リクエストが正しくありません。", "{} は使用できません。"),
    "": ("", "{}"),
}


@dataclass(frozen=True)
class Rule:
    """What a server refuses, the field that it may name, and a limit that it may state."""

    name: str
    refuses: Callable[[Mapping[str, Any]], bool]
    field: str = ""
    limit: int | None = None
    tool: str = ""  # the tool that is the cause


def functions(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of a request of either protocol, in the form of OpenAI's."""
    return [each.get("function") or {**each, "parameters": each["input_schema"]} for each in body.get("tools") or ()]


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema in a schema; the names of properties are no keywords."""
    if isinstance(value, dict):
        yield value
        for key, each in value.items():
            inner = each.values() if key in ("properties", "$defs") else each if isinstance(each, list) else (each,)
            for part in inner:
                yield from schemas(part)


def all_schemas(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for function in functions(body):
        yield from schemas(function["parameters"])


def keys(body: Mapping[str, Any]) -> Iterator[str]:
    for schema in all_schemas(body):
        yield from schema.get("properties") or {}


def rules(dice: random.Random, protocol: str, *, proxy: bool) -> Rule:
    """Return a random rule."""
    kinds = ["keyword", "keyword", "keys", "root", "items", "description", "option", "option", "limit", "tools", "tool",
             "depth"]  # fmt: skip
    kind = dice.choice(kinds if proxy else [*kinds, "context", "context"])
    if kind == "keyword":
        word = dice.choice(KEYWORDS)
        return Rule(f"keyword {word}", lambda body: any(word in each for each in all_schemas(body)), word)
    if kind == "keys":
        ascii_only = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
        return Rule("keys", lambda body: not all(map(ascii_only.fullmatch, keys(body))), "properties")
    if kind == "root":
        return Rule("root", lambda body: any("anyOf" in each["parameters"] for each in functions(body)), "parameters")
    if kind == "items":
        return Rule(
            "items",
            lambda body: any(s.get("type") == "array" and not s.get("items") for s in all_schemas(body)),
            "items",
        )
    if kind == "description":
        limit = dice.choice((1024, 1100, 1500))
        return Rule(
            f"description {limit}",
            lambda body: any(len(each["description"]) > limit for each in functions(body)),
            "tools[0].function.description",
            limit,
        )
    if kind == "option":
        name = dice.choice(OPTIONS[protocol])
        return Rule(f"option {name}", lambda body: name in body, name)
    if kind == "limit":
        limit = dice.choice((2048, 4096, 8192))
        return Rule(f"limit {limit}", lambda body: (body.get("max_tokens") or 0) > limit, "max_tokens", limit)
    if kind == "context":
        limit = dice.randrange(2_200, 3_000)
        return Rule(f"context {limit}", lambda body: len(json.dumps(body["messages"])) > 4 * limit, "messages", limit)
    if kind == "tools":
        return Rule("no tools", lambda body: bool(body.get("tools")), "tools")
    if kind == "tool":
        name = dice.choice(("book", "lookup", "entries"))
        return Rule(f"tool {name}", lambda body: any(each["name"] == name for each in functions(body)), name, tool=name)
    return Rule("depth", lambda body: any(deep(each["parameters"]) > 3 for each in functions(body)), "parameters")


def deep(value: Any) -> int:
    if isinstance(value, dict):
        inner = [deep(each) for each in value.values()]
        return max(inner, default=0) + ("properties" in value)
    return max(map(deep, value), default=0) if isinstance(value, list) else 0


def words(rule: Rule, dice: random.Random) -> str:
    """Return what a server says: vaguely, or with the field, its limit and a code."""
    vague, about = LANGUAGES[dice.choice(tuple(LANGUAGES))]
    text = about.format(f"'{rule.field}'") if dice.random() < 0.5 else vague
    if rule.limit is not None and dice.random() < 0.5:
        text += f" ({rule.limit})"
    if dice.random() < 0.4:
        text = f"[{dice.randrange(10_000, 99_999)}] {text}"
    noise = ("".join(dice.choices("abcdefghiklmnoprstuvz", k=dice.randrange(3, 9))) for _ in range(dice.randrange(4)))
    return f"{text} {' '.join(noise)}".strip() or "?"


class Place(BaseModel):
    city: str
    inside: list[Place] = []


Letters = Annotated[str, Field(pattern="^[a-z]+$")]
Address = Annotated[str, Field(json_schema_extra={"format": "uri"})]
Amount = Annotated[int, Field(ge=0, le=10_000)]
Tags = Annotated[tuple[str, ...], Field(max_length=5)]


@dataclass
class Tally:
    runs: int = 0
    answered: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    repeated: int = 0
    dropped: int = 0
    failed: list[str] = field(default_factory=list)


def make_tools(effects: Counter[str]) -> list[Any]:
    @tool(read_only=True, inline=True, description="Look up a key. " + "It knows everything about every key. " * 50)
    def lookup(key: str, pattern: Letters = "x", tags: Tags = ()) -> str:
        return f"{key}: {TEXT}"

    @tool(read_only=True, inline=True)
    def entries(关键词: str, place: Place | None = None, kind: Address = "a") -> str:  # noqa: N803  many servers refuse it
        """List the entries for a word."""
        return f"{关键词}: {TEXT}"

    @tool(inline=True)
    def book(account: str, amount: Amount = 1, pair: tuple[int, str] | None = None) -> str:
        """Book an amount."""
        effects[account] += 1
        return "booked"

    parameters = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "array"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }

    @tool(read_only=True, inline=True, parameters=parameters)
    def compare(**values: Any) -> str:
        """Compare values."""
        return "equal"

    return [lookup, entries, book, compare]


SCRIPT = (
    call("lookup", key="k1"),
    call("book", account="first", amount=5),
    call("entries", 关键词="tea"),
    call("lookup", key="k2"),
    call("book", account="second", amount=7),
    answer(ANSWER, "All is known."),
)


@dataclass(frozen=True)
class Ended:
    """How a client's conversation ended."""

    answer: str | None
    status: str
    error: str = ""


async def plain_client(url: str, protocol: str, tools: list[Any], http: aiohttp.ClientSession) -> Ended:
    """A loop as many programs have it: it sends what it was told to, and ends at the first error."""
    manager, anthropic = ToolManager(tools), protocol == "anthropic"
    specs = [each.spec for each in tools]
    body: dict[str, Any] = {"model": "m", "temperature": 0.4, "top_p": 0.9, "max_tokens": 16_384}
    if anthropic:
        body |= {"tool_choice": {"type": "auto"}, "stop_sequences": ["###"]}
        schemas = [{"name": s.name, "description": s.description, "input_schema": s.parameters} for s in specs]
    else:
        body |= {"tool_choice": "auto", "stop": ["###"]}
        schemas = [
            {
                "type": "function",
                "function": {"name": s.name, "description": s.description, "parameters": s.parameters},
            }
            for s in specs
        ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
    for _ in range(12):
        sent = {**body, "tools": schemas, "messages": messages}
        async with http.post(f"{url}/{'messages' if anthropic else 'chat/completions'}", json=sent) as response:
            received = await response.json()
        if response.status != 200:
            return Ended(None, "failed", json.dumps(received, ensure_ascii=False))
        if anthropic:
            messages.append({"role": "assistant", "content": received["content"]})
            made = [(each["id"], each["name"], each["input"]) for each in received["content"] if "input" in each]
            said = "".join(each.get("text", "") for each in received["content"])
        else:
            messages.append(received["choices"][0]["message"])
            made = [
                (each["id"], each["function"]["name"], json.loads(each["function"]["arguments"]))
                for each in messages[-1].get("tool_calls") or ()
            ]
            said = messages[-1].get("content") or ""
        if not made:
            return Ended(extract_boxed(said), "answered")
        results = [(key, str(await manager.execute_tool_call("", name, given))) for key, name, given in made]
        if anthropic:
            content = [{"type": "tool_result", "tool_use_id": key, "content": text} for key, text in results]
            messages.append({"role": "user", "content": content})
        else:
            messages += [{"role": "tool", "tool_call_id": key, "content": text} for key, text in results]
    return Ended(None, "unanswered")


async def one(tally: Tally, seed: int, protocol: str, *, proxy: Path | None, verbose: bool = False) -> None:
    """One run against a server of its own."""
    dice = random.Random(seed)
    rule = rules(dice, protocol, proxy=proxy is not None)
    said, status = words(rule, dice), dice.choice((400, 400, 422, 500 if proxy is None else 400))
    effects, refused, offered = Counter[str](), [], list[set[str]]()

    def play(view: RequestView) -> Turn:
        if rule.refuses(view.body):
            refused.append(said)
            raise BadRequest(said, status=status) if status != 500 else ServerFailed(said, status=500)
        if view.body.get("tools"):
            offered.append({each["name"] for each in functions(view.body)})
        return SCRIPT[min(view.turn, len(SCRIPT)) - 1]

    config = {
        "llm": {"temperature": 0.4, "top_p": 0.9, "max_tokens": 16_384, "max_retries": 2},
        "agent": {"max_turns": 12},
    }
    async with serve_script(play, by="question", record=False) as server:
        if proxy is not None:
            async with proxied(server.base_url, protocol, proxy) as (url, http):
                result: Any = await plain_client(url, protocol, make_tools(effects), http)
        else:
            agent = Agent(
                f"{protocol}:m",
                make_tools(effects),
                base_url=server.base_url,
                api_key="k",
                answer=Boxed(),
                config=config,
                home=False,
            )
            stream = agent.stream(PROMPT) if dice.random() < 0.3 else None
            if stream is None:
                result = await agent.run(PROMPT)
            else:
                async for _ in stream:
                    pass
                result = stream.result
    tally.runs += 1
    right = result is not None and result.answer == ANSWER and len(refused) <= 4
    tally.answered += right
    tally.refused[len(refused)] += 1
    tally.repeated += sum(times > 1 for times in effects.values())
    names = {"lookup", "entries", "book", "compare"} - {rule.tool}
    tally.dropped += any(not names <= each for each in offered)
    if not right or verbose:
        state = f"{result.status} {result.error[:90]}" if result is not None else "no result"
        tally.failed.append(f"seed {seed}: {rule.name}, {status} {said!r}, {len(refused)} refused: {state}")


@asynccontextmanager
async def proxied(upstream: str, protocol: str, home: Path) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Run a proxy in front of a server. Yields its address and a session."""
    app = proxy_app(Proxy(Upstream(upstream, kind=protocol), open_store(home)))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer k", "x-api-key": "k"}) as http:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", http
    finally:
        await runner.cleanup()


async def measure(
    servers: int,
    seed: int = 0,
    protocol: str = "openai",
    *,
    proxy: Path | None = None,
    at_once: int = 8,
    verbose: bool = False,
) -> Tally:
    """Run against so many servers; through a proxy if there is a folder for its records."""
    tally, slots = Tally(), asyncio.Semaphore(at_once)

    async def run(number: int) -> None:
        async with slots:
            await one(tally, number, protocol, proxy=proxy, verbose=verbose)

    await asyncio.gather(*(run(seed + number) for number in range(servers)))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--protocol", choices=tuple(OPTIONS), default="openai")
    parser.add_argument("--proxy", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) if options.proxy else None
        run = measure(options.servers, options.seed, options.protocol, proxy=home, verbose=options.verbose)
        tally = asyncio.run(run)
        close_stores()
    print(*tally.failed, sep="\n")
    print(
        f"{tally.answered}/{tally.runs} answered with at most four refused requests; refused: "
        f"{dict(sorted(tally.refused.items()))}; {tally.repeated} effects repeated; "
        f"{tally.dropped} runs without a tool that was not the cause"
    )


if __name__ == "__main__":
    main()
