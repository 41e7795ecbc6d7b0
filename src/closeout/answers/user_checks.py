"""Checks of answers that the user passes: a plain function says what is wrong with an answer, or returns None."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from closeout.answers.reading import Value
from closeout.answers.sources import Evidence, sources_of
from closeout.errors import UsageError
from closeout.journal.store import Row

if TYPE_CHECKING:  # at run time type variables have defaults from Python 3.13 on only
    from typing_extensions import TypeVar as TypeVarWithDefault

    Deps = TypeVarWithDefault("Deps", default=Any)
else:
    Deps = TypeVar("Deps")

__all__ = ["Check", "CheckFunction", "CheckedCall", "CheckedRun", "read_checks"]


@dataclass(frozen=True, kw_only=True)
class CheckedCall:
    """A tool call of the attempt whose answer is checked.

    Attributes:
        name: The tool.
        arguments: What it was called with.
        result: What it returned.
        text: The result as the model was shown it.
        ok: Whether the call succeeded.
    """

    name: str
    arguments: Mapping[str, Any] | str
    result: Any
    text: str
    ok: bool


@dataclass(frozen=True, kw_only=True)
class CheckedRun(Generic[Deps, Value]):
    """A run as its checks see it. `CheckedRun[Shop, Invoice]` names the types of `deps` and `value`.

    Attributes:
        task: The task.
        value: The answer in the contract's own type.
        calls: The tool calls of the attempt, in order.
        program: The program that gave the answer, None if the model wrote the answer itself.
        run_id: The run.
        user: The person for whom the run is, as passed to `run(user=…)`; empty if nobody was named.
        deps: What was passed as `deps` when the run was started or resumed.
        state: A copy of the run's state: the state updates of its tools.
        read_rows: Reads the run's journal.
    """

    task: str
    value: Value
    calls: tuple[CheckedCall, ...]
    program: str | None
    run_id: str
    user: str = ""
    deps: Deps = field(default=None, repr=False)  # type: ignore[assignment]  # without deps, Deps is None
    state: Mapping[str, Any] = field(default_factory=dict)
    read_rows: Callable[[], Sequence[Row]] = field(default=tuple, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:  # type variables have defaults from Python 3.13 on only
            return super().__class_getitem__(types if isinstance(types, tuple) else (types, Any))

    @cached_property
    def sources(self) -> Mapping[str, Evidence]:
        """The results that an answer may quote, by handle: of this attempt and earlier ones, also of sub-agents."""
        return sources_of(self.read_rows())


CheckFunction: TypeAlias = Callable[[str, CheckedRun[Deps, Value]], str | Awaitable[str | None] | None]
"""Returns one or two sentences for the model that say what is wrong with the answer, or None. May be async."""


@dataclass(frozen=True)
class Check:
    """A check of answers, and what follows if it keeps failing.

    Args:
        function: Called with the answer and a `CheckedRun`. Returns what is wrong, for the model, or None.
        times: How often it sends the model back in an attempt.
        then: What an answer is after that: "accept" lets it stand, "unanswered" ends the attempt without an answer.

    Raises:
        UsageError: A value is not valid.
    """

    function: CheckFunction
    times: int = 2
    then: Literal["accept", "unanswered"] = "accept"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"A check must be a function, got {self.function!r:.80}. Write check(answer, run).")
        try:
            inspect.signature(self.function).bind("answer", "run")
        except TypeError:
            raise UsageError(
                f"The check {self.name} must take two arguments, the answer and the run. Write check(answer, run)."
            ) from None
        except ValueError:  # of a builtin, which does not say what it takes
            pass
        if self.times < 0:
            raise UsageError(f"times must be 0 or more, got {self.times}.")
        if self.then not in ("accept", "unanswered"):
            raise UsageError(f"then must be 'accept' or 'unanswered', got {self.then!r}.")

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def read_checks(given: Any) -> tuple[Check, ...]:
    """Return the checks of an argument `check=`: a function, a `Check`, or a list of these.

    Raises:
        UsageError: It is something else.
    """
    if given is None:
        return ()
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(each if isinstance(each, Check) else Check(each) for each in several)
