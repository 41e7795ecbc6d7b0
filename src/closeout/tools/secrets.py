"""Secrets that the model names and never sees: a value enters a call's arguments, and leaves its result.

The model writes `secret:NAME`. What is recorded, shown or judged holds the name; only the tool gets the value.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from html.entities import html5
from itertools import pairwise, product
from typing import Any
from unicodedata import normalize
from urllib.parse import quote, urlsplit

from closeout.errors import ConfigError, ToolError, UsageError
from closeout.messages import ToolSpec
from closeout.overrides import returned
from closeout.redaction import SHORTEST
from closeout.results.normal import texts_in
from closeout.tools.run_context import RunContext

__all__ = ["NO_SECRETS", "Secret", "SecretRefused", "Secrets"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MARK = re.compile(r"(?<![\w:])secret:([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_HOST = re.compile(r"(?:\*\.)?[\w-]+(?:\.[\w-]+)*|\[[0-9A-Fa-f:.]+\]")
# A text that some library may take for an address: with a scheme, or a host with a dot or a port before the path.
_SCHEME = re.compile(r"(?<![a-z0-9+.-])(?=([a-z][a-z0-9+.-]*:[/\\]{2}[^\s\"'<>]*))", re.IGNORECASE)
_BARE_HOST = re.compile(r"[/\\]*[^\s/\\?#]*[^\s/\\?#.][.:][^\s/\\?#.][^\s]*")

Value = str | Callable[[RunContext[Any]], str | Awaitable[str]]


class SecretRefused(ToolError):
    """A call names a secret that it may not have. The text says why."""


class Secret:
    """A value that the model may use by its name, `secret:NAME`, and never sees.

    Usage:

    ```python
    token = Secret("crm_token", tools=["find_customer"], hosts=["api.crm.example"])
    agent = Agent("openai:gpt-5", tools=[find_customer], secrets=[token])
    ```

    Args:
        name: The name: letters, digits and _.
        value: The value, of 8 characters or more. Or a function of the `RunContext`, also an asynchronous one, that
            returns it for a call: the token of the run's user, for example. Defaults to the environment variable of
            the name in capitals, such as CRM_TOKEN.
        tools: The tools that may have it: "tool", "server" (all tools of an MCP server) or "server/tool".
        hosts: If any, every address in a call's arguments must be on one of these hosts, and there must be one.
            "*.crm.example" means every host below crm.example.
        description: What it is for, told to the model.

    Raises:
        ConfigError: The environment has no such variable.
        UsageError: Another argument is not valid.
    """

    __slots__ = ("_value", "description", "hosts", "name", "tools")

    def __init__(
        self,
        name: str,
        value: Value | None = None,
        *,
        tools: Sequence[str] = (),
        hosts: Sequence[str] = (),
        description: str = "",
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"The name of a secret has letters, digits and _ only, got {name!r:.80}.")
        if isinstance(tools, str) or not all(isinstance(each, str) and each for each in tools) or not tools:
            raise UsageError(f"The secret {name} needs the names of the tools that may have it: tools=['look_up'].")
        if isinstance(hosts, str):
            raise UsageError(f"hosts of the secret {name} must be a list of hosts: hosts=['api.crm.example'].")
        for each in hosts:
            if not isinstance(each, str) or not _HOST.fullmatch(each):
                raise UsageError(
                    f"{each!r:.80} is no host for the secret {name}. Write it without a scheme, port or path, such as "
                    "'api.crm.example'."
                )
        if value is None:
            variable = name.upper()
            value = os.environ.get(variable)
            if value is None:
                raise ConfigError(
                    f"The secret {name} has no value: set the environment variable {variable}, or pass "
                    f"Secret({name!r}, value)."
                )
        self.name = name
        self.tools = tuple(tools)
        self.hosts = tuple(each.lower() for each in hosts)
        self.description = description
        self._value: Value = value if callable(value) else _checked(name, value)

    def __repr__(self) -> str:
        return f"Secret({self.name!r}, tools={list(self.tools)!r})"

    @property
    def constant(self) -> str | None:
        """The value, None if a function returns it."""
        return self._value if isinstance(self._value, str) else None

    async def value(self) -> str:
        """Return the value for the call that is being made."""
        if isinstance(self._value, str):
            return self._value
        return _checked(self.name, await returned(self._value(RunContext.current())))

    def refuses(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
        """Return why a call may not have the value, for the model; empty if it may."""
        if not self.names(spec):
            return f"{spec.name} may not have secret:{self.name}. These may: {', '.join(self.tools)}."
        if not self.hosts:
            return ""
        addresses = [each for text in texts_in(arguments) for each in _addresses(text)]
        if wrong := next((each for each in addresses if not self._is_on_host(each)), None):
            return f"secret:{self.name} may be sent to {', '.join(self.hosts)} only, not to {wrong!r:.120}."
        if not addresses:
            return f"secret:{self.name} may be sent to {', '.join(self.hosts)} only, and the call names no address."
        return ""

    def names(self, spec: ToolSpec) -> bool:
        """Return whether a tool is among those that may have the value."""
        own = {spec.name, spec.server_name, f"{spec.server_name}/{spec.name}"}
        return not own.isdisjoint(self.tools)

    def _is_on_host(self, address: str) -> bool:
        # Libraries disagree about a backslash and about characters that cannot be seen.
        if "\\" in address or not address.isascii() or not address.isprintable():
            return False
        try:
            host = (urlsplit(address if _SCHEME.match(address) else f"//{address.lstrip('/')}").hostname or "").lower()
        except ValueError:
            return False
        host = f"[{host}]" if ":" in host else host.removesuffix(".")
        return any(host == each or (each[:2] == "*." and host.endswith(each[1:])) for each in self.hosts)


class Secrets:
    """The secrets of an agent.

    Args:
        secrets: They have different names.

    Raises:
        UsageError: Two have the same name, or one is something else.
    """

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._by_name: dict[str, Secret] = {}
        self._forms: dict[str, str] = {}  # pattern of a way to write a value → its name
        self._others: Sequence[Secrets] = ()
        self._names: dict[str, str] = {}  # by the groups of the pattern that finds all that is hidden
        self._pattern: re.Pattern[str] | None = None
        self._known = 0  # forms when the pattern was made
        for each in secrets:
            if not isinstance(each, Secret):
                raise UsageError(
                    f"secrets must be Secret objects, got {type(each).__name__}. Pass Secret('crm_token', …)."
                )
            if each.name in self._by_name:
                raise UsageError(f"Two secrets are named {each.name!r}. Give one another name.")
            self._by_name[each.name] = each
            if each.constant is not None:
                self._hide(each.name, each.constant)

    def __bool__(self) -> bool:
        return bool(self._by_name) or any(each._by_name for each in self._others)

    def __iter__(self) -> Iterator[Secret]:
        return iter(self._by_name.values())

    def beside(self, others: Sequence[Secrets]) -> Secrets:
        """Return these secrets for one agent of a run, hiding those of its other agents too.

        Args:
            others: The secrets of the run's agents. Agents and values that are added later are hidden too.
        """
        found = copy(self)  # the copy shares the values
        found._others = others
        found._known = 0
        return found

    def instruction(self) -> str:
        """Return what the model has to know of the secrets, empty without secrets."""
        lines = [
            f"- secret:{each.name} for {', '.join(each.tools)}{f': {each.description}' if each.description else ''}"
            for each in self
        ]
        head = "Write the name of a secret where a call needs its value, which is put in when the call is made:"
        return "\n".join((head, *lines)) if lines else ""

    def check(self, specs: Iterable[ToolSpec], *, refused: Iterable[str] = (), complete: bool = True) -> None:
        """Check the names of the tools that may have secrets.

        Args:
            specs: The tools of the agent.
            refused: Tools that record or send on what they are given.
            complete: Each name must be of one of the tools.

        Raises:
            UsageError: A name matches no tool, or one of those that may have no secret.
        """
        specs, refused = tuple(specs), set(refused)
        known = {name for spec in specs for name in (spec.name, spec.server_name, f"{spec.server_name}/{spec.name}")}
        for each in self:
            if complete and (wrong := next((name for name in each.tools if name not in known), None)):
                raise UsageError(
                    f"The secret {each.name} names the tool {wrong!r}, which does not exist. There are: "
                    f"{', '.join(sorted(spec.name for spec in specs)) or 'none'}."
                )
            if wrong := next((name for name in each.tools if name in refused), None):
                raise UsageError(
                    f"The secret {each.name} may not be given to {wrong}, because what it is given is recorded: it is "
                    "an agent, runs programs, or asks a model. Give the secret to the tools that it calls."
                )

    async def fill(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call with the values of the secrets that they name.

        Raises:
            SecretRefused: The tool, or the address that is called, may not have one of them.
        """
        named = {name for text in texts_in(arguments) for name in _MARK.findall(text) if name in self._by_name}
        values: dict[str, str] = {}
        for name in sorted(named):
            secret = self._by_name[name]
            if refusal := secret.refuses(spec, arguments):
                raise SecretRefused(refusal)
            values[name] = await secret.value()
            self._hide(name, values[name])
        return _filled(arguments, values) if values else arguments

    def hide(self, value: Any) -> Any:
        """Return a value in which names stand for the values of secrets, also for encoded ones.

        Args:
            value: A text, a number, or lists and mappings of them. Other values are returned as they are.
        """
        pattern = self._found()
        if pattern is None:
            return value
        if isinstance(value, str):
            return pattern.sub(lambda found: f"secret:{self._names[found.lastgroup or '']}", value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            hidden = self.hide(str(value))
            return value if hidden == str(value) else hidden
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def _hide(self, name: str, value: str) -> None:
        self._forms |= dict.fromkeys(_written(value), name)

    def _found(self) -> re.Pattern[str] | None:
        """The pattern of all values that are known by now: forms are only added, by any agent at any time."""
        known = len(self._forms) + sum(len(each._forms) for each in self._others)
        if known != self._known:
            names: dict[str, str] = {}
            for each in (*self._others, self):
                names |= each._forms  # in one step: other threads may add some meanwhile
            longest_first = sorted(names, key=len, reverse=True)
            self._names = {f"s{number}": names[form] for number, form in enumerate(longest_first)}
            self._pattern = re.compile(
                "|".join(f"(?P<s{number}>{form})" for number, form in enumerate(longest_first)), re.IGNORECASE
            )
            self._known = known
        return self._pattern


NO_SECRETS = Secrets()


def _checked(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) < SHORTEST:
        raise UsageError(f"The value of the secret {name} must be a text of {SHORTEST} characters or more.")
    return value


def _written(value: str) -> Iterator[str]:
    """Return patterns of the ways in which a tool, a server or an error may write a value. Case does not count."""
    for text in dict.fromkeys((value, normalize("NFC", value), normalize("NFD", value))):
        yield _spelled(text[:1]) + "".join(_gap(*pair) + _spelled(pair[1]) for pair in pairwise(text))
    data = value.encode("utf-8", "surrogatepass")
    yield r"(?:[\s:,-]|0x){0,4}".join(f"{byte:02x}" for byte in data)
    yield r",\s{0,40}".join(map(str, data))  # an array of bytes
    written = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value))
    inner = [*(each.encode("utf-8", "surrogatepass") for each in written), value.encode("utf-16-le", "surrogatepass")]
    for data, before in product(dict.fromkeys(inner), range(3)):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(b"\0" * before + data).decode()  # depends on where in a longer text the value begins
            first, after = (0, 2, 3)[before], (before + len(data)) % 3
            form = whole[first:] if not after else whole[first : -4 + after]
            yield _LINE_BREAK.join(each if each.isalnum() else _spelled(each) for each in form)


