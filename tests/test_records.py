"""`record` makes a dataclass with slots; `shallow_dict` reads its fields."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from closeout import messages
from closeout.journal import events
from closeout.records import record, shallow_dict


@record
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Plain:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


@record
class Deep(Point):
    z: int = 3
    kind: str = "a field named like a builtin"
    type: str = "another"


@record(kw_only=True)
class Named:
    width: int = 1

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("width")


def test_a_record_is_made_like_a_dataclass() -> None:
    assert repr(Point(1, 5, ["a"])) == repr(Plain(1, 5, ["a"])).replace("Plain", "Point")
    assert Point(1) == Point(x=1, y=2, tags=[])
    assert Deep(1, z=9, kind="own") == Deep(1, 2, [], 9, "own", "another")
    assert Deep(1, kind="own").kind == "own"
    assert str(inspect.signature(Point)) == str(inspect.signature(Plain))
    assert replace(Point(1), y=7).y == 7
    assert [each.name for each in fields(Deep)] == ["x", "y", "tags", "z", "kind", "type"]


def test_a_default_factory_is_called_for_each_record() -> None:
    Point(1).tags.append("mine")
    assert Point(1).tags == []


def test_a_record_has_slots_and_a_hash() -> None:
    point: Any = Point(1)
    with pytest.raises(AttributeError):
        point.other = 2
    assert len({Named(width=2), Named(width=2), Named()}) == 2


def test_shallow_dict_reads_the_fields_without_copying() -> None:
    point = Point(1, tags=["a"])
    values = shallow_dict(Point)(point)
    assert values == {"x": 1, "y": 2, "tags": ["a"]}
    assert values["tags"] is point.tags
    assert shallow_dict(Named)(Named(width=3)) == {"width": 3}


def test_a_missing_field_is_named() -> None:
    make: Any = Point
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required positional argument: 'x'"):
        make()


def test_keyword_only_records_and_post_init() -> None:
    make: Any = Named
    assert Named(width=4).width == 4
    with pytest.raises(TypeError):
        make(4)
    with pytest.raises(ValueError, match="width"):
        Named(width=0)


def test_subclasses_need_not_be_records() -> None:
    class Labelled(Point):
        label = ""

    class Bare(Point):
        __slots__ = ()

    labelled = Labelled(1, tags=["a"])
    labelled.__dict__["label"] = "mine"
    assert (labelled.x, labelled.tags, labelled.label, type(labelled)) == (1, ["a"], "mine", Labelled)
    bare: Any = Bare(4)
    assert (bare.x, bare.y, type(bare)) == (4, 2, Bare)


def test_copies_and_pickles() -> None:
    usage = messages.Usage(1, 2, cost_usd=0.5)
    event = events.ModelRetried("main", 3, "busy", wait=1.5)
    for value in (usage, event):
        assert copy.deepcopy(value) == value == pickle.loads(pickle.dumps(value))
