"""Random programs that read untrusted text and act, for the test that what was read does not decide what is done."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from closeout.messages import ToolCall, ToolSpec
from closeout.results.tool_output import ToolOutput
from closeout.tools.builtin.program_flow import ProgramFlow
from closeout.tools.builtin.program_sandbox import ProgramExecution, ProgramSandbox
from closeout.tools.call_records import CallOutcome
from closeout.tools.flow import CallLabels, Labels
from closeout.tools.running import failed_output

__all__ = ["Checked", "check_programs", "forms_of_all_kinds", "random_programs"]

# A grammar: a form names the forms of its parts by a capital letter. T is a text, I a number, L a list, C a condition,
# S a statement, B a block, R what may raise, K and W a text and a condition about `v`; N and O are variables with
# texts, M with numbers, X and Y with lists, D with tables. A part with a digit is the same wherever the form has it.
# The number says how many of the forms have no parts of their own kind. Those after "rare" are drawn seldom: they make
# the analysis give up, which must be the strict answer.
_FORMS: dict[str, tuple[int, str]] = {
    "T": (7, r"""N|N|N|'k'|'ann'|'zoe'|''|(T + T)|(T if C else T)|f'{N}-{N:>3}{len(X)}'|('%s-{}'.format(T) % N)
D.get(T, T)
''.join(L)|D.setdefault(T, T)|D.pop(T, T)|(X1.pop() if X1 else 'z')|(N := T[:9])|(T or T)|(C and T or T)|str(I)|crm(T)
note(T)|send(T, 'r')|max([T, 'c'], key=lambda v: K)|min(L, default=T)|T.replace('a', T)|T.upper().strip()|repr(D)
T.partition('n')[0]|json.dumps(L)|json.loads(json.dumps([T]))[0]|re.sub('a', 'o', T)|(T + '..')[I % 2]|[T, T][C]
sorted(L + ['x'])[0]|{True: T, False: T}[C]|str(any(W for v in L))|''.join(v for v in L if W)|f(T)|g(T, w=T)|g(*[T])
''.join(map(lambda v: K, L))|''.join(sorted({T, T}))|str(sum(len(v) for v in L))|str(list(zip(L, L)))|f(v=T)
str(datetime.date(2020, 1, 2).year)
T.capitalize().swapcase().center(I % 9, 'x')|T.casefold().title().lower()|T.lstrip('a').rstrip('n')|T.rsplit('n')[0]
T.removeprefix(T).removesuffix('e')|T.ljust(5, 'k').rjust(7).zfill(9)|T.rpartition('n')[2]
(T + 'k').expandtabs().splitlines()[0]
chr(97 + I % 3)|hex(I) + oct(I) + bin(I)|format(T, '>4')|str(round(float(I), 1))|str(ord((T + 'k')[0]))|str(pow(I, 2))
str(tuple(range(I % 4)))|re.match('(?P<w>.?)', T).group('w')|re.fullmatch('.*', T).groupdict().get(T, T)
script()|script()
str(re.match('(.?)', T).groups())|str(re.match('.*', T).span())|str(datetime.date(2020, 1, 1 + I % 9).isoformat())
datetime.datetime(2020, 1, 1 + I % 9).strftime(T)|str(datetime.datetime(2020, 1, 1 + I % 9).date())|str(math.floor(I))
str(datetime.datetime(2020, 1, 1 + I % 9).time())|str(datetime.timedelta(I % 9).total_seconds())|str(time.time())
str(datetime.datetime(2020, 1, 1 + I % 9).timestamp())|str(statistics.mean([I, I]))|typing.cast(str, T)|str(D.keys())
str(sorted(set(L).union(L)))|str(sorted(frozenset(L).difference(L)))|str(sorted(set(L).intersection([T])))
str(sorted(set(L).symmetric_difference([T])))|str(sorted(set(L).copy()))
str({v: T for v in L})|str([send(v, T) for v in L[:2]])
str({T: (N1 := T[:9]), send(N1, 'd'): N})
str(list(note(v) for v in L))
''.join(sorted({K for v in L}))
rare|getattr(T, 'x', T)|T.encode().decode()|str(b'a' + T.encode())|str(I / 2)
str(I ** 2 ^ 3 & I)|str(~I << 1 >> +I)|str(...)
str(locals())|eval("T")|str(type(T))|next(iter(L + [T]))|(lambda v: (N := v))(T)|h(T)|k1(T)
(print if C else str)(T)|(json.dumps if C else str)(T)|str((floor if C else ceil)(1.5))
str(list(map(print, L)))|[str, len][0](T)|str(sorted(L, key=print))|A.x|str(id(X))|str(D.get)
sorted(['x', 'y'], key=lambda v: (N := v))[0]|''.join(map(f, L))
list(map(lambda v: (X.append(v), v)[1], L + ['m']))[0]
''.join(x for x in [(X.append(T), T)[1] for v in L])|str(any(note(v) < T for v in L))
max((v + N1 for v in L), (N1 := T))"""),
    "K": (2, "v|v + N|str(len(v))|D.get(v, v)|v + T|rare|(X.append(v), v)[1]|(D.update({v: 'u'}), v)[1]|note(v)"),
    "W": (2, r"""v < N|len(v) > 2|v != T|v in L|len(v) > I|rare|X.append(v) or v < T|(N := v) < 'm'
