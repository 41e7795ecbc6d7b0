"""The parts of an agent that settings name: functions and classes, a folder of documents, the answer, checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from closeout.answers.reading import AnswerContract
from closeout.answers.typed import (
    CONTRACT_NAMES,
    contract_of,
    is_contract_class,
    is_contract_name,
    named_contract,
)
from closeout.answers.user_checks import Check
from closeout.assembly.named import named_object
from closeout.config import AgentParts, AgentSettings, TextFile
from closeout.errors import CloseoutError, ConfigError, UsageError
from closeout.journal.subscribers import Listener
from closeout.run.handoff import Handoff, as_handoff
from closeout.run.strategy import AskOnce, CallFirst, Majority, RequireCall, Strategy
from closeout.strategies.small_model import SmallModel
from closeout.tools.skills import NO_SKILLS, Skills

__all__ = ["Parts", "answer_of", "made_object", "without_parts"]

MAX_INSTRUCTIONS = 1_000_000  # characters of a file


class Parts:
    """The parts of an agent that a section of the settings describes, made on demand.

    Each method raises ConfigError, with the key, for a part that cannot be read, imported or made.

    Args:
        settings: The section.
        key: Its key, for errors.
    """

    def __init__(self, settings: AgentParts, key: str) -> None:
        self._settings = settings
        self._key = key

    def instructions(self) -> str:
        """Return the instructions."""
        given = self._settings.instructions
        if not isinstance(given, TextFile):
            return given
        with self._of("instructions"):
            return _text_of(given.file)

    def answer(self) -> AnswerContract[Any] | None:
        """Return the contract of the answer, None if the section says nothing."""
        given = self._settings.answer
        with self._of("answer"):
            return None if given is None else answer_of(given)

    def checks(self) -> tuple[Check, ...]:
        """Return the checks of answers."""
        with self._of("check"):
            return tuple(
                Check(made_object(each))
                if isinstance(each, str)
                else Check(made_object(each.function), each.times, each.then)
                for each in self._settings.check
            )

    def strategy(self) -> Strategy | None:
        """Return the strategy, None if the section says nothing."""
        given = self._settings.strategy
        with self._of("strategy"):
            return None if given is None else _strategy_of(given)

    def listeners(self) -> tuple[Listener, ...]:
        """Return the listeners of the main agent."""
        if not isinstance(self._settings, AgentSettings):
            return ()
        with self._of("listeners"):
            return tuple(map(made_object, self._settings.listeners))

    def tools(self) -> list[Any]:
        """Return the tools: functions and others that the section names as `package.module:name`, else names."""
        with self._of("tools"):
            return [named_object(each) if ":" in each else each for each in self._settings.tools]

    def handoffs(self) -> list[Handoff]:
        """Return the handoffs to agents that the main agent's section names as `package.module:agent`."""
        if not isinstance(self._settings, AgentSettings):
            return []
        defined = {name for name, each in self._settings.sub_agents.items() if each.is_definition}
        with self._of("handoffs"):
            for name in self._settings.handoffs:
                if ":" not in name and name not in defined:
                    known = ", ".join(sorted(defined)) or "none"
                    raise UsageError(
                        f"No sub-agent {name:.80} is defined in agent.sub_agents (there: {known}). Define it, or name "
                        "an agent as package.module:agent."
                    )
            return [as_handoff(named_object(name)) for name in self._settings.handoffs if ":" in name]

    def skills(self, more: Sequence[Any] = ()) -> Skills:
        """Return the skills of the section, and those in further folders. Raises UsageError for one of those."""
        if not self._settings.skills:
            return Skills(map(_folder, more)) if more else NO_SKILLS
        with self._of("skills"):
            return Skills([*self._settings.skills, *map(_folder, more)])

    def imported(self, key: str) -> Any:
        """Return the class or function that a key of the section names, None if it names none."""
        name = getattr(self._settings, key)
        with self._of(key):
            return None if name is None else named_object(name)

    def made(self, key: str) -> Any:
        """Return the object that a key of the section names, made if it is a class; None if it names none."""
        name = getattr(self._settings, key)
        with self._of(key):
            return None if name is None else made_object(name)

    @contextmanager
    def _of(self, key: str) -> Iterator[None]:
        """Name the key in an error."""
        try:
            yield
        except CloseoutError as error:
            raise ConfigError(f"'{self._key}.{key}': {error}") from error


def _folder(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"skills must be folders, got {value!r:.80}. Pass skills=['skills'].")
    return value


def without_parts(settings: AgentSettings) -> AgentSettings:
    """Return the settings of an agent without what it consists of: its limits."""
    own = {"sub_agents", "name", "listeners", "handoffs", "deps_type", "deps", "deps_headers", "task_templates"}
    names = AgentParts.model_fields.keys() | own
    default = AgentSettings()
    return settings.model_copy(
        update={name: getattr(default, name) for name in names if getattr(settings, name) != getattr(default, name)}
    )


def answer_of(given: str | Mapping[str, Any]) -> AnswerContract[Any]:
    """Return the contract that a name or a JSON Schema stands for; a name may be `package.module:Class` too.

    A contract's class is made without arguments.

    Raises:
        ConfigError: It cannot be used.
        UsageError: The class cannot be imported.
    """
    if not isinstance(given, str):
        return contract_of(given)
    if ":" not in given or is_contract_name(given):
        return named_contract(given)
    try:
        found = named_object(given)
        return contract_of(made_object(given) if is_contract_class(found) else found)
    except UsageError as error:
        raise ConfigError(f"The answer '{given}' cannot be used: {error} Or use {CONTRACT_NAMES}.") from error


def made_object(name: str) -> Any:
    """Return the object that a text names; of a class, an instance.

    Raises:
        UsageError: It cannot be imported or made.
    """
    found = named_object(name)
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise UsageError(
            f"{name} cannot be made without arguments: {type(error).__name__}: {error}. Name an object of the class."
        ) from error


def _strategy_of(name: str) -> Strategy:
    kind, _, details = name.partition(":")
    if kind == "majority":
        if not details.isdecimal() or len(details) > 4:
            raise UsageError(f"Write majority:5, with the number of replies, got {name:.80}.")
        return Majority(int(details))
    if kind == "call_first" and details:
        return CallFirst(details)
    simple: dict[str, Any] = {"once": AskOnce, "require_call": RequireCall, "small_model": SmallModel}
    if name in simple:
        made: Strategy = simple[name]()
        return made
    known = "once, majority:5, call_first:TOOL, require_call, small_model"
    if ":" not in name:
        raise UsageError(f"No strategy is named {name:.80}. Use {known} or package.module:Name.")
    try:
        found: Strategy = made_object(name)
    except UsageError as error:
        raise UsageError(f"{error} Or use {known}.") from error
    return found


def _text_of(file: str) -> str:
    path = Path(file).expanduser()
    try:
        with path.open(encoding="utf-8-sig") as opened:
            text = opened.read(MAX_INSTRUCTIONS + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    if len(text) > MAX_INSTRUCTIONS:
        raise UsageError(f"{file} is longer than {MAX_INSTRUCTIONS:,} characters. Check the path.")
    return text
