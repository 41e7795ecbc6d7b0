"""Make a tool of a Python function: `Tool`, and the decorator `@tool`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from closeout.errors import ToolDefinitionError, ToolError
from closeout.messages import ApprovalPolicy, ToolPolicy, ToolSpec
from closeout.spelling import suggestion
from closeout.tools.run_context import RunContext, context_parameter
from closeout.tools.schema import (
    Binding,
    bind_as_given,
    build_binding,
    check_signature,
    read_docstring,
    readable_signature,
)
from closeout.tools.threads import run_in_thread

__all__ = ["Ask", "ModelTool", "PolicyFields", "Tool", "policy_of", "takes_context", "tool"]

P = ParamSpec("P")
R = TypeVar("R")
Bound = ParamSpec("Bound")  # the parameters of a method without its `self`
Owner = TypeVar("Owner")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # Names that every vendor's API accepts.


class PolicyFields(TypedDict, total=False):
    """The fields of `ToolPolicy` as `@tool` takes them; a name may be given instead of a tuple of names."""

    aliases: Mapping[str, str | Sequence[str]]
    defaults: Mapping[str, Any]
    other_names: str | Sequence[str]
    replaces: str | Sequence[str]
    duplicate_key: str | Sequence[str] | None
    repeatable: bool
    read_only: bool
    effects: Literal["none", "local", "reversible", "outside"] | None
    undo: Callable[[dict[str, Any], Any], Any] | None
    idempotent: bool
    destructive: bool
    effects_known: bool
    on_crash: Literal["rerun", "report", "ask"] | None
    approval: ApprovalPolicy
    repair: Literal["full", "none"]
    timeout: float | None
    retries: int
    empty_at: str | Sequence[str]
    accept_empty: bool
    check_content: bool
    judge: Callable[[Any], bool | str | None] | None
    response_format: Literal["concise", "standard", "detailed", "raw"] | None
    version: str
    demo_length: int | None
    format: str
    budget_tokens: int | None
    drop_keys: str | Sequence[str]
    ignored: str | Sequence[str]
    drop_nulls: bool
    round_floats: int | None
    html_to_text: bool
    example: Literal["look_up", "compute"] | None
    gives_answer: bool
    needs_state: str | None
    returns: Literal["trusted", "untrusted"] | None
    allow: Literal["trusted", "untrusted"] | Sequence[str] | None
    labels: Iterable[str]
    accepts: Iterable[str]


class Tool(Generic[P, R]):
    """A function that a model may call. It can still be called like the function.

    `spec` describes it to the model. It is built on first use; `ToolDefinitionError` then names what is wrong.

    Args:
        function: The function, `def` or `async def`.
        name: Default: the function's.
        description: Default: the docstring's text before its first section.
        parameters: A JSON Schema object, instead of the one read from the signature.
        policy: How its calls are governed.
        inline: Run a synchronous function on the event loop.
        names: Extra names for hints that are written as strings.
    """

    reads_files = False  # whether what it runs finds the files of the task in its folder
    __name__: str  # copied from the function
    __doc__: str | None

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        policy: ToolPolicy | None = None,
        inline: bool = False,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = _tool_name(function, name)
        self.function = function
        self.inline = inline
        self._description = description
        self._parameters = parameters
        self._names = names
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # not whether it is callable: whether calling it is async
        )
        self.policy = policy or ToolPolicy()
        if inline and not self._is_async:  # nothing can stop a function that holds the event loop
            self.policy = dataclasses.replace(self.policy, timeout=None)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ToolDefinitionError(f"Tool {self.name!r} yields its results. Return them together, as a list.")
        if parameters is None:
            check_signature(self.name, readable_signature(self.name, function))
        functools.update_wrapper(self, function, updated=())  # attributes of the function stay its own

    @functools.cached_property
    def _binding(self) -> Binding:
        if self._parameters is not None:
            context = context_parameter(readable_signature(self.name, self.function))
            return bind_as_given(self.name, self._parameters, context)
        binding = build_binding(self.name, self.function, read_docstring(self.function.__doc__), self._names)
        self._names = None  # the caller's local names are needed once
        return binding

    @property
    def deps_type(self) -> Any:
        """The `X` of the parameter that is annotated `RunContext[X]`, None without one."""
        return self._binding.deps_type

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """Name, description, JSON Schema and policy."""
        described = self._description
        if described is None:
            described = read_docstring(self.function.__doc__).text
        _check_policy(self.name, self.policy, self._binding.parameters)
        return ToolSpec(self.name, described, self._binding.parameters, policy=self.policy)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with arguments as a model gives them, each turned into its hinted type.

        A synchronous function runs in a thread unless the tool is `inline`. Raises `ToolError` if an argument does
        not fit or the result is an iterator, and whatever the function raises.
        """
        positional, keywords = self._binding.bind(self.name, arguments)
        function: Callable[..., Any] = self.function
        if self._binding.context:
            keywords[self._binding.context] = RunContext.current()
        if self._is_async:
            result = await function(*positional, **keywords)
        elif self.inline:
            result = function(*positional, **keywords)
        else:
            result = await run_in_thread(functools.partial(function, *positional, **keywords))
        # Its type is asked, not the result: an object may raise when it is looked at.
        if hasattr(type(result), "__await__"):
            result = await result
        if hasattr(type(result), "__next__"):  # a map, a generator, an open file
            raise ToolError(f"{self.name} returned a {type(result).__name__}, which holds no values. Return a list.")
        return result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R]: ...

    @overload
    def __get__(
        self: Tool[Concatenate[Owner, Bound], R], instance: Owner, owner: type | None = None
    ) -> Tool[Bound, R]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """A tool written as a method: read from an instance, it is bound to it."""
        if instance is None or not hasattr(self.function, "__get__"):
            return self
        return Tool(
            self.function.__get__(instance, owner),
            name=self.name,
            description=self._description,
            parameters=self._parameters,
            policy=self.policy,
            inline=self.inline,
            names=self._names,
        )

    def __repr__(self) -> str:
        return f"<Tool {self.name}{inspect.signature(self.function)}>"


Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What a tool asks a model: a text, or parts of a message's content in the OpenAI shape, such as pictures."""

