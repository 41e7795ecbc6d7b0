"""A scripted small model that makes its answer twice, and says how likely each is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from closeout.messages import Capabilities, ModelReply, ModelRequest, ReplyTokens, Usage
from closeout.testing import RequestView, ScriptedClient

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
        capabilities = Capabilities(weak=True, completions=True, grammar=True, preferred_dialect="code")
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
