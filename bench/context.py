"""What a long run costs under four ways to keep its context small, counted on the requests that the package writes.

A trajectory of 200 turns goes through the real history view, eviction policy and function_call dialect. Each request is
compared with those before it: the tokens at its start that a cache can serve are priced at a share `r` of fresh ones.
Two caches: blocks of 16 tokens (vLLM, SGLang, OpenAI's own), and breakpoints that the request sets (Anthropic; what is
written into the cache costs 1.25).

    python bench/context.py [--turns 200] [--model local:small]

With --model the trajectory is also put to the embedded model, shortened, and its own cache counters are shown.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from closeout.context.history import History
from closeout.context.policy import ContextState, Eviction, EvictionPolicy
from closeout.dialects.protocol import get_dialect
from closeout.journal.events import AttemptStarted, Compacted, Evicted, TurnAccepted
from closeout.messages import Capabilities, Message, ModelRequest
from closeout.results.tokens import count_tokens

RATIOS = (0.025, 0.1, 0.25)
WRITE = 1.25  # price of a token written into a breakpoint cache, of a fresh one's
BLOCK = 16
SUMMARY_TOKENS = 500
SHORT = 400  # characters of a result on the embedded model, which reads some 40 to 100 tokens a second
WORDS = [
    "river",
    "canal",
    "bridge",
    "dam",
    "lock",
    "year",
    "length",
    "width",
    "height",
    "opened",
    "built",
    "city",
    "state",
    "author",
    "film",
    "award",
    "team",
    "song",
]


@dataclass(slots=True)
class Totals:
    """Totals over a trajectory, in tokens; `cost` by cache kind and ratio, in prices of one fresh input token."""

    requests: int = 0
    tokens: int = 0
    cached: int = 0
    cost: dict[tuple[str, float], float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.tokens / self.requests


def text_of(rng: random.Random, tokens: int) -> str:
    return " ".join(rng.choices(WORDS, k=tokens))


def turns(count: int, seed: int = 7) -> Iterator[TurnAccepted]:
    """Turns with results of log-normal size, about 700 tokens in the middle, 4,000 at most: what web tools bring."""
    rng = random.Random(seed)
    for turn in range(count):
        tokens = min(4000, int(rng.lognormvariate(6.55, 0.8)))
        call = {
            "id": f"c{turn}",
            "name": "search",
            "arguments": {"q": text_of(rng, 6)},
            "server_name": None,
            "text": "",
        }
        result = text_of(rng, tokens)
        returned = {"call": 0, "text": result, "handle": f"r{turn}", "ok": True, "tokens": tokens_in(result)}
        yield TurnAccepted("main", 0, turn, text=text_of(rng, 40), calls=(call,), returns=(returned,))


@lru_cache(maxsize=100_000)
def tokens_in(text: str) -> int:
    return count_tokens(text, "gpt-5")


def size(message: Message) -> int:
    calls = sum(tokens_in(c["function"]["arguments"]) + 8 for c in message.get("tool_calls") or ())
    return 4 + tokens_in(message.text) + calls


class Caches:
    """Prices requests one after another."""

    def __init__(self) -> None:
        self.totals = Totals(cost={(kind, r): 0.0 for kind in ("blocks", "breakpoints") for r in RATIOS})
        self._last: list[Message] = []
        self._marked: list[list[Message]] = []

    def add(self, request: ModelRequest) -> None:
        messages = list(request.messages)
        sizes = [size(m) for m in messages]
        total = sum(sizes)
        shared = _shared(self._last, messages)
        blocks = sum(sizes[:shared]) // BLOCK * BLOCK
        read = max((len(m) for m in self._marked if _shared(m, messages) == len(m)), default=0)
        read_tokens = sum(sizes[:read])
        written = sum(sizes[: max(request.breakpoints) + 1]) - read_tokens if request.breakpoints else 0
        totals = self.totals
        totals.requests, totals.tokens, totals.cached = (
            totals.requests + 1,
            totals.tokens + total,
            totals.cached + blocks,
        )
        for r in RATIOS:
            totals.cost["blocks", r] += blocks * r + (total - blocks)
            totals.cost["breakpoints", r] += (
                read_tokens * r + max(written, 0) * WRITE + (total - read_tokens - max(written, 0))
            )
        self._last = messages
        self._marked = [messages[: b + 1] for b in request.breakpoints]


def _shared(before: list[Message], now: list[Message]) -> int:
    count = 0
    for a, b in zip(before, now, strict=False):
        if a is not b and a != b:
            break
        count += 1
    return count


Decide = Callable[[History, int], Eviction | None]


def run(count: int, decide: Decide, *, compact: bool = False) -> Totals:
    """The trajectory under one policy."""
    history = History("Answer the question with the tools.", "Which canal is the longest?")
    dialect, caches = get_dialect("function_call"), Caches()
    history.apply(AttemptStarted("main", 0))
    capabilities = Capabilities()
    tokens = 0
    for event in turns(count):
        request = dialect.render(history.view(), capabilities)
        caches.add(request)
        history.apply(event)
        tokens = sum(size(m) for m in request.messages) + event.returns[0]["tokens"]
        eviction = decide(history, tokens)
        if eviction is None:
            continue
        if compact:
            # The model reads what is to be summed up once more, from the cache, and writes the summary.
            caches.add(dialect.render(history.view(closing="Sum up the work so far."), capabilities))
            summary = text_of(random.Random(eviction.before), SUMMARY_TOKENS)
            history.apply(Compacted("main", 0, eviction.before, summary=summary))
        else:
            history.apply(Evicted("main", 0, eviction.before, results=eviction.results, tokens=eviction.tokens))
    return caches.totals


def policy(keep: int, batch: int) -> Decide:
    rule = EvictionPolicy(keep=keep, batch=batch)
    return lambda history, tokens: rule.decide(
        ContextState(steps=history.steps, evicted_before=history.evicted_before, prompt_tokens=tokens)
    )


def sliding(keep: int) -> Decide:
    """The baseline: at every turn the result beyond the last `keep` goes."""

    def decide(history: History, _: int) -> Eviction | None:
        shown = [s for s in history.steps if s.turn >= history.evicted_before]
        if len(shown) <= keep:
            return None
        return Eviction(before=shown[-keep].turn, results=1, tokens=0, reason="sliding")

    return decide


def on_model(name: str) -> str:
    """Twelve turns on the embedded model: prompt tokens that its own cache served, sliding beside batched."""
    import asyncio

    from closeout.models.connect import connect

    async def measure(decide: Decide) -> tuple[int, int]:
        history, dialect = History("Answer.", "Which canal is the longest?"), get_dialect("cot_chat")
        history.apply(AttemptStarted("main", 0))
        client, total, cached = connect(name), 0, 0
        for event in turns(12, seed=3):
            short = event.returns[0]["text"][:SHORT]
            returns = ({**event.returns[0], "text": short, "tokens": tokens_in(short)},)
            request = dialect.render(history.view(), client.capabilities)
            reply = await client.complete(ModelRequest(messages=request.messages, max_tokens=1))
            total += reply.usage.input_tokens
            cached += reply.usage.cache_read_tokens
            step = TurnAccepted("main", 0, event.turn, text=event.text, calls=event.calls, returns=returns)
            history.apply(step)
            eviction = decide(history, 0)
            if eviction is not None:
                history.apply(Evicted("main", 0, eviction.before, results=eviction.results))
        await client.aclose()
        return total, cached

    rows = {label: asyncio.run(measure(d)) for label, d in (("sliding K=3", sliding(3)), ("batched", policy(1, 4)))}
    for label, (total, cached) in rows.items():
        print(f"{name} {label}: {total} prompt tokens, {cached} from its cache, {total - cached} computed")
    fresh = {label: total - cached for label, (total, cached) in rows.items()}
    return f"; on {name} batched computes {fresh['batched'] / fresh['sliding K=3']:.2f} of sliding's tokens"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    policies = {
        "keep all": run(options.turns, lambda *_: None),
        "sliding K=5": run(options.turns, sliding(5)),
        "batched K=1 B=8": run(options.turns, policy(1, 8)),
        "batched + compaction": run(options.turns, policy(1, 8), compact=True),
    }
    base = policies["sliding K=5"]
    print(f"{'policy':<22}{'mean':>8}{'tokens':>12}{'cached':>8}" + "".join(
        f"{kind[:6] + ' r=' + str(r):>15}" for kind in ("blocks", "breakpoints") for r in RATIOS))  # fmt: skip
    for name, totals in policies.items():
        costs = "".join(f"{cost / base.cost[key]:>15.2f}" for key, cost in totals.cost.items())
        print(f"{name:<22}{totals.mean:>8,.0f}{totals.tokens:>12,}{totals.cached / totals.tokens:>8.0%}{costs}")
    batched = policies["batched K=1 B=8"]
    shares = {key: cost / base.cost[key] for key, cost in batched.cost.items()}
    confirmed = on_model(options.model) if options.model else ""
    blocks = {r: shares["blocks", r] for r in RATIOS}
    print(
        f"bench context: {options.turns} turns, batched costs of sliding K=5 (mean context "
        f"{batched.mean / base.mean:.2f} of its): r=0.1 {blocks[0.1]:.2f} "
        f"(breakpoints {shares['breakpoints', 0.1]:.2f}), "
        f"r=0.25 {blocks[0.25]:.2f} ({shares['breakpoints', 0.25]:.2f}), r=0.025 {blocks[0.025]:.2f}{confirmed}"
    )


if __name__ == "__main__":
    main()
