"""Names of tools and parameters as every server takes them."""

from __future__ import annotations

import re
from hashlib import sha256

__all__ = ["safe_name"]

LONGEST_NAME = 64
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_OTHERS = re.compile(r"[^a-zA-Z0-9_-]+")
_DIGEST = 8  # digits of a digest that keeps two names apart


def safe_name(name: str) -> str:
    """Return a name of letters, digits, `_` and `-`, 1 to 64 of them: the name itself, or what is left of it.

    The first is a letter or `_`. A name that is changed ends with a digest of the whole one, so that it is never taken
    for another.
    """
    if _NAME.fullmatch(name):
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    stem = _OTHERS.sub("_", name).strip("_")[: LONGEST_NAME - _DIGEST - 1]
    stem = stem if stem[:1].isalpha() else f"_{stem}"
    return f"{stem[: LONGEST_NAME - _DIGEST - 1]}_{digest}"
