"""Find what the calls of a program may depend on, without running it.

The analysis lists what is safe. It follows a program as it runs, with a label for each value and one for the place in
the program. The label of the place never falls: once labelled text has decided a branch, a loop, an early end, an
exception or whether something happens at all, it has decided everything after that. A value is as trusted as the values
that it is made from, if it is made by a construct of the lists below. A program with anything else has all labels.
An error that ends the program is not a decision here: it can only leave out the rest.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TypeAlias

from closeout.parsing.python_source import parse_python

__all__ = ["CallSite", "ProgramFlow"]

_Labels: TypeAlias = frozenset[str]
_NONE: _Labels = frozenset()

MAX_STEPS = 300_000  # expressions and statements of one program that are looked at, in all rounds

# Built-in functions that return a new value without parts of their arguments, and change nothing.
_PLAIN = frozenset({
    "abs", "all", "any", "bin", "bool", "chr", "divmod", "float", "format", "hex", "int", "isinstance", "len", "oct",
    "ord", "pow", "range", "repr", "round", "str",
})  # fmt: skip
# Those whose result may contain their arguments. All use up what they are given, and change nothing.
_BUILDING = frozenset({"dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"})
# Those whose result is computed while it is used: it may only be used at once.
_LAZY = frozenset({"enumerate", "filter", "map", "reversed", "zip"})
_WITH_KEY = frozenset({"max", "min", "sort", "sorted"})  # `key=` is a function
_ERRORS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
_KNOWN = _PLAIN | _BUILDING | _LAZY | _ERRORS | {"print"}
# Modules in which every function computes from its arguments alone; the run fixes the clock.
_MODULES = frozenset({"datetime", "json", "math", "re", "statistics", "time", "typing"})
# Methods that change nothing.
_READING = frozenset({
    "capitalize", "casefold", "center", "copy", "count", "date", "decode", "difference", "encode", "end",
    "endswith", "expandtabs", "find", "findall", "format", "fullmatch", "get", "group", "groupdict", "groups", "index",
    "intersection", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isdisjoint", "isidentifier", "islower",
    "isnumeric", "isoformat", "isoweekday", "isprintable", "isspace", "issubset", "issuperset", "istitle", "isupper",
    "items", "join", "keys", "ljust", "lower", "lstrip", "match", "partition", "removeprefix", "removesuffix",
    "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "search", "span", "split", "splitlines",
    "start", "startswith", "strftime", "strip", "sub", "swapcase", "symmetric_difference", "time", "timestamp", "title",
    "total_seconds", "union", "upper", "values", "weekday", "zfill",
})  # fmt: skip
# Methods that change their object, and nothing else. They may return a part of it.
_CHANGING = frozenset({
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
    "sort", "update",
})  # fmt: skip
_CONSUMING = frozenset({"extend", "join", "update"})  # methods that use up an iterator at once
# Expressions whose value is made of the values of their parts, and nothing else.
_JOINING = (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Subscript, ast.Slice, ast.Attribute)
_CONTAINERS = (ast.List, ast.Set, ast.Dict)  # the value is a new object that can be changed
_TEXTS = (ast.JoinedStr, ast.FormattedValue)  # the value shares nothing with its parts


class _NotUnderstood(Exception):
    """The program has a construct that is not on the lists."""


@dataclass(slots=True)
class CallSite:
    """The labels of a call in a program.

    Attributes:
        decided: Those of what decides that the call is made.
        positional: Those of the arguments by position.
        keywords: Those of the arguments by name.
        rest: Those of arguments that may have any place.
    """

    decided: _Labels = _NONE
    positional: list[_Labels] = field(default_factory=list)
    keywords: dict[str, _Labels] = field(default_factory=dict)
    rest: _Labels = _NONE

    @property
    def all(self) -> _Labels:
        """The labels of the decision and of every argument."""
        return self.decided.union(self.rest, *self.positional, *self.keywords.values())


@dataclass(slots=True, eq=False)
class _Variables:
    """Objects that can be changed and may share parts, with the labels of what was put into them."""

    labels: _Labels = _NONE
    merged: _Variables | None = None

    @property
    def whole(self) -> _Variables:
        """The store that this one is a part of."""
        found = self
        while found.merged is not None:
            found = found.merged
        return found


@dataclass(frozen=True, slots=True)
class _Value:
    """A value: the labels that it was made with, where it can be changed, and a function or module that it is."""

    own: _Labels = _NONE
    store: _Variables | None = None
    function: ast.FunctionDef | None = None
    is_module: bool = False

    @property
    def labels(self) -> _Labels:
        return self.own if self.store is None else self.own | self.store.whole.labels


_Frame: TypeAlias = dict[str, _Value]


class ProgramFlow:
    """Follows labels through the programs of one agent, which share their variables.

    Args:
        labels_of: Returns the labels of the results of a function of the host, None if there is no such function.
        top: Returns the labels of a value of which nothing is known.
        reads_files: Returns True for a function of the host that may return what earlier calls have left in files.
    """

    def __init__(
        self,
        labels_of: Callable[[str], _Labels | None],
        top: Callable[[], _Labels],
        reads_files: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._host_labels = labels_of
        self._top = top
        self._reads_files = reads_files
        self._lost = False
        self._ahead: list[str] = []  # programs that were added before they run
        self._sites: dict[tuple[int, int, str], CallSite] = {}
        self._places: dict[ast.AST, tuple[int, int]] = {}  # calls by name → their place in the bytes of the program
        self._stores: dict[ast.AST, _Variables] = {}  # by the expression that makes the objects
        self._errors = _Value(store=_Variables())  # the objects in errors that were raised
        self._globals: _Frame = {}
        self._frame = self._globals  # the variables of the function, or those of the programs
        self._local: frozenset[str] = frozenset()  # the names that belong to the function
        self._scopes: list[_Frame] = []  # those of the comprehensions and lambdas around the expression
        self._returned = _Value()
        self._place: _Labels = _NONE  # what has decided that the program is here
        self._everything: _Labels = _NONE  # all labels that were read
        self._acted = False  # the expression has done more than compute a value
        self._unsure = 0  # around the place: what may be left, repeated or left out, so that variables keep old values
        self._trying = 0
        self._growth = 0  # how often the labels of all that was read, or a store, have grown

    @property
    def decided(self) -> _Labels:
        """The labels of what has decided how the programs ended."""
        return self._top() if self._lost else self._place

    def site(self, name: str, start: int, end: int) -> CallSite:
        """Return the labels of a call of a function of the host, by its place in the bytes of a program."""
        found = None if self._lost else self._sites.get((start, end, name))
        return CallSite(self._top(), rest=self._top()) if found is None else found

    def labelled_calls(self, programs: Sequence[str]) -> list[tuple[str, CallSite]]:
        """Add programs before they run, and return the calls with labels; none if these are not known."""
        for code in programs:
            self.feed(code)
        self._ahead = [*programs]
        found = [] if self._lost else sorted(self._sites.items())
        return [(name, site) for (_, _, name), site in found if site.all]

    def feed(self, code: str) -> None:
        """Add the next program."""
        if self._ahead[:1] == [code]:
            del self._ahead[0]
            return
        self._ahead.clear()
        tree = parse_python(code)
        if tree is None or self._lost:
            self._lost = True
            return
        lines = [0, *accumulate(len(line) + 1 for line in code.encode("utf-8", "surrogatepass").split(b"\n"))]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                end = lines[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
                self._places[node] = lines[node.lineno - 1] + node.col_offset, end
        before, self._steps = dict(self._globals), 0
        try:
            self._block(tree.body)
            self._join_frame(before)  # a program may fail, or not be run after all
        except (_NotUnderstood, RecursionError):
            self._lost = True

    # ------------------------------------------------------------------------------------------ labels grow

    def _decide(self, labels: _Labels) -> None:
        """Note that labelled text decides what happens after this place."""
        self._place |= labels

    def _put(self, store: _Variables | None, labels: _Labels) -> None:
        if store is not None and not labels <= store.whole.labels:
            store.whole.labels |= labels
            self._growth += 1

    def _shared(self, values: Iterable[_Value]) -> _Variables | None:
        """Return the store of a value that may have parts of these."""
        stores = [value.store for value in values if value.store is not None]
        for each in stores[1:]:
            if (other := each.whole) is not (whole := stores[0].whole):
                self._put(whole, other.labels)
                other.merged = whole
                self._growth += 1
        return stores[0].whole if stores else None

    def _joined(self, one: _Value, other: _Value) -> _Value:
        """Return a value that may be either."""
        if (one.function, one.is_module) != (other.function, other.is_module):
            raise _NotUnderstood
        return replace(one, own=one.own | other.own, store=self._shared((one, other)))

    def _made(self, node: ast.AST, values: Iterable[_Value]) -> _Value:
        """Return a new object that may have parts of these."""
        values = [*values, _Value(store=self._stores.setdefault(node, _Variables()))]
        return _Value(_labels(values), self._shared(values))

    def _join_frame(self, other: _Frame) -> None:
        """Let the variables also have the values that they have in another frame."""
        for name, value in other.items():
            self._frame[name] = self._joined(self._frame.get(name, value), value)

    def _until_stable(self, run: Callable[[], None]) -> None:
        """Follow something that may run any number of times."""
        self._unsure += 1
        before, now = None, self._state()
        while before != now:
            run()
            before, now = now, self._state()
        self._unsure -= 1

    def _state(self) -> tuple[object, ...]:
        """Return what grows while something is followed again, until it is stable."""
        return self._growth, self._place, {name: each.own for name, each in self._frame.items()}

    def _perhaps(self, labels: _Labels, run: Callable[[], _Value]) -> _Value:
        """Follow an expression that labels decide on. One that only computes a value decides nothing but the value."""
        place, acted, self._acted = self._place, self._acted, False
        self._decide(labels)
        self._unsure += 1
        value = run()
        self._unsure -= 1
        if not self._acted:
            self._place = place
        self._acted |= acted
        return replace(value, own=value.own | labels)

    def _computed(self, run: Callable[[], _Value]) -> _Value:
        """Follow an expression that may run at any time, any number of times: it must only compute a value."""
        acted, self._acted = self._acted, False
        value = run()
        if self._acted:
            raise _NotUnderstood
        self._acted = acted
        return value

    # ------------------------------------------------------------------------------------------ statements

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _NotUnderstood

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._step()
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=value):
                self._value(value)
            case ast.Assign(targets=targets, value=value):
                found = {part: self._value(part) for _, part in _parts(targets, value)}
                for target, part in _parts(targets, value):
                    self._assign(target, found[part])
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._assign(target, self._value(value))
            case ast.AugAssign(target=target, value=value):
                joined = self._joined(self._value(target), self._value(value))
                self._put(joined.store, joined.labels)
                self._assign(target, joined)
            case ast.Raise():
                self._shared((self._errors, *map(self._value, filter(None, (node.exc, node.cause)))))
            case ast.Assert(test=test, msg=message):
                self._decide(self._value(test).labels)
                self._shared((self._errors, *map(self._value, filter(None, [message]))))
            case ast.Return(value=value):
                if value is not None:
                    self._returned = self._joined(self._returned, self._value(value))
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.FunctionDef():
                self._define(node)
            case ast.Pass() | ast.Break() | ast.Continue():
                pass
            case _:
                self._compound(node)

    def _compound(self, node: ast.stmt) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=other):
                self._decide(self._value(test).labels)
                self._either(body, other)
            case ast.For(target=target, iter=iterable, body=body, orelse=other):
                iterated = self._iterated(iterable, at_once=False)
                self._until_stable(lambda: self._turn(iterated, target, body))
                self._either(other, ())
            case ast.While(test=test, body=body, orelse=other):
                self._until_stable(lambda: self._turn(self._value(test), None, body))
                self._either(other, ())
            case ast.Try():
                self._try(node)
            case _:
                raise _NotUnderstood

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            module = node.module if isinstance(node, ast.ImportFrom) else alias.name
            if module not in _MODULES or alias.name == "*":
                raise _NotUnderstood
            self._set(alias.asname or alias.name, _Value(is_module=True))

    def _define(self, node: ast.FunctionDef) -> None:
        given = (*node.args.defaults, *filter(None, node.args.kw_defaults))
        is_inner = self._frame is not self._globals
        if is_inner or node.decorator_list or not all(isinstance(each, ast.Constant) for each in given):
            raise _NotUnderstood
        self._set(node.name, _Value(function=node))

    def _either(self, *bodies: Sequence[ast.stmt]) -> None:
        """Follow bodies of statements, one of which runs."""
        start, ends = dict(self._frame), []
        for body in bodies:
            self._frame.clear()
            self._frame.update(start)
            self._block(body)
            ends.append(dict(self._frame))
        for end in ends:
            self._join_frame(end)

    def _turn(self, value: _Value, target: ast.expr | None, body: Sequence[ast.stmt]) -> None:
        """Follow one turn of a loop over a value, or while it is true."""
        self._decide(value.labels)
        if target is not None:
            self._assign(target, value)
        self._block(body)

    def _try(self, node: ast.Try) -> None:
        """Follow statements that may be left anywhere. Text that was read may decide where: it can make a call fail."""
        self._trying += 1
        self._unsure += 1
        self._decide(self._everything)
        self._block(node.body)
        for handler in node.handlers:
            if handler.type is not None:
                self._value(handler.type)
            if handler.name is not None:
                self._set(handler.name, self._errors)
            self._block(handler.body)
        self._block(node.orelse)
        self._block(node.finalbody)
        self._trying -= 1
        self._unsure -= 1

    # ------------------------------------------------------------------------------------------ variables

    def _assign(self, target: ast.expr, value: _Value) -> None:
        match target:
            case ast.Name(id=name):
                self._set(name, value)
            case ast.Tuple(elts=items) | ast.List(elts=items):
                for item in items:
                    self._assign(item, value)
            case ast.Starred(value=inner):
                self._assign(inner, self._made(target, [value]))
            case ast.Subscript(value=owner, slice=index):
                values = (self._value(owner), self._value(index), value)
                self._put(self._shared(values), _labels(values))
                self._acted = True
            case _:
                raise _NotUnderstood

    def _set(self, name: str, value: _Value) -> None:
        if name in _KNOWN or self._host_labels(name) is not None:
            raise _NotUnderstood
        old = self._frame.get(name, value) if self._unsure else value
        self._frame[name] = self._joined(old, value)

    def _found(self, name: str) -> _Value | None:
        """Return the value of a name, None if the programs have not bound it."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        if name not in self._local:
            return self._globals.get(name)
        if name not in self._frame:
            raise _NotUnderstood
        return self._frame[name]

    def _is_builtin(self, name: str, known: frozenset[str]) -> bool:
        return name in known and self._found(name) is None and self._host_labels(name) is None

    # ------------------------------------------------------------------------------------------ expressions

    def _value(self, node: ast.expr) -> _Value:
        self._step()
        match node:
            case ast.Constant():
                return _Value()
            case ast.Name(id=name):
                return self._named(name)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(node, name)
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if not name.startswith("_"):
                return self._method(node, self._owner(owner), name)
            case ast.IfExp(test=test, body=body, orelse=other):
                decided = self._value(test).labels
                return self._joined(*(self._perhaps(decided, partial(self._value, each)) for each in (body, other)))
            case ast.BoolOp(values=values):
                return self._in_turn(values)
            case ast.Compare(left=left, comparators=others):
                return _Value(self._in_turn([left, *others]).labels)
            case ast.NamedExpr(target=target, value=value):
                found = self._value(value)
                self._acted = True
                self._assign(target, found)
                return found
            case ast.Starred(value=value):
                return self._iterated(value)
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node)
            case _:
                return self._joining(node)

    def _joining(self, node: ast.expr) -> _Value:
        """Follow an expression whose value is made of the values of its parts."""
        if not isinstance(node, (*_JOINING, *_CONTAINERS, *_TEXTS)) or getattr(node, "attr", "").startswith("_"):
            raise _NotUnderstood
        parts: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
        if isinstance(node, ast.Dict):  # in the order in which they are evaluated
            parts = (each for pair in zip(node.keys, node.values, strict=True) for each in pair)
        values = [self._value(each) for each in parts if isinstance(each, ast.expr)]
        if isinstance(node, _CONTAINERS):
            return self._made(node, values)
        return _Value(_labels(values), None if isinstance(node, _TEXTS) else self._shared(values))

    def _named(self, name: str) -> _Value:
        value = self._found(name)
        if value is None and self._is_builtin(name, _PLAIN | _BUILDING | _ERRORS):
            return _Value()
        if value is None or value.function is not None:  # a function that is passed on could be called anywhere
            raise _NotUnderstood
        return value

    def _in_turn(self, values: Sequence[ast.expr]) -> _Value:
        """Follow expressions, each of which decides if the next one is evaluated."""
        found = self._value(values[0])
        for each in values[1:]:
            found = self._joined(found, self._perhaps(found.labels, partial(self._value, each)))
        return found

    def _iterated(self, node: ast.expr, *, at_once: bool = True) -> _Value:
        """Follow an expression that may be an iterator, because it is used up and not kept.

        Args:
            node: The expression.
            at_once: Nothing else happens until it is used up: what it computes on the way may use variables.
        """
        match node:
            case ast.GeneratorExp() if at_once:
                return self._comprehension(node)
            case ast.Call(func=ast.Name(id=name)) if self._is_builtin(name, _LAZY):
                nodes = [*node.args, *(each.value for each in node.keywords)]
                functions = [nodes.pop(0)] if nodes and name in ("filter", "map") else []
                given = self._made(node, self._items(nodes, to_the_end=False, at_once=at_once))
                if any(isinstance(each, ast.Lambda) for each in functions) and not at_once:
                    raise _NotUnderstood
                return self._made(node, [given, *(self._applied(each, given) for each in functions)])
            case _:
                return self._value(node)

    def _items(self, nodes: Sequence[ast.expr], *, to_the_end: bool = True, at_once: bool = True) -> list[_Value]:
        """Follow arguments that may be iterators, which are used up when all arguments have been evaluated."""
        may_act = (to_the_end and len(nodes) == 1) or not any(map(_is_lazy, nodes))
        run = [partial(self._iterated, each, at_once=at_once) for each in nodes]
        return [each() if may_act else self._computed(each) for each in run]

    def _applied(self, function: ast.expr, given: _Value) -> _Value:
        """Return the results of a function that a built-in one calls with parts of a value."""
        match function:
            case ast.Lambda(args=arguments, body=body) if not (arguments.defaults or arguments.kw_defaults):
                self._scopes.append({each.arg: given for each in _parameters(arguments)})
                found = self._computed(partial(self._value, body))
                self._scopes.pop()
                return found
            case ast.Name(id=name) if self._is_builtin(name, _PLAIN | _BUILDING):
                return self._made(function, [given])
            case ast.Constant():
                return given
            case _:
                raise _NotUnderstood

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> _Value:
        iterated = self._iterated(node.generators[0].iter, at_once=False)
        scope: _Frame = {}
        found: list[_Value] = []

        def turn() -> None:
            self._scopes.append(scope)
            found.append(self._element(node, node.generators, iterated))
            self._scopes.pop()

        self._until_stable(turn)
        return self._made(node, found)

    def _element(
        self,
        node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
        generators: Sequence[ast.comprehension],
        iterated: _Value | None = None,
    ) -> _Value:
        """Follow the rest of a turn of a comprehension: its other generators, and the element."""
        if not generators:
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            return self._made(node, map(self._value, parts))
        first, *others = generators
        if first.is_async:
            raise _NotUnderstood
        iterated = iterated or self._iterated(first.iter, at_once=False)
        frame, self._frame = self._frame, self._scopes[-1]
        self._assign(first.target, iterated)
        self._frame = frame
        inner = partial(self._element, node, others)
        for test in reversed(first.ifs):
            inner = partial(self._tested, test, inner)
        return self._perhaps(iterated.labels, inner)

    def _tested(self, test: ast.expr, inner: Callable[[], _Value]) -> _Value:
        return self._perhaps(self._value(test).labels, inner)

    # ------------------------------------------------------------------------------------------ calls

    def _call(self, node: ast.Call, name: str) -> _Value:
        value = self._found(name)
        if value is not None:
            if value.function is not None:
                return self._own_call(node, value.function)
            if value.is_module:
                return self._made(node, [value, *self._given(node)])
            raise _NotUnderstood
        if self._host_labels(name) is not None and name not in _KNOWN:
            return self._host_call(node, name)
        if name == "print":
            self._acted = True
        elif not self._is_builtin(name, _PLAIN | _BUILDING | _ERRORS):
            raise _NotUnderstood
        if name in ("all", "any"):
            return _Value(_labels(self._items(node.args, to_the_end=False)))
        given = self._given(node, iterators=name in _BUILDING, key=name in _WITH_KEY)
        return self._made(node, given) if name in _BUILDING | _ERRORS else _Value(_labels(given))

    def _owner(self, node: ast.expr) -> _Value:
        """Follow the object of a method, which may be a part of a module: `datetime.datetime.now()`."""
        if isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
            return self._owner(node.value)
        return self._value(node)

    def _method(self, node: ast.Call, owner: _Value, name: str) -> _Value:
        if owner.is_module:
            return self._made(node, [owner, *self._given(node)])
        if name not in _READING | _CHANGING:
            raise _NotUnderstood
        given = self._given(node, iterators=name in _CONSUMING, key=name in _WITH_KEY)
        found = self._made(node, (owner, *given))
        if name in _CHANGING:
            self._acted = True
            self._put(found.store, found.labels)
        return found

    def _given(self, node: ast.Call, *, iterators: bool = False, key: bool = False) -> list[_Value]:
        """Follow the arguments of a call that only computes with them, with what the function `key=` returns."""
        keys = [each.value for each in node.keywords if key and each.arg == "key"]
        nodes = [each for each in (*node.args, *(each.value for each in node.keywords)) if each not in keys]
        values = self._items(nodes) if iterators else [self._value(each) for each in nodes]
        return [*values, *(self._applied(each, self._made(each, values)) for each in keys)]

    def _host_call(self, node: ast.Call, name: str) -> _Value:
        given = [(each, self._value(each)) for each in node.args]
        named = [(each.arg, self._value(each.value)) for each in node.keywords]
        site = self._sites.setdefault((*self._places[node], name), CallSite())
        site.decided |= self._place
        starred = False
        for index, (each, value) in enumerate(given):
            starred |= isinstance(each, ast.Starred)
            if starred:
                site.rest |= value.labels
            elif index < len(site.positional):
                site.positional[index] |= value.labels
            else:
                site.positional.append(value.labels)
        for keyword, value in named:
            if keyword is None:
                site.rest |= value.labels
            else:
                site.keywords[keyword] = site.keywords.get(keyword, _NONE) | value.labels
        labels = _labels(value for _, value in (*given, *named)) | (self._host_labels(name) or _NONE)
        labels |= self._everything if self._reads_files(name) else _NONE
        self._acted = True
        self._growth += not labels <= self._everything
        self._everything |= labels
        if self._trying:
            self._decide(self._everything)
        return self._made(node, [_Value(labels)])

    def _own_call(self, node: ast.Call, function: ast.FunctionDef) -> _Value:
        """Follow a call of a function of the programs, with the labels that it is called with here."""
        arguments = function.args
        given = {each: self._value(each) for each in (*node.args, *(keyword.value for keyword in node.keywords))}
        by_place = not (arguments.vararg or arguments.kwarg or any(keyword.arg is None for keyword in node.keywords))
        frame: _Frame = {each.arg: _Value() for each in _parameters(arguments)}
        if by_place and not any(isinstance(each, ast.Starred) for each in node.args):
            places = [*arguments.posonlyargs, *arguments.args]
            frame |= {place.arg: given[each] for place, each in zip(places, node.args, strict=False)}
            frame |= {str(keyword.arg): given[keyword.value] for keyword in node.keywords}
        else:
            frame = dict.fromkeys(frame, self._made(node, given.values()))
        outer = self._frame, self._local, self._scopes, self._unsure, self._returned
        self._frame, self._local, self._scopes, self._unsure = frame, _local_names(function), [], 0
        self._returned = _Value()
        self._block(function.body)
        returned = self._returned
        self._frame, self._local, self._scopes, self._unsure, self._returned = outer
        self._acted = True
        return returned


def _labels(values: Iterable[_Value]) -> _Labels:
    return _NONE.union(*(each.labels for each in values))


def _parts(targets: Sequence[ast.expr], value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment with their values; of one of a tuple, each target with its own."""
    match targets, value:
        case [ast.Tuple(elts=names)], ast.Tuple(elts=values) if len(names) == len(values):
            if not any(isinstance(each, ast.Starred) for each in (*names, *values)):
                return list(zip(names, values, strict=True))
        case _:
            pass
    return [(target, value) for target in targets]


def _is_lazy(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LAZY
    return is_call or isinstance(node, ast.GeneratorExp)


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    others = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *others]


def _local_names(function: ast.FunctionDef) -> frozenset[str]:
    """Return the names that belong to a function."""
    found = {each.arg for each in _parameters(function.args)}
    inner = {n for each in ast.walk(function) if isinstance(each, ast.comprehension) for n in ast.walk(each.target)}
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if node not in inner:
                found.add(name)
            case ast.ExceptHandler(name=str() as name):
                found.add(name)
            case ast.alias(name=name, asname=asname):
                found.add(asname or name)
            case _:
                pass
    return frozenset(found)
