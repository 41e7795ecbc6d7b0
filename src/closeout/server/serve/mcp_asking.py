"""Ask the person at an MCP client what a run waits for: elicitation, in the form of the client's protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.errors import ToolError
from closeout.run.waits.decisions import Decision, PendingDecision
from closeout.tools.mcp.mcp_offers import InputNeeded
from closeout.visible import visible

__all__ = ["can_ask", "decisions_by_client", "decisions_of", "requests_for", "undecided"]


async def decisions_by_client(context: Any, pending: Sequence[PendingDecision], run_id: str) -> dict[str, Decision]:
    """Return what the person at a client decides.

    Args:
        context: The library's context of the call.
        pending: What the run waits for.
        run_id: The run.

    Raises:
        InputNeeded: The client answers by calling again.
        ToolError: The client cannot ask anybody, or nobody decided.
    """
    if not can_ask(context):
        raise ToolError(undecided(run_id))
    requests = requests_for(pending)
    if not context.session.can_send_request:  # a stateless client
        raise InputNeeded(requests, run_id)
    results = {
        name: await context.session.elicit_form(each.params.message, each.params.requested_schema, context.request_id)
        for name, each in requests.items()
    }
    return decisions_of(results, pending, run_id)


def can_ask(context: Any) -> bool:
    """Return whether a client fills in forms."""
    abilities = context.session.client_capabilities
    offered = None if abilities is None else abilities.elicitation
    return offered is not None and (offered.form is not None or offered.url is None)


def requests_for(pending: Sequence[PendingDecision]) -> dict[str, Any]:
    """Return the library's request for each decision, by its id."""
    from mcp.types import ElicitRequest, ElicitRequestFormParams

    forms = {each.id: ElicitRequestFormParams(message=_message(each), requested_schema=_form(each)) for each in pending}
    return {name: ElicitRequest(params=form) for name, form in forms.items()}


def decisions_of(results: Mapping[str, Any], pending: Sequence[PendingDecision], run_id: str) -> dict[str, Decision]:
    """Return the decisions in a client's results, by what they decide.

    Raises:
        ToolError: Nobody decided, or a result does not have what was asked for.
    """
    decided: dict[str, Decision] = {}
    for each in pending:
        result = results.get(each.id)
        if result is None:
            continue
        content = getattr(result, "content", None) or {}
        action = getattr(result, "action", "cancel")
        if action == "accept" and each.kind == "approval":
            if not isinstance(content.get("approve"), bool):
                raise ToolError(f"The client's answer lacks approve, true or false. {undecided(run_id)}")
            decided[each.id] = Decision(verdict="approve" if content["approve"] else "deny", hash=each.hash)
        elif action == "accept":
            text = json.dumps(content, ensure_ascii=False) if "form" in each.arguments else content.get("answer")
            if not isinstance(text, str):
                raise ToolError(f"The client's answer lacks a text as answer. {undecided(run_id)}")
            decided[each.id] = Decision(verdict="answer", text=text, hash=each.hash)
        elif action == "decline":
            decided[each.id] = Decision(verdict="deny", hash=each.hash)
        else:
            raise ToolError(undecided(run_id))
    return decided


def undecided(run_id: str) -> str:
    """Return how a person decides who is not at the client."""
    return f"The run waits for a person. To decide: closeout approve {run_id}"


def _message(pending: PendingDecision) -> str:
    if pending.kind != "approval":
        return visible(str(pending.arguments.get("question", "")), keep="\n")
    arguments = json.dumps(pending.arguments, ensure_ascii=False)
    reason = f"\n{pending.reason}" if pending.reason else ""
    return visible(f"The agent wants to call {pending.tool} with {arguments}{reason}", keep="\n")


def _form(pending: PendingDecision) -> dict[str, Any]:
    if pending.kind == "approval":
        field: dict[str, Any] = {"type": "boolean", "title": "Approve the call"}
        return {"type": "object", "properties": {"approve": field}, "required": ["approve"]}
    form = pending.arguments.get("form")
    if isinstance(form, Mapping):
        return dict(form)
    field = {"type": "string", "title": "Answer"}
    options = pending.arguments.get("options")
    if isinstance(options, list) and options and all(isinstance(each, str) for each in options):
        field["enum"] = options
    return {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
