"""The settings of an MCP server from its entry in a registry: a `server.json`, as the official registry has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.errors import ConfigError

__all__ = ["settings_of"]

# The program that runs a kind of packages, its other names, and where it looks for them.
_RUNNERS = {
    "npm": ("npx", ("npx",), "https://registry.npmjs.org"),
    "pypi": ("uvx", ("uvx", "uv"), "https://pypi.org"),
    "oci": ("docker", ("docker",), "https://docker.io"),
}
_IDENTIFIERS = {
    "npm": r"(@[\w.-]+/)?\w[\w.-]*",
    "pypi": r"\w[\w.-]*",
    "oci": r"\w[\w.-]*(:\d+)?(/\w[\w.-]*)*((:\w[\w.-]*)?@sha256:[0-9a-f]{64}|:\w[\w.-]*)?",
}
_VERSION = r"(?!latest$)\d[\w.+-]*"
_VARIABLE = re.compile(r"\{(\w+)\}")


def settings_of(document: Any, name: str = "") -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a server: an entry of `tools.mcp_servers`.

    A package becomes the command that its registry's runner has for it, with its version. What the user must give
    becomes `${NAME}`, which is read from the environment.

    Args:
        document: A `server.json`, or the answer of a registry with one or several.
        name: The server's name in the registry, if there are several.

    Raises:
        ConfigError: It cannot be used safely. The text says why.
    """
    server = _chosen(document, name)
    full = _text(server.get("name"), "the name")
    about = f"The registry entry {full[:200]!r}"
    packages, remotes = _mappings(server.get("packages")), _mappings(server.get("remotes"))
    problems: list[str] = []
    for package in packages:
        try:
            return _short(full), _command(package)
        except ConfigError as error:
            problems.append(str(error))
    for remote in remotes:
        try:
            return _short(full), _address(remote)
        except ConfigError as error:
            problems.append(str(error))
    raise ConfigError(f"{about} cannot be used: {' '.join(problems) or 'it has neither packages nor remotes.'}")


def _chosen(document: Any, name: str) -> Mapping[str, Any]:
    listed = document.get("servers") if isinstance(document, Mapping) else None
    entries = [each.get("server", each) for each in _mappings(listed if listed is not None else [document])]
    found = [each for each in _mappings(entries) if isinstance(each.get("name"), str)]
    named = [each for each in found if not name or each["name"] == name]
    if len(named) == 1:
        return named[0]
    known = ", ".join(sorted({str(each["name"])[:100] for each in found})[:20]) or "none"
    what = f"No server {name!r} is there" if name and not named else "Name one server"
    raise ConfigError(f"{what}. There are: {known}.")


def _command(package: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(package.get("registryType"))
    if kind not in _RUNNERS:
        raise ConfigError(f"Packages of {kind[:40]!r} are not supported, only {', '.join(_RUNNERS)}.")
    if (package.get("transport") or {}).get("type") != "stdio":
        raise ConfigError("The package does not speak over its standard input and output.")
    program, hints, home = _RUNNERS[kind]
    identifier, version = _text(package.get("identifier"), "the package"), package.get("version")
    if package.get("runtimeHint") not in (None, *hints):
        raise ConfigError(f"The package wants {str(package['runtimeHint'])[:40]!r} to run it, not {program}.")
    if str(package.get("registryBaseUrl") or home).rstrip("/") not in (home, home.replace("https://", "")):
        raise ConfigError(f"The package is not in {home}, where {program} would look for it.")
    if package.get("fileSha256") is not None:
        raise ConfigError(f"The package has a hash, which {program} does not check.")
    if not re.fullmatch(_IDENTIFIERS[kind], identifier):
        raise ConfigError(f"{identifier[:100]!r} is not the name of a package.")
    is_tagged = kind == "oci" and re.search(r"@|:[^/]+$", identifier) is not None
    if not is_tagged and (not isinstance(version, str) or not re.fullmatch(_VERSION, version)):
        raise ConfigError("The package has no fixed version.")
    environment = {
        key: value
        for each in _mappings(package.get("environmentVariables"))
        if (value := _value(each, key := _text(each.get("name"), "a variable"))) is not None
    }
    before, after = _arguments(package.get("runtimeArguments")), _arguments(package.get("packageArguments"))
    if kind == "npm":
        args = [*before, "-y", f"{identifier}@{version}", *after]
    elif kind == "pypi":
        args = [*(["tool", "run"] if package.get("runtimeHint") == "uv" else []), *before]
        args += [f"{identifier}@{version}", *after]
    else:
        passed = [word for key in environment for word in ("-e", key)]
        args = ["run", "-i", "--rm", *passed, *before, identifier if is_tagged else f"{identifier}:{version}", *after]
    command = "uv" if package.get("runtimeHint") == "uv" else program
    return {"command": command, "args": args, **({"env": environment} if environment else {})}


def _address(remote: Mapping[str, Any]) -> dict[str, Any]:
    transport = {"streamable-http": "http", "sse": "sse"}.get(str(remote.get("type")))
    url = _filled(_text(remote.get("url"), "the address"), remote.get("variables"))
    if transport is None or not url.startswith(("https://", "${")):
        raise ConfigError("The remote server has no https address for streamable HTTP or SSE.")
    headers = {
        key: value
        for each in _mappings(remote.get("headers"))
        if (value := _value(each, key := _text(each.get("name"), "a header"))) is not None
    }
    return {"url": url, "transport": transport, **({"headers": headers} if headers else {})}


def _arguments(arguments: Any) -> list[str]:
    words: list[str] = []
    for each in _mappings(arguments):
        flag = _text(each.get("name"), "an argument") if each.get("type") == "named" else ""
        value = _value(each, flag or str(each.get("valueHint") or "argument"))
        if not flag:
            words += [] if value is None else [value]
        elif not flag.startswith("-"):
            raise ConfigError(f"{flag[:40]!r} is not the name of an option.")
        elif value is None:
            words += [flag] if each.get("format") == "boolean" and each.get("isRequired") else []
        else:
            words += [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
    return words


def _value(given: Mapping[str, Any], name: str) -> str | None:
    """Return the value of an input: its own, its default, or a variable for one that is required."""
    for key in ("value", "default"):
        if given.get(key) is not None:
            return _filled(_text(given[key], name), given.get("variables"))
    return _variable(name) if given.get("isRequired") else None


def _filled(text: str, variables: Any) -> str:
    known = variables if isinstance(variables, Mapping) else {}

    def value(found: re.Match[str]) -> str:
        given = known.get(found[1])
        if not isinstance(given, Mapping):
            return found[0]
        return _value(given, found[1]) or _variable(found[1])

    return _VARIABLE.sub(value, text)


def _variable(name: str) -> str:
    return f"${{{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_').upper()}}}"


def _text(value: Any, what: str) -> str:
    """Return a text of the entry. It must not read variables of this computer by itself."""
    if not isinstance(value, str) or not value or not value.isprintable() or "${" in value:
        raise ConfigError(f"{what[:60]} must be a plain text, got {value!r:.60}.")
    return value


def _mappings(values: Any) -> Sequence[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, list) else []


def _short(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.rpartition("/")[2]).strip("-") or "server"
