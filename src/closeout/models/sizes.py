"""Read the number of a model's parameters from its name, and decide which models are small."""

from __future__ import annotations

import re

__all__ = ["SMALL", "parameters_in"]

SMALL = 3.0  # billions of parameters; a model with fewer needs worked examples and constrained decoding
# "1.5b", "8x7B", "360M", standing alone: not in "a3b" (active parameters), "e2b" (effective ones), "4bit" or "q4_k_m".
# Millions have three digits, because "1m" is a context of a million tokens.
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(?:(\d+(?:\.\d+)?)b|(\d{3,4})m)(?![a-z0-9])")


def parameters_in(name: str) -> float | None:
    """Return the parameters that a model's name states, in billions; None if it states none.

    Of several sizes the largest counts. Folders and owners before the name do not count.
    """
    found = _SIZE.findall(re.split(r"[/\\]", name.rstrip("/\\"))[-1].casefold())
    sizes = [
        int(experts or 1) * (float(billions) if billions else int(millions) / 1000)
        for experts, billions, millions in found
    ]
    return max(sizes, default=None)
