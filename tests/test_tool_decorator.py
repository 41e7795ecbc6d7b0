"""`@tool`: what a model sees of a function, how its arguments reach the function, and what is refused."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest
from pydantic import BaseModel, Field

from closeout.errors import ToolDefinitionError, ToolError
from closeout.messages import ToolPolicy
from closeout.tools.schema import is_json_schema, read_docstring
from closeout.tools.threads import run_in_thread
from closeout.tools.tool import PolicyFields, Tool, tool


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


class Place(BaseModel):
    name: str
    height: float = 0.0


@dataclass
class Box:
    width: int
    depth: int = 1


class Row(TypedDict):
    key: str


class Node(BaseModel):
    value: int
    children: list[Node] = []


def parameters_of(made: Tool[..., Any]) -> Mapping[str, Any]:
    return made.spec.parameters


# ------------------------------------------------------------------------------------------------ what a model sees


def test_a_function_becomes_a_spec_of_its_hints_and_docstring() -> None:
    @tool
    def lookup(key: str, limit: int = 5, exact: bool = False) -> str:
        """Look a key up.

        Args:
            key: What to look for.
            limit: The most results to give,
                counted from the best.
        """
        return key

    assert lookup.spec.name == "lookup"
    assert lookup.spec.description == "Look a key up."
    assert lookup.spec.server_name is None
    assert parameters_of(lookup) == {
        "type": "object",
        "properties": {
            "key": {"type": "string", "description": "What to look for."},
            "limit": {
                "type": "integer",
                "default": 5,
                "description": "The most results to give, counted from the best.",
            },
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["key"],
        "additionalProperties": False,
    }
    assert list(parameters_of(lookup)["properties"]) == ["key", "limit", "exact"]


GOOGLE = """Find.

More on it.

Args:
    a (int): First.
    b: Second,
        in two lines: yes.

Returns:
    Something.
"""
NUMPY = """Find.

More on it.

Parameters
----------
a : int
    First.
b : str, optional
    Second,
    in two lines: yes.

Returns
-------
str
    Something.
"""
SPHINX = """Find.

More on it.

:param int a: First.
:param b: Second,
    in two lines: yes.
:type b: str
:returns: Something.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstring_styles_say_the_same(text: str) -> None:
    doc = read_docstring(text)
    assert doc.text == "Find.\n\nMore on it."
    assert doc.parameters == {"a": "First.", "b": "Second, in two lines: yes."}
    assert doc.types["a"] == "int"


@pytest.mark.parametrize(
    "text", [None, "", "Args:", "Parameters\n---", ":param:", "Args:\n\n  : x", "\ud800\x00 Args:\n x"]
)
def test_odd_docstrings_are_read_without_error(text: str | None) -> None:
    read_docstring(text)


def test_docstring_types_and_defaults_replace_missing_hints() -> None:
    @tool
    def find(query, limit=3, exact=None):  # type: ignore[no-untyped-def]
        """Find.

        Args:
            query (str): Words.
            exact (bool, optional): Only whole words.
        """
        return query, limit, exact

    properties = parameters_of(find)["properties"]
    assert properties["query"]["type"] == "string"
    assert properties["limit"] == {"type": "integer", "default": 3}
    assert properties["exact"]["type"] == "boolean"


def test_annotated_text_and_field_describe_and_constrain() -> None:
    @tool
    def measure(
        where: Annotated[str, "The place."],
        count: Annotated[int, Field(ge=1, le=9, description="How many.")] = 1,
        note: str = Field("none", description="A note."),
    ) -> str:
        """Measure.

        :param where: Overruled.
        """
        return f"{where} {count} {note}"

    properties = parameters_of(measure)["properties"]
    assert properties["where"] == {"type": "string", "description": "The place."}
    assert properties["count"] == {
        "type": "integer", "minimum": 1, "maximum": 9, "default": 1, "description": "How many.",
    }  # fmt: skip
    assert properties["note"] == {"type": "string", "default": "none", "description": "A note."}
    assert parameters_of(measure)["required"] == ["where"]
    assert asyncio.run(measure.call({"where": "x"})) == "x 1 none"


