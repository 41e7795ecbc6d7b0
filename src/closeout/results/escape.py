"""`escape_markers`: text from tools cannot pass for a protocol marker, a tool call, a wrapper or an observation.

One character of each marker becomes its HTML character reference. All other text stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["as_data", "break_markers", "escape_markers"]

# Words that open a section in the text dialects, at the start of a line, any case (the ReAct prompts and their usual
# translations). Mid-line they are plain words to every parser and stay untouched.
_WORDS = (
    "observation", "action", "thought", "answer", "question", "message from the user",
    "观察", "行动", "动作", "思考", "答案", "问题", "工具",
)  # fmt: skip
# The word may follow anything that parsers skip: blanks, a BOM, list and heading signs, numbers. All quantifiers are
# possessive or bounded, so that no text makes the search more than linear.
_OPENING = (
    r"[ \t\ufeff\u00a0\u3000\u200b*#_\-\d.)]*+"
    r"(?i:thought|action(?:[ _]?input)?|observation|(?:final[ _]?)?answer|question|message from the user"
    r"|(?:观察|行动|动作|思考|问题|工具)(?:输入|结果)?|(?:最终)?答案)"
    r"[ \t\d*_#.)]{0,40}+[:：]"
)
_FIRST_LINE = re.compile(_OPENING)
_LATER_LINE = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]" + _OPENING)

# Tags that model families, agent protocols and our own wrapper write calls, results and turns with; `<|…|>`, `<|…>` and
# `<…|>` are the special tokens of chat templates. Ordinary HTML and code match none of these.
_TAG = re.compile(
    r"(?i)<(?=/?\s{0,8}(?:"
    r"(?:[a-z]{1,16}_)?tools?_?(?:call|result|response|output|use|name)s?\b|use_mcp_tool\b|server_name\b|arguments>|final_answer\b|observation\b"
    r"|function_(?:call|result|response|output)s?\b|function(?:=|[\sĠ]{0,8}name)|parameter(?:=|\s{1,8}name)|invoke\b|arg_(?:key|value)\b"
    r"|(?:start|end)_function_(?:call|response)\b|role>|[se]op>|[|｜]DSML|[|｜]tool\\?[▁_ ]|ifm[|｜]"
    r"|think(?:ing)?\b|(?:start|end)_of_turn\b|[a-z]{2,16}:(?:tool|function|invoke|parameter|think)|s>|bos>|eos>"
    r"|<sys>>)"
    r"|/?[|｜][\w▁\"/-]{1,48}[|｜]?>|[\w▁/]{1,48}[|｜]>)"
)
_BRACKET = re.compile(
    r"\[(?=/?(?:TOOL_CALLS?|TOOL_RESULTS?|AVAILABLE_TOOLS|TOOL_CONTENT|INST|ARGS|CALL_ID|THINK|SYSTEM_PROMPT|gMASK|unused\d{1,3})\])"
    r"|(?<=functools)\["
)
_ARROW = "-> tool/function_call"
# Code fences and lines that hold a call in the templates of Gemma and Functionary.
_FENCE = re.compile(r"(?m)^([^\S\n]{0,8})`(?=``+(?:tool_code|tool_call|function_call|tool\s*$))")
_HEADER = re.compile(r"(?m)>(?=>>[^\W\d][\w.-]{0,199}[^\S\n]{0,8}$)")


def escape_markers(text: str) -> str:
    """Break every marker in a text by one character reference: `&lt;tool_call>`, `Observation&#58;`, `&#91;INST]`.

    A text without markers comes back unchanged, and a second time changes nothing. Takes linear time.
    """
    if "<" in text:
        text = _TAG.sub("&lt;", text)
    if "[" in text:
        text = _BRACKET.sub("&#91;", text)
    if _ARROW in text:
        text = text.replace(_ARROW, _ARROW.replace(">", "&gt;"))
    if "```" in text:
        text = _FENCE.sub(r"\1&#96;", text)
    if ">>>" in text:
        text = _HEADER.sub("&gt;", text)
    if ":" in text or "：" in text:
        low = text.casefold()
        if any(word in low for word in _WORDS):
            text = _LATER_LINE.sub(_with_reference, text)
            first = _FIRST_LINE.match(text)
            text = text if first is None else _with_reference(first) + text[first.end() :]
    return text


def break_markers(text: str, markers: Sequence[str]) -> str:
    """Break markers of the user's own in the same way. None may be blank."""
    if not markers:
        return text
    parts = ((marker[: -len(bare)], bare) for marker in markers if (bare := marker.lstrip()))
    # The first character of each marker that is not blank.
    found = (f"(?<={re.escape(blank)}){re.escape(bare[0])}(?={re.escape(bare[1:])})" for blank, bare in parts)
    return re.sub("|".join(found), lambda first: f"&#{ord(first[0])};", text)


def _with_reference(found: re.Match[str]) -> str:
    """The marker with its colon as a character reference."""
    return f"{found[0][:-1]}&#{ord(found[0][-1])};"


def as_data(text: str, tag: str) -> str:
    """Return a text for a place between two tags: with no such tag in it, and no marker of a turn or a call."""
    return escape_markers(re.sub(rf"(?i)<(?=\s*+/?+\s*+{tag}\b)", "&lt;", text))
