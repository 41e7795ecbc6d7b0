"""Decide whether the words before a tool call make it or only show it. In English and Chinese.

A sentence in another language that runs into a call, or ends in a colon before it, shows the call.
"""

from __future__ import annotations

import re

__all__ = [
    "CONTEXT",
    "begins_quotation",
    "introduces_quotation",
    "is_role",
    "is_talk",
    "last_sentence",
    "speaks_of_calls",
    "states_intention",
]

CONTEXT = 400  # characters before a call in which its sentence is searched

# What speaks of calls in place of making one: examples, manuals, logs, refusals. Searched in the sentence before.
_TALK = re.compile(
    r"\b(?:examples?|e\.g|for instance|such as|like this|looks? like|syntax|format(?:s|ted)?|usage|template|schema"
    r"|documentation|docs|signature|would|could|might|should|can|cannot|can't|don't|do not|won't|will not|never|not"
    r"|without|instead of|if|unless|suppose|hypothetical\w*|imagine|tried|failed|earlier|previous(?:ly)?|used to"
    r"|how to|in order to use|you (?:need|must|have)|below|above|following|json|xml|(?:tool|function)[ -]calls?"
    r"|(?:the|a) (?:model|assistant|agent|user|log|trace|page|prompt|request|response|reply)|models|assistants|agents"
    r"|tags?|written|writes?|wrote|emits?|outputs?|says?|said|shows?|contains?|reads|illustrat\w+|samples?|snippets?"
    r"|(?:in)?valid|(?:a|the|this|that|each|every) call|calls are)\b"
    r"|调用|例如|比如|譬如|示例|例子|格式|语法|用法|如果|假如|可以|应该|不要|不会|不能|无法|之前|如下|方式|写法|返回",
    re.IGNORECASE,
)
# What the user must do first. Outweighs an intention: "Once you confirm, I'll search:".
_CONDITION = re.compile(
    r"\b(?:if|once|when(?:ever)?|unless|until|after|before|should|in case) (?:you|the user|this is|that is|it is|needed"
    r"|necessary)\b|\bsay (?:the word|yes)\b|如果|假如|一旦",
    re.IGNORECASE,
)
# An intention stated plainly outweighs a hedge in the same sentence: "I can't recall, so I will search:".
_INTENT = re.compile(
    r"(?:\b(?:I(?:['’]ll| will| should| must| need| have to| want to|['’]d like to|['’]m going to| am going to)"
    r"|we(?:['’]ll| will| should| must| need| have to)|let me|let['’]s"
    r"|(?:I|we)(?: am| are|['’]m|['’]re) (?:now )?\w+ing"
    r"|(?:I|we) (?:now |first |then )?(?:call|search|look|check|fetch|query|compute|calculate))\b"
    r"|我来|我将|我会|我要|我需要|我先|让我|让我们|正在)[^.!?。！？]*[.!。！…:：]*\Z",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    r"\A(?:(?:so|now|first|next|ok|okay|then)[, ]+)*(?:searching|looking|checking|calling|fetching|querying|retrieving"
    r"|computing|calculating|invoking)\b(?!.*\b(?:is|are|was|were|returns?|gives?|yields?|means?|requires?|takes?)\b)",
    re.IGNORECASE,
)
_HEDGE_AFTER_INTENT = re.compile(
    r"\b(?:show|explain|describe|illustrate|demonstrate|example|syntax|format|not|never)\b"
    r"|(?:['’]ll|will|let me|let['’]s|to) (?:now |just |also |first )?(?:write|give|provide|draft|present|suggest"
    r"|propose|recommend|quote|print|output|repeat|summari[sz]e|walk you)\b",
    re.IGNORECASE,
)
# What only the caller writes before a call: a label, the next step, "here is the call".
_ANNOUNCED = re.compile(
    r"\bhere(?: is|['’]s) (?:the|my|a|an)?\s*(?:\w+ ){0,3}?(?:call|request|query|action|command)\b"
    r"(?! (?:you|i|we|that)\b)"
    r"|\A[*#\s]*(?:(?:tool|function|mcp|api)[ _-]?(?:call|use|request|invocation)s?[*\s]*[:：]?[*\s]*\Z|action[*\s]*:)"
    r"|\b(?:the|my|our) (?:next|first|second|third|last) (?:step|action|thing) (?:is|will be) to\b|\bnext step\W*:"
    r"|\b(?:appropriate|right|correct|required|needed|necessary) (?:tool|function)(?: call| to (?:use|call))? is\b"
    r"|\A(?:(?:so|now|first|then)[, ]+)*(?:to [^:]{3,80}, )?(?:use|call|invoke) the [\w`-]+ (?:tool|function)\b"
    r"|\bI can (?:do|help|look|check|find|get|search|fetch|compute|calculate)\b"
    r"|(?:下面|以下)是[^。]{0,8}(?:调用|请求)|(?:需要|应该|应当|要)先?(?:调用|使用|查询|搜索|查找)",
    re.IGNORECASE,
)
_SHOWS = re.compile(
    r"\b(?:examples?|format(?:ted)?|syntax|schema|template|would|could|illustrat\w+|samples?|looks|like|wrote|used|made"
    r"|earlier|previous(?:ly)?|describ\w+|not|never|json)\b|例|格式|语法|写法|不",
    re.IGNORECASE,
)
_ROLE = re.compile(r"\W*(?:assistant|model|助手)\W*", re.IGNORECASE)  # A chat template's role, repeated by the model.
_ACKNOWLEDGED = re.compile(
    r"(?:sure|ok|okay|alright|all right|right|certainly|of course|yes|got it|understood|hm+"
    r"|好的?|好吧|当然)[\s,.!。！，…]*",
    re.IGNORECASE,
)
_FINISHED = re.compile(r"[.!。！…][\s*_\"'”’)）]*\Z")
_SENTENCE_END = re.compile(r"[.!?。！？]['\")\]]*\s|[。！？]|\n\s*\n|\n(?=\s*[-*#\d])")
_QUOTES = "`\"'“‘«「『"
_LISTED = re.compile(r"[ \t]*(?:[-*+•|>]|\d+[.)])")