def test_types_with_structure_have_short_schemas() -> None:
    @tool
    def build(
        unit: Unit,
        mode: Literal["fast", "slow"],
        place: Place,
        boxes: list[Box],
        row: Row,
        rows: list[Row] | None,
        when: date,
        tags: set[str] | None = None,
        old: Optional[int] = None,  # noqa: UP045  # both spellings are in use
        by_name: dict[str, int] | None = None,
    ) -> str:
        """Build."""
        return ""

    schema = parameters_of(build)
    properties = schema["properties"]
    assert properties["unit"] == {"enum": ["m", "ft"], "type": "string"}
    assert properties["mode"] == {"enum": ["fast", "slow"], "type": "string"}
    assert properties["place"]["properties"]["height"] == {"type": "number", "default": 0.0}
    assert properties["boxes"]["items"]["required"] == ["width"]
    assert schema["$defs"]["Row"]["properties"] == {"key": {"type": "string"}}
    assert properties["rows"]["anyOf"][0]["items"] == {"$ref": "#/$defs/Row"}
    assert properties["when"] == {"type": "string", "format": "date"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert properties["old"] == {"type": "integer"}
    assert properties["by_name"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert set(schema["$defs"]) == {"Row"}  # used twice
    assert "title" not in str(schema)


def test_a_parameter_called_title_survives() -> None:
    @tool
    def rename(title: str, properties: str = "") -> str:
        """Rename."""
        return title

    assert list(parameters_of(rename)["properties"]) == ["title", "properties"]


def test_recursive_and_shared_types_keep_their_definitions() -> None:
    @tool
    def graft(tree: Node, first: Box, second: Box) -> int:
        """Graft."""
        return tree.children[0].value + first.width

    schema = parameters_of(graft)
    assert set(schema["$defs"]) == {"Node", "Box"}
    tree = {"value": 1, "children": [{"value": 2}]}
    assert asyncio.run(graft.call({"tree": tree, "first": {"width": 3}, "second": {"width": 1}})) == 5


def test_hints_may_use_classes_of_the_place_where_the_tool_is_made() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def take(value: Local) -> int:
        """Take."""
        return value.x

    @tool(read_only=True)
    def take_too(value: Local) -> int:
        """Take."""
        return value.x

    assert asyncio.run(take.call({"value": {"x": "4"}})) == 4
    assert asyncio.run(take_too.call({"value": {"x": 5}})) == 5


def test_the_spec_is_built_once_and_without_pydantic_until_then() -> None:
    code = (
        "import sys\n"
        "from closeout.tools.tool import tool\n"
        "@tool\n"
        "def f(a: int) -> int:\n"
        "    return a\n"
        "assert 'pydantic' not in sys.modules and f(1) == 1\n"
        "assert f.spec is f.spec and 'pydantic' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------ still the function


def test_the_tool_is_still_the_function() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1) == 3
    assert add.__name__ == "add"
    assert add.__doc__ == "Add."
    assert add.__module__ == __name__
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int' = 2) -> 'int'"
    assert "add" in repr(add)


async def test_an_async_tool_is_awaited_either_way() -> None:
    @tool(name="later", description="Says it later.", read_only=True, timeout=3)
    async def say(word: str) -> str:
        await asyncio.sleep(0)
        return word

    assert await say("a") == "a"
    assert await say.call({"word": "b"}) == "b"
    assert (say.spec.name, say.spec.description) == ("later", "Says it later.")
    assert say.spec.policy == ToolPolicy(read_only=True, timeout=3)


async def test_methods_partials_and_callable_objects_are_tools_too() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        @tool
        def add(self, by: int = 1) -> int:
            """Count on."""
            self.n += by
            return self.n

        def __call__(self, by: int) -> int:
            """Count."""
            return self.n + by

    counter = Counter()
    assert await counter.add.call({"by": "5"}) == 5
    assert list(parameters_of(counter.add)["properties"]) == ["by"]
    called = tool(name="count")(counter)
    assert await called.call({"by": 1}) == 6
    power = tool(functools.partial(pow, 2), name="power", parameters={"type": "object"})  # type: ignore[call-overload]
    assert power(3) == 8


# ------------------------------------------------------------------------------------------------ calls


async def test_arguments_arrive_as_the_hinted_types() -> None:
    @tool
    def show(
        unit: Unit, place: Place, box: Box, when: date, path: Path, amount: Decimal, pair: tuple[int, str]
    ) -> list[Any]:
        """Show."""
        return [unit, place, box, when, path, amount, pair]

    assert await show.call(
        {
            "unit": "ft", "place": {"name": "Ben Nevis", "height": "1345"}, "box": {"width": 3}, "when": "2024-02-29",
            "path": "a/b", "amount": "1.10", "pair": [1, "x"],
        }
    ) == [
        Unit.FOOT, Place(name="Ben Nevis", height=1345.0), Box(3), date(2024, 2, 29), Path("a/b"), Decimal("1.10"),
        (1, "x"),
    ]  # fmt: skip


async def test_positional_only_parameters_and_typed_keywords_are_filled() -> None:
    @tool
    def mix(a: int, b: int = 2, /, *, c: int = 3, **rest: int) -> list[Any]:
        """Mix."""
        return [a, b, c, rest]

    assert await mix.call({"a": 1}) == [1, 2, 3, {}]
    assert await mix.call({"a": 1, "b": 5, "c": 6, "d": "7"}) == [1, 5, 6, {"d": 7}]
    assert parameters_of(mix)["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"n": "many"}, "n: Input should be a valid integer"), ({}, "n: Field required"), ({"n": 1, "m": 2}, "m: Extra")],
)
async def test_arguments_that_do_not_fit_are_named_for_the_model(arguments: dict[str, Any], says: str) -> None:
    @tool
    def take(n: int) -> int:
        """Take."""
        return n

    with pytest.raises(ToolError, match=says) as caught:
        await take.call(arguments)
    assert "take" in str(caught.value)


async def test_a_sync_tool_leaves_the_event_loop_free_and_sees_the_context() -> None:
    where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def wait() -> str:
        """Wait."""
        loop.call_soon_threadsafe(started.set)
        release.wait(60)
        return where.get()

    where.set("here")
    call = asyncio.create_task(wait.call({}))
    await started.wait()  # reached only if the loop runs while the tool blocks
    release.set()
    assert await call == "here"


def test_an_inline_tool_has_no_deadline_since_nothing_could_interrupt_it() -> None:
    @tool(inline=True, timeout=5)
    def at_once() -> int:
        return 1

    @tool(inline=True, timeout=5)
    async def in_a_while() -> int:
        return 1

    assert at_once.spec.policy.timeout is None
    assert in_a_while.spec.policy.timeout == 5


async def test_an_inline_tool_runs_on_the_loop_thread() -> None:
    @tool(inline=True)
    def thread() -> int:
        """Tell the thread."""
        return threading.get_ident()

    assert await thread.call({}) == threading.get_ident()
    assert await tool(thread.function).call({}) != threading.get_ident()


async def test_many_blocking_tools_run_side_by_side() -> None:
    gate = threading.Barrier(40)

    @tool
    def meet() -> int:
        """Meet the others."""
        return gate.wait(60)

    assert sorted(await asyncio.gather(*(meet.call({}) for _ in range(40)))) == list(range(40))


async def test_a_cancelled_call_ends_at_once_and_its_thread_serves_on() -> None:
    release, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(60)

    call = asyncio.create_task(run_in_thread(block))
    await entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    release.set()
    assert await run_in_thread(lambda: 7) == 7


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ValueError("bad"), ValueError), (SystemExit(3), ToolError), (StopIteration(), RuntimeError)],
)
async def test_what_a_tool_raises_reaches_the_caller(raised: BaseException, expected: type[Exception]) -> None:
    @tool
    def fail() -> None:
        """Fail."""
        raise raised

    with pytest.raises(expected):
        await fail.call({})


