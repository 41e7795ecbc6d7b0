"""Generate values whose texts and keys are what some encoding treats specially: marks, literals, escapes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

# fmt: off
LITERALS = (
    # YAML
    "...", "---", "~", "null", "Null", "NULL", "true", "True", "yes", "No", "on", "OFF", "y", "N", ".inf", "-.INF",
    ".nan", "0x1F", "0o17", "017", "0b11", "1_000", "12:30:45", "1:30", "2020-01-01", "2020-01-01T10:00:00Z", "=",
    "<<", "!tag", "!!str", "&anchor", "*alias", "? y", "- x", "-", "key: value", ":", " #", "#", "|", ">", "|-", ">+",
    "%YAML", "@at", "`", "[", "]", "{", "}", ",", "'", '"', "''", "\ufeff", "\x85", "\u2028", "\u2029", "\xa0",
    # JSON, JavaScript and numbers
    "NaN", "Infinity", "-Infinity", "undefined", "1", "1.0", "1.", ".5", "-0", "+1", "05", "1e5", "1E400", "1e-999",
    "\\", "\\n", "\\u0041", "\x00", "\x1b[0m", "\x7f", "\t", "\r", "\n", "\r\n", " ", "", "//", "/*", "\ud83d",
    "\ude00", "\uffff",
    # XML
    "]]>", "<![CDATA[", "<!--", "-->", "&amp;", "&", "&#0;", "<", "</data>", "<data>", "<?xml?>", "<!DOCTYPE a>",
    "entry", "item", "type", "key", "json", "xmlns", "\ufffe",
    # TOON
    "[3]:", "[2]{a,b}:", "[2|]", "[#3]", "a,b", "a|b", "a.b", "[0]:",
    # columns, the raw block, the compact form
    "#cols", "##cols", "#rows", "#more", "#raw:1", "##raw:2", "\n#raw:1 5\nabcde", "…", "res:", "|sum:", "\\p",
    "e30=", "base64:",
    # signs outside the basic plane, right-to-left text, combining characters
    "😀", "中文", "\u202e", "e\u0301", "\U0010ffff",
)
# fmt: on
NUMBERS = (
    *(0, 1, -1, 0.0, -0.0, 1.0, 0.1, 1e16, 1e22, 1e-7, 5e-324, 1.7976931348623157e308),
    *(2**53 + 1, 2**63, -(2**64), 10**30),
)
WORDS = ("Please wait", "value", "1", "a b", "x")


def payloads(seed: int, count: int) -> Iterator[Any]:
    """Yield so many JSON values: objects, lists and tables, alone and inside each other."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _value(chance, chance.randint(0, 3))


def _text(chance: random.Random) -> str:
    literal, word = chance.choice(LITERALS), chance.choice(WORDS)
    shapes = (literal, word + literal, literal + word, word + literal + word, literal + chance.choice(LITERALS), word)
    return _joined(chance.choice(shapes) * chance.choice((1, 1, 1, 1, 2, 40)))


def _joined(text: str) -> str:
    """The text with surrogates side by side joined, as the two halves of one character are one character in JSON."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _leaf(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.7:
        return _text(chance)
    return chance.choice(NUMBERS) if kind < 0.9 else chance.choice((None, True, False))


def _value(chance: random.Random, depth: int) -> Any:
    if depth == 0:
        return _leaf(chance)
    shape, size = chance.random(), chance.randint(0, 4)
    if shape < 0.4:
        return {_text(chance): _value(chance, depth - 1) for _ in range(size)}
    if shape < 0.7:
        return [_value(chance, depth - 1) for _ in range(size)]
    names = list(dict.fromkeys(_text(chance) for _ in range(size + 1)))
    return [
        {name: _value(chance, depth - 1) for name in names[: chance.randint(1, len(names))]} for _ in range(size + 2)
    ]
