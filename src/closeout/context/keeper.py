"""Keep one agent's context: count the tokens of its prompts, and make room when they grow too long."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from closeout.codec import shared_items, shared_prefix
from closeout.context.policy import ContextPolicy, ContextState, Eviction, evict_all_but_last
from closeout.errors import JournalError
from closeout.journal.events import Compacted, Evicted, Noted, ServerAsked, ServerTold
from closeout.messages import Message, ModelRequest, Step, Usage
from closeout.records import record
from closeout.results.tokens import TokenCounter, estimate_tokens

if TYPE_CHECKING:
    from closeout.context.history import History
    from closeout.journal.run_journal import Journal
    from closeout.models.base import BaseClient

__all__ = ["PICTURE_TOKENS", "ContextKeeper", "PromptSize", "estimate_prompt", "message_size"]

REPLY_TOKENS = 2048  # kept free for the reply if its limit is not set
WORTH_ASKING = 1000  # tokens of a prompt above which the size of the context matters
PICTURE_TOKENS = 1_600  # of a picture that no server has counted: Anthropic's documentation for 1.15 megapixels
USUAL_DENSITY = 0.3  # tokens per character of a prompt, before the server has counted one
LEAST_DENSITY = 0.2  # lower bound for a counted growth: a repeated text has next to no tokens
FAR_LESS = 4  # times fewer tokens than the least that a text has


@record
class PromptSize:
    """Characters of a prompt, and how many of them at its start are the same as in the request before.

    `kept` is the number of messages at its start that are the same, and `same_tools` whether the tools are.
    """

    size: int
    shared: int
    kept: int = 0
    same_tools: bool = True


class ContextKeeper:
    """Measures an agent's prompts and decides, with its `ContextPolicy`, what leaves them. One for each agent of a run.

    `max_context` is the size of the context as the settings say; None: as the client says. `max_reply` is the limit of
    a reply in tokens.
    """

    def __init__(
        self,
        client: BaseClient,
        journal: Journal,
        agent: str,
        *,
        policy: ContextPolicy,
        max_context: int | None = None,
        max_reply: int | None = None,
    ) -> None:
        self.policy = policy
        self.max_context = max_context or client.capabilities.max_context
        self.prompt_tokens = 0  # the server's count for the last request
        self.growth = (0, 0)  # characters and tokens that the last request added to the one before
        self._client = client
        self._journal = journal
        self._agent = agent
        self._reserve = max_reply or REPLY_TOKENS
        self._counter = TokenCounter(client.name)
        self._server_asked = False
        self._last_request = ModelRequest()
        self._last_size = 0  # characters of the last request
        self._ends: list[int] = []  # characters up to and including each message of the last request
        self._counted_size = 0  # characters of the last request, if the server counted it
        self._base = (0, 0)  # characters and tokens of the last prompt that the server counted
        self._counted_messages = 0
        self._density = USUAL_DENSITY
        self._told_cut = False
        self._adds_pictures = False  # the last request has pictures that the one before had not

    # ------------------------------------------------------------------------------------------ counting

    def measure(self, request: ModelRequest) -> PromptSize:
        """Return the size of a request's prompt and how much of it the last request began with."""
        last, self._last_request = self._last_request, request
        if request.prompt is not None:
            self._last_size = len(request.prompt)
            return PromptSize(self._last_size, shared_prefix(last.prompt or "", request.prompt))
        same_tools = request.tools == last.tools
        same = 0
        if same_tools:
            same = shared_items(last.messages, request.messages)
        ends = self._ends
        del ends[same:]
        size = shared = ends[-1] if ends else 0
        self._adds_pictures = False
        for message in request.messages[same:]:
            size += message_size(message)
            self._adds_pictures = self._adds_pictures or message.pictures > 0
            ends.append(size)
        self._last_size = size
        return PromptSize(size, shared, same, same_tools)

    def learn(self, prompt: PromptSize, usage: Usage) -> None:
        """Learn from the server's count of a prompt, and of what was added to the one before."""
        if self._was_cut(prompt.size, usage):
            self._note_cut(prompt.size, usage.input_tokens)
            return
        before, self.prompt_tokens = self.prompt_tokens, usage.input_tokens
        extends = usage.requests == 1 and prompt.shared == self._counted_size > 0
        self.growth = (prompt.size - prompt.shared, usage.input_tokens - before) if extends else (0, 0)
        self._counted_size = 0
        if usage.requests == 1 and prompt.size and usage.input_tokens:
            characters, tokens = self.growth
            if characters and tokens > 0 and not self._adds_pictures:
                self._density = max(tokens / characters, LEAST_DENSITY)
            elif self._base == (0, 0):  # the tokens include tools and frame, the characters do not
                self._density = min(max(usage.input_tokens / prompt.size, LEAST_DENSITY), 1.0)
            self._counted_size = prompt.size
            self._base = (prompt.size, usage.input_tokens)
            self._counted_messages = len(self._last_request.messages)

    def _was_cut(self, size: int, usage: Usage) -> bool:
        """Return True if the server says that it has read far less than was sent: it has cut the prompt.

        Of what was added since the last count that was true, less than one token in twenty characters.
        """
        characters, tokens = self._base
        least = (size - characters) * LEAST_DENSITY
        read = usage.input_tokens - tokens
        return usage.requests == 1 and usage.input_tokens > 0 and least >= WORTH_ASKING and read * FAR_LESS < least

    def _note_cut(self, size: int, read: int) -> None:
        """Do not learn from a false count, and keep later prompts within what the server reads."""
        self.growth, self._counted_size = (0, 0), 0
        before, self.prompt_tokens = self.prompt_tokens, self.tokens_of(size)
        # Some servers leave out what they had cached: that is not the size of a context.
        is_size = read >= WORTH_ASKING and 2 * read >= before
        limit = read + self._reserve
        if is_size and (self.max_context is None or limit < self.max_context):
            self.max_context = limit
        if not self._told_cut:
            self._told_cut = True
            kept = f" Prompts are kept within {read:,} tokens." if is_size else ""
            text = (
                f"{self._client.name} says that it has read {read:,} tokens, but about {self.prompt_tokens:,} were "
                f"sent: the server seems to cut prompts without a word.{kept} Raise its context (in Ollama: num_ctx)."
            )
            self._journal.append(Noted(self._agent, "warning", "Context", message=text))

    def tokens_of(self, size: int) -> int:
        """Estimate the tokens of a prompt with so many characters from what the server counted last."""
        characters, tokens = self._base
        return max(int(tokens + (size - characters) * self._density), 0)

    def expected_tokens(self, request: ModelRequest, prompt: PromptSize) -> int:
        """Estimate the tokens of a prompt: what the server has counted of it, and the rest by its text and pictures."""
        counted = self._counted_messages
        if self._base == (0, 0):
            return estimate_prompt(request)
        if not 0 < counted <= prompt.kept:
            return self.tokens_of(prompt.size)
        added = ModelRequest(messages=request.messages[counted:])
        return self._base[1] + round(estimate_prompt(added) * self._counter.scale)

    def added_tokens(self, steps: Sequence[Step]) -> int:
        """Estimate the tokens that the results of the last turn add to the next prompt."""
        self._calibrate(steps)
        last = steps[-1]
        pictures = sum([len(returned.images) for returned in last.returns])
        return round(_estimate(last) * self._counter.scale) + pictures * PICTURE_TOKENS

    def _calibrate(self, steps: Sequence[Step]) -> None:
        """Compare the estimate of the last results that were sent with what the server counted for them.

        The last request grew by those results and by the call. If they are not most of that growth, it says little.
        """
        characters, tokens = self.growth
        if characters == 0 or len(steps) < 2:
            return
        step = steps[-2]
        shown = 0
        for returned in step.returns:
            shown += len(returned.text)
        if shown <= characters <= 2 * shown and not any(returned.images for returned in step.returns):
            self._counter.calibrate(_estimate(step) * characters / shown, tokens)

    # ------------------------------------------------------------------------------------------ making room

    async def make_room(
        self, history: History, attempt: int, tokens: int, summarise: Callable[[], Awaitable[str]]
    ) -> None:
        """Leave out old results or turns if the policy says so. `tokens` is the estimated size of the next prompt.

        `summarise` asks the model for a summary of the oldest turns; it returns an empty text if the model writes none.
        """
        if tokens > WORTH_ASKING and self.max_context is None and not self._server_asked:
            await self._ask_server()
        eviction = self.policy.decide(
            ContextState(
                steps=history.steps,
                evicted_before=history.evicted_before,
                prompt_tokens=tokens,
                max_context=self.max_context,
                reserve=self._reserve,
                scale=self._counter.scale,
            )
        )
        if eviction is None:
            return
        self._record(eviction, attempt, await summarise() if eviction.summarise else "")

    def shrink(self, history: History, attempt: int, reason: str, *, turns: bool = False) -> bool:
        """Leave out all results but the last, with `turns` all turns but the last. Returns False if nothing was left.

        The reason is a word for the journal. "overflow": a server has refused the last request as too long, and its
        size is an upper bound of what the server takes. "refused": the server has not said why, and a short request is
        not too long.
        """
        if reason == "refused" and self._last_size * LEAST_DENSITY < WORTH_ASKING:
            return False
        if reason == "overflow" and self._base != (0, 0):
            refused = self.tokens_of(self._last_size) + self._reserve
            self.max_context = min(self.max_context or refused, refused)
        eviction = evict_all_but_last(history.steps, history.evicted_before, reason)
        if eviction is None and turns:
            eviction = ContextState(steps=history.steps).evict_turns(1, reason=reason)
        if eviction is not None:
            self._record(eviction, attempt)
        return eviction is not None

    def _record(self, eviction: Eviction, attempt: int, summary: str = "") -> None:
        place, tokens = (self._agent, attempt, eviction.before), eviction.tokens
        if summary or eviction.whole:
            self._journal.append(Compacted(*place, summary=summary, tokens=tokens))
        else:
            self._journal.append(Evicted(*place, results=eviction.results, tokens=tokens, reason=eviction.reason))

    async def _ask_server(self) -> None:
        """Ask the server how long the model's context is. Recorded, because evictions depend on it."""
        self._server_asked = True

        async def ask() -> ServerTold:
            return ServerTold(self._agent, "context", await self._client.context_length())

        try:
            told = await self._journal.effect(ServerAsked(self._agent, "context"), ask)
        except JournalError:
            if self._journal.replay_only:
                return  # the record of an agent that knew it
            raise
        if isinstance(told, ServerTold) and isinstance(told.value, int):
            self.max_context = told.value


def message_size(message: Message) -> int:
    """Return the characters of a message as `ModelRequested.size` counts them."""
    size = len(message.text)
    for call in message.get("tool_calls") or ():
        size += len(call["function"]["arguments"])
    return size


def estimate_prompt(request: ModelRequest) -> int:
    """Estimate the tokens of a request of which no server has counted anything."""
    calls = [message.get("tool_calls") for message in request.messages if message.get("tool_calls")]
    offered = [[tool.name, tool.description, dict(tool.parameters)] for tool in request.tools]
    pictures = sum(message.pictures for message in request.messages) * PICTURE_TOKENS
    return pictures + estimate_tokens(request.text) + estimate_tokens(json.dumps([calls, offered], default=str))


def _estimate(step: Step) -> int:
    """The estimated tokens of a step's results."""
    tokens = 0
    for returned in step.returns:
        tokens += returned.tokens
    return tokens