D.setdefault(v, 'w') < 'n'"""),
    "I": (3, r"""M|1|2|len(T)|len(L)|(I + I)|(M := I)|L.count(T)|int(C)|divmod(I, 3)[0]|abs(I)|min(I, 3)|T.find('a')
(I * 2)|(I - I)|(I // 2)|-I|T.rfind('n')|[*L, T1].index(T1)|(T + 'n').index('n')|('n' + T).rindex('n')
re.match('.?', T).start()
re.match('.?', T).end()|datetime.date(2020, 1, 1 + I % 9).weekday()|datetime.date(2020, 1, 1 + I % 9).isoweekday()"""),
    "L": (3, r"""X|X|X|[T, T]|[v for v in L if W]|[v + T for v in L]|[v + u for v in L[:2] for u in L[:2] if u < T]
L[I:]
list(map(lambda v: K, L))|list(filter(lambda v: W, L))|list(reversed(L))|list(D.values())|list(D)|[*L, T]|(L or L)
[x + y for x, y in zip(L, L)]|[str(x) + y for x, y in enumerate(L)]|(L if C else L)|T.split('n')|sorted({T, T})
re.findall('[a-z]', T)|[note(v) for v in L]|sorted(L, key=lambda v: K)|[T for v in L]|list(map(str, L))|[L, L][C]
list(v + T for v in L)|[*(v for v in L)]|[x for x, y in D.items()]|[[N for N in L], X][0]|[(N := v) for v in L]
rare|list(v2)|[v for v in (u + T for u in L)]|list(reversed(v2))|list(map(note, L))"""),
    "C": (3, r"""N == N|N == 'ann'|M > 1|T < T|I > I|T in L|not C
(C and C)|(C or C)|'' < T <= T|T in D
any(W for v in L)
all([W for v in L])|bool(X)|T not in L
I >= I|X is not Y|T.startswith(T)|isinstance(T, str)|bool(re.search('a', T))|X is X
T.endswith('n')|T.isalnum()|T.isalpha()|T.isascii()|T.isdecimal()|T.isdigit()
T.isidentifier()|T.islower()|T.isnumeric()|T.isprintable()|T.isspace()|T.istitle()|T.isupper()|set(L).isdisjoint([T])
set(L).issubset(L)|set(L).issuperset([T])"""),
    "S": (2, r"""N = T[:9]|N = T[:9]|N = T[:9]|N = (N + T)[-9:]|N, O = O, T[:9]|N = O = T[:9]
X = [v[:9] for v in L[:5]]|X = Y
if len(X) < 6: Y.append(T)|X.append(T)|X.extend(L[:2])|X.insert(I, T)|X += [T]|D[T] = T|D.update({T: T})|X.sort()
X.sort(key=lambda v: K)|X[0:1] = [T]|if X1: X1[I % len(X1)] = T|M = I|M = (M + I) % 7|N, *X = [T, *L[:3]]|X.reverse()
D = {**D, 'k': T}|send(T, 'b')|send(T, body=T)|send(body=T, to=N)|send(N, N)|note(T)|T|X[-1:] = L[:2]|N: str = T[:9]
if D: D.popitem()|if T1 in X1: X1.remove(T1)|X.clear()|e1 = set(L)\ne1.add(T)\nX = sorted(e1)
e1 = {T, *L}\ne1.discard(T)\nX = sorted(e1)[:5]
D = dict(zip(L, L))|X, Y = Y, X|if C:\n  B|if C:\n  B\nelse:\n  B|if C:\n  B\nelif C:\n  B\nelse:\n  B
for N in L[:3]:\n  B
for N in L[:3]:\n  B\nelse:\n  B|for M, N in enumerate(L[:3]):\n  B|for N, O in zip(L[:3], L):\n  B
for N in list(D):\n  B
i1 = 0\nwhile (i1 := i1 + 1) < 4:\n  B|i1 = 0\nwhile (i1 := i1 + 1) < 4 and C:\n  B\nelse:\n  B
for N in L[:3]:\n  f(N)
for N in L[:3]:\n  B\n  if C: break\n  B|for N in L[:3]:\n  if C: continue\n  B
while X1 and (N := X1.pop()) != T:\n  note(N)
while X1 and note(T) and X1.pop() < T:\n  pass|try:\n  B\n  R\n  B\nexcept Exception as x1:\n  B\n  N = str(x1)[:9]
i1 = 0\nwhile (i1 := i1 + 1) < 4:\n  send(script(), 'f')\n  ask(T)
f(T)
try:\n  R\nexcept (ValueError, KeyError):\n  B\nelse:\n  B|try:\n  B\n  R\nexcept Exception:\n  B\nfinally:\n  B
try:\n  R\nexcept (ValueError if C else KeyError):\n  B\nexcept Exception:\n  B
try:\n  N = once(T)\nexcept RuntimeError:\n  B
g(T, w=T)|if C: once(T)|if C:\n  from math import floor as r1\nelse:\n  from math import ceil as r1\nM = r1(1.5)
r1 = floor if C else ceil\nM = r1(1.5)|r1 = floor\nif C: r1 = ceil\nM = r1(1.5)
e1 = [X]\ne1[0].append(T)|try:\n  raise ValueError(X)\nexcept ValueError as x1:\n  x1.args[0].append(T)
rare|if C:\n  def k1(v): return T|for X[0] in L[:2]:\n  B|def f(v):\n  B\n  return T|h = lambda v: T
v2 = (v for v in L)|v2 = map(lambda v: K, L)
match T:\n  case 'ann':\n    S\n  case _:\n    S|class A:\n  x = T|global a\nN = T
match L:\n  case ['ann', *r1]:\n    S\n  case []:\n    S
match T:\n  case str() as r1:\n    S\n  case None:\n    S|match D:\n  case {'k': r1}:\n    N = r1
def k1(v):\n  yield v\n  yield from L\nX = list(k1(T))
def k1(v):\n  def j1():\n    nonlocal v\n    v = T\n  j1()\n  return v\nN = k1(T)
try:\n  B\n  R\nexcept* ValueError:\n  B
with open('x', 'w') as o1:\n  o1.write(T)
import random\nrandom.seed(I)\nN = str(random.random())|def k1(v, w=X):\n  w.append(v)\n  return v|exec("N = T")
print(T)|del X[0:1]|if N in D: del D[N]
async def q1(v):\n  return T\nawait q1(T)|for N in map(lambda v: K, L):\n  B|for N in (v + T for v in L[:3]):\n  B
v2 = iter(L)
def k1(v):\n  def j1(u):\n    return u + v\n  return j1(T)|@str\ndef k1(v):\n  return v|e1 = X.append\ne1(T)
import math as json
def k1(v):\n  global a\n  a = v\nk1(T)|def k1(v):\n  try:\n    pass\n  finally:\n    return T\nN = k1(T)|len = str
def j1(v):\n  try: pass\n  except ValueError: pass\n  else:\n    int(T)\n    B\n  finally: return T\nj1(T)"""),
    "R": (1, r"""int(N)|int(T)|D[T]|X[I]|assert C|raise ValueError(T)|N = D[T]|ask(T)|N = once(T)
if C: raise KeyError(T)|N = X[I]"""),
    "F": (1, r"""def f(v, w='w'):\n  B\n  return T|def f(v, w='w'):\n  if C:\n    return T\n  B\n  return T
def f(v):\n  for N in L[:3]:\n    if C: return N\n    B\n  return T|def f(v):\n  X.append(v)\n  return T
def f(v):\n  assert C\n  note(T)\n  return T|def f(v, *w):\n  B\n  return v + ''.join(w)"""),
    "N": (0, "a|b|c"),
    "O": (0, "a|b|c"),
    "M": (0, "n|m"),
    "X": (0, "xs|ys|zs"),
    "Y": (0, "xs|ys|zs"),
    "D": (0, "d|t"),
}  # fmt: skip

_START = """import json, re, datetime, math, statistics, time, typing
from math import ceil, floor
a = 'k'
b = 'q'
c = crm('x')
xs = ['ann', 'bob', 'zoe']
ys = ['u', 'v']
zs = []
d = {'k': 'v', 'ann': 'w'}
t = {'q': 'r'}
n = 1
m = 2
p = 'k'
def g(v, w='w'):
  return v[1:] + w"""
_LOCALS = "a = v\nb = 'l'\nc = v\nn = 1\nm = 2\n"
_END = "\n".join(f"send(str({name}), 'end')" for name in ("a", "b", "c", "n", "m", "xs", "ys", "zs", "d", "t"))
_SECRETS = ("p", "p", "p[:1]", "page()", "ask('w')")
_DECISIONS = ("p == 'ann'", "len(p) > 3", "p < 'b'", "'n' in p")
_PART = re.compile(r"\b([TKWILCSBRNOMXYD])(\d?)\b")
_KINDS = {
    kind: (
        simple,
        [[each for each in half.replace("\n", "|").split("|") if each] for half in f"{forms}|".split("rare|")],
    )
    for kind, (simple, forms) in _FORMS.items()
}
_IN_FUNCTIONS = re.compile(r"f\(|(^|n *)(X|D|X, Y|N, \*X|for X.*) [+]?=|global|for X")  # what a function does without


def forms_of_all_kinds() -> list[ast.AST]:
    """Return every form of the grammar, parsed; the letters of its parts are names."""
    forms = [each for _, halves in _KINDS.values() for half in halves for each in half]
    return [ast.parse(each.replace("\\n", "\n")) for each in forms]


class _Writer:
    """Writes the programs of one seed."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self._secrets = self.pick.choice((1, 1, 2, 3))  # times that what was read is used
        self._rate = self.pick.choice((0.02, 0.05, 0.15))
        self._rare = self.pick.choice((0.0, 0.0, 0.0, 0.02))
        self.in_function = False

    def write(self, kind: str, depth: int = 0) -> str:
        """Return a form of a kind, with its parts."""
        if kind == "B":
            return "\n".join(self.write("S", depth) for _ in range(self.pick.randint(1, 2)))
        if kind in "TC" and self._secrets and self.pick.random() < self._rate:
            self._secrets -= 1
            return self.pick.choice(_SECRETS if kind == "T" else _DECISIONS)
        simple, (usual, *rare) = _KINDS[kind]
        forms = rare[0] if rare and self.pick.random() < self._rare else usual[: simple if depth > 3 else None] or usual
        if self.in_function:
            forms = [each for each in forms if not _IN_FUNCTIONS.search(each)]
        form, same = self.pick.choice(forms or usual[:simple]), dict[str, str]()

        def part(found: re.Match[str]) -> str:
            if not found[2]:
                return self.write(found[1], depth + 1)
            return same.setdefault(found[0], self.write(found[1], depth + 1))

        lines = []
        for line in form.split("\\n"):
            text = line.lstrip(" ")
            lines.append(indent(_PART.sub(part, text), " " * (len(line) - len(text))))
        return "\n".join(lines)


def random_programs(seed: int) -> list[str]:
    """Return one program, or two of which the second has the variables of the first."""
    writer = _Writer(seed)
    writer.in_function = True
    head, _, body = writer.write("F").partition("\n")
    writer.in_function = False
    statements = [writer.write("S") for _ in range(writer.pick.randint(2, 8))]
    start = f"{_START}\n{head}\n{indent(_LOCALS, '  ')}{body}"
    if writer.pick.random() < 0.7:
        return ["\n".join([start, "p = page()", *statements, _END])]
    return ["\n".join([start, *statements[:2], "pass"]), "\n".join(["p = page()", *statements[2:], _END])]


# ------------------------------------------------------------------------------------------------ the check

UNTRUSTED: Labels = frozenset({"untrusted"})
PAIRS = (("ann", "mallory"), ("7", "ann"), ("", "bz"), ("nnn", "7"))


def _tool(name: str, *parameters: str) -> ToolSpec:
    properties: dict[str, Any] = {each: {} for each in parameters}
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": [*parameters]})


TOOLS = {
    each.name: each
    for each in (
        _tool("page"), _tool("ask", "what"), _tool("crm", "of"), _tool("send", "to", "body"), _tool("note", "text"),
        _tool("once", "text"), _tool("script"),
    )
}  # fmt: skip
LABELS: dict[str, Labels] = dict.fromkeys(("crm", "note", "once", "script", "final_answer"), frozenset())
LABELS |= dict.fromkeys(("page", "ask", "send"), UNTRUSTED)


@dataclass
class Checked:
    """The check of programs: how many calls were free and guarded, and how two runs differ; empty if they do not."""

    free: int
    guarded: int
    understood: bool
    difference: str


@dataclass
class _Run:
    """One run of the programs, with one untrusted text.

    Attributes:
        text: What is read.
        free: What must not depend on it: calls that were decided freely with their free arguments, and outputs.
        guarded: The number of other calls with effects.
        failed: An error ended it.
    """

    text: str
    free: list[Any] = field(default_factory=list)
    guarded: int = 0
    failed: bool = False
    has_read: bool = False
    made: set[str] = field(default_factory=set)

    async def make(self, spec: ToolSpec, arguments: dict[str, Any], labels: CallLabels | None) -> CallOutcome:
        """Make a call. What reading returns, or whether it fails, depends on the text."""
        assert labels is not None
        name = spec.name
        if name in ("send", "note", "once"):
            kept = {key: value for key, value in arguments.items() if not labels.arguments.get(key)}
            self.guarded += bool(labels.decided) or len(kept) < len(arguments)
            if not labels.decided:
                self.free.append((name, kept))
        failed = (name == "ask" and self.text == "7") or (name == "once" and arguments["text"] in self.made)
        if name == "once":
            self.made.add(arguments["text"])
        left = name == "script" and self.has_read  # the script finds in a file what reading has left
        result = self.text if name in ("page", "ask") or left else f"<{arguments.get('text', name)}>"[:12]
        self.has_read |= bool(LABELS[name] or labels.all)
        output = failed_output(name, "No.", "ToolError") if failed else ToolOutput(result=result)
        reason = "No." if failed else ""
        status = "error" if failed else "ok"
        return CallOutcome(
            call=ToolCall(name, arguments), spec=spec, output=output, text=result, status=status, reason=reason
        )


class _Unchecked(ProgramExecution):
    """An execution without the type checker, which takes most of the time and only refuses."""

    async def _start(self, session: Any, code: str) -> Any:
        return await self._fed(session, code, unchecked=True)


async def check_programs(seed: int, sandbox: ProgramSandbox) -> Checked:
    """Run random programs in the sandbox with two untrusted texts, and compare what may not depend on these."""
    programs = random_programs(seed)
    one, other = runs = [_Run(text) for text in PAIRS[seed % len(PAIRS)]]
    understood = True
    for run in runs:
        sandbox.forget()
        flow = ProgramFlow(LABELS.get, lambda: UNTRUSTED, lambda name: name == "script")
        for code in programs:
            execution = _Unchecked(sandbox, TOOLS, run.make, str, flow=flow)
            await execution.run(code)
            run.failed = execution.failed
            understood &= not flow._lost
            if flow.decided or (execution.shows and run.has_read):
                break
            run.free.append(str(execution.output().result))
    shared = min(len(one.free), len(other.free))
    is_cut = one.failed if len(one.free) < len(other.free) else other.failed
    is_same = one.free[:shared] == other.free[:shared] and (len(one.free) == len(other.free) or is_cut)
    difference = "" if is_same else f"{one.free} and {other.free} in\n" + "\n---\n".join(programs)
    return Checked(len(one.free), one.guarded, understood, difference)
