"""Count a text's tokens: exactly where the model's vocabulary is available offline, else by a calibrated estimate.

A vocabulary is loaded by the first count that needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from closeout.results.normal import without_surrogates

__all__ = ["TokenCount", "TokenCounter", "count", "count_tokens", "estimate_tokens", "vocabulary_of"]

DEFAULT_VOCABULARY = "o200k_base"
EXACT_LENGTH = 4_000_000  # characters; longer texts are sampled, so that one count stays under about 0.1 s
ESTIMATE_LENGTH = 100_000  # characters; the same for the estimate
SAMPLES = 32
FIRST_GUESS = 1_000  # tokens of reports that the uncorrected estimate is worth

# A model's name, lower case and without vendor prefix, to the vocabulary that it was trained with. gpt-oss' harmony
# vocabulary splits ordinary text as o200k_base does. Names not listed are estimated.
_VOCABULARIES = (
    (re.compile(r"(?:chatgpt-)?gpt-(?:4o|4\.[15]|[5-9]|oss)|o[134](?:-|$)|o200k|codex"), "o200k_base"),
    (re.compile(r"gpt-(?:4|3\.5|35)|cl100k|text-embedding-(?:3|ada)"), "cl100k_base"),
    (re.compile(r".*distill-llama|(?:meta-|hermes-3-)?llama-?3"), "llama3"),
    (re.compile(r".*distill-qwen|qwen-?(?:3(?![.\d])|2)|qwq|mirothinker"), "qwen3"),
)
_ONE_DIGIT = re.compile(r"qwen|qwq|gemma|gemini|mi[sx]tral|llama-?2|claude|phi|yi-|granite")  # every digit is a token

# The estimate counts what byte-pair vocabularies make one token of: a word of up to 8 letters with the blank or sign
# before it, three digits, two signs, a run of blanks, four letters of other alphabets, one CJK character. Mean error
# 4 % over JSON, tables, code, English, Chinese and numbers (bench/encoding.py prints it).
_CJK = "\u2e80-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
_CJK_MERGED = 0.32  # The share of CJK characters that share a token with a neighbour.
_WORD = "(?:[A-Z]?[a-z]{1,8}|[A-Z]{1,4})"
_PIECE = (
    rf"(?:(?<!\s)[^\r\n\w]| )?{_WORD}|\d{{1,%d}}|[{_CJK}]|[^\W\d_A-Za-z]{{1,4}}|_?{_WORD}"
    r"| ?(?:[^\s\w]|_){1,2}[\r\n/]{0,64}|[\r\n]{1,64}|\s{1,64}"
)


class TokenCount(NamedTuple):
    """A number of tokens, and whether it was counted with the model's own vocabulary over the whole text."""

    tokens: int
    exact: bool


def count_tokens(text: str, model: str | None = None) -> int:
    """Count a text's tokens for a model ("openai:gpt-5", "Qwen/Qwen3-8B"), or for o200k_base.

    Exact for the gpt, llama-3 and qwen families where the `tokens` extra is installed; else an estimate.

    >>> count_tokens("")
    0
    """
    return count(text, model).tokens


def estimate_tokens(text: str, *, digits: int = 3, sample_over: int = ESTIMATE_LENGTH) -> int:
    """Estimate a text's tokens by character class, without a vocabulary. One token holds `digits` digits.

    Of a text over `sample_over` characters, half as many are looked at, evenly spread (0.1 µs a character).
    """
    if len(text) > sample_over:
        return _sampled(text, sample_over, lambda part: estimate_tokens(part, digits=digits))
    if text.isascii():
        return len(_pieces(digits, re.ASCII).findall(text))  # an ASCII pattern takes two thirds of the time for prose
    return len(_pieces(digits).findall(text)) - int(_CJK_MERGED * len(_cjk().findall(text)))