def test_a_hanging_tool_does_not_keep_a_finished_program_alive() -> None:
    code = (
        "import asyncio, time\n"
        "from closeout.tools.threads import run_in_thread\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(run_in_thread(lambda: time.sleep(600)), 0.05)\n"
        "    except TimeoutError:\n"
        "        print('done')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n"


# ------------------------------------------------------------------------------------------------ policies


def test_policy_fields_are_those_of_the_policy() -> None:
    assert set(PolicyFields.__annotations__) == {field.name for field in fields(ToolPolicy)}


def test_policy_fields_may_be_written_short() -> None:
    @tool(
        aliases={"query": "q", "limit": ["n", "count"]}, duplicate_key="query", empty_at="items",
        policy=ToolPolicy(read_only=True, drop_keys=("x",)),
    )  # fmt: skip
    def search(query: str, limit: int = 3) -> list[str]:
        """Search."""
        return []

    policy = search.spec.policy
    assert policy.aliases == {"query": ("q",), "limit": ("n", "count")}
    assert (policy.duplicate_key, policy.empty_at, policy.drop_keys) == (("query",), ("items",), ("x",))
    assert policy.read_only


# ------------------------------------------------------------------------------------------------ refusals


def star(*words): ...  # type: ignore[no-untyped-def]


def stars(**words): ...  # type: ignore[no-untyped-def]


def odd(stream: threading.Lock) -> None: ...


def lost(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def one(x: int) -> None: ...


def many() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tool(star), r"'star' takes \*words.*list\[str\]"),
        (lambda: tool(odd).spec, r"'odd': parameter 'stream' has a type that JSON cannot carry"),
        (lambda: tool(lost).spec, r"'lost'.*'Nowhere'"),
        (lambda: tool(many), r"'many' yields.*list"),
        (lambda: tool(lambda: 1), r"<lambda> cannot name a tool"),
        (lambda: tool(name="look up")(one), r"look up cannot name a tool"),
        (lambda: tool(parameters={"type": "objekt"})(one).spec, r"'one': parameters is not a JSON Schema"),
        (lambda: tool(parameters={"type": "array"})(one).spec, r"'one': parameters must describe an object"),
        (lambda: tool(read_onyl=True)(one), r"'one': a policy has no field 'read_onyl'. Did you mean 'read_only'\?"),
        (lambda: tool(aliases={"y": "z"})(one).spec, r"'one': aliases names the parameter 'y'.*It has: x"),
        (lambda: tool(aliases="x")(one).spec, r"'one': aliases .*got 'x'"),
        (lambda: tool(duplicate_key=5)(one).spec, r"'one': duplicate_key .*got 5"),
        (lambda: tool(on_crash="Ask")(one).spec, r"'one': on_crash should be 'rerun', 'report' or 'ask', got 'Ask'"),
        (lambda: tool(read_only="no")(one).spec, r"'one': read_only .*got 'no'"),
        (lambda: tool(timeout="5s")(one).spec, r"'one': timeout .*got '5s'"),
        (lambda: tool(timeout=-1)(one).spec, r"'one': timeout must be at least .*got -1"),
        (lambda: tool(budget_tokens=0)(one).spec, r"'one': budget_tokens must be at least 1, got 0"),
        (lambda: tool(response_format="short")(one).spec, r"'one': response_format .*got 'short'"),
        (lambda: tool(read_only=True, destructive=True)(one).spec, r"'one': a tool is read_only or destructive"),
        (lambda: tool(policy=ToolPolicy(judge=5))(one).spec, r"'one': judge .*got 5"),  # type: ignore[arg-type]
        (lambda: tool(retries=2)(one).spec, r"'one': retries=2 needs read_only=True or idempotent=True"),
    ],
)
def test_what_cannot_be_offered_is_refused_by_name(make: Any, says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        make()


async def test_a_written_schema_is_offered_as_it_is_and_arguments_pass_through() -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string"}}, "required": ["when"]}

    @tool(parameters=schema)
    def record(**anything):  # type: ignore[no-untyped-def]
        """Record."""
        return anything

    assert parameters_of(record) == schema
    assert await record.call({"when": "2024-02-29", "more": 1}) == {"when": "2024-02-29", "more": 1}


@pytest.mark.parametrize("inline", [False, True])
async def test_an_iterator_is_not_a_result(inline: bool) -> None:
    @tool(inline=inline)
    def doubled(numbers: list[int]) -> Any:
        return map(float, numbers)

    @tool
    async def halves(numbers: list[int]) -> Any:
        return (number / 2 for number in numbers)

    with pytest.raises(ToolError, match=r"doubled returned a map, which holds no values\. Return a list\."):
        await doubled.call({"numbers": [1]})
    with pytest.raises(ToolError, match="halves returned a generator"):
        await halves.call({"numbers": [1]})


def test_a_schema_that_names_an_address_is_refused_and_nothing_is_fetched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/schema"
        for place in (address, (tmp_path / "schema.json").as_uri()):
            for schema in ({"$schema": place}, {"properties": {"a": {"$ref": place}}}, {"$dynamicRef": f"{place}#a"}):
                assert not is_json_schema({"type": "object", **schema})
                with pytest.raises(ToolDefinitionError, match=r"no(t a)? JSON Schema"):
                    tool(lambda: 1, name="one", description="One.", parameters={"type": "object", **schema}).spec  # noqa: B018
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_keyword_arguments_without_a_type_are_left_out_of_the_schema() -> None:
    @tool
    def read(path: str, **options) -> str:  # type: ignore[no-untyped-def]
        """Read."""
        return f"{path} {options}"

    assert list(read.spec.parameters["properties"]) == ["path"]
    assert read.spec.parameters["additionalProperties"] is False
    assert read("a", mode="b") == "a {'mode': 'b'}"
