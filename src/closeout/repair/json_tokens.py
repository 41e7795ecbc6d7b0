"""Rewrites foreign but well-formed tokens (Python, JavaScript, JSON5) into JSON ones, in one pass over the text.

Cheap enough for whole tables written as Python literals. What is not well-formed is left to `json_scan`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from closeout.repair.notes import Notes

__all__ = ["Rewritten", "rewrite_tokens"]

# Every alternative takes all that it looked at, so that no stretch of the text is read twice.
_TOKEN = re.compile(
    r"""
    (?: (?P<double>"(?:[^"\\\x00-\x1f]++|\\.)*+") | (?P<single>'(?:[^'\\\x00-\x1f]++|\\.)*+') ) (?=\s*+(?:[,:}\]]|\Z))
    | (?P<open>["'])
    | (?P<comment>//[^\n]*+|\#[^\n]*+|/\*(?s:.*?)(?:\*/|\Z))
    | (?P<comma>,)(?=\s*+[}\]])
    | (?<![\w$.])(?:(?P<word>True|False|None|undefined|NaN)\b(?!\s*+:)|(?P<key>[A-Za-z_$][\w$]*+)(?=\s*+:))
    """,
    re.VERBOSE,
)
_MAX_TOKENS = 12_000  # strings, keys and words in texts up to 64 kB; longer texts get their share

_WORDS = {
    "True": ("true", "python_literal"),
    "False": ("false", "python_literal"),
    "None": ("null", "python_literal"),
    "undefined": ("null", "javascript_literal"),
    "NaN": ("null", "not_a_number"),
}
_IN_SINGLE = re.compile(r"""\\'|\\.|\"""")
_SINGLE_PIECES = {"\\'": "'", '"': '\\"'}


class Rewritten(NamedTuple):
    """The text with its foreign tokens replaced, and notes on which they were."""

    text: str
    notes: Notes


class _NotWellFormed(Exception):
    pass


def rewrite_tokens(text: str) -> Rewritten | None:
    """The text in JSON's own tokens; None if that is no change, they are too many, or a string has no clear end."""
    notes = Notes(text)
    left = max(_MAX_TOKENS, len(text) * _MAX_TOKENS // 65_536)

    def rewrite(found: re.Match[str]) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise _NotWellFormed
        kind = found.lastgroup
        token = found.group()
        if kind == "double":
            return token
        if kind == "single":
            notes.add("single_quotes", found.start())
            body = token[1:-1]
            if '"' in body or "\\'" in body:
                body = _IN_SINGLE.sub(lambda piece: _SINGLE_PIECES.get(piece[0], piece[0]), body)
            return f'"{body}"'
        if kind == "comma":
            notes.add("trailing_comma", found.start())
            return ""
        if kind == "key":
            notes.add("unquoted_key", found.start())
            return f'"{token}"'
        if kind == "comment":
            notes.add("comment", found.start())
            return " "
        if kind == "open":
            raise _NotWellFormed
        word, repair = _WORDS[token]
        notes.add(repair, found.start())
        return word

    try:
        rewritten = _TOKEN.sub(rewrite, text)
    except _NotWellFormed:
        return None
    return Rewritten(rewritten, notes) if notes.repairs else None
