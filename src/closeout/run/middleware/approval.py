"""Asks a person for the calls that need an approval: by the rule of their tool, or for reasons found before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from closeout.codec import json_of_any
from closeout.journal.events import CallDecided, DecisionMade, DecisionRequested, ToolStarted
from closeout.messages import ToolCall, ToolSpec
from closeout.overrides import returned
from closeout.results.tool_output import ToolOutput
from closeout.run.middleware.chain import AgentPlace, Calling, ScopeMiddleware
from closeout.run.plan import Scope
from closeout.run.waits.decisions import call_digest, decide
from closeout.tools.approval_rules import ApprovalRule, called
from closeout.tools.running import stopped_output
from closeout.tools.tool import takes_context

__all__ = ["BY_RULE", "ApprovalMiddleware"]

BY_RULE = "approved"  # who decides if a rule does


class ApprovalMiddleware(ScopeMiddleware):
    """Suspends the run until a person has approved, edited or denied a call that needs it."""

    records_itself = True

    def __init__(self, scope: Scope, rules: Sequence[ApprovalRule] = ()) -> None:
        super().__init__(scope)
        self._rules = list(rules)

    @classmethod
    def at(cls, place: AgentPlace) -> Self:
        return cls(place.scope, () if place.plan is None else place.plan.spec.approved)

    def below(self, place: AgentPlace) -> Self:
        own = () if place.plan is None else place.plan.spec.approved
        return type(self)(place.scope, (*self._rules, *(each for each in own if each not in self._rules)))

    async def decide(self, calling: Calling) -> None:
        plan, served = calling.plan, calling.served
        if plan.again:
            calling.ask(f"{plan.tool.name} was called with these arguments before.")
        asked = self._scope.journal.recorded(DecisionRequested, self._scope.path, plan.handle)
        if not (isinstance(asked, DecisionRequested) and (asked.kind, asked.name) == ("approval", served.name)):
            asked = None
        needs_none = all(each.policy.approval in (None, "never") for each in (plan.tool, served))
        if needs_none and not calling.reasons and asked is None:
            return
        approved = await self._approve(calling, asked)
        if isinstance(approved, ToolOutput):
            calling.output = approved
        elif approved is not plan.call:
            calling.edit(approved)

    async def _approve(self, calling: Calling, asked: DecisionRequested | None) -> ToolCall | ToolOutput:
        """Return the call with the arguments that were approved, or the output of a denied call.

        What a person was `asked` about in this place is not made without a decision, even if the tool needs none now.
        """
        call, spec, handle = calling.plan.call, calling.served, calling.plan.handle
        journal, path = self._scope.journal, self._scope.path
        digest, arguments = call_digest(spec, call.arguments), json_of_any(call.arguments)
        recorded = journal.decision_on(DecisionRequested, calling.started(call, spec), handle)
        if recorded is not None and recorded.kind == "approval":
            made = journal.outcome_of(DecisionRequested, path, handle)
            is_denied = isinstance(made, DecisionMade) and made.verdict == "deny"
            if is_denied or recorded.digest == digest or self._is_settled(recorded, calling):
                return self._decided(await decide(self._scope, recorded), call, spec)
            reason: str | None = f"{recorded.reason} The tool has changed since this was asked."
        else:
            # A rule may be a function that would decide otherwise now. What has begun without approval needs none.
            reason = await self._approval_reason(call, spec, handle)
            if reason and not calling.reasons and self._is_approved(calling.started(call, spec), call):
                return call
            if asked is not None and not reason:
                reason = f"{asked.reason} The arguments have changed since this was asked."
            reason = " ".join(filter(None, (reason, *calling.reasons))) or None
            reason = None if journal.has_started(calling.started(call, spec)) else reason
        if reason is None:
            return call
        request = DecisionRequested(
            path, handle, "approval", name=spec.name, arguments=arguments, digest=digest, reason=reason
        )
        return self._decided(await decide(self._scope, request), call, spec)

    def _is_approved(self, started: ToolStarted, call: ToolCall) -> bool:
        """Return whether a rule approves a call in a person's place, and record which one."""
        decided = self._scope.journal.decision_on(CallDecided, started, request := f"{started.handle}.{BY_RULE}")
        if decided is None:
            rule = next((each for each in self._rules if each.fits(called(started), call.arguments)), None)
            if rule is None:
                return False
            arguments, name = started.arguments, started.name
            decided = CallDecided(
                started.agent, request, by=BY_RULE, name=name, decision="allow", reason=str(rule), arguments=arguments
            )
        self._scope.journal.append(decided)
        return True

    def _decided(self, made: DecisionMade, call: ToolCall, spec: ToolSpec) -> ToolCall | ToolOutput:
        """Return the call or output as decided. A rule that would have approved a call that is denied holds no more."""
        denied = [each for each in self._rules if made.verdict == "deny" and each.fits(called(spec), call.arguments)]
        for rule in denied:
            self._rules.remove(rule)
            text = (
                f"A person has denied {spec.name}, which the rule {rule} would have approved. For the rest of this run "
                "the rule is withdrawn. Remove it from the settings, or make it narrower."
            )
            self._scope.warn("Approval", text)
        return _as_decided(made, call, spec)

    async def _approval_reason(self, call: ToolCall, spec: ToolSpec, handle: str) -> str | None:
        """Why a call needs an approval, None if it needs none. A rule that raises asks for one."""
        rule = spec.policy.approval
        if not callable(rule):
            where = f" of the MCP server {spec.server_name}" if spec.server_name else ""
            what = "is destructive" if spec.policy.destructive else "needs approval"
            return f"{spec.name}{where} {what}." if rule == "always" else None
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        try:
            context = (replace(self._scope.context(), handle=handle),) if takes_context(rule) else ()
            found = await returned(rule(arguments, *context))
        except Exception as error:
            return f"The approval rule of {spec.name} raised {type(error).__name__}: {error}"
        if isinstance(found, str):
            return found or None
        return f"{spec.name} needs approval." if found else None

    def _is_settled(self, request: DecisionRequested, calling: Calling) -> bool:
        """Return whether the call is not made any more in this place, so that a change of its tool does not matter."""
        journal, path, handle = self._scope.journal, self._scope.path, request.request
        call, spec = calling.plan.call, calling.served
        if journal.replay_only:
            return True
        made = journal.outcome_of(DecisionRequested, path, handle)
        if isinstance(made, DecisionMade) and made.digest == request.digest:
            decided = _as_decided(made, call, spec)
            if isinstance(decided, ToolOutput):
                return True
            call = decided
        if not journal.has_started(calling.started(call, spec)):  # another call may have been made in this place
            return False
        return spec.policy.crash_rule == "report" or journal.outcome_of(ToolStarted, path, handle) is not None


def _as_decided(made: DecisionMade, call: ToolCall, spec: ToolSpec) -> ToolCall | ToolOutput:
    """Return the call as it was approved, or the output of a denied one."""
    if made.verdict == "approve":
        return call if made.arguments is None else replace(call, arguments=json.loads(made.arguments), text="")
    text = f"The user denied this call: {made.text}" if made.text else "The user denied this call."
    return stopped_output(spec.name, text, "Denied")
