"""Knows the secrets of an agent's calls, and hides those of all agents of its run."""

from __future__ import annotations

from typing import Self

from closeout.run.agent_tool import team_of
from closeout.run.middleware.chain import AgentPlace, Middleware, found_in
from closeout.run.plan import AgentPlan, Scope
from closeout.tools.secrets import NO_SECRETS, Secrets

__all__ = ["SecretsMiddleware", "secrets_in"]


class SecretsMiddleware(Middleware):
    """The secrets of one agent of a run.

    Attributes:
        secrets: Its own, which also hide those of the run's other agents.
    """

    def __init__(self, own: Secrets, all_known: list[Secrets]) -> None:
        self._all = all_known
        if own and all(each is not own for each in all_known):  # a function made this agent
            all_known.append(own)
        self.secrets = own.beside(all_known)

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        plan = place.plan
        return None if plan is None else cls(plan.secrets, _secrets_of(plan))

    def below(self, place: AgentPlace) -> SecretsMiddleware:
        return SecretsMiddleware(NO_SECRETS if place.plan is None else place.plan.secrets, self._all)


def secrets_in(scope: Scope) -> Secrets:
    """Return the secrets of an agent of a run, which hide those of its other agents too."""
    found = found_in(scope, SecretsMiddleware)
    return NO_SECRETS if found is None else found.secrets


def _secrets_of(plan: AgentPlan) -> list[Secrets]:
    """Return the secrets of an agent, of those before it and of all that may work in its runs, without empty ones."""
    found = list[Secrets]()
    for each in team_of(plan)[0]:
        if each.secrets and all(each.secrets is not known for known in found):
            found.append(each.secrets)
    return found
