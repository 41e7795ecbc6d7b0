"""Find what the calls of a program may depend on, without running it.

Labels flow from expressions to variables, and from conditions to everything that happens or is assigned under them. The
order of statements does not matter, but for what follows an early exit, so each variable has one set of labels, which
only grows until nothing changes. Whatever the analysis does not understand has all labels. An error that ends the
program is not a decision here: it can only leave out the rest.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from closeout.parsing.program import parse_python

__all__ = ["CallSite", "ProgramFlow"]

_Labels: TypeAlias = frozenset[str]
_NONE: _Labels = frozenset()

MAX_STEPS = 300_000  # expressions and statements that are looked at, in all rounds

# Built-in functions that return a new plain value, or nothing.
_PLAIN = frozenset({
    "abs", "all", "any", "bool", "chr", "divmod", "float", "format", "hash", "int", "isinstance", "len", "ord", "pow",
    "print", "range", "repr", "round", "str",
})  # fmt: skip
# Those whose result may contain their arguments. None of them changes an argument.
_LAZY = frozenset({"enumerate", "filter", "map", "reversed", "zip"})
_BUILDING = frozenset({"dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"})
_CONSUMERS = frozenset({"extend", "join", "update"})  # methods that use up an iterator at once
_KNOWN = _PLAIN | _LAZY | _BUILDING
_ERRORS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
# Modules without a state of their own: what was done with them before makes no difference.
_MODULES = frozenset({"datetime", "json", "math", "re", "time", "typing"})
_JOINING = (
    ast.BinOp, ast.UnaryOp, ast.JoinedStr, ast.FormattedValue, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript,
    ast.Slice, ast.Attribute, ast.Starred,
)  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


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


class _NotUnderstood(Exception):
    """The program has a construct that the analysis does not know."""


@dataclass(slots=True)
class _FunctionScope:
    """A function, or the programs themselves.

    Attributes:
        prefix: Precedes the names of its variables.
        local: The names that are its own.
        exits: Places of early exits, with the labels of the decision to take them.
        decided: The labels of the decisions to call it.
        returned: The labels of what it returns.
    """

    prefix: str = ""
    local: frozenset[str] = frozenset()
    exits: dict[tuple[int, int], _Labels] = field(default_factory=dict)
    decided: _Labels = _NONE
    returned: _Labels = _NONE


class ProgramFlow:
    """Follows labels through the programs of one agent, which share their variables.

    Args:
        labels_of: Returns the labels of the results of a function of the host, None if there is no such function.
        top: Returns the labels of a value of which nothing is known.
        outputs: The functions that show their arguments.
        reads_files: Returns True for a function of the host that may return what earlier calls have left in files.
    """

    def __init__(
        self,
        labels_of: Callable[[str], _Labels | None],
        top: Callable[[], _Labels],
        outputs: Iterable[str] = (),
        reads_files: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._host_labels = labels_of
        self._top = top
        self._outputs = frozenset(outputs) | {"print"}
        self._reads_files = reads_files
        self._programs: list[tuple[ast.Module, list[int]]] = []
        self._last = ""
        self._functions: dict[str, tuple[ast.FunctionDef, _FunctionScope]] = {}
        self._bound: set[str] = set()
        self._variables: set[str] = set()  # all names that are bound otherwise than by defining a function
        self._modules: set[str] = set()
        self._values: defaultdict[str, _Labels] = defaultdict(frozenset)
        self._above: dict[str, str] = {}  # variables that may share a value, as a forest
        self._sites: dict[tuple[int, int, str], CallSite] = {}
        self._loops: dict[int, _Labels] = {}  # loops, with the labels of decisions to leave them
        self._everything: _Labels = _NONE
        self._lost = False
        self._scope = _FunctionScope()
        self._around: list[int] = []  # the loops around the statement
        self._lines: list[int] = []
        self._changed = False
        self._steps = 0
        self._shown: _Labels = _NONE

    @property
    def shown(self) -> _Labels:
        """The labels of what the programs print, and of the values of their last lines."""
        return self._top() if self._lost else self._shown

    def site(self, name: str, start: int, end: int) -> CallSite:
        """Return the labels of a call of a function of the host, by its place in the bytes of a program."""
        found = None if self._lost else self._sites.get((start, end, name))
        return CallSite(self._top(), rest=self._top()) if found is None else found

    @property
    def labelled_calls(self) -> list[tuple[str, CallSite]]:
        """The calls that depend on something with labels, each with its function; empty if that is not known."""
        found = [] if self._lost else sorted(self._sites.items())
        return [(name, site) for (_, _, name), site in found if site.all]

    def feed(self, code: str) -> None:
        """Add the next program. The same one again changes nothing."""
        if code == self._last:
            return
        self._last = code
        tree = parse_python(code)
        if tree is None or self._lost:
            self._lost = True
            return
        lines, at = [], 0
        for line in code.encode("utf-8", "surrogatepass").split(b"\n"):
            lines.append(at)
            at += len(line) + 1
        self._programs.append((tree, lines))
        self._steps = 0
        try:
            self._prepare(tree)
            self._changed = True
            while self._changed:
                self._changed = False
                self._round()
        except (_NotUnderstood, RecursionError):
            self._lost = True

    def _round(self) -> None:
        for tree, lines in self._programs:
            self._lines = lines
            self._block(tree.body, _NONE)
            if tree.body and isinstance(last := tree.body[-1], ast.Expr):
                self._show(self._value(last.value, self._exited(last)))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef):
                    self._inside(node)

    def _inside(self, node: ast.FunctionDef) -> None:
        outer, loops = self._scope, self._around
        self._scope, self._around = self._functions[node.name][1], []
        self._block(node.body, self._scope.decided)
        self._scope, self._around = outer, loops

    # ------------------------------------------------------------------------------------------ before

    def _prepare(self, tree: ast.Module) -> None:
        """Find the names that a program binds, and which variables may share a value."""
        for node in ast.walk(tree):
            if isinstance(node, ast.GeneratorExp | ast.Lambda) and self._acts(node):
                raise _NotUnderstood  # how often it acts could depend on what the acts return
            for name in _names_bound(node):
                if name in _KNOWN or name in _ERRORS or self._is_host(name) or name in _MODULES:
                    raise _NotUnderstood
                self._bound.add(name)
                if not isinstance(node, ast.FunctionDef):
                    self._variables.add(name)
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self._define(node)
        if self._modules & self._bound or self._variables & self._functions.keys():
            raise _NotUnderstood
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        inner = {id(each) for function in functions for each in ast.walk(function)}
        for node in ast.walk(tree):
            if id(node) not in inner:
                self._link(node)
        for function in functions:
            outer, self._scope = self._scope, self._functions[function.name][1]
            for node in ast.walk(function):
                self._link(node)
            self._scope = outer

    def _acts(self, node: ast.AST) -> bool:
        """Return whether an expression calls the host, or a function that may."""
        called = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
        names = {each.id for each in called if isinstance(each, ast.Name)}
        return any(name not in _KNOWN or name in self._outputs for name in names - self._modules)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module not in _MODULES or node.level):
            raise _NotUnderstood
        for each in node.names:
            if (isinstance(node, ast.Import) and each.name not in _MODULES) or each.name == "*":
                raise _NotUnderstood
            name = each.asname or each.name
            if name in _KNOWN or self._is_host(name):
                raise _NotUnderstood
            self._modules.add(name)

    def _define(self, node: ast.FunctionDef) -> None:
        if node.name in self._functions or node.decorator_list:
            raise _NotUnderstood
        local = {each.arg for each in _parameters(node.args)}
        elsewhere = {id(each) for inner in ast.walk(node) for part in _own_scopes(inner) for each in ast.walk(part)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef) and inner is not node:
                raise _NotUnderstood
            if inner is not node and id(inner) not in elsewhere:
                local.update(_names_bound(inner))
        self._functions[node.name] = node, _FunctionScope(f"{node.name}.", frozenset(local))

    def _link(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for part in _parts(targets, value):
                    self._join(self._sharing(part))
            case ast.AnnAssign(target=target, value=value):
                self._join(self._sharing([target] if value is None else [target, value]))
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                self._join(self._sharing([target, value]))
            case ast.For(target=target, iter=iterated) | ast.comprehension(target=target, iter=iterated):
                self._join(self._sharing([target, iterated]))
            case ast.Call(func=ast.Name(id=name)) if self._is_host(name):
                pass
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name in _KNOWN:
                if any(isinstance(each, ast.Lambda) for each in (*arguments, *(each.value for each in keywords))):
                    self._join(self._sharing([*arguments, *keywords]))
            case ast.Call():
                self._join(self._sharing([node]))
            case ast.Return(value=ast.expr() as value):
                self._join({self._scope.prefix.rstrip("."), *self._sharing([value])})
            case ast.FunctionDef(name=name, args=arguments):
                self._join([name, *(self._key(each.arg) for each in _parameters(arguments))])
            case _:
                pass

    def _sharing(self, nodes: Iterable[ast.AST]) -> set[str]:
        """The variables whose values may be part of the values of these expressions."""
        found: set[str] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Name):
                if node.id in self._bound:
                    found.add(self._key(node.id))
            elif isinstance(node, ast.arg):
                found.add(self._key(node.arg))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self._returns_new(node.func.id):
                continue
            elif not isinstance(node, ast.Compare | ast.JoinedStr | ast.Constant):
                stack += ast.iter_child_nodes(node)
        return found

    def _returns_new(self, name: str) -> bool:
        return name in _PLAIN or self._is_host(name)

    def _is_host(self, name: str) -> bool:
        return self._host_labels(name) is not None

    def _root(self, key: str) -> str:
        while (above := self._above.get(key, key)) != key:
            key = above
        return key

    def _join(self, keys: Iterable[str]) -> None:
        roots = [self._root(key) for key in keys]
        for each in roots[1:]:
            if (root := self._root(each)) != (first := self._root(roots[0])):
                self._above[root] = first
        for key in keys:
            self._values[key] |= _NONE

    # ------------------------------------------------------------------------------------------ labels grow

    def _key(self, name: str) -> str:
        return f"{self._scope.prefix}{name}" if name in self._scope.local else name

    def _add(self, key: str, labels: _Labels) -> None:
        if not labels <= self._values[key]:
            self._values[key] |= labels
            self._changed = True

    def _change(self, nodes: Iterable[ast.AST], labels: _Labels) -> None:
        """Note that the values of expressions are changed in place, and all that may share them."""
        if not labels:
            return
        keys = self._sharing(nodes)
        roots = {self._root(key) for key in keys}
        for key in {*self._values, *keys}:
            if self._root(key) in roots:
                self._add(key, labels)

    def _show(self, labels: _Labels) -> None:
        self._shown |= labels

    def _exit(self, node: ast.stmt, labels: _Labels) -> None:
        place = (node.lineno, node.col_offset)
        for loop in self._around:
            self._leave(loop, labels)
        if not labels <= self._scope.exits.get(place, _NONE):
            self._scope.exits[place] = self._scope.exits.get(place, _NONE) | labels
            self._changed = True

    def _leave(self, loop: int, labels: _Labels) -> None:
        if not labels <= self._loops.get(loop, _NONE):
            self._loops[loop] = self._loops.get(loop, _NONE) | labels
            self._changed = True

    def _exited(self, node: ast.stmt) -> _Labels:
        """The labels of the decisions to have come past the exits before a statement."""
        place = (node.lineno, node.col_offset)
        return _NONE.union(*(labels for way_out, labels in self._scope.exits.items() if way_out < place))

    # ------------------------------------------------------------------------------------------ statements

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _NotUnderstood

    def _block(self, body: Sequence[ast.stmt], pc: _Labels) -> None:
        for statement in body:
            self._statement(statement, pc | self._exited(statement))

    def _statement(self, node: ast.stmt, pc: _Labels) -> None:
        self._step()
        match node:
            case ast.Expr(value=value):
                self._value(value, pc)
            case ast.Assign(targets=targets, value=value):
                self._bind(targets, value, pc)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._bind([target], value, pc)
            case ast.AugAssign(target=target, value=value):
                labels = self._value(value, pc) | pc
                self._change([target], labels)
                self._assign(target, labels, pc)
            case ast.If(test=test, body=body, orelse=other):
                inner = pc | self._value(test, pc)
                self._block(body, inner)
                self._block(other, inner)
            case ast.For() | ast.While():
                self._loop(node, pc)
            case ast.Break() | ast.Continue() | ast.Return() | ast.Raise() | ast.Assert():
                self._way_out(node, pc)
            case ast.Try():
                self._try(node, pc)
            case ast.Pass() | ast.Import() | ast.ImportFrom():
                pass
            case ast.FunctionDef():
                self._defaults(node, pc)
            case _:
                raise _NotUnderstood

    def _way_out(self, node: ast.stmt, pc: _Labels) -> None:
        """A statement after which the next one may not follow."""
        match node:
            case ast.Break() | ast.Continue() if self._around:
                self._leave(self._around[-1], pc)
            case ast.Return(value=value):
                returned = pc if value is None else pc | self._value(_not_lazy(value), pc)
                if not returned <= self._scope.returned:
                    self._scope.returned |= returned
                    self._changed = True
                self._exit(node, pc)
            case ast.Raise(exc=raised, cause=cause):
                labels = pc.union(*(self._value(each, pc) for each in (raised, cause) if each is not None))
                self._exit(node, labels)
            case ast.Assert(test=test, msg=message):
                labels = pc | self._value(test, pc)
                if message is not None:
                    self._value(message, labels)
                self._exit(node, labels)
            case _:
                raise _NotUnderstood

    def _defaults(self, node: ast.FunctionDef, pc: _Labels) -> None:
        arguments = node.args
        if node.name not in self._functions or pc:
            raise _NotUnderstood
        for each in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            if any(isinstance(part, ast.Name | ast.Lambda) for part in ast.walk(each)):
                raise _NotUnderstood  # it shares a value with the function

    def _bind(self, targets: Sequence[ast.expr], value: ast.expr, pc: _Labels) -> None:
        for *bound, part in _parts(targets, value):
            labels = self._value(_not_lazy(part), pc)
            for target in bound:
                self._assign(target, labels, pc)

    def _assign(self, target: ast.expr, labels: _Labels, pc: _Labels) -> None:
        match target:
            case ast.Name(id=name) if name not in self._functions:
                self._add(self._key(name), labels | pc)
            case ast.Tuple(elts=items) | ast.List(elts=items):
                for item in items:
                    self._assign(item, labels, pc)
            case ast.Starred(value=value):
                self._assign(value, labels, pc)
            case ast.Subscript(value=value, slice=index):
                self._change([value], labels | pc | self._value(value, pc) | self._value(index, pc))
            case _:
                raise _NotUnderstood

    def _loop(self, node: ast.For | ast.While, pc: _Labels) -> None:
        inner = pc | self._loops.get(id(node), _NONE)
        if isinstance(node, ast.For):
            labels = self._value(node.iter, inner)
            self._assign(node.target, labels, inner)
        else:
            labels = self._value(node.test, inner)
        inner |= labels
        self._around = [*self._around, id(node)]
        self._block(node.body, inner)
        self._around = self._around[:-1]
        self._block(node.orelse, inner | self._loops.get(id(node), _NONE))

    def _try(self, node: ast.Try, pc: _Labels) -> None:
        """Take every expression in the body for one that may raise, and its labels for those of the handlers."""
        raised = pc
        for statement in node.body:
            own = self._raises(statement)
            at_once = _only_call(statement, self._is_host)
            before = own if at_once is None else _NONE.union(*map(self._raises, at_once))
            self._statement(statement, raised | before | self._exited(statement))
            raised |= own
        for handler in node.handlers:
            if handler.type is not None:
                self._value(handler.type, pc)
            if handler.name is not None:
                self._add(self._key(handler.name), raised)
            self._block(handler.body, raised)
        self._block(node.orelse, raised)
        self._block(node.finalbody, pc)

    def _raises(self, node: ast.AST) -> _Labels:
        """The labels of what may decide whether a statement, or an expression, raises.

        A call of the host may fail for what was done before: it can be a duplicate.
        """
        found: _Labels = _NONE
        for each in ast.walk(node):
            match each:
                case ast.Name(id=name) if name in self._functions or self._is_host(name):
                    return self._everything
                case ast.Name(id=name) if name in self._bound:
                    found |= self._values[self._key(name)]
                case ast.For() | ast.While():
                    found |= self._loops.get(id(each), _NONE)
                case _:
                    pass
        return found

    # ------------------------------------------------------------------------------------------ expressions

    def _value(self, node: ast.expr, pc: _Labels) -> _Labels:
        """Return the labels of a value that is computed under a decision."""
        labels = self._value_of(node, pc)
        if not labels | pc <= self._everything:
            self._everything |= labels | pc
            self._changed = True
        return labels

    def _value_of(self, node: ast.expr, pc: _Labels) -> _Labels:
        self._step()
        match node:
            case ast.Constant():
                return _NONE
            case ast.Name(id=name):
                return self._named(name)
            case ast.Call():
                return self._call(node, pc)
            case ast.IfExp(test=test, body=body, orelse=other):
                decided = self._value(test, pc)
                return decided | self._value(body, pc | decided) | self._value(other, pc | decided)
            case ast.BoolOp(values=values):
                return self._in_turn(values, pc)
            case ast.Compare(left=left, comparators=others):
                return self._in_turn([left, *others], pc)
            case ast.NamedExpr(target=target, value=value):
                labels = self._value(_not_lazy(value), pc)
                self._assign(target, labels, pc)
                return labels | pc
            case _ if isinstance(node, _COMPREHENSIONS):
                return self._comprehension(node, pc)
            case _ if isinstance(node, _JOINING):
                inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
                return _NONE.union(*[self._value(_not_lazy(each), pc) for each in inner])
            case _:
                raise _NotUnderstood

    def _named(self, name: str) -> _Labels:
        if name in self._functions or self._is_host(name):
            raise _NotUnderstood  # it is passed on as a value
        if name in self._bound:
            return self._values[self._key(name)]
        if name in _KNOWN or name in _ERRORS:
            return _NONE
        if name in self._modules:
            return self._values[name]
        raise _NotUnderstood

    def _in_turn(self, values: Iterable[ast.expr], pc: _Labels) -> _Labels:
        """The labels of expressions of which each decides whether the next one is evaluated."""
        labels = _NONE
        for each in values:
            labels |= self._value(each, pc | labels)
        return labels

    def _comprehension(self, node: Any, pc: _Labels) -> _Labels:
        labels = _NONE
        for each in node.generators:
            if each.is_async:
                raise _NotUnderstood
            labels |= self._value(each.iter, pc | labels)
            self._assign(each.target, labels, pc | labels)
            labels |= self._in_turn(each.ifs, pc | labels)
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return labels.union(*[self._value(_not_lazy(each), pc | labels) for each in elements])

    def _lambda(self, node: ast.Lambda, pc: _Labels, given: _Labels) -> _Labels:
        """The labels of what a function without a name returns, if its arguments have the labels given."""
        if node.args.defaults or node.args.kw_defaults:
            raise _NotUnderstood
        for each in _parameters(node.args):
            self._add(self._key(each.arg), given)
        return self._value(node.body, pc | given)

    def _call(self, node: ast.Call, pc: _Labels) -> _Labels:
        function = node.func
        if isinstance(function, ast.Name):
            name = function.id
            if self._is_host(name):
                return self._host_call(node, name, pc)
            if name in self._functions:
                return self._own_call(node, *self._functions[name], pc)
            if name not in _KNOWN and name not in _ERRORS and name not in self._modules:
                raise _NotUnderstood
            if not all(map(self._changes_nothing, _functions_given(name, node))):
                raise _NotUnderstood
            labels = self._arguments(node, pc, _NONE, lazy=name in _KNOWN)
            if name in self._outputs:
                self._show(labels | pc)
            if name in self._modules:
                self._change([node], labels | pc)
            return labels
        if not isinstance(function, ast.Attribute):
            raise _NotUnderstood
        labels = self._value(function.value, pc)
        labels |= self._arguments(node, pc, labels, lazy=function.attr in _CONSUMERS)
        self._change([node], labels | pc)
        return labels

    def _changes_nothing(self, function: ast.expr) -> bool:
        """Return whether a function that is passed to a built-in one is followed, or changes no variable."""
        if isinstance(function, ast.Attribute):  # json.loads, str.upper
            function = function.value
        return isinstance(function, ast.Lambda | ast.Constant) or (
            isinstance(function, ast.Name) and function.id not in self._bound
        )

    def _arguments(self, node: ast.Call, pc: _Labels, labels: _Labels, *, lazy: bool) -> _Labels:
        """The labels of all arguments of a call that may call the functions among them."""
        values = [*node.args, *(each.value for each in node.keywords)]
        for each in values:
            if not isinstance(each, ast.Lambda):
                labels |= self._value(each if lazy else _not_lazy(each), pc)
        for each in values:
            if isinstance(each, ast.Lambda):
                labels |= self._lambda(each, pc, labels)
        return labels

    def _host_call(self, node: ast.Call, name: str, pc: _Labels) -> _Labels:
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        site = self._sites.setdefault((start, end, name), CallSite())
        site.decided |= pc
        labels, starred = _NONE, False
        for index, each in enumerate(node.args):
            found = self._value(_not_lazy(each), pc)
            labels |= found
            starred |= isinstance(each, ast.Starred)
            if starred:
                site.rest |= found
            elif index < len(site.positional):
                site.positional[index] |= found
            else:
                site.positional.append(found)
        for keyword in node.keywords:
            found = self._value(_not_lazy(keyword.value), pc)
            labels |= found
            if keyword.arg is None:
                site.rest |= found
            else:
                site.keywords[keyword.arg] = site.keywords.get(keyword.arg, _NONE) | found
        if name in self._outputs:
            self._show(labels | pc)
        left = self._everything if self._reads_files(name) else _NONE
        return labels | left | (self._host_labels(name) or _NONE)

    def _own_call(self, node: ast.Call, function: ast.FunctionDef, scope: _FunctionScope, pc: _Labels) -> _Labels:
        """A call of a function of the programs: it may be called from several places, whose labels add up."""
        labels = _NONE
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            labels |= self._value(_not_lazy(each), pc)
        by_place = not any(isinstance(each, ast.Starred) for each in node.args)
        by_place = by_place and not function.args.vararg and all(keyword.arg for keyword in node.keywords)
        places = [*function.args.posonlyargs, *function.args.args]
        for parameter in _parameters(function.args):
            found = labels
            if by_place and parameter is not function.args.kwarg:
                given = [each for place, each in zip(places, node.args, strict=False) if place is parameter]
                given += [each.value for each in node.keywords if each.arg == parameter.arg]
                found = _NONE.union(*[self._value(each, pc) for each in given])
            self._add(f"{scope.prefix}{parameter.arg}", found | pc)
        if not pc <= scope.decided:
            scope.decided |= pc
            self._changed = True
        return scope.returned | pc


def _names_bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.arg(arg=name) | ast.FunctionDef(name=name):
            yield name
        case ast.ExceptHandler(name=str() as name):
            yield name
        case ast.ClassDef() | ast.AsyncFunctionDef() | ast.Global() | ast.Nonlocal() | ast.Await() | ast.Yield():
            raise _NotUnderstood
        case ast.Delete() | ast.With() | ast.Match() | ast.YieldFrom() | ast.AsyncFor() | ast.AsyncWith():
            raise _NotUnderstood
        case _:
            pass


def _own_scopes(node: ast.AST) -> list[ast.AST]:
    """The parts of an expression whose names exist only in it: a function may have a global of the same name."""
    if isinstance(node, ast.Lambda):
        return [*_parameters(node.args)]
    return [node.target] if isinstance(node, ast.comprehension) else []


def _functions_given(name: str, node: ast.Call) -> list[ast.expr]:
    """The arguments of a call of a built-in function that it calls in turn."""
    return [*node.args[: name in ("filter", "map")], *(each.value for each in node.keywords if each.arg == "key")]


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    others = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *others]


def _parts(targets: Sequence[ast.expr], value: ast.expr) -> Iterator[list[ast.expr]]:
    """Yield the targets of an assignment with their value; of one of tuples, each target with its own."""
    match targets:
        case [ast.Tuple(elts=names) | ast.List(elts=names)] if (
            isinstance(value, ast.Tuple | ast.List)
            and len(names) == len(value.elts)
            and not any(isinstance(each, ast.Starred) for each in (*names, *value.elts))
        ):
            for name, part in zip(names, value.elts, strict=True):
                yield from _parts([name], part)
        case _:
            yield [*targets, value]


def _not_lazy(node: ast.expr) -> ast.expr:
    """Refuse a value that is computed later, piece by piece: when, and how much of it, could depend on anything."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LAZY
    if is_call or isinstance(node, ast.GeneratorExp):
        raise _NotUnderstood
    return node


def _only_call(node: ast.stmt, is_host: Callable[[str], bool]) -> list[ast.expr] | None:
    """Return the arguments of the one call of the host that a statement consists of; None for all others."""
    if not isinstance(node, ast.Expr | ast.Assign) or not isinstance(call := node.value, ast.Call):
        return None
    values = [*call.args, *(each.value for each in call.keywords)]
    if isinstance(call.func, ast.Name) and is_host(call.func.id):
        return values if not any(isinstance(each, ast.Call) for value in values for each in ast.walk(value)) else None
    return None