def last_sentence(text: str) -> str:
    """The last sentence with what ends it."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text) if text[found.end() :].strip()]
    return text[ends[-1] if ends else 0 :].strip()


def speaks_of_calls(sentence: str, *, marked: bool) -> bool:
    """True if a call after this sentence is shown, not made.

    Made is what an intention announces, or a label, or "here is the call". What a plain statement precedes is made
    too, if its form has a mark. Any other sentence that runs into the call, or has a colon before it, shows it:
    "The log says:", "Models write".
    """
    if not sentence or _ACKNOWLEDGED.fullmatch(sentence):
        return False
    if _CONDITION.search(sentence):
        return True
    if _INTENT.search(sentence):
        return bool(_HEDGE_AFTER_INTENT.search(sentence))
    if _BEGUN.match(sentence) or (_ANNOUNCED.search(sentence) and not _SHOWS.search(sentence)):
        return False
    return not marked or not _FINISHED.search(sentence) or _TALK.search(sentence) is not None


def is_role(text: str) -> bool:
    """True if it is nothing but the name of a role, as a chat template writes it before a message."""
    return _ROLE.fullmatch(text) is not None


def is_talk(sentence: str) -> bool:
    """True if it has words that speak of calls, as examples, manuals, logs and refusals do."""
    return _TALK.search(sentence) is not None


def states_intention(text: str) -> bool:
    """True if it ends in a plain intention, "I'll search"."""
    return _INTENT.search(text) is not None


def begins_quotation(line: str) -> bool:
    """Return whether a call after this part of its line is quoted, or an item of a list or table."""
    return bool(line.strip()) and (line.rstrip().endswith(tuple(_QUOTES)) or _LISTED.match(line) is not None)


def introduces_quotation(before: str) -> bool:
    """True if the text before a call with a mark shows the call as a quotation.

    It does if it ends in a sentence with a colon that does not announce a call ("The page says:"), or if the call
    begins inside a line of prose, a quotation or a list item.
    """
    before = before[-CONTEXT:]
    line = before.rpartition("\n")[2]
    if begins_quotation(line):
        return True
    if not line.strip() and not before.rstrip().endswith((":", "：")):
        return False
    return speaks_of_calls(last_sentence(before.strip()), marked=True)
