"""The steps of JSON's grammar inside one container, character by character, as tables. For `json_scanner`."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ARRAY_STEPS", "BLANKS", "OBJECT_STEPS", "Expect"]

BLANKS = " \t\r\n\ufeff"
_DIGITS = "0123456789"


class Expect(IntEnum):
    """What may come next; indexes the tables."""

    VALUE = 0
    VALUE_OR_END = 1
    KEY = 2
    KEY_OR_END = 3
    COLON = 4
    COMMA_OR_END = 5
    DIGIT = 6  # behind a minus
    NUMBER = 7  # more of a number, or what follows it


def _table(*, closer: str, behind_comma: Expect) -> tuple[dict[str, Expect], ...]:
    """For each expectation: what is expected behind a character. One that is missing needs a closer look.

    A quote leads to what is expected behind the string, a constant's first letter behind the constant, an opening
    bracket into the container, a closing one to what is expected behind it in the container around.
    """
    end = dict.fromkeys((closer,), Expect.COMMA_OR_END)
    ends = {**end, ",": behind_comma}
    value = {
        '"': Expect.COMMA_OR_END,
        "{": Expect.KEY_OR_END,
        "[": Expect.VALUE_OR_END,
        "-": Expect.DIGIT,
        **dict.fromkeys(_DIGITS, Expect.NUMBER),
        **dict.fromkeys("tfn", Expect.COMMA_OR_END),
    }
    steps = {
        Expect.VALUE: value,
        Expect.VALUE_OR_END: value | end,
        Expect.KEY: {'"': Expect.COLON},
        Expect.KEY_OR_END: {'"': Expect.COLON, **end},
        Expect.COLON: {":": Expect.VALUE},
        Expect.COMMA_OR_END: ends,
        Expect.DIGIT: dict.fromkeys(_DIGITS, Expect.NUMBER),
        Expect.NUMBER: ends
        | dict.fromkeys(BLANKS, Expect.COMMA_OR_END)
        | dict.fromkeys(f"{_DIGITS}.eE+-", Expect.NUMBER),
    }
    for expect, of_it in steps.items():
        if expect < Expect.DIGIT:
            of_it.update(dict.fromkeys(BLANKS, expect))
    return tuple(steps[expect] for expect in Expect)


OBJECT_STEPS = _table(closer="}", behind_comma=Expect.KEY)
ARRAY_STEPS = _table(closer="]", behind_comma=Expect.VALUE)
