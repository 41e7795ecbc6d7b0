"""Compaction: the oldest part of a full context replaced by a summary that the model writes. The words, and when."""

from __future__ import annotations

from closeout.context.eviction import Eviction

__all__ = ["COMPACTION_PROMPT", "is_due", "summary_of"]

COMPACTION_PROMPT = """\
The conversation is about to be shortened: everything above but the task, an earlier summary too, is replaced by what \
you write now. Call no tools and do not answer the task yet. Write, in few words and with every name, number and \
source that matters:
Findings: what is known so far, each with where it is from
Open questions: what the task still needs
Tried: queries and pages that brought nothing, so that they are not tried again"""

SHORTEST = 40  # characters: less than this sums up nothing


def is_due(eviction: Eviction | None, wanted: bool) -> bool:
    """Whether a full context is to be summed up rather than thinned out."""
    return wanted and eviction is not None and eviction.reason == "budget"


def summary_of(reply: str) -> str:
    """The summary in a reply, or empty where it holds none."""
    text = reply.strip()
    return text if len(text) >= SHORTEST else ""
