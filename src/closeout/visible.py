"""Shows texts so that every character is plainly seen: what a reader could overlook is written as a code."""

from __future__ import annotations

import json

__all__ = ["is_plain", "visible"]

# Default_Ignorable_Code_Point in DerivedCoreProperties.txt of Unicode 16.0.0: displayed as nothing. The standard
# library has the categories of characters, but not this property.
_IGNORABLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
# Letters and symbols that Unicode displays as a blank, by their names in the code charts.
_BLANK = (0x2800, 0x16FE4, 0x1D159)  # braille pattern blank, Khitan small script filler, musical symbol null notehead
_HIDDEN = frozenset((*(code for first, last in _IGNORABLE for code in range(first, last + 1)), *_BLANK))


def is_plain(char: str) -> bool:
    """Return whether a character is seen as itself: printable, and neither ignorable nor a blank other than a space."""
    return char.isprintable() and ord(char) not in _HIDDEN


def visible(text: str, *, keep: str = "") -> str:
    """Return a text with a code, as in JSON, in place of each character that is not plainly seen.

    Args:
        text: The text.
        keep: Characters that stay as they are, such as line breaks.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if is_plain(c) or c in keep else json.dumps(c)[1:-1] for c in text)
