"""Answer contracts from Python types, as in `Agent(answer=City)`, and from names, as in `run --answer number`."""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from closeout.answers.boxed import extract_boxed
from closeout.answers.contracts import AnswerContract, Boxed, Choice, ContractReading, Json, Number, Tagged, Text, Yaml
from closeout.answers.reading import ContractOver, said
from closeout.errors import ConfigError, UsageError

__all__ = ["CONTRACT_NAMES", "Converted", "contract_of", "is_contract_class", "is_contract_name", "named_contract"]

MEMBERS = ("instruction", "finishing", "read", "constraint", "finish_prefix")  # the members of AnswerContract
CONTRACT_NAMES = (
    "text, boxed, number, int, bool, choice:A,B,C, json, json:SCHEMA.json, yaml, yaml:SCHEMA.json or tagged:TAG"
)

_KINDS = frozenset({"text", "boxed", "number", "int", "bool", "choice", "json", "yaml", "tagged"})

_NUMBER = re.compile(r"[+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)  # not 10.0.0.1
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
LONGEST_SENTENCE = 2_000  # characters in which a bare value is looked for

Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True)
class Converted(ContractOver[Made]):
    """A contract whose value is turned into another one: the name of an option into the option."""

    convert: Callable[[Any], Made]

    def read(self, text: str) -> ContractReading[Made]:
        reading = self.contract.read(text)
        return replace(reading, value=self.convert(reading.value)) if reading.ok else reading


@dataclass(frozen=True)
class Bare(ContractOver[Any]):
    """A contract for a type whose values are texts in JSON, such as a date, that takes the bare value, too."""

    adapter: Any
    has_numbers: bool

    def read(self, text: str) -> ContractReading[Any]:
        bare, boxed = said(text), extract_boxed(said(text))
        whole = self._values([boxed or bare])
        takes_any_text = bool(self._values(["a word"]))
        if whole and not takes_any_text:  # before JSON, whose numbers lose digits
            return self._found(whole, marked=True)
        reading = self.contract.read(text)
        if reading.ok:
            return reading
        if whole:
            return self._found(whole, marked=bool(boxed))
        found = {} if boxed else self._values(bare[-LONGEST_SENTENCE:].split())
        return self._found(found, marked=True) if len(found) == 1 else reading  # a sentence with one value

    def _found(self, values: Mapping[str, Any], *, marked: bool) -> ContractReading[Any]:
        ((written, value),) = values.items()
        return ContractReading(value=value, text=written, ok=True, marked=marked)

    def _values(self, texts: Iterable[str]) -> dict[str, Any]:
        """Return the values that texts have without the marks of a sentence around them, by these bare texts."""
        found: dict[str, Any] = {}
        for each in texts:
            bare = each.strip().strip("`\"'*").rstrip(".,;!?").strip("`\"'*")
            if not self.has_numbers and _NUMBER.fullmatch(bare):
                continue  # to pydantic a number is a time: seconds since 1970
            if bare and len(bare) <= LONGEST_SENTENCE:
                digits = bare.replace(",", "") if self.has_numbers and _GROUPED.fullmatch(bare) else bare
                with suppress(ValueError):
                    found[bare] = self.adapter.validate_python(digits)
        return found