Ask: TypeAlias = Callable[[Iterable[Prompt]], AsyncIterator[str]]
"""Sends each prompt to a model, one after the other, and yields the replies."""


class ModelTool(Tool[..., Any]):
    """A tool that asks a model. An agent supplies its own model to a tool that has none.

    Args:
        make: Returns the tool's function; its argument asks the model, None if it is not connected yet.
        ask: Asks the model.
        options: The other arguments of `Tool`.
    """

    def __init__(self, make: Callable[[Ask | None], Callable[..., Any]], *, ask: Ask | None = None, **options: Any):
        super().__init__(make(ask), **options)
        self.ask = ask
        self._make = make
        self._options = options

    def with_model(self, ask: Ask) -> Self:
        """Return the same tool with a model."""
        return type(self)(self._make, ask=ask, **self._options)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    inline: bool = False,
    policy: ToolPolicy | None = None,
    **fields: Unpack[PolicyFields],
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    inline: bool = False,
    policy: ToolPolicy | None = None,
    **fields: Unpack[PolicyFields],
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a `Tool` of a function, `def` or `async def`, with or without arguments: `@tool`, `@tool(read_only=True)`.

    Args:
        function: The function, if the decorator is used without arguments.
        name: Replaces the function's name.
        description: Replaces the docstring's text.
        parameters: A JSON Schema object; replaces what the type hints say.
        inline: Run a synchronous function on the event loop itself, for functions that never wait. Nothing can
            interrupt it there, so it has no deadline.
        policy: A policy; the other keywords, which are its fields, take precedence.
        fields: Fields of `ToolPolicy`: `read_only`, `timeout`, `duplicate_key`, `judge`, `response_format`, …
    """
    names = _caller_names(function)

    def make(made_of: Callable[P, R]) -> Tool[P, R]:
        called = _tool_name(made_of, name)
        return Tool(
            made_of,
            name=name,
            description=description,
            parameters=parameters,
            inline=inline,
            policy=policy_of(called, policy, fields),
            names=names,
        )

    return make if function is None else make(function)


def _caller_names(function: Any) -> dict[str, Any] | None:
    """Local names around the decorated function: hints written as strings may use classes of that place."""
    frame = sys._getframe(2)
    if frame.f_locals is frame.f_globals or "<locals>" not in getattr(function, "__qualname__", "<locals>"):
        return None
    return dict(frame.f_locals)


def _tool_name(function: Callable[..., Any], name: str | None) -> str:
    found = name or getattr(function, "__name__", None)
    if found is None and isinstance(function, functools.partial):
        found = getattr(function.func, "__name__", None)
    if found is None or not _NAME.fullmatch(found):
        raise ToolDefinitionError(
            f"{found or repr(function)} cannot name a tool. Use up to 64 ASCII letters, digits, _ and -: "
            "@tool(name='look_up')."
        )
    return str(found)


def takes_context(rule: Callable[..., Any]) -> bool:
    """Return whether an approval rule must be called with the run's context beside the arguments of the call."""
    try:
        inspect.signature(rule).bind({})
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return False
    return False


