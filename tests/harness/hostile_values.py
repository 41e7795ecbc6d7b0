"""Values that a tool may return: broken objects, arrays, tables, bytes, half characters, and lists of them."""

from __future__ import annotations

from collections import UserDict, UserList
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

try:
    import numpy as np
except ImportError:
    np = None

__all__ = ["VALUES", "Frame", "Unreadable", "broken"]


def broken(*names: str) -> Any:
    """An object that raises from each of these special methods."""

    def raises(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("broken")

    return type("Broken", (), dict.fromkeys(names, raises))()


class BrokenMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        raise OSError("no length")


class BrokenText(str):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("broken")

    def __hash__(self) -> int:
        raise RuntimeError("broken")

    def __str__(self) -> str:
        raise RuntimeError("broken")

    def __len__(self) -> int:
        raise RuntimeError("broken")


class Liar:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("broken")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("broken")


class Frame:
    """What pandas' DataFrame is to the code that reads it."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.index = range(len(rows))

    def reset_index(self) -> Frame:
        return self

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        return self.rows

    def __eq__(self, other: object) -> Any:
        raise ValueError("The truth value of a DataFrame is ambiguous.")

    def __bool__(self) -> bool:
        raise ValueError("The truth value of a DataFrame is ambiguous.")

    __hash__ = None  # type: ignore[assignment]


Frame.__module__, Frame.__name__ = "pandas.core.frame", "DataFrame"

ARRAYS: list[Callable[[], Any]] = (
    []
    if np is None
    else [
        lambda: np.array([]),
        lambda: np.array([[1.5, float("nan")], [2, 3]]),
        lambda: np.array([object(), None], dtype=object),
        lambda: np.array(7),
        lambda: np.float32(1.5),
        lambda: np.int64(3),
        lambda: np.bool_(False),
        lambda: np.str_("x"),
        lambda: np.datetime64("NaT", "s"),
        lambda: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
        lambda: Frame([{"a": np.int64(1)}]),
    ]
)
LEAVES = st.sampled_from(
    [
        *ARRAYS,
        *[
            lambda name=name: broken(name)
            for name in ("__eq__", "__len__", "__str__", "__repr__", "__bool__", "__hash__")
        ],
        lambda: broken("__getattribute__"),
        lambda: broken("__iter__", "__repr__", "__str__"),
        BrokenMapping,
        lambda: BrokenText("text"),
        Liar,
        Unreadable,
        lambda: Frame([]),
        lambda: Frame([{"a": 1, "b": "\ud83d"}]),
        lambda: UserDict({"a": 1}),
        lambda: UserList([1]),
        lambda: ModuleType("m"),
        lambda: memoryview(b"ab" * 8).cast("H", (2, 4)),
        lambda: b"\x89PNG\r\n" + bytes(2_000),
        lambda: bytearray(b"text"),
        lambda: "\ud83d",
        lambda: "\ud83d\ude00",
        lambda: {"\ud83d": "\ude00"},
        lambda: float("nan"),
        lambda: 10**5000,
        lambda: 1j,
        lambda: Decimal("sNaN"),
        lambda: (number for number in range(3)),
        lambda: int,
        lambda: print,
        lambda: {1, "a", None},
        lambda: None,
        lambda: "",
        dict,
        list,
    ]
)
VALUES: st.SearchStrategy[Callable[[], Any]] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda makers: lambda: [make() for make in makers]),
        st.lists(inner, max_size=3).map(lambda makers: lambda: tuple(make() for make in makers)),
        st.dictionaries(st.sampled_from(["error", "organic", "results", "a", "text"]), inner, max_size=3).map(
            lambda makers: lambda: {key: make() for key, make in makers.items()}
        ),
    ),
    max_leaves=5,
)