def _bare(wanted: Any) -> AnswerContract[Any] | None:
    """Return the contract for a type whose values are texts or numbers, None for any other type."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter(wanted)
        schema = adapter.json_schema()
    except (PydanticUserError, TypeError):
        return None
    options = schema.get("anyOf", [schema])
    kinds = [each.get("type") for each in options if not {"const", "enum"} & each.keys()]
    if len(kinds) < len(options) or "string" not in kinds or not {*kinds} <= {"string", "integer", "number", "null"}:
        return None
    return Bare(Json(wanted), adapter, has_numbers=not {"number", "integer"}.isdisjoint(kinds))


def contract_of(wanted: Any) -> AnswerContract[Any]:
    """Return the contract for the `answer` of an agent.

    Args:
        wanted: A contract, which is returned as it is; a Python type; a JSON Schema as a dict; None for any text.
            `str` is any text, `int` and `float` are numbers, `bool` is yes or no, a `Literal` or an enum is one of its
            values. Every other type that pydantic knows is JSON: a model, a dataclass, `list[int]`, `int | None`. A
            date, a UUID, a Decimal and other texts of JSON may be bare.

    Raises:
        UsageError: It is something else.
    """
    if wanted is None or wanted is str:
        return Text()
    missing = [name for name in MEMBERS if not hasattr(wanted, name)]
    is_class = isinstance(wanted, type)
    if not missing and not is_class:
        contract: AnswerContract[Any] = wanted
        return contract
    if is_contract_class(wanted):
        name = wanted.__name__
        raise UsageError(f"answer must be an instance of the contract {name}, got the class. Pass answer={name}(…).")
    if len(missing) < len(MEMBERS):
        raise UsageError(f"The answer contract {wanted!r:.80} lacks {', '.join(missing)}: see AnswerContract.")
    if not is_class and not isinstance(wanted, Mapping) and not _is_type_form(wanted):
        raise UsageError(
            f"answer must be a type or an answer contract, got {wanted!r:.80}. Pass for example answer=int, "
            "answer=list[str], answer=MyModel or answer=Number(unit='km')."
        )
    return _of_type(wanted)


def is_contract_class(wanted: Any) -> bool:
    """Return True for a class of contracts, rather than a contract."""
    return isinstance(wanted, type) and any(hasattr(wanted, name) for name in MEMBERS)


def _is_type_form(wanted: Any) -> bool:
    forms = (types.UnionType, typing.TypeVar, typing.NewType, getattr(typing, "TypeAliasType", types.UnionType))
    return isinstance(wanted, forms) or typing.get_origin(wanted) is not None or wanted is Any


def _of_type(wanted: Any) -> AnswerContract[Any]:
    if wanted is bool:
        return Converted(Choice({"yes": "true", "no": "false"}), {"yes": True, "no": False}.__getitem__)
    if wanted is int:
        return Number(integer=True)
    if wanted is float:
        return Converted(Number(), float)
    options = _options(wanted)
    if len(options) > 1:
        values = {name: getattr(option, "value", "") for name, option in options.items()}
        meanings = {name: str(value) if isinstance(value, int | float) else "" for name, value in values.items()}
        return Converted(Choice(meanings), options.__getitem__)
    return (None if isinstance(wanted, Mapping) else _bare(wanted)) or Json(wanted)


def _options(wanted: Any) -> dict[str, Any]:
    """Return the values of a Literal or an enum by the texts that name them; empty for any other type."""
    if typing.get_origin(wanted) is typing.Literal:
        values = typing.get_args(wanted)
        named = {str(value): value for value in values}
        return named if len(named) == len(values) and all(name.strip() for name in named) else {}
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum) and not issubclass(wanted, enum.Flag):
        texts = [member.value if isinstance(member.value, str) else member.name for member in wanted]
        return dict(zip(texts, wanted, strict=True)) if all(text.strip() for text in texts) else {}
    return {}


def is_contract_name(name: str) -> bool:
    """Return whether a text begins like the name of a contract."""
    return name.partition(":")[0].strip() in _KINDS


def named_contract(name: str) -> AnswerContract[Any]:
    """Return the contract of a name, such as `number`, `choice:yes,no` or `json:SCHEMA.json`.

    Raises:
        ConfigError: There is no contract of that name, or its schema cannot be read.
    """
    kind, _, details = (part.strip() for part in name.partition(":"))
    simple: dict[str, Any] = {"text": str, "boxed": Boxed(), "number": Number(), "int": int, "bool": bool}
    schema = _schema(details, name) if kind in ("json", "yaml") and details else None
    try:
        if kind in simple and not details:
            return contract_of(simple[kind])
        if kind == "choice" and details:
            return Choice([option.strip() for option in details.split(",")])
        if kind in ("json", "yaml"):
            return Json(schema) if kind == "json" else Yaml(schema)
        if kind == "tagged":
            return Tagged(details) if details else Tagged()
    except UsageError as error:
        raise ConfigError(f"The answer '{name}' cannot be used. {error}") from None
    raise ConfigError(f"Unknown answer '{name}'. Use {CONTRACT_NAMES}.")


def _schema(path: str, name: str) -> dict[str, Any]:
    try:
        schema = json.loads(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ConfigError(f"The schema of the answer '{name}' cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The schema of the answer '{name}' is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise ConfigError(f"The schema of the answer '{name}' must be a JSON object, got {schema!r:.80}.")
    return schema
