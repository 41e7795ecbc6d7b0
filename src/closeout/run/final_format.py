"""Write final summaries with an agent's output formatter, whose failures do not cost the answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from closeout.answers.formatter import NO_USAGE, FormattedAnswer, OutputFormatter, using_contract
from closeout.compat.history_methods import owner_of
from closeout.errors import JournalError
from closeout.journal.events import Noted
from closeout.journal.run_journal import Journal
from closeout.messages import Usage
from closeout.models.base import UsageSummary, summarise_usage
from closeout.overrides import failure_of, is_overridden, shaped
from closeout.run.plan import AgentPlan

__all__ = ["FinalFormat", "UsageReport"]


class UsageReport:
    """The usage of a run, in the shape in which formatters take it from a model client."""

    def __init__(self, plan: AgentPlan, usage: Callable[[], Usage]) -> None:
        self.name = plan.client.name
        self._owner = owner_of(plan.client, "format_token_usage_summary")
        self._usage = usage

    @property
    def usage(self) -> Usage:
        return self._usage()

    @property
    def is_own(self) -> bool:
        """True if the client has a `format_token_usage_summary` of its own."""
        return self._owner is not None

    def format_token_usage_summary(self) -> UsageSummary:
        if self._owner is not None:
            return UsageSummary(*self._owner.format_token_usage_summary())
        return summarise_usage(self.name, self.usage)

    def log_string(self) -> str:
        """Return the usage on one line."""
        try:
            return str(self.format_token_usage_summary().log_string)
        except Exception as error:
            return f"{NO_USAGE} ({type(error).__name__}: {error})"


class FinalFormat:
    """An agent's output formatter in a run, with the usage that summaries state. One that fails is noted."""

    def __init__(self, plan: AgentPlan, journal: Journal, path: str, usage: Callable[[], Usage]) -> None:
        self.client = UsageReport(plan, usage)
        self._formatter = plan.output_formatter
        self._contract = plan.contract
        self._journal = journal
        self._path = path
        self._decides = is_overridden(self._formatter, OutputFormatter, "format_final_summary_and_log")
        self._accepted: tuple[str, FormattedAnswer] | None = None

    @property
    def states_usage(self) -> bool:
        """True if a user's formatter or client words the line of usage."""
        return self._decides or self.client.is_own

    def format(self, text: str) -> FormattedAnswer:
        """Return the summary and the answer of a closing text; the default ones if the formatter fails."""
        accepted, self._accepted = self._accepted, None
        if accepted is not None and accepted[0] == text:
            return accepted[1]
        with using_contract(self._contract):
            try:
                formatted = self._formatter.format_final_summary_and_log(text, self.client)
                parts = shaped(formatted, FormattedAnswer, self._formatter, "format_final_summary_and_log")
                return FormattedAnswer(*("" if part is None else str(part) for part in parts))
            except Exception as error:  # a formatter that fails must not cost the answer
                failure = failure_of(self._formatter, "format_final_summary_and_log", error)
                self.warn(f"{failure}. The summary is the default one.")
                return self._default(text)

    def accept(self, text: str) -> str | None:
        """Return the answer that a formatter of the user's finds in a reply that the contract does not accept."""
        if not self._decides:
            return None
        formatted = self.format(text)
        self._accepted = (text, formatted) if formatted.answer is not None else None
        return formatted.answer

    def _default(self, text: str) -> FormattedAnswer:
        try:
            return OutputFormatter(self._contract).format_final_summary_and_log(text, self.client)
        except Exception:  # the contract fails too
            return FormattedAnswer(text, "", NO_USAGE)

    def warn(self, text: str) -> None:
        """Note what the formatter did wrong."""
        with suppress(JournalError):
            self._journal.append(Noted(self._path, "warning", "Final summary", message=text))
