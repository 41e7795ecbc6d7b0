"""The options that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from closeout.errors import NAMED_SETTINGS
from closeout.redaction import redact

__all__ = [
    "AgentSource",
    "Answer",
    "BaseUrl",
    "Dialect",
    "Docs",
    "Json",
    "Mcp",
    "Model",
    "OnChange",
    "Profile",
    "Quiet",
    "Settings",
    "SkillFolders",
    "Tools",
    "Web",
    "command_settings",
    "settings_named",
    "with_settings",
]

command_settings: ContextVar[str] = ContextVar("command_settings", default=NAMED_SETTINGS)
"""The options that name the settings of the command that is running, for the commands that it prints."""

AgentSource = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="FILE.yaml or package.module:agent; without it, the options say what it is"),
]

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="openai:NAME, anthropic:NAME, local, local:small, FILE.gguf")
]
BaseUrl = Annotated[str | None, typer.Option(help="An OpenAI-compatible server, such as http://localhost:8000/v1")]
Docs = Annotated[str | None, typer.Option(help="A folder of documents that the agent may search and read")]
Mcp = Annotated[list[str] | None, typer.Option(help="An MCP server: a command or a URL; may be repeated")]
Tools = Annotated[list[str] | None, typer.Option("--tool", help="fetch_url, run_python or ask_user; may be repeated")]
SkillFolders = Annotated[
    list[str] | None, typer.Option("--skills", help="A folder of skills (docs/skills.md); may be repeated")
]
Web = Annotated[bool, typer.Option("--web", help="Search and read the web; needs a search provider (docs/web.md)")]
Dialect = Annotated[str | None, typer.Option(help="auto, function_call, cot_chat, cot_completion, mcp_xml or code")]
Answer = Annotated[
    str | None,
    typer.Option(
        help="text, boxed, number, int, bool, choice:A,B, json, json:SCHEMA.json, yaml, tagged:TAG or module:Class"
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-C", help="FILE.yaml, or key=value such as agent.max_turns=20; may be repeated"),
]
Profile = Annotated[str | None, typer.Option(help="The profile of the settings files to use; or CLOSEOUT_PROFILE")]
OnChange = Annotated[
    str | None,
    typer.Option(help="If the agent has changed since: keep what the run began with (the default), take, or refuse"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer")]


def settings_named(options: Mapping[str, Any]) -> str:
    """Return those of a command's options that name its settings and MCP servers, as they are typed.

    Settings that hold a key are left out.
    """
    written = [("-a", options.get("agent")), ("--profile", options.get("profile"))]
    written += [("-C", each) for each in options.get("config") or () if "api_key" not in each]
    written += [("--mcp", each) for each in options.get("mcp") or ()]
    return "".join(f" {option} {shlex.quote(redact(value))}" for option, value in written if value)


def with_settings(text: str) -> str:
    """Return a text with the settings of the command that is running in place of `-a SETTINGS.yaml`."""
    return text.replace(NAMED_SETTINGS, command_settings.get())
