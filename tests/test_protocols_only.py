"""The runtime governs form. It decides nothing by what a task, a result or an answer says, in any language."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import closeout
from closeout import Agent, AskOnce, Boxed, CallFirst, Choice, Json, Majority, Number, Tagged, Text, tool
from closeout.errors import ToolError
from closeout.strategies.small_model import SmallModel
from closeout.testing import RequestView, ScriptedClient, answer, call, say

SOURCE = Path(closeout.__file__).parent


def modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (SOURCE / package).rglob("*.py"))


# ------------------------------------------------------------------------------------------------ quoted constants


def written_texts() -> list[str]:
    """The texts in the source that may reach a model: all strings with several words, without docstrings."""
    found: dict[str, None] = {}
    for path in modules("run", "dialects", "answers", "context", "tools"):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                text = node.value.strip()
                if text.count(" ") >= 2 and len(text) <= 1500:
                    found[text] = None
    templates = (path.read_text() for path in (SOURCE / "dialects").rglob("*") if path.suffix in (".j2", ".txt", ".md"))
    for template in templates:
        found.update(dict.fromkeys(line.strip() for line in template.splitlines() if line.count(" ") >= 2))
    return list(found)


async def conversation(*quoted: str, as_error: bool, dialect: str) -> list[Any]:
    """All that is sent in a run whose tool returns these texts one after the other, without them."""
    keys = "abcdefgh"[: len(quoted)]

    @tool(read_only=True, inline=True)
    def look(key: str) -> str:
        """Look up a key."""
        text = f"{quoted[keys.index(key)]} [end]"
        if as_error:
            raise ToolError(text)
        return text

    def script(view: RequestView) -> Any:
        if view.number > len(keys):
            return say("```python\nfinal_answer('42')\n```") if dialect == "code" else answer("42")
        key = keys[view.number - 1]
        return say(f"```python\nprint(look('{key}'))\n```") if dialect == "code" else call("look", key=key)

    client = ScriptedClient(script)
    result = await Agent(client, [look], dialect=dialect, answer=Boxed(), home=False).run("What?")
    assert result.answer == "42"
    return [
        (
            request.temperature,
            [spec.name for spec in request.tools],
            # Text dialects move what looks like a part of the prompt, so a result is left out as a whole.
            [m.text for m in request.messages if "[end]" not in m.text],
            len(request.messages),
        )
        for request in client.requests
    ]


# Texts that steer, with the reason. Tools report a failure so, and the executor reads it where a result begins.
PROTOCOL = {"Error executing tool"}


async def test_no_result_that_quotes_the_runtime_steers_it() -> None:
    texts = written_texts()
    assert len(texts) > 300

    async def steering(*texts: str) -> set[str]:
        """Those of some texts that change what is sent, each at the beginning of a result."""
        plain = await conversation(*["a plain text"] * len(texts), as_error=False, dialect="function_call")
        if await conversation(*texts, as_error=False, dialect="function_call") == plain:
            return set()
        return set(texts) if len(texts) == 1 else {each for text in texts for each in await steering(text)}

    found = [await steering(*texts[start : start + 8]) for start in range(0, len(texts), 8)]
    assert {text for each in found for text in each} == PROTOCOL


@pytest.mark.parametrize(
    ("dialect", "as_error"),
    [("cot_chat", True), ("mcp_xml", False), ("code", False), ("function_call", True)],
)
async def test_nor_does_a_result_or_an_error_of_many_such_lines(dialect: str, as_error: bool) -> None:
    if dialect == "code":
        pytest.importorskip("pydantic_monty")
    texts = [text for text in written_texts() if text not in PROTOCOL]
    plain = await conversation(*["a plain text"] * 2, as_error=as_error, dialect=dialect)
    size = 8 if as_error else 32  # the text of an error is cut
    for start in range(0, len(texts), size):
        quoted = "\n".join(texts[start : start + size])
        assert await conversation(quoted, quoted, as_error=as_error, dialect=dialect) == plain, quoted


# ------------------------------------------------------------------------------------------------ valid answers

WORDS = [
    *("the", "river", "河流", "sind", "nicht", "yes", "no", "否", "unknown", "sorry", "first", "game", "let", "me"),
    *("search", "I", "will", "look", "-28", "−12", "°C", "0", "Ja", "对不起"),
]


def any_answer(chance: random.Random) -> tuple[Any, str, Any]:
    """A contract, a reply that satisfies it, and the value that it states."""
    words = " ".join(chance.choices(WORDS, k=chance.randint(1, 12)))
    number = chance.choice([0, -chance.randint(1, 10**6), chance.randint(1, 10**9), chance.randint(-999, 999) / 8])
    options = chance.sample(["yes", "no", "是", "否", "nein", "unknown game", "-1", "Sorry"], k=4)
    chosen = chance.choice(options)
    record = {"name": words, "count": chance.randint(-5, 5), "parts": chance.choices(WORDS, k=3)}
    thought = chance.choice(["", "I counted. ", "It is not certain, sorry. ", "Let me search for it first. "])
    return chance.choice(
        [
            (Text(), words, words),
            (Boxed(blacklist=()), f"{thought}\\boxed{{{words}}}", words),
            (Number(), f"{thought}\\boxed{{{number}}}", number),
            (Choice(options), f"{thought}\\boxed{{{chosen}}}", chosen),
            (Tagged(), f"{thought}<answer>{words}</answer>", words),
            (Json({"type": "object"}), f"{thought}\n```json\n{json.dumps(record, ensure_ascii=False)}\n```", record),
        ]
    )


async def test_hundreds_of_valid_answers_are_the_models_own() -> None:
    chance = random.Random(30)
    reply = ""
    client = ScriptedClient(lambda view: say(reply))

    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return key

    for _ in range(300):
        contract, reply, value = any_answer(chance)
        asked = len(client.requests)
        result = await Agent(client, [look], answer=contract, home=False).run(" ".join(chance.choices(WORDS, k=6)))
        assert (result.value, result.status, len(client.requests) - asked) == (value, "answered", 1), (contract, reply)


# ------------------------------------------------------------------------------------------------ right stays right

RIGHT = [
    ("What is 17 minus 45?", "-28"),
    ("Was ist 17 minus 45?", "-28"),
    ("17减45等于多少？", "-28"),
    ("What is 7 - 7?", "0"),
    ("7减7等于多少？", "0"),
    ("How cold was it in the station's report?", "-12 °C"),
    ("Wie kalt war es laut dem Bericht?", "-12 °C"),
    ("报告里的气温是多少？", "-12 °C"),
    ("Do both rivers flow into the same sea?", "no"),
    ("Münden beide Flüsse in dasselbe Meer?", "nein"),
    ("两条河流入同一片海吗？", "否"),
    ("Which game came out first?", "first game"),
    ("Welches Spiel erschien zuerst?", "das erste Spiel"),
    ("哪个游戏最先发行？", "第一个游戏"),
    ("How many hats are there in 30 boxes of 12?", "360"),
]


@tool(read_only=True)
def search(query: str) -> list[str]:
    """Search the documents."""
    return ["The report says: it was -12 °C.", "报告：零下12度。", "There were 3 rivers and 40 hats."]


@pytest.mark.parametrize(("task", "right"), RIGHT)
@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize(
    "strategy", [AskOnce(), Majority(3), CallFirst("search"), SmallModel()], ids=lambda each: each.name
)
async def test_a_model_that_is_always_right_stays_right(strategy: Any, searches: bool, task: str, right: str) -> None:
    coded = isinstance(strategy, SmallModel)
    if coded:
        pytest.importorskip("pydantic_monty")

    def script(view: RequestView) -> Any:
        first = searches and "The report says" not in view.text
        if not coded or "Answer from these facts only" in view.text:
            return call("search", query="report") if first else answer(right)
        return say(f"```python\n{'print(search(chr(97)))' if first else f'final_answer({right!r})'}\n```")

    client = ScriptedClient(script)
    agent = Agent(
        client, [search], answer=Boxed(), strategy=strategy, home=False, dialect="code" if coded else "function_call"
    )
    result = await agent.run(task)
    assert (result.answer, result.rollbacks) == (right, 0)
    assert len(client.requests) <= {"once": 2, "majority": 4, "call-first": 2, "small-model": 3}[strategy.name]


# ------------------------------------------------------------------------------------------------ no lists of words

# Words of protocols, each with its reason.
PATTERNS = {
    r"^(?=Question:|Result:|```)": "the labels of the dialect's own prompt, which results must not forge",
    r"(?im)^([ \t#]*(?:server name|tool name|input json schema)[ \t]*):": "the labels of the dialect's own prompt",
    r"^[^:\n]*:(\d+):(\d+): error\[([\w-]+)\] (.*)$": "the form in which the sandbox reports a type error",
    r"external function '(\w+)' cannot suspend in this synchronous context": "a message of the sandbox",
}
LISTS = {
    ("string", "number", "integer"): "types of JSON Schema",
    ("system", "developer", "user", "assistant"): "roles of messages in Chat Completions",
    ("approve", "deny", "answer"): "verdicts of `resume(decisions=)`",
    ("answered", "unanswered", "failed", "cancelled", "waiting"): "values of `RunResult.status`",
    ("expires", "by", "idle", "summary"): "names of fields of events",
    ("keep", "take", "refuse"): "values of `on_change`",
    ("summary", "observation", "checkpoint"): "names of fields of `ToolOutput`",
    ("waiting", "interrupted", "running"): "values of `RunRecord.status`",
    ("running", "interrupted", "waiting"): "values of `RunRecord.status`",
    ("interrupted", "waiting", "cancelled"): "values of `RunRecord.status`",
    ("unchanged", "changed", "stops"): "values of `RunCheck.verdict`",
}

REGEX_CALLS = {"re.compile", "re.match", "re.search", "re.fullmatch", "re.findall", "re.finditer", "re.sub", "re.split"}
_SYNTAX = re.compile(r"\\[a-zA-Z]|\(\?P<\w+>|\(\?P=\w+\)|\(\?[aiLmsux-]+[:)]|\[[^\]]*\]")


def patterns_with_words(source: str) -> Iterator[str]:
    """Patterns with three letters in a row outside escapes, names of groups, and classes of characters."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in REGEX_CALLS and node.args):
            continue
        parts = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
        pattern = "".join(part for part in parts if isinstance(part, str))
        if re.search(r"[^\W\d_]{3}", _SYNTAX.sub("  ", pattern)):
            yield pattern


