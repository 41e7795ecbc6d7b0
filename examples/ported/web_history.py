"""Tools for the web as it was: revisions of a Wikipedia article, and archived pages, by the names that MiroFlow has.

python examples/ported/web_history.py "What did the article on the Panama Canal say in May 2016?" --model openai:gpt-5
closeout run "…" -m openai:gpt-5 -C agent.tools=examples.ported.web_history:search_archived_webpage
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from typing import Any
from urllib.parse import urlencode

from closeout import Agent, ToolError, tool
from closeout.tools.builtin.web import PageReader

WIKIPEDIA = "https://en.wikipedia.org"
ARCHIVE = "https://web.archive.org"
MOST_REVISIONS = 50
READER = PageReader()


def day_of(year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError as error:
        raise ToolError(f"{year}-{month}-{day} is not a date: {error}.") from None


@tool(read_only=True, timeout=60)
async def search_wiki_revision(
    entity: str, year: int, month: int, max_revisions: int = MOST_REVISIONS
) -> list[dict[str, str]]:
    """List the revisions of a Wikipedia article in a month, each with the address under which it can be read.

    Args:
        entity: The title of the article.
        year: The year, such as 2016.
        month: The month, 1 to 12.
        max_revisions: The most revisions to list.
    """
    first = day_of(year, month, 1)
    following = date(year + month // 12, month % 12 + 1, 1)
    query = {
        "action": "query",
        "format": "json",
        "formatversion": 2,
        "prop": "revisions",
        "titles": entity,
        "rvprop": "ids|timestamp|comment",
        "rvdir": "newer",
        "rvstart": f"{first}T00:00:00Z",
        "rvend": f"{following}T00:00:00Z",
        "rvlimit": max(1, min(max_revisions, MOST_REVISIONS)),
    }
    page = await READER.read(f"{WIKIPEDIA}/w/api.php?{urlencode(query)}")
    (article,) = json.loads(page.text)["query"]["pages"]
    if article.get("missing"):
        raise ToolError(f"Wikipedia has no article {entity!r}. Give its exact title.")
    return [
        {
            "time": revision["timestamp"],
            "comment": revision.get("comment", ""),
            "url": f"{WIKIPEDIA}/w/index.php?oldid={revision['revid']}",
        }
        for revision in article.get("revisions", ())
    ]


@tool(read_only=True, timeout=60)
async def search_archived_webpage(url: str, year: int, month: int, day: int) -> dict[str, Any]:
    """Read a page as the Internet Archive saved it on a day, or on the day nearest to it.

    Args:
        url: The address of the page.
        year: The year, such as 2016.
        month: The month, 1 to 12.
        day: The day of the month.
    """
    page = await READER.read(f"{ARCHIVE}/web/{day_of(year, month, day):%Y%m%d}/{url}")  # redirects to the nearest one
    return {"url": page.url, "title": page.title, "text": page.text}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--model", default="openai:gpt-5")
    args = parser.parse_args()
    tools = [search_wiki_revision, search_archived_webpage, "scrape_website"]
    print(Agent(args.model, tools).run_sync(args.question).answer)


if __name__ == "__main__":
    main()
