"""Decide what is wrong with a reply that should have held the answer. Pure functions; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from closeout.answers.contracts import ContractReading
from closeout.answers.reading import said, stated
from closeout.parsing.forms.reader import find_call_mark
from closeout.parsing.read_reply import invents_result
from closeout.parsing.repetition import repeated_tail

__all__ = ["ReplyProblem", "has_tool_calls", "problem_of"]

Kind = Literal[
    "empty", "tool_call", "invented", "repeating", "cut", "refusal", "announced", "format_missing", "contract"
]

_REFUSAL = re.compile(
    r"\W*(?:(?:i'?m (?:really |very |so )?sorry|i am sorry|sorry\b)(?! to hear\b| for your\b| about your\b)"
    r"|i apologi[sz]e|unfortunately"
    r"|i (?:can'?t|cannot|can not|could not|couldn'?t|won'?t|am unable to|am not able to|do not know|don'?t know)"
    r"|i'm (?:unable|not able) to|as an ai\b|(?:it is )?(?:not possible|impossible) to"
    r"|due to (?:the )?time constraints?|抱歉|对不起|很遗憾|我无法|我不能|我不知道|无法确定|作为一个?(?:ai|人工智能))",
    re.IGNORECASE,
)
_REFUSAL_LENGTH = 700  # characters; a longer text is an answer that starts politely
# An action of ReAct, in addition to the marks of the other tool-call forms.
_ACTION = re.compile(r"^Action Input:|^Action:\s{0,4}(?:```(?:json)?\s{0,4})?\{", re.MULTILINE)
# The end of a reply that announces what the model does next: "I will now search for it.", "Let me check:".
_STEPS = (
    r"(?:search|look|check|find|fetch|get|retrieve|query|call|use|invoke|run|execute|calculate|compute|read|open|browse"
    r"|gather|collect|investigate|research|start|begin|try|determine|identify|verify|proceed|analy[sz]e|review|scan)"
)
_ANNOUNCED = re.compile(
    rf"\b(?:I(?:['’]ll| will| shall| need to| have to| must| want to| am going to|['’]m going to|['’]d like to)"
    rf"|we(?:['’]ll| will| need to| have to)|let(?: me|['’]s| us))"
    rf" (?:(?:now|first|next|then|just|also|quickly|please|try to|need to|have to|go ahead and) )*{_STEPS}\b"
    r"|\A\W*(?:(?:ok|okay|sure|now|first|next)[, ]+)*(?:searching|looking|checking|fetching|retrieving|querying|calling"
    r"|calculating|computing|reading)\b"
    r"|(?:我来|我将|我会|我要|我先|我需要|我得|让我们?|接下来|正在|首先)[^。！？]{0,20}(?:查|搜|找|看|算|调用|使用|获取|检索|分析|读|试)"
    r"|\b(?:je vais|laissez-moi|permettez-moi de) (?:\w+ )?(?:chercher|rechercher|vérifier|consulter|regarder|calculer)"
    r"|\b(?:ich werde|lassen sie mich|lass mich)\b.{0,80}\b(?:suchen|nachschlagen|prüfen|nachsehen|ermitteln|berechnen)"
    r"|\b(?:voy a|déjame|permíteme) (?:buscar|consultar|verificar|revisar|calcular|comprobar)"
    r"|\b(?:vou|deixe-me) (?:procurar|pesquisar|buscar|verificar|consultar|calcular)"
    r"|(?:сейчас|я) (?:я )?(?:найду|поищу|проверю|посмотрю|посчитаю)|давайте (?:найд|поищ|провер|посмотр)"
    r"|(?:調べ|検索し|確認し|探し)(?:ます|てみます)|(?:검색|확인|조회|찾아)\S{0,6}(?:겠습니다|볼게요|할게요)",
    re.IGNORECASE,
)
_OFFERED = re.compile(r"\b(?:if|once|when|unless|whenever) (?:you|that|this|it)\b|[?？]\W*\Z|如果|吗", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


@dataclass(frozen=True, slots=True)
class ReplyProblem:
    """Why a reply is not an answer. `hint` is shown to the model; `finishable`: only the wrapper is missing."""

    kind: Kind
    hint: str
    finishable: bool = False


def has_tool_calls(info: Any) -> bool:
    """Return whether `extract_tool_calls_info` found calls: a list of them, or a tuple of such lists."""
    if isinstance(info, tuple):
        return any(has_tool_calls(part) if isinstance(part, tuple | list) else part is not None for part in info)
    return isinstance(info, list) and bool(info)


def is_refusal(text: str) -> bool:
    """Return whether a text, without its reasoning, is short and declines the task."""
    visible = said(text).strip()
    return len(visible) <= _REFUSAL_LENGTH and _REFUSAL.match(visible) is not None


def announces_step(text: str) -> bool:
    """Return whether a text is short, and each of its sentences announces a step. It chooses the words of a hint."""
    if len(text) > _REFUSAL_LENGTH:
        return False
    sentences = [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]
    return bool(sentences) and all(_ANNOUNCED.search(each) and not _OFFERED.search(each) for each in sentences)


def problem_of(text: str, reading: ContractReading, *, called_tools: bool = False, cut: bool = False) -> ReplyProblem:
    """Return what is wrong with a reply that was not accepted; the most specific problem wins.

    `called_tools`: it made native tool calls. `cut`: it ended at the token limit.
    """
    if called_tools or find_call_mark(text) >= 0 or _ACTION.search(text):
        hint = "Your last reply called a tool. Tools are closed now, so nothing was run: answer from what you have."
        return ReplyProblem("tool_call", hint)
    if invents_result(text):
        hint = "You wrote a tool result yourself. No tool was run: answer from the results that you have."
        return ReplyProblem("invented", hint)
    if not text.strip():
        return ReplyProblem("empty", "Your last reply was empty.")
    if repeated_tail(text) >= 0:  # a watched stream is stopped there
        return ReplyProblem("repeating", "Your last reply repeated itself. Be brief, and give the answer.")
    if cut:
        return ReplyProblem("cut", "Your last reply was cut off before it came to its answer. Be much shorter.")
    if is_refusal(text):
        hint = "Your last reply declined to answer. An answer is needed, even if it is not certain."
        return ReplyProblem("refusal", hint)
    if not reading.marked and announces_step(text):
        return ReplyProblem("announced", "Your last reply only announced a step. Give the answer now.")
    if reading.kind == "missing":
        hint = f"Your last reply was not in the form asked for: {_sentence(reading.problem)}"
        return ReplyProblem("format_missing", hint, finishable=True)
    return ReplyProblem("contract", f"Your last reply was not accepted: {_sentence(reading.problem)}")


def _sentence(problem: str) -> str:
    problem = stated(problem)
    return problem[:1].lower() + problem[1:] if problem[:1].isupper() and problem[1:2].islower() else problem
