"""Read a whole reply: its calls, its answer, or what is wrong with it. Runs and the proxy read by the same rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from closeout.messages import SHOULD_BREAK, Defect, ModelReply, Reading, Repair, ToolSpec
from closeout.parsing.forms import Form, split_channels
from closeout.parsing.readers import Reader, unfinished
from closeout.parsing.repetition import REPEATING, repeated_tail
from closeout.parsing.salvage import AMID_TEXT, salvage

__all__ = ["invents_result", "read_reply", "salvaged_form"]

_FORM = "dialect:"  # The prefix of the kind of a repair that names the form of a salvaged call.
# A tool result that the model wrote itself: what follows it is not an answer, in any dialect.
_INVENTED = re.compile(
    r"^[ \t>*#]*(?:observation|tool[ _](?:result|response|output)|观察|观测)\s*\d*\s*[*]*[:：]"
    r"|^[ \t]*<(?:tool_response|tool_result|function_results?|observation)\b",
    re.IGNORECASE | re.MULTILINE,
)

INVENTED = Defect(
    "invented_observation",
    "You wrote a tool result yourself. Results come only from tools: make the call and wait for its result.",
    refuses=True,
)


def read_reply(
    reply: ModelReply,
    reader: Reader,
    tools: Sequence[ToolSpec],
    *,
    parallel: bool = True,
    is_answer: Callable[[str], bool] = lambda text: False,
    forms: Sequence[Form] = (),
) -> Reading:
    """Read a reply by the dialect it is written in; calls in a form that the dialect does not know are salvaged.

    Args:
        reply: The reply, whole.
        reader: A reader of the dialect.
        tools: The tools on offer.
        parallel: Whether a reply may hold several calls.
        is_answer: Whether a text without calls is certainly an answer: nothing is salvaged from it.
        forms: Forms of the user's own, beside the built-in ones.
    """
    if reply.finish_reason in ("cut", "length", "context_full"):
        start = repeated_tail(reply.text)
        if start >= 0 or repeated_tail(reply.reasoning) >= 0:
            return Reading(reply.text[: max(start, 0)], reply.reasoning, defects=(REPEATING,))
    repairs: tuple[Repair, ...] = ()
    if not reply.tool_calls and (split := split_channels(reply.text)) is not None:
        reasoning = "\n".join(filter(None, (reply.reasoning, split[0])))
        repairs = (Repair("channels", "reply", reply.text[:80], after=split[1][:80]),)
        reply = replace(reply, text=split[1], reasoning=reasoning)
    reading = reader.close(reply)
    ends = reply.finish_reason == SHOULD_BREAK
    if reply.attached or ends or repairs:
        reading = replace(reading, attached=reply.attached, ends=ends, repairs=(*repairs, *reading.repairs))
    if reading.calls:
        return reading
    if not (reply.finished or reading.defects):
        reading = replace(reading, defects=(unfinished(reply),))
    if tools and not is_answer(reading.answer or ""):
        reading = _salvaged(reading, reply, tools, parallel=parallel, forms=forms) or reading
    # Without tools, "Observation: …" is a line like any other.
    if not reading.calls and tools and invents_result(reading.answer or ""):
        return replace(reading, answer=None, defects=(INVENTED, *reading.defects))
    return reading


def salvaged_form(reading: Reading) -> str:
    """Return the form in which salvaged calls were written, such as "hermes"; empty if none were salvaged."""
    return next((each.kind.removeprefix(_FORM) for each in reading.repairs if each.kind.startswith(_FORM)), "")


def _salvaged(
    reading: Reading, reply: ModelReply, tools: Sequence[ToolSpec], *, parallel: bool, forms: Sequence[Form]
) -> Reading | None:
    """The reading with the calls that the reply holds in another form, None if it holds none that may be made."""
    if any(defect.refuses for defect in reading.defects):
        return None
    rejected = reply.finish_reason == "rejected"  # the server may have left the beginning out
    found = salvage(reply.text, reply.reasoning, tools, truncated=rejected, forms=forms)
    if found is None:
        return None
    if not found.calls:
        answer = reading.answer if AMID_TEXT in found.defects else None  # a call that breaks off is never one
        return replace(reading, answer=answer, defects=found.defects)
    calls = found.calls if parallel else found.calls[:1]
    repairs = (*reading.repairs, *found.repairs)
    if rejected:
        repairs = (Repair("rejected_call", "reply", reply.text[:80], after=calls[0].name), *repairs)
    return replace(reading, text=found.content, calls=tuple(calls), answer=None, defects=(), repairs=repairs, raw="")


def invents_result(text: str) -> bool:
    """Return whether a line of the text pretends to be a tool result."""
    return _INVENTED.search(text) is not None
