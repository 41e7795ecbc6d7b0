"""The client that bench/conformance.py tests: an agent whose scripted model calls every tool of one server, once.

It signs in where the server asks for it, like a person whose browser is sent back at once.

python bench/_conformance_client.py URL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from closeout import Agent
from closeout.messages import ToolSpec
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
SAMPLES = {"string": "text", "integer": 2, "number": 2, "boolean": True, "array": [], "object": {}}
# Its server answers `tools/list` only.
LISTED_ONLY = ("json-schema-ref-no-deref",)


def arguments(spec: ToolSpec, tools: Mapping[str, ToolSpec]) -> dict[str, Any]:
    """Values of the types that the parameters have; the echo tool gets the schema that the suite wants to see again."""
    if spec.name == "json_schema_echo":
        return {"schema": dict(tools["json_schema_2020_12_tool"].parameters)}
    properties = spec.parameters.get("properties", {})
    return {name: SAMPLES.get(schema.get("type"), "text") for name, schema in properties.items()}


def turn(tools: Mapping[str, ToolSpec]) -> Turn:
    """The calls that the suite asks for; one of every tool if it does not say which."""
    if stated := CONTEXT.get("toolCalls"):
        return Turn("", calls=[call(each["name"], **each["arguments"]) for each in stated])
    if SCENARIO in LISTED_ONLY or not tools:
        return answer("Listed.")
    return Turn("", calls=[call(name, **arguments(spec, tools)) for name, spec in tools.items()])


async def sign_in(page: str) -> str:
    """The address that a browser is sent to from the page of the authorization server."""
    async with aiohttp.ClientSession() as session, session.get(page, allow_redirects=False) as response:
        return response.headers["Location"]


async def issuer_of(url: str) -> str:
    """The authorization server, which a person knows who has a client's secret."""
    parts = urlsplit(url)
    about = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    async with aiohttp.ClientSession() as session, session.get(about) as response:
        return str((await response.json())["authorization_servers"][0])


async def login(url: str) -> dict[str, Any]:
    """The settings `auth` of the server."""
    known = {key: CONTEXT[key] for key in ("client_id", "client_secret", "signing_algorithm") if key in CONTEXT}
    if "private_key_pem" in CONTEXT:
        known["private_key"] = CONTEXT["private_key_pem"]
    if SCENARIO == "auth/basic-cimd":
        known["client_metadata_url"] = "https://conformance-test.local/client-metadata.json"
    if SCENARIO.startswith("auth/client-credentials"):
        return {"grant": "client_credentials", "issuer": await issuer_of(url), **known}
    return {"sign_in": sign_in, **known}


async def main(url: str) -> int:
    model: ScriptedClient

    def calls(view: RequestView) -> Turn:
        return turn({spec.name: spec for spec in model.requests[-1].tools})

    model = ScriptedClient([calls, answer("Called.")])
    server = {"name": "suite", "url": url, "auth": await login(url), "elicitation": "accept"}
    agent = Agent(model, mcp_servers=[server], home=False, config={"tools": {"approval": "never"}})
    with tempfile.TemporaryDirectory() as home:
        os.environ["CLOSEOUT_HOME"] = home  # for the login
        result = await agent.run("Call every tool.")
    print(result.status, result.answer, result.error or "", *result.warnings, sep="\n")
    return 0 if result.status == "answered" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
