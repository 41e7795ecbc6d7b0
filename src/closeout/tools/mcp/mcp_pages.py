"""Read the lists of an MCP server, which come in pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["all_pages"]

MAX_PAGES = 200


async def all_pages(list_page: Callable[..., Awaitable[Any]], items: str, most: int) -> tuple[list[Any], bool]:
    """Return the first `most` items of a list, and True if there are more.

    Args:
        list_page: The client's method for a page, given its cursor.
        items: The attribute of a page that holds its items.
        most: The number of items to return at most.
    """
    found: list[Any] = []
    cursor: str | None = None
    seen: set[str | None] = set()
    for _ in range(MAX_PAGES):
        page = await list_page(cursor=cursor)
        listed = getattr(page, items)
        # An empty cursor may be one like any other, or mean the end: then the first page comes again.
        found += listed if cursor != "" else [each for each in listed if each not in found]
        seen.add(cursor)
        cursor = page.next_cursor
        if cursor in seen or cursor is None or len(found) > most:
            break
    return found[:most], bool(cursor) or len(found) > most
