"""`closeout approvals suggest`: rules learned from what people decided."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from closeout.cli.exits import OK, UNANSWERED, CommandGroup, guarded
from closeout.cli.option_types import Json, Profile, Settings
from closeout.visible import visible

__all__ = ["approvals_app"]

approvals_app = typer.Typer(
    cls=CommandGroup, help="Learn from what people decided on calls.", no_args_is_help=True, rich_markup_mode=None
)


@approvals_app.command("suggest")
@guarded
def suggest(
    agent: Annotated[str | None, typer.Argument(help="Only runs of the agent with this name; or -a NAME")] = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Suggest rules that decide on calls as people did. Nothing is changed: put those you want into the settings.

    The rules of the settings are checked too: if a person has denied a call that one of them approves, the command says
    which, and ends with exit code 1.
    """
    import yaml

    from closeout.cli.options import read_settings
    from closeout.cli.terminal import amount, print_json
    from closeout.config import home_folder
    from closeout.journal.readonly import open_to_read
    from closeout.lab.learned_rules import recorded_decisions, suggestions
    from closeout.tools.approval_rules import read_rules

    with open_to_read(home_folder()) as store:
        made = [*recorded_decisions(store, agent)]
    rules = read_rules(read_settings(tuple(config or ()), profile).tools.approved)
    contradicted = [
        (rule, each)
        for rule in rules
        for each in made
        if not each.approved and each.tool in (rule.tool, rule.tool.rpartition("/")[2])
        if rule.fits(rule.tool, each.arguments)
    ]
    known = [each for each in made if not any(rule.fits(each.tool, each.arguments) for rule in rules)]
    found = suggestions(known)
    if json:
        print_json(
            {
                "decisions": len(made),
                "suggestions": [
                    {
                        "rule": each.rule.written(),
                        "approved": [f"{one.run_id}/{one.call}" for one in each.approved],
                        "denied": each.denied,
                    }
                    for each in found
                ],
                "contradicted": [
                    {"rule": rule.written(), "denied": f"{each.run_id}/{each.call}"} for rule, each in contradicted
                ],
            }
        )
        return UNANSWERED if contradicted else OK
    if found:
        print("tools:\n  approved:")
    for each in found:
        latest = each.approved[-1]
        print(
            f"    # {amount(len(each.approved), 'approval')} fit, the last one {latest.call} of run {latest.run_id}; "
            f"{amount(each.denied, 'denial')} of this tool, none of which fits"
        )
        written = yaml.safe_dump([each.rule.written()], allow_unicode=True, sort_keys=False, default_flow_style=None)
        print(visible("".join(f"    {line}\n" for line in written.splitlines()), keep="\n"), end="")
    for rule, denied in contradicted:
        text = (
            f"The rule {rule} of the settings approves {denied.call} of run {denied.run_id}, which a person has denied."
        )
        print(visible(f"{text} Remove it, or make it narrower."), file=sys.stderr)
    hint = "To use a rule, put it into the settings." if found else "A rule rests on five approvals at least."
    print(f"{amount(len(made), 'decision')}, {amount(len(found), 'rule')} suggested. {hint}", file=sys.stderr)
    return UNANSWERED if contradicted else OK
