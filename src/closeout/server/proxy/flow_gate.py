"""Flow rules at the proxy: which calls of a reply its client gets. No I/O."""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes
from typing import Any

from closeout.journal.events import FlowDecided
from closeout.messages import Defect, Message, Repair, ToolCall, ToolPolicy, ToolSpec
from closeout.run.flow_watch import decisions_after
from closeout.server.formats import RequestTools
from closeout.server.governing import Verdict, arguments_text
from closeout.tools.flow import UNTRUSTED, Flow
from closeout.visible import visible

__all__ = ["FlowGate"]

CODE_LENGTH = 10  # hexadecimal digits, 40 bits
REPLY_WITH = "To allow exactly this call, reply with this code and nothing else:"
ALLOWED_HINT = "I allow the call above that has this code. Make exactly this call now, with the same arguments."

# Fields of requests by which the model server itself reads something before it replies.
_SERVER_READS = ("mcp_servers", "web_search_options")


class FlowGate:
    """Holds back the calls of replies that flow rules do not allow.

    The proxy sees messages, not tools: a tool counts as one with effects unless it is named as one that only reads. A
    person who is asked allows a call by sending its code as the next message of the user. The code belongs to this call
    at this place of this conversation, and only the proxy can compute it.

    Args:
        flow: The rules.
        read_only: The names of tools without effects.
    """

    def __init__(self, flow: Flow, read_only: Collection[str] = ()) -> None:
        self._flow = flow
        self._tools = {name: ToolSpec(name, policy=ToolPolicy(read_only=True)) for name in read_only}
        self._key = token_bytes(32)

    def judge(
        self,
        verdict: Verdict,
        messages: Sequence[Message],
        body: Mapping[str, Any],
        offered: RequestTools,
        *,
        may_ask_again: bool,
    ) -> tuple[Verdict, list[FlowDecided]]:
        """Return the verdict on a reply under the rules, and the decisions on its calls.

        A reply with a call that is not allowed loses all its calls: it ends with the reasons, or is requested again if
        all of them are refused.

        Args:
            verdict: The verdict without the rules.
            messages: The conversation.
            body: The request.
            offered: The tools of the request.
            may_ask_again: The request can be repeated.
        """
        reply = verdict.reply
        if not reply.tool_calls:
            return verdict, []
        begins_with = [UNTRUSTED] if self._reads_more(body, offered) else []
        calls = list(map(_plainly_read, reply.tool_calls))
        found = decisions_after(self._flow, messages, calls, tools=self._tools, begins_with=begins_with)
        decided: list[FlowDecided] = []
        held: list[tuple[ToolCall, FlowDecided]] = []
        codes = _codes(messages)
        for call, each in zip(calls, found, strict=True):
            if each is None:
                continue
            if each.decision == "ask" and (code := self._code(messages[:-2], call)) in codes:
                codes.remove(code)  # it is for one call
                each = replace(each, decision="allow", reason=f"{each.reason} A person allowed it.")
            decided.append(each)
            if each.decision != "allow":
                held.append((call, each))
        if not held:
            return verdict, decided
        notices = [self._notice(messages, call, each) for call, each in held]
        text = "\n\n".join([reply.text, *notices] if reply.text else notices)
        names = ", ".join(dict.fromkeys(call.name for call, _ in held))
        defect = verdict.defect if may_ask_again else None
        if defect is None and may_ask_again and all(each.decision == "refuse" for _, each in held):
            hint = f"Your call of {names} is not allowed and was not made, because this conversation holds text that "
            defect = Defect("flow_refused", f"{hint}nobody vouches for. Continue without it, or answer.")
        withheld = Repair("flow_withheld", "tool_calls", names, after=held[0][1].decision)
        shown = replace(reply, text=text, tool_calls=(), finish_reason="stop")
        return Verdict(reply=shown, repairs=(*verdict.repairs, withheld), defect=defect), decided

    def _reads_more(self, body: Mapping[str, Any], offered: RequestTools) -> bool:
        """Return whether the model reads untrusted text besides the messages.

        It is in the results of tools that the model server may run itself, within its reply, and in documents.
        """
        known = len(offered.functions) + len(offered.others)
        return (
            any(not self._flow.trusts(ToolSpec(name)) for name in offered.others)
            or len(body.get("tools") or ()) > known
            or any(body.get(name) for name in _SERVER_READS)
            or (not self._flow.trust_files and _has_documents(body))
        )

    def hint(self, messages: Sequence[Message]) -> str:
        """Return the hint for the model if the last message is the code of a call; empty otherwise."""
        return ALLOWED_HINT if _codes(messages) else ""

    def _code(self, messages: Sequence[Message], call: ToolCall) -> str:
        # Instructions may hold the time, and need not be the same when the call is allowed.
        said = [[each.role, each.text] for each in messages if each.role not in ("system", "developer")]
        written = json.dumps([said, call.name, _shown(call)]).encode()
        return hmac.digest(self._key, written, "sha256").hex()[:CODE_LENGTH]

    def _notice(self, messages: Sequence[Message], call: ToolCall, decided: FlowDecided) -> str:
        notice = f"A call was not made. {decided.reason}\n\n{visible(call.name)} {_shown(call)}"
        if decided.decision != "ask":
            return notice
        code = self._code(messages, call)
        return f"{notice}\n\n{REPLY_WITH} {code}"


def _has_documents(body: Mapping[str, Any]) -> bool:
    """Return whether a request in Anthropic's format has documents, which are text in the other formats."""
    contents = [each.get("content") for each in body.get("messages") or ()]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return any(isinstance(block, Mapping) and block.get("type") == "document" for block in blocks)


def _codes(messages: Sequence[Message]) -> list[str]:
    """Return the codes in the last message if the user sent nothing else, right after the reply with these codes."""
    if [each.role for each in messages[-2:]] != ["assistant", "user"]:
        return []
    content, question = messages[-1].content, messages[-2].text
    parts = content if isinstance(content, list) else [{"text": content}]
    said = [str(part.get("text") or "").split() for part in parts if isinstance(part, Mapping)]
    return [code for words in said if all(f"{REPLY_WITH} {word}" in question for word in words) for code in words]


def _plainly_read(call: ToolCall) -> ToolCall:
    """Return a call with its arguments as an object; as text if clients may read them differently."""
    text = arguments_text(call)
    try:
        found = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        found = text
    return replace(call, arguments=found if isinstance(found, dict) else text)


def _shown(call: ToolCall) -> str:
    """Return the arguments of a call in one form, every character plainly seen."""
    given = call.arguments
    return visible(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, sort_keys=True))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("A name is given twice.")  # clients differ in which one they take
    return found
