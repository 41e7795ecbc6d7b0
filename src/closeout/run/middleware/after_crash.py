"""Decides what becomes of a call that a crash cut off, by its tool's `on_crash`."""

from __future__ import annotations

from closeout.journal.events import CallRepeated, DecisionMade, DecisionRequested, ToolStarted
from closeout.run.middleware.chain import Calling, ScopeMiddleware
from closeout.run.waits.decisions import AGAIN, call_digest, decide
from closeout.run.waits.logins import awaits_login
from closeout.run.waits.server_questions import may_continue
from closeout.tools.running import MAY_HAVE_EFFECT

__all__ = ["CrashMiddleware"]

INTERRUPTED = f"Interrupted: the program stopped while this call was running. {MAY_HAVE_EFFECT}"
STAYS_INTERRUPTED = (
    "Interrupted: the program stopped while this call was running, and a person has decided not to make it again."
)


class CrashMiddleware(ScopeMiddleware):
    """Makes no call again that may have taken effect, unless its tool or a person allows it."""

    records_itself = True

    async def decide(self, calling: Calling) -> None:
        if calling.plan.tool.policy.crash_rule == "rerun":
            return
        started = calling.started(calling.plan.call, calling.plan.tool)
        again = await self._decide_again(started, calling)
        if self._is_made_once(started) and (again is None or again.verdict != "approve"):
            calling.cut_off = INTERRUPTED if again is None else f"{STAYS_INTERRUPTED} {again.text}".rstrip()

    def _is_made_once(self, started: ToolStarted) -> bool:
        """Return whether a call that a crash cut off must not be made again unasked."""
        place = self._scope.journal, started.agent, started.handle
        return not may_continue(*place) and not awaits_login(*place)

    async def _decide_again(self, started: ToolStarted, calling: Calling) -> DecisionMade | None:
        """Ask a person whether a call that a crash cut off is made again. None: its tool does not want that."""
        journal, path, handle = self._scope.journal, started.agent, started.handle
        call, spec = calling.plan.call, calling.plan.tool
        if spec.policy.crash_rule != "ask" or not journal.has_started(started) or not self._is_made_once(started):
            return None
        if journal.outcome_of(ToolStarted, path, handle) is not None:
            return None
        number = 0
        while True:
            number += 1
            request = DecisionRequested(
                path,
                f"{handle}.{AGAIN}{number}",
                "approval",
                name=spec.name,
                arguments=started.arguments,
                digest=call_digest(spec, call.arguments),
                reason="The program stopped while this call was running: it may have taken effect. Make it again?",
            )
            made = await decide(self._scope, request)
            if made.verdict != "approve":
                return made
            was_repeated = journal.recorded(CallRepeated, path, request.request) is not None
            journal.append(CallRepeated(path, request.request), durable=True)
            if not was_repeated:
                await journal.committed()
                return made
