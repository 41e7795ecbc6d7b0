"""Reading more of a stored result: pages, paths, patterns, and errors that a model can act on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from closeout.errors import ToolError
from closeout.results.artifacts import Artifact, ArtifactStore, MemoryArtifacts, drill, read_result
from closeout.results.tokens import count_tokens

ORDERS: dict[str, Any] = {
    "shop": "north",
    "orders": [
        {
            "id": f"O-{number}",
            "customer": {"name": f"Ann {number}", "e-mail": f"a{number}@x.org"},
            "items": [{"sku": f"S{number}"}],
        }
        for number in range(40)
    ],
}
LOG = "\n".join(f"{number:04} {'info' if number % 50 else 'ERROR'} done" for number in range(1_000))


@pytest.fixture
def store() -> MemoryArtifacts:
    store = MemoryArtifacts()
    store.put("r1", Artifact(ORDERS, "orders"))
    store.put(
        "r2",
        Artifact("\n".join(f"{number:04} {'ERROR' if number % 50 == 0 else 'info'} done" for number in range(1_000))),
    )
    return store


def test_the_store_is_the_protocol_and_keeps_what_was_put(store: MemoryArtifacts) -> None:
    assert isinstance(store, ArtifactStore)
    rows = [{1: {3, 2}}]
    store.put("r3", Artifact(rows))
    rows.append({})
    assert store.get("r3") == Artifact([{"1": [2, 3]}])
    assert store.get("nothing") is None


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("orders[3].id", "O-3"),
        ("$.orders[3].customer.name", "Ann 3"),
        ("orders[-1].id", "O-39"),
        ('orders[0].customer["e-mail"]', "a0@x.org"),
        ("orders[0].customer['e-mail']", "a0@x.org"),
        ("/orders/3/items/0/sku", "S3"),
        ("orders.3.id", "O-3"),
        ("orders[1:3].id", ["O-1", "O-2"]),
        ("orders[*].items", [[{"sku": f"S{number}"}] for number in range(40)]),
        ("$", ORDERS),
        ("", ORDERS),
    ],
)
def test_a_path_returns_its_part(path: str, found: Any) -> None:
    assert drill(ORDERS, path) == found


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("order", "no key 'order'. Its keys: shop, orders"),
        ("orders[99]", "At orders has 40 items; there is no item 99"),
        ("orders.name", "a list of 40 items; take one by number"),
        ("shop.name", "At shop is a text of 5 characters; the path leads no further"),
        ("orders[[", "cannot be read at character 6"),
    ],
)
def test_an_invalid_path_says_which_part_exists(store: MemoryArtifacts, path: str, says: str) -> None:
    with pytest.raises(ToolError) as failure:
        read_result(store, "r1", path=path)
    assert says in str(failure.value)


def test_an_unknown_handle_is_an_error_for_the_model(store: MemoryArtifacts) -> None:
    with pytest.raises(ToolError, match="No stored result is called 'r99'"):
        read_result(store, "r99")


def test_items_come_whole_in_pages_that_follow_each_other(store: MemoryArtifacts) -> None:
    offset, ids = 0, []
    while offset is not None:
        page = read_result(store, "r1", path="orders", offset=offset, budget=400)
        assert count_tokens(page) <= 400
        body, _, note = page.partition("\n[")
        table = json.loads(body)
        ids += [row[0] for row in table["#rows"]]
        offset = int(note.rsplit("offset=", 1)[1].rstrip(")]")) if note else None
    assert ids == [f"O-{number}" for number in range(40)]


def test_an_item_too_large_for_the_budget_is_cut_with_the_way_into_it(store: MemoryArtifacts) -> None:
    page = read_result(store, "r1", budget=250, offset=1)
    assert count_tokens(page) <= 250
    assert 'read_result("r1", path="orders", offset=' in page


def test_a_pattern_finds_lines_of_a_text_and_leaves_of_a_value(store: MemoryArtifacts) -> None:
    assert read_result(store, "r2", pattern=r"^01\d\d error").splitlines() == [
        "101: 0100 ERROR done",
        "151: 0150 ERROR done",
    ]
    assert read_result(store, "r1", pattern="ann 3$") == "orders[3].customer.name: Ann 3"
    assert read_result(store, "r1", path="orders[7]", pattern="x.org") == 'orders[7].customer["e-mail"]: a7@x.org'
    assert read_result(store, "r1", pattern="(unclosed") == "[Nothing matches '(unclosed'.]"


def test_many_matches_are_paged(store: MemoryArtifacts) -> None:
    page = read_result(store, "r2", pattern="error", budget=100)
    assert count_tokens(page) <= 100
    assert page.endswith(")]")
    offset = int(page.rsplit("offset=", 1)[1].rstrip(")]"))
    shown = page.count("ERROR")
    assert offset == shown
    assert read_result(store, "r2", pattern="error", offset=offset).count("ERROR") == 20 - shown


@pytest.mark.parametrize(
    "pattern", ["(a+)+$b", "(a|aa)+$", "(.*)*x", "(?=a)a", "a{1,99999}{1,99999}", "[", "\ud800", "a\x00"]
)
def test_no_pattern_costs_more_than_linear_time(pattern: str) -> None:
    store = MemoryArtifacts()
    store.put("r1", Artifact("a" * 200_000 + "!\n" + "a" * 30))
    assert isinstance(read_result(store, "r1", pattern=pattern, budget=200), str)


def test_past_the_end_says_where_the_end_is(store: MemoryArtifacts) -> None:
    assert read_result(store, "r1", path="orders", offset=40) == "[There are 40 items.]"
    assert read_result(store, "r1", path="shop", offset=99) == "[The text ends at 5.]"
    assert read_result(store, "r1", path="orders[0].id") == "O-0"