_LINE_BREAK = r"(?:\s|\\[rn]){0,4}"  # Within MIME Base64, as it is and as a JSON string writes it.


def _gap(one: str, other: str) -> str:
    """Return a pattern of what may be between two characters: a line break, zeros of UTF-16, marks in a number."""
    if one.isspace() or other.isspace():
        return r"\0{0,3}"
    marks = "|[,.'_]" if one.isdigit() and other.isdigit() else ""
    return rf"(?:=?\s|\\[rn]|\0{marks}){{0,4}}"


@cache
def _spelled(character: str) -> str:
    r"""Return a pattern of a character: as it is, or as some format writes it, also repeatedly.

    The formats are JSON, programming languages, HTML, addresses, mail, SQL, CSV and shells. Numbers of repetitions are
    limited, so that a search takes linear time.
    """
    data, code = character.encode("utf-8", "surrogatepass"), ord(character)
    units = character.encode("utf-16-be", "surrogatepass").hex()
    slash, percent = r"\\{1,15}" if character == "\\" else r"\\{1,15}+", "%(?:25){0,4}"
    pairs = [f"{byte:02x}" for byte in data]
    own = [f"{code:02x}"] if code < 256 else []  # its byte in Latin-1
    escaped = [
        re.escape(character),
        slash.join(f"u{units[at : at + 4]}" for at in range(0, len(units), 4)),
        rf"u\{{0{{0,6}}{code:x}\}}",
        slash.join(f"{byte:03o}" for byte in data),
        slash.join(f"x{pair}" for pair in pairs),
        *(f"x{each}" for each in own),
        *filter(None, [_ESCAPED.get(character)]),
    ]
    quoted = [percent.join(pairs), *own, *(["2b"] if character == " " else [])]
    names = [name for name, text in html5.items() if text == character and ";" in name]
    ways = [
        re.escape(character),
        f"{slash}(?:{'|'.join(dict.fromkeys(escaped))})",
        f"{percent}(?:{'|'.join(dict.fromkeys(quoted))})",
        f"&(?:amp;){{0,4}}(?:{'|'.join((f'#(?:0{{0,6}}{code}|x0{{0,6}}{code:x});', *names))})",
        "".join(f"={pair}" for pair in pairs),
        *filter(None, [_ALSO.get(character)]),
    ]
    return f"(?:{'|'.join(ways)})"


_ALSO = {" ": "[+_]"} | dict.fromkeys("'\"", r"['\"\\]{2,5}")  # quotes are doubled, or between two quoted parts
_ESCAPED = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}


def _addresses(text: str) -> Iterator[str]:
    """The parts of a text that a library may take for an address."""
    found = _SCHEME.findall(text)
    yield from found
    bare = _MARK.sub("", text).strip()
    if not found and _BARE_HOST.fullmatch(bare):
        yield bare


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _MARK.sub(lambda found: values.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(item, values) for key, item in value.items()}
    return [_filled(item, values) for item in value] if isinstance(value, list | tuple) else value
