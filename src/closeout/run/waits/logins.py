"""Waits for a person to sign in to an MCP server: before an agent begins, and when a server refuses a call.

A login is an outcome like a decision, but nobody decides it: the run is resumed, and the server accepts it or not. A
call that was refused has not been made. So it is made after the login, whatever its tool's rule says; `AnswerGiven` is
recorded before, and a crash after that ends the call as the rule says.
"""

from __future__ import annotations

import json

from closeout.errors import McpServerUnavailable, Suspended
from closeout.journal.events import AnswerGiven, DecisionMade, DecisionRequested
from closeout.journal.run_journal import Journal
from closeout.run.plan import Scope, missing_servers
from closeout.run.waits.decisions import decide, login_digest, open_requests, recorded_requests
from closeout.tools.manager import ToolManager

__all__ = ["awaits_login", "begin_servers", "login_request", "recall_logins", "take_logins"]

LOGIN = "login"


def login_request(agent: str, key: str, *, server: str, url: str, reason: str, scope: str = "") -> DecisionRequested:
    """Return the request for a login. It holds nothing of the login itself."""
    arguments = json.dumps({"server": server, "url": url, **({"scope": scope} if scope else {})})
    digest = login_digest(server, url)
    return DecisionRequested(agent, key, LOGIN, name=server, arguments=arguments, digest=digest, reason=reason)


async def begin_servers(manager: ToolManager, scope: Scope) -> None:
    """Record what the servers of an agent do not offer, and wait for the logins that they want.

    Raises:
        McpServerUnavailable: A required server did not start, or has tools that nobody has accepted.
        Suspended: A person must sign in to a server first.
    """
    journal, path = scope.journal, scope.path
    _note_problems(manager, scope)
    missing = dict(manager.missing_logins)
    if missing:
        known = {each.name: each for each in open_requests(journal.rows()).values() if each.kind == LOGIN}
        number = sum(1 for each in journal.rows() if _is_own(each.event, path))
        for name, needed in missing.items():
            if name not in known:
                number += 1
                key, why = f"{LOGIN}{number}", str(needed)
                request = login_request(path, key, server=name, url=needed.url, reason=why, scope=needed.scope)
                known[name] = request
                journal.append(request, durable=True)
        raise Suspended([known[name] for name in missing])
    await recall_logins(scope)


def _note_problems(manager: ToolManager, scope: Scope) -> None:
    """Warn of the servers that the agent can do without. Raises McpServerUnavailable for the others."""
    problems = manager.problems
    for problem in problems:
        if not problem.fatal:
            scope.warn("MCP", str(problem))
    if text := missing_servers(manager):
        if any(problem.fatal and problem.server_name not in manager.unaccepted for problem in problems):
            text = f"{text.rstrip('.')}. Correct that, or set required=False for the server to run without its tools."
        raise McpServerUnavailable(text)


async def recall_logins(scope: Scope) -> None:
    """Take over the recorded logins that an agent has waited for before it began."""
    await _take(scope, LOGIN)


def _is_own(event: object, path: str) -> bool:
    return isinstance(event, DecisionRequested) and event.agent == path and event.request.startswith(LOGIN)


async def take_logins(scope: Scope, handle: str) -> int:
    """Record that the server of a call gets it again after the logins that it has wanted. Return their number."""
    found = await _take(scope, f"{handle}.{LOGIN}")
    for name in found:
        scope.journal.append(AnswerGiven(scope.path, name), durable=True)
    if found:
        await scope.journal.committed()
    return len(found)


async def _take(scope: Scope, prefix: str) -> list[str]:
    """Take over the recorded logins whose names begin so. Those that were waited for are there now."""
    journal, found = scope.journal, list[str]()
    for asked in recorded_requests(journal, scope.path, prefix):
        if journal.replay_only and not journal.has_decision(asked):
            journal.append(asked)  # a resumed run takes it
        else:
            await decide(scope, asked, _signed_in)
        found.append(asked.request)
    return found


async def _signed_in(request: DecisionRequested) -> DecisionMade:
    return DecisionMade(request.agent, request.request, LOGIN, digest=request.digest, by=LOGIN)


def awaits_login(journal: Journal, agent: str, handle: str) -> bool:
    """Return True if the server of a recorded call has refused it for want of a login, and has not got it again."""
    asked = recorded_requests(journal, agent, f"{handle}.{LOGIN}")
    return any(journal.recorded(AnswerGiven, agent, each.request) is None for each in asked)
