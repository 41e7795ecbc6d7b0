"""Settings of MCP servers from registry entries: what becomes a command, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_process import here
from closeout import ConfigError
from closeout.tools.mcp_config import read_servers
from closeout.tools.mcp_registry import settings_of

STDIO = {"type": "stdio"}
WEATHER: dict[str, Any] = {"registryType": "npm", "identifier": "@a/weather", "version": "1.0.2", "transport": STDIO}


def entry(*packages: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"name": "io.github.a/weather", "description": "Weather", "version": "1.0.2"}
    return {**about, "packages": list(packages), **more}


def package(**changes: Any) -> dict[str, Any]:
    return {**WEATHER, **changes}


@pytest.mark.parametrize(
    ("packages", "command"),
    [
        ([package()], "npx -y @a/weather@1.0.2"),
        ([package(registryType="pypi", identifier="weather", runtimeHint="uvx")], "uvx weather@1.0.2"),
        ([package(registryType="pypi", identifier="weather", runtimeHint="uv")], "uv tool run weather@1.0.2"),
        (
            [
                package(
                    registryType="oci",
                    identifier="docker.io/a/weather",
                    runtimeArguments=[{"type": "named", "name": "--mount", "value": "type=bind,src={data}",
                                       "variables": {"data": {"isRequired": True}}}],
                    environmentVariables=[{"name": "KEY", "isRequired": True, "isSecret": True}, {"name": "OPTIONAL"}],
                )
            ],
            "docker run -i --rm -e KEY --mount=type=bind,src=${DATA} docker.io/a/weather:1.0.2",
        ),
        (
            [
                package(registryType="cargo"),
                package(
                    packageArguments=[
                        {"type": "positional", "value": "serve"},
                        {"type": "positional", "valueHint": "file_path", "isRequired": True},
                        {"type": "named", "name": "--unit", "default": "C"},
                        {"type": "named", "name": "-v"},
                    ]
                ),
            ],
            "npx -y @a/weather@1.0.2 serve ${FILE_PATH} --unit=C",
        ),
    ],
)  # fmt: skip
def test_a_package_becomes_the_command_of_its_runner_with_its_version(packages: Any, command: str) -> None:
    name, settings = settings_of({"servers": [{"server": entry(*packages)}]})
    assert name == "weather"
    assert " ".join([settings["command"], *settings["args"]]) == command
    if "-e KEY" in command:
        assert settings["env"] == {"KEY": "${KEY}"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": "latest"}, "no fixed version"),
        ({"version": "^1.0.0"}, "no fixed version"),
        ({"version": None}, "no fixed version"),
        ({"identifier": "--registry=https://evil.example.org"}, "not the name of a package"),
        ({"identifier": "https://evil.example.org/x.tgz"}, "not the name of a package"),
        ({"runtimeHint": "bash"}, "wants 'bash' to run it, not npx"),
        ({"registryBaseUrl": "https://npm.example.org"}, "not in https://registry.npmjs.org, where npx would look"),
        ({"fileSha256": "0" * 64}, "has a hash, which npx does not check"),
        ({"registryType": "mcpb"}, "Packages of 'mcpb' are not supported, only npm, pypi, oci"),
        ({"transport": {"type": "sse", "url": "http://127.0.0.1:1"}}, "does not speak over its standard input"),
        ({"packageArguments": [{"type": "positional", "value": "${AWS_SECRET_ACCESS_KEY}"}]}, "must be a plain text"),
        ({"environmentVariables": [{"name": "X", "value": "a\nb"}]}, "must be a plain text"),
        ({"packageArguments": [{"type": "named", "name": "x", "value": "y"}]}, "not the name of an option"),
    ],
)
def test_what_is_not_pinned_or_not_what_it_says_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"'io\.github\.a/weather' cannot be used: ") as refused:
        settings_of(entry(package(**changed)))
    assert says in str(refused.value)


def test_the_command_line_prints_settings_that_can_be_used(tmp_path: Path) -> None:
    key = {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isRequired": True}}}
    remote = {"type": "streamable-http", "url": "https://weather.example.org/mcp", "headers": [key]}
    found = {
        "servers": [{"server": entry(package(registryType="nuget"), remotes=[remote])}, {"server": {"name": "b/c"}}]
    }
    file = tmp_path / "server.json"
    file.write_text(json.dumps(found), "utf-8")
    done = here("mcp", "entry", str(file), "io.github.a/weather")
    settings = yaml.safe_load(done.out)["tools"]["mcp_servers"]
    assert settings["weather"]["headers"] == {"Authorization": "Bearer ${TOKEN}"}
    assert "Check what it starts" in done.err
    with pytest.raises(ConfigError, match="TOKEN"):  # it is the user's to give
        read_servers(settings)
    assert "Name one server. There are: b/c, io.github.a/weather." in here("mcp", "entry", str(file)).sentence
    assert "it has neither packages nor remotes" in here("mcp", "entry", str(file), "b/c").sentence
    assert "cannot be read as JSON" in here("mcp", "entry", "-", stdin=b"{").sentence