def lists_of_words(source: str) -> Iterator[tuple[str, ...]]:
    """Literal collections of three or more words in lowercase."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Tuple | ast.Set | ast.List):
            words = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
            if len(words) > 2 and all(isinstance(w, str) and re.fullmatch(r"[^\W\d_A-Z]+", w) for w in words):
                yield tuple(map(str, words))


@pytest.mark.parametrize("path", modules("run", "dialects"), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_loop_and_the_dialects_hold_no_words_of_a_language(path: Path) -> None:
    source = path.read_text()
    assert [each for each in patterns_with_words(source) if each not in PATTERNS] == []
    assert [each for each in lists_of_words(source) if each not in LISTS] == []


@pytest.mark.parametrize(
    "source",
    [
        r're.compile(r"\b(?:sorry|unable)\b")',
        r're.search("对不起吗", text)',
        r're.compile(rf"{START} unfortunately")',
    ],
)
def test_a_pattern_with_words_is_found(source: str) -> None:
    assert list(patterns_with_words(source))


@pytest.mark.parametrize("source", [r're.compile(r"\bw+(?P<name>[a-z]{3,})\s")', r're.compile(r"(?ims)^\w+$")'])
def test_a_pattern_of_syntax_is_none(source: str) -> None:
    assert not list(patterns_with_words(source))


@pytest.mark.parametrize(
    "source",
    [
        'word in ("older", "younger", "first")',
        'WORDS = frozenset({"which", "who", "where"})\nif not word in WORDS: pass\nword not in WORDS',
        'WORDS: tuple[str, ...] = ("谁", "哪里", "什么")\nany(w in WORDS for w in text)',
    ],
)
def test_a_list_of_words_is_found(source: str) -> None:
    assert list(lists_of_words(source))
