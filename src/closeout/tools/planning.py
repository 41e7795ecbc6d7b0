"""What is to be done about one call, decided before anything runs: resolve → repair → check for a duplicate.

How the decision is carried out is told in `executor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from closeout.errors import ToolDefinitionError
from closeout.messages import Repair, ToolCall, ToolSpec
from closeout.records import record
from closeout.repair.arguments import repair_arguments
from closeout.tools.duplicates import CallMemory, query_key
from closeout.tools.outcome import CallOutcome
from closeout.tools.toolbox import Toolbox

__all__ = ["Plan", "plan_call", "with_twins"]


@record
class Plan:
    """One call as it is to be made. With a `refusal` nothing is run; with `earlier` there is a result already."""

    call: ToolCall
    spec: ToolSpec | None
    repairs: tuple[Repair, ...] = ()
    query: str | None = None  # what makes it the same call as another; None: it may be repeated
    refusal: str = ""
    code: str = ""  # error code of the refusal
    repeated: bool = False  # the agent has been shown its result
    earlier: CallOutcome | None = None
    twin: int = -1  # index of the same call in the same reply

    def is_to_run(self, allow_duplicates: bool) -> bool:
        if self.refusal or self.spec is None or self.twin >= 0:
            return False
        has_result = self.earlier is not None and self.spec.policy.read_only
        return not has_result and (allow_duplicates or not self.repeated)


def plan_call(call: ToolCall, toolbox: Toolbox, memory: CallMemory, agent: str) -> Plan:
    """Resolves the tool, repairs the arguments and looks for an earlier call like this one. Does nothing else."""
    spec, repairs, message = toolbox.resolve(call)
    if spec is None:
        return Plan(call, None, refusal=message, code="UnknownTool")
    try:
        rules = toolbox.rules(spec)
    except ToolDefinitionError as error:
        return Plan(call, spec, refusal=f"{spec.name} cannot be called: {error}", code="ToolDefinitionError")
    policy = spec.policy
    arguments, made, errors = repair_arguments(
        call.arguments, rules, policy.aliases, defaults=policy.defaults, drop_unknown=not policy.destructive
    )
    if errors:
        return Plan(call, spec, repairs, refusal=errors[0], code="InvalidArguments")
    repairs += made
    if repairs and policy.repair == "none":
        names = ", ".join(dict.fromkeys(repair.kind for repair in repairs))
        refusal = f"{spec.name} takes only calls that need no repair; this one needed: {names}."
        return Plan(call, spec, refusal=refusal, code="InvalidArguments")
    if repairs or arguments is not call.arguments:
        server = spec.server_name or call.server_name
        text = "" if repairs else call.text  # the history shows the call as it was made
        call = replace(call, name=spec.name, arguments=arguments, server_name=server, text=text)
    query = query_key(spec.name, arguments, policy)
    if query is None:
        return Plan(call, spec, repairs)
    repeated, earlier = memory.look(agent, spec.name, query)
    return Plan(call, spec, repairs, query, repeated=repeated, earlier=earlier)


def with_twins(plans: Sequence[Plan]) -> list[Plan]:
    """The plans of one reply, in which a call that occurs twice is made once."""
    if len(plans) == 1:
        return list(plans)
    first: dict[str, int] = {}
    marked = []
    for index, plan in enumerate(plans):
        is_twin = plan.query is not None and first.setdefault(plan.query, index) != index
        marked.append(replace(plan, twin=first[plan.query or ""]) if is_twin else plan)
    return marked
