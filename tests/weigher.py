"""Scripted small models that make their answers twice, and that say how likely each is or reason in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from closeout.errors import ModelError
from closeout.messages import Capabilities, ModelReply, ModelRequest, ReplyTokens, Usage
from closeout.testing import RequestView, ScriptedClient

CHOIR = "The Osselby Larks in Velbury have 48 singers, of whom 29 are women. Bela Orrin leads them."
ASKED = "How many men sing with the Osselby Larks?"
FIRST, SECOND = "43 * 52", "43 * 52 * 365"


def search_members(query: str) -> str:
    """Search.

    Args:
        query: What to find.
    """
    if "Velbury" in query:
        return "In Velbury live 365 divers."
    return "The Osselby Divers in Velbury have 43 members. Each pays 52 shillings a year."


def is_from_facts(prompt: str) -> bool:
    return "\nFacts:\n" in prompt[prompt.rindex("\n\n", 0, prompt.rindex("\n\n")) :]


class Weigher(ScriptedClient):
    """A model that searches, answers 43 * 52 after its plan and 43 * 52 * 365 from the facts.

    Args:
        weights: How likely both calculations are, after the plan and from the facts. None if it does not say.
        searches: What its first program looks up.
        then: What it writes after its plan.
    """

    def __init__(
        self,
        weights: tuple[tuple[float, float], tuple[float, float]] | Exception | None,
        searches: Sequence[str] = ("Divers",),
        then: str = "fee = 52\nfinal_answer(43 * fee)",
    ) -> None:
        capabilities = Capabilities(
            chat=False, weak=True, completions=True, grammar=True, preferred_dialect="code"
        )  # it cannot reason in words
        super().__init__(self._program, capabilities=capabilities)
        self._weights = weights
        self._searches = searches
        self._then = then

    def _program(self, view: RequestView) -> str:
        prompt = str(view.prompt)
        if is_from_facts(prompt):
            return f"```python\nfinal_answer({SECOND})\n```"
        form = self.requests[-1].constraint
        if form is not None and "Velbury" in str(form.value):  # what it has to search for
            program = 'print(search_members("Velbury"))'
        elif "Result:" in prompt[prompt.rindex("Question:") :]:
            program = self._then
        else:
            program = "\n".join(f'print(search_members("{each}"))' for each in self._searches)
        return f"```python\n{program}\n```"

    async def complete(self, request: ModelRequest, **rest: Any) -> ModelReply:
        if "logprobs" not in request.extra_body:
            return await super().complete(request, **rest)
        if isinstance(self._weights, Exception):
            raise self._weights
        assert request.prompt is not None
        assert request.prompt.endswith("```python\nfinal_answer(")
        assert request.constraint is not None
        calculated = str(request.constraint.value).removeprefix('root ::= "').removesuffix(')\\n"')
        usage = Usage(1_050, requests=1)
        self.charge(usage)
        if self._weights is None:
            return ModelReply(f"{calculated})\n", usage=usage)
        weight = self._weights[is_from_facts(request.prompt)][(FIRST, SECOND).index(calculated)]
        tokens = ReplyTokens(texts=(f"{calculated})\n",), logprobs=(math.log(weight),))
        return ModelReply(f"{calculated})\n", tokens=tokens, usage=usage)


def search_choirs(query: str) -> str:
    """Search.

    Args:
        query: What to find.
    """
    return CHOIR


class Reasoner(ScriptedClient):
    """A model that searches and answers by programs, and says something else when it is asked in a chat.

    Args:
        words: What it says in a chat.
        answers: What its program answers after its plan.
        from_facts: What its program answers from the facts.
        weight: How likely each answer is. None if it does not say.
    """

    def __init__(
        self, words: str | ModelError, answers: str = "29", from_facts: str = "48 - 29", weight: float | None = None
    ) -> None:
        super().__init__(self._reply)
        self.capabilities = Capabilities(weak=True, completions=True, grammar=True, preferred_dialect="code")
        self._words = words
        self._answers = answers
        self._from_facts = from_facts
        self._weight = weight

    def _reply(self, view: RequestView) -> str:
        if view.prompt is None:
            if isinstance(self._words, ModelError):
                raise self._words
            return self._words
        asked = view.prompt[view.prompt.rindex("Question:") :]
        if f"Facts:\n{CHOIR}" in view.prompt:
            program = f"final_answer({self._from_facts})"
        else:
            program = f"final_answer({self._answers})" if "Result:" in asked else 'print(search_choirs("Larks"))'
        return f"```python\n{program}\n```"

    async def complete(self, request: ModelRequest, **rest: Any) -> ModelReply:
        if "logprobs" not in request.extra_body:
            return await super().complete(request, **rest)
        assert request.constraint is not None
        calculated = str(request.constraint.value).removeprefix('root ::= "').removesuffix('\\n"')
        usage = Usage(1_050, requests=1)
        self.charge(usage)
        tokens = None if self._weight is None else ReplyTokens(texts=(calculated,), logprobs=(math.log(self._weight),))
        return ModelReply(f"{calculated}\n", tokens=tokens, usage=usage)
