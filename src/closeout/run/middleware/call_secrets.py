"""Knows the secrets of an agent's calls, and hides those of all agents of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from closeout.file_values import File
from closeout.messages import ToolSpec
from closeout.results.normal import is_large, normalise
from closeout.results.tool_output import ToolOutput
from closeout.run.agent_tool import team_of
from closeout.run.middleware.chain import AgentPlace, Calling, Middleware, found_in
from closeout.run.plan import AgentPlan, Scope
from closeout.tools.secrets import NO_SECRETS, Secrets
from closeout.tools.threads import run_in_thread

__all__ = ["SecretsMiddleware", "secrets_in"]


class SecretsMiddleware(Middleware):
    """Fills the values of secrets into an agent's calls, and hides all that the run knows.

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
        return None if plan is None else cls(plan.spec.secrets, _secrets_of(plan))

    def below(self, place: AgentPlace) -> SecretsMiddleware:
        return self if place.plan is None else SecretsMiddleware(place.plan.spec.secrets, self._all)

    def approved(self, calling: Calling) -> None:
        if self.secrets:
            calling.guard = self

    async def fill(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with the values of the secrets that they name. Raises SecretRefused."""
        return await self.secrets.fill(spec, arguments)

    async def clean(self, output: ToolOutput) -> ToolOutput:
        """Return the output with the names of secrets in place of their values, wherever a tool may have put them."""

        hide = self.secrets.hide

        def hidden() -> ToolOutput:
            texts = ("summary", "observation", "checkpoint")
            fields = {name: hide(getattr(output, name)) for name in texts}
            fields |= {name: hide(normalise(getattr(output, name))) for name in ("result", "metadata", "state_update")}
            telemetry = output.telemetry
            words = {name: hide(value) for name, value in telemetry.__dict__.items()}
            fields["telemetry"] = telemetry.model_copy(update=words)
            fields["files"] = tuple(_file_hidden(file, hide) for file in output.files)
            changed = output.model_copy(update=fields)
            changed.__pydantic_fields_set__.intersection_update(output.model_fields_set)
            return changed

        return await run_in_thread(hidden) if output.files or is_large(output.result) else hidden()


def secrets_in(scope: Scope) -> Secrets:
    """Return the secrets of an agent of a run, which hide those of its other agents too."""
    found = found_in(scope, SecretsMiddleware)
    return NO_SECRETS if found is None else found.secrets


def _secrets_of(plan: AgentPlan) -> list[Secrets]:
    """Return the secrets of an agent, of those before it and of all that may work in its runs, without empty ones."""
    found = list[Secrets]()
    for each in team_of(plan)[0]:
        if each.spec.secrets and all(each.spec.secrets is not known for known in found):
            found.append(each.spec.secrets)
    return found


def _file_hidden(file: File, hide: Callable[[str], Any]) -> File:
    text = file.data.decode("utf-8", "surrogateescape")
    hidden = hide(text)
    name, media_type = hide(file.name), hide(file.media_type)
    if (hidden, name, media_type) == (text, file.name, file.media_type):
        return file
    changed = File(name.replace(":", "_"), hidden.encode("utf-8", "surrogateescape"), media_type=media_type)
    changed.hidden = file.hidden
    return changed