def vocabulary_of(model: str | None) -> str | None:
    """The bundled vocabulary that a model uses: "o200k_base", "cl100k_base", "llama3", "qwen3"; None if not known."""
    if model is None:
        return DEFAULT_VOCABULARY
    name = _bare_name(model)
    return next((vocabulary for pattern, vocabulary in _VOCABULARIES if pattern.match(name)), None)


class TokenCounter:
    """Counts one model's tokens: with `own`, such as a server's `/tokenize`, or with the model's vocabulary, or by an
    estimate that learns from what the server reports. One for a run.
    """

    def __init__(self, model: str | None = None, own: Callable[[str], int] | None = None) -> None:
        self.model = model
        self.scale = 1.0  # tokens that the server counted for each that was estimated
        self._own = own
        self._weight = FIRST_GUESS  # tokens that the scale rests on

    def count(self, text: str) -> TokenCount:
        """Tokens of a text."""
        if self._own is not None:
            return TokenCount(self._own(text), exact=True)
        found = count(text, self.model)
        return found if found.exact else TokenCount(round(found.tokens * self.scale), exact=False)

    def calibrate(self, estimated: float, reported: int) -> None:
        """Learn that a text which `count` or `estimate_tokens` gave `estimated` tokens was `reported` by the server.

        `estimated` without the scale. Each report counts by its size, old ones fade after about 20,000 tokens. The
        scale stays within 0.4 to 2.5.
        """
        if estimated > 0 and reported > 0:
            share = reported / (self._weight + reported)
            self.scale = min(2.5, max(0.4, self.scale + share * (reported / estimated - self.scale)))
            self._weight = min(self._weight + reported, 20_000)


def count(text: str, model: str | None = None) -> TokenCount:
    """Return what `count_tokens` does, and whether it is exact."""
    tokenizer = _tokenizer(vocabulary_of(model))
    if tokenizer is None:
        digits = 1 if model is not None and _ONE_DIGIT.match(_bare_name(model)) else 3
        return TokenCount(estimate_tokens(text, digits=digits), exact=False)
    if len(text) > EXACT_LENGTH:
        return TokenCount(_sampled(text, EXACT_LENGTH, lambda part: _exact(tokenizer, part)), exact=False)
    return TokenCount(_exact(tokenizer, text), exact=True)


def _exact(tokenizer: Any, text: str) -> int:
    try:
        return int(tokenizer.count(text))
    except (TypeError, UnicodeEncodeError):  # lone surrogates, which go over the wire as U+FFFD
        return int(tokenizer.count(without_surrogates(text)))


def _sampled(text: str, length: int, count: Callable[[str], int]) -> int:
    """The count over evenly spread parts of together `length` / 2 characters, scaled up to the whole."""
    samples = max(2, min(SAMPLES, length // 128))
    size = length // (2 * samples)
    starts = [round(index * (len(text) - size) / (samples - 1)) for index in range(samples)]
    tokens = sum(count(text[start : start + size]) for start in starts)
    return round(tokens * len(text) / (size * samples))


def _bare_name(model: str) -> str:
    """`openai:org/GPT-4o` → `gpt-4o`; a size after a colon, as in `llama3:8b`, does no harm."""
    name = model.lower().rsplit("/", 1)[-1]
    head, colon, tail = name.partition(":")
    return tail if colon and head in ("openai", "anthropic", "local", "azure", "vllm", "ollama", "openrouter") else name


@cache
def _tokenizer(vocabulary: str | None) -> Any | None:
    """The loaded vocabulary: 0.2 to 0.6 s and about 50 MB, once a process; None if it is not available."""
    if vocabulary is None:
        return None
    try:
        import quicktok

        return quicktok.get_encoding(vocabulary)
    except (ImportError, RuntimeError, OSError):
        return None


@cache
def _pieces(digits: int, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    return re.compile(_PIECE % digits, flags)


@cache
def _cjk() -> re.Pattern[str]:
    return re.compile(f"[{_CJK}]")