_NAMES_OF_FIELDS = tuple(field.name for field in dataclasses.fields(ToolPolicy))
_TUPLE_FIELDS = ("ignored", "other_names", "replaces", "duplicate_key", "empty_at", "drop_keys")
_LEAST = {"timeout": 0.001, "retries": 0, "demo_length": 1, "budget_tokens": 1, "round_floats": 1}


def policy_of(called: str, policy: ToolPolicy | None, fields: PolicyFields) -> ToolPolicy:
    """Return a policy with some of its fields replaced, each checked.

    Raises:
        ToolDefinitionError: A field is unknown, or its value is not valid.
    """
    given: dict[str, Any] = dict(fields)
    for field in given:
        if field not in _NAMES_OF_FIELDS:
            hint = suggestion(field, _NAMES_OF_FIELDS, f"There are: {', '.join(_NAMES_OF_FIELDS)}.")
            raise ToolDefinitionError(f"Tool {called!r}: a policy has no field {field!r}. {hint}")
    for field in _TUPLE_FIELDS:
        if given.get(field) is not None:
            given[field] = _names(given[field])
    for field in ("labels", "accepts"):
        if field in given:
            given[field] = _names(given[field], order=sorted)
    if given.get("allow") not in (None, "trusted", "untrusted"):
        given["allow"] = _names(given["allow"])
    if isinstance(aliases := given.get("aliases"), Mapping):
        given["aliases"] = {parameter: _names(others) for parameter, others in aliases.items()}
    return dataclasses.replace(policy or ToolPolicy(), **given)


def _names(value: Any, *, order: Callable[[Iterable[str]], Iterable[str]] = tuple) -> Any:
    """Return a name or names as a tuple. What cannot be names stays as it is: `_check_values` refuses it."""
    if isinstance(value, str):
        return (value,)
    return tuple(order(value)) if isinstance(value, Iterable) else value


@functools.cache
def _policy_values() -> Any:
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(ToolPolicy).items()}
    return create_model("ToolPolicy", __config__=ConfigDict(strict=True), **fields)


def _check_values(name: str, policy: ToolPolicy) -> None:
    """Refuse values of another type, and numbers that no call could keep to."""
    from pydantic import ValidationError

    values = {field: getattr(policy, field) for field in _NAMES_OF_FIELDS}
    try:
        _policy_values().model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        field, problem = str(wrong["loc"][0]), wrong["msg"].removeprefix("Input ")
        raise ToolDefinitionError(f"Tool {name!r}: {field} {problem}, got {values[field]!r:.60}.") from None
    for field, least in _LEAST.items():
        if values[field] is not None and not values[field] >= least:
            raise ToolDefinitionError(f"Tool {name!r}: {field} must be at least {least}, got {values[field]}.")
    if policy.read_only and policy.destructive:
        raise ToolDefinitionError(f"Tool {name!r}: a tool is read_only or destructive, not both.")
    if policy.read_only and policy.effects not in (None, "none"):
        raise ToolDefinitionError(f"Tool {name!r}: effects of a read_only tool must be 'none', got {policy.effects!r}.")


def _check_policy(name: str, policy: ToolPolicy, parameters: Mapping[str, Any]) -> None:
    """Names in a policy must be parameters of the tool, values valid, and only what may be repeated is retried."""
    rule = policy.approval
    if not (rule in (None, "always", "never") or callable(rule)):
        raise ToolDefinitionError(f"Tool {name!r}: approval must be 'always', 'never' or a function, got {rule!r:.60}.")
    if callable(rule) and takes_context(rule):
        try:
            inspect.signature(rule).bind({}, None)
        except TypeError:
            raise ToolDefinitionError(
                f"Tool {name!r}: the function of approval must take the arguments of the call, and optionally the "
                "context of the run. Write rule(arguments) or rule(arguments, context)."
            ) from None
    _check_values(name, policy)
    known = parameters.get("properties", {})
    if not parameters.get("additionalProperties", True):
        for field, named in (
            ("aliases", policy.aliases),
            ("defaults", policy.defaults),
            ("duplicate_key", policy.duplicate_key or ()),
            ("allow", policy.allow if isinstance(policy.allow, tuple) else ()),
        ):
            for parameter in named:
                if parameter not in known:
                    raise ToolDefinitionError(
                        f"Tool {name!r}: {field} names the parameter {parameter!r}, which the tool does not have. "
                        f"It has: {', '.join(known) or 'none'}."
                    )
    if policy.retries and not (policy.read_only or policy.idempotent):
        raise ToolDefinitionError(
            f"Tool {name!r}: retries={policy.retries} needs read_only=True or idempotent=True, "
            "because a call that failed may have done its work already."
        )
