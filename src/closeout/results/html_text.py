"""Read the text of an HTML page, with headings and tables as Markdown writes them, in one pass.

`trafilatura` (extra `html`) finds a page's main text better; the reader here needs nothing else and leaves out only
scripts, styles, navigation and forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from typing import Any

__all__ = ["html_title", "main_text", "plain_text"]

_RAW = {"script", "style", "noscript", "template", "svg", "iframe", "textarea", "select", "object", "math"}
_LEFT_OUT = {"nav", "footer", "aside", "form", "button", "dialog", "menu"}
_BREAKS = {
    "p", "div", "section", "article", "main", "header", "ul", "ol", "dl", "dd", "dt", "table", "thead", "tbody", "tr",
    "blockquote", "pre", "figure", "figcaption", "br", "hr", "li", "h1", "h2", "h3", "h4", "h5", "h6", "title", "body",
}  # fmt: skip
_ITEMS = {"li", "tr", "dt", "dd"}
# Children of one element; trafilatura's time grows with the square of this number.
MAX_CHILDREN = 1_000
MAX_HIDDEN = 64  # nested elements that are left out; real pages have fewer, and every end tag searches them
_TAG_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]*)")
_SPACE = re.compile(r"[ \t\r\f\v\u00a0]+")
_LINES = re.compile(r"\n{3,}")


@dataclass(slots=True)
class _Page:
    title: str = ""
    pieces: list[str] = field(default_factory=list)
    main: list[str] = field(default_factory=list)
    main_depth: int = 0
    hidden: list[str] = field(default_factory=list)  # open elements whose text is left out
    row: int = 0  # cells of the open table row

    def add(self, text: str) -> None:
        if not self.hidden and text:
            self.pieces.append(text)
            if self.main_depth:
                self.main.append(text)


def main_text(html: str) -> str:
    """Return the page's main text: by trafilatura if it is installed and finds most of it, else `plain_text`.

    Takes linear time: a page with an element of more than MAX_CHILDREN children, such as a long table, is left to
    `plain_text`.
    """
    plain = plain_text(html)
    try:
        import trafilatura
    except ImportError:
        return plain
    try:
        page: Any = trafilatura.load_html(html)
        if page is None or max(map(len, page.iter())) > MAX_CHILDREN:
            return plain
        found: Any = trafilatura.extract(
            page, output_format="markdown", include_tables=True, include_comments=False, favor_recall=True
        )
    except Exception:  # any failure of the better way leaves the simple one
        return plain
    return found if isinstance(found, str) and len(found) * 5 > len(plain) else plain


def html_title(html: str) -> str:
    """Return the text of <title>, or ""."""
    return _read_page(html[:200_000]).title


def plain_text(html: str) -> str:
    """Return all readable text; only that of <main> or <article> if the page marks one of some length."""
    page = _read_page(html)
    main = _tidy("".join(page.main))
    return main if len(main) > 200 else _tidy("".join(page.pieces))


def _tidy(text: str) -> str:
    lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
    return _LINES.sub("\n\n", "\n".join(lines)).strip()


def _read_page(html: str) -> _Page:
    """Walk the tags once. Every search for an end starts where the last one stopped, so the walk is linear."""
    page = _Page()
    lower = html.replace("\u0130", "I").lower()  # the one letter that gets longer: positions must agree
    at, close, unended = 0, -1, False
    while (tag := html.find("<", at)) >= 0:
        page.add(_inline(html[at:tag]))
        if html.startswith("<!--", tag):
            end = html.find("-->", tag + 4)
            at = end + 3
            if end < 0:
                return page
            continue
        if close <= tag:
            close = html.find(">", tag)
        if close < 0:
            at = tag
            break
        name = _TAG_NAME.match(html, tag + 1)
        if name is None:
            skip = close + 1 if html[tag + 1 : tag + 2] in ("!", "?", "/") else tag + 1
            page.add("" if skip > tag + 1 else "<")
            at = skip
            continue
        at = close + 1
        element = name[1].lower()
        if html[tag + 1] == "/":
            _end(page, element)
        elif element == "title" and not page.title and not unended:
            end = lower.find("</title", at)
            page.title = " ".join(unescape(html[at : end if end >= 0 else at + 500]).split())[:300]
            at, unended = (end, False) if end >= 0 else (at, True)
        elif element in _RAW or (element == "title" and not unended):
            end = lower.find(f"</{element}", at)
            if end < 0:
                return page
            at = end
        else:
            _start(page, element)
    page.add(_inline(html[at:]))
    return page


def _inline(text: str) -> str:
    return unescape(text).replace("\n", " ")


def _start(page: _Page, element: str) -> None:
    if element in _LEFT_OUT:
        if len(page.hidden) < MAX_HIDDEN:
            page.hidden.append(element)
    elif element in ("main", "article"):
        page.main_depth += 1
    if element in _BREAKS:
        page.add("\n")
    if element[0] == "h" and element[1:].isdigit():
        page.add("\n" + "#" * min(int(element[1:]), 6) + " ")
    elif element == "li":
        page.add("- ")
    elif element == "tr":
        page.row = 0
    elif element in ("td", "th"):
        page.add("| " if page.row == 0 else " | ")
        page.row += 1


def _end(page: _Page, element: str) -> None:
    if page.hidden and element in _LEFT_OUT:
        if element in page.hidden:
            del page.hidden[page.hidden.index(element) :]
        return
    if element in ("main", "article") and page.main_depth:
        page.main_depth -= 1
    if element == "tr" and page.row:
        page.add(" |")
    if element in _BREAKS and element not in _ITEMS:  # the next item begins a line itself
        page.add("\n")
    if element == "p" or (element[0] == "h" and element[1:].isdigit()):
        page.add("\n")
