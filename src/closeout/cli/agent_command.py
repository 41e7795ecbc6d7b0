"""`closeout agent show`: a picture of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closeout.cli.exits import OK, CommandGroup, guarded
from closeout.cli.option_types import Mcp, Model, Settings, SkillFolders, Tools, Web

__all__ = ["agent_app"]

agent_app = typer.Typer(cls=CommandGroup, help="Look at an agent.", no_args_is_help=True, rich_markup_mode=None)


@agent_app.command("show")
@guarded
def show(
    agent: Annotated[str | None, typer.Argument(help="FILE.yaml or package.module:agent; or -a AGENT")] = None,
    model: Model = None,
    mcp: Mcp = None,
    tools: Tools = None,
    web: Web = False,
    skills: SkillFolders = None,
    config: Settings = None,
    svg: Annotated[str | None, typer.Option(help="Write the picture to this file as SVG")] = None,
) -> int:
    """Print an agent, its tools and flow rules as a Mermaid flowchart."""
    from closeout.assembly.agent_picture import as_mermaid, as_svg, picture_of
    from closeout.cli.options import make_agent, options_in

    boxes = picture_of(make_agent(options_in(locals()), api_key="not needed").plan())
    if svg is None:
        print(as_mermaid(boxes), end="")
    else:
        Path(svg).write_text(as_svg(boxes), "utf-8")
    return OK
