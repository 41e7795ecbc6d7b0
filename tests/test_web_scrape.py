"""`scrape_website` over real HTTP: text, links, PDFs and parts; hostile pages; never an address that is not public."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from closeout import Agent, ToolExecutor
from closeout.errors import ToolError
from closeout.messages import ToolCall
from closeout.results.tokens import estimate_tokens
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.builtin import scrape_tool, scrape_website
from closeout.tools.builtin.scrape import split_text
from closeout.tools.builtin.web import Link, PageReader, _links, is_public
from closeout.tools.manager import ToolManager
from serving import listening

ARTICLE = (
    """<html><head><title>Canals</title></head><body><nav><a href="/menu">Menu</a></nav><main>
<p>The <a href="rideau?x=1&amp;y=2#top">Rideau  <b>Canal</b></a> was opened in 1832; see <a href='//other.example/b'>the
locks</a>, <a href="javascript:alert(1)">a script</a> and <a href=rideau?x=1&y=2>Rideau Canal</a>.</p>
<p>"""
    + "It joins the Ottawa River and Lake Ontario. " * 12
    + "</p></main></body></html>"
)
LONG = "".join(f"<p>Paragraph {n} of the long report on canals and their locks.</p>\n" for n in range(2_000))
CHINESE = "<html><head><meta charset=utf-8><title>大运河</title></head><body>" + "<p>大运河全长约1794公里。</p>" * 900
PAGES: dict[str, tuple[bytes, str]] = {
    "article": (ARTICLE.encode(), "text/html"),
    "long": (f"<html><title>Report</title><body><main>{LONG}</main></body></html>".encode(), "text/html"),
    "chinese": (CHINESE.encode("gb18030"), "text/html"),  # not the encoding that the page states
    "big5": ("<title>運河</title><p>運河全長一千七百公里</p>".encode("big5"), "text/html; charset=big5"),
    "nonsense": (b"<p>caf\xe9 au lait</p>" * 20, "text/html; charset=no-such-code"),
    "huge": (b"<p>" + b"x" * 2_000_000, "text/html"),
    "empty": (b"<html><body></body></html>", "text/html"),
    "captcha": (b"<html><body>Please verify you are human</body></html>", "text/html"),
    "tags": (b"<a href=x>" * 60_000 + b"<a " * 60_000, "text/html"),
}


def pdf(text: str) -> bytes:
    """The smallest PDF with one line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj%s endobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return body + end % (table, len(body))


@dataclass
class Site:
    port: int
    hits: list[str]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    hits: list[str] = []

    async def page(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        hits.append(name)
        if name == "to":
            raise web.HTTPFound(request.query["to"])
        if name == "bomb":
            packed = gzip.compress(gzip.compress(b"0" * 80_000_000))
            return web.Response(body=packed, headers={"Content-Type": "text/html", "Content-Encoding": "gzip, gzip"})
        if name == "flat-bomb":
            packed = gzip.compress(b"0" * 80_000_000)
            return web.Response(body=packed, headers={"Content-Type": "text/html", "Content-Encoding": "gzip"})
        if name == "pdf":
            return web.Response(body=pdf("The canal is 202 km long."), content_type="application/octet-stream")
        body, kind = PAGES[name]
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/{name}", page)
    async with listening(app, "127.0.0.2") as port:
        yield Site(port, hits)


def local(**limits: Any) -> Any:
    return scrape_tool(PageReader(allow_private="127.0.0.1", **{"seconds": 60.0, **limits}))


async def scrape(url: str, tool: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = await (tool or local()).call({"url": url})
    return found


# ------------------------------------------------------------------------------------------------ text, links, parts


async def test_a_page_gives_its_title_main_text_and_the_links_in_it(site: Site) -> None:
    found = await scrape(site.url("/article"))
    assert found["title"] == "Canals"
    assert "was opened in 1832" in found["text"]
    assert found["links"] == [
        {"text": "Rideau Canal", "url": site.url("/rideau?x=1&y=2")},
        {"text": "the locks", "url": "http://other.example/b"},
    ]
    assert "part" not in found
    assert "next" not in found


async def test_a_pdf_is_read_whatever_type_its_server_states(site: Site) -> None:
    assert "The canal is 202 km long." in (await scrape(site.url("/pdf")))["text"]


@pytest.mark.parametrize("name", ["long", "chinese"])
async def test_a_long_page_is_read_part_by_part_from_one_download(site: Site, name: str) -> None:
    tool = local()
    found = await scrape(site.url(f"/{name}"), tool)
    texts, count = [found["text"]], int(found["part"].split(" of ")[1])
    while "next" in found:
        found = await scrape(found["next"], tool)
        texts.append(found["text"])
    assert len(texts) == count > 2
    assert all(estimate_tokens(text) < 3_600 for text in texts)
    marks = [f"Paragraph {n} of" for n in (0, 999, 1_999)] if name == "long" else ["大运河全长约1794公里。"]
    assert all(mark in "\n".join(texts) for mark in marks)
    assert "".join(texts).count("1794公里") == (900 if name == "chinese" else 0)
    assert site.hits == [name]


async def test_a_part_that_was_forgotten_is_downloaded_again_and_one_too_many_is_refused(site: Site) -> None:
    assert (await scrape(site.url("/long#part=3")))["part"].startswith("3 of ")
    with pytest.raises(ToolError, match=r"has \d+ parts; there is no part 999"):
        await scrape(site.url("/long#part=999"))


def test_parts_end_where_a_sentence_does_and_lose_nothing() -> None:
    text = "第一句话在这里。" * 3_000
    parts = split_text(text, 1_000)
    assert "".join(parts) == text
    assert all(part.endswith("。") for part in parts)
    assert "".join(split_text("x" * 100_000, 500)) == "x" * 100_000


# ------------------------------------------------------------------------------------------------ hostile pages


@pytest.mark.parametrize(
    ("name", "says"),
    [("chinese", "大运河全长约1794公里"), ("big5", "運河全長一千七百公里"), ("nonsense", "café au lait")],
)
async def test_a_page_in_another_encoding_than_stated_is_read(site: Site, name: str, says: str) -> None:
    assert says in (await scrape(site.url(f"/{name}")))["text"]


@pytest.mark.parametrize("name", ["huge", "flat-bomb"])
async def test_a_page_that_is_too_long_is_not_read(site: Site, name: str) -> None:
    with pytest.raises(ToolError, match="longer than 1 MB"):
        await scrape(site.url(f"/{name}"), local(max_bytes=1_000_000))


async def test_a_page_compressed_twice_does_not_fill_the_memory(site: Site) -> None:
    with pytest.raises(ToolError, match="is a compressed file, which holds no text"):
        await scrape(site.url("/bomb"), local(max_bytes=1_000_000))


async def test_many_open_tags_take_little_time(site: Site) -> None:
    """Otherwise this takes longer than a test may."""
    await scrape(site.url("/tags"))
    assert _links("<a href=x>" * 200_000, "http://a/", "x") == ()
    assert _links("<a " * 200_000, "http://a/", "x") == ()


def test_the_words_of_a_link_are_found_in_other_markup_and_over_a_line_break() -> None:
    html = '<a href="/b">the <i>lock</i> gates</a> <a href="/c">*</a> <a href="/d">a menu</a>'
    assert _links(html, "http://a/", "see the *lock*\ngates") == (Link("the lock gates", "http://a/b"),)


@pytest.mark.parametrize("target", ["127.0.0.2", "[::1]", "[::ffff:127.0.0.2]", "169.254.169.254"])
async def test_a_redirect_to_a_private_address_is_refused(site: Site, target: str) -> None:
    with pytest.raises(ToolError, match="which is not a public address"):
        await scrape(site.url(f"/to?to=http://{target}:{site.port}/article"), local())
    assert "article" not in site.hits


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "192.0.0.8"])
async def test_private_addresses_are_refused_by_default(site: Site, host: str) -> None:
    with pytest.raises(ToolError, match="which is not a public address"):
        await scrape(site.url("/article", host), scrape_website)
    assert not site.hits


@pytest.mark.parametrize(
    "address",
    [
        "192.0.0.1", "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1",
        "203.0.113.1", "240.0.0.1", "2001:db8::1", "2001:2::1", "2001:10::1", "2001:20::1", "3fff::1", "5f00::1",
        "::ffff:192.0.0.9", "64:ff9b::c000:9", "2002:c000:9::", "100::1",
    ],
)  # fmt: skip
def test_special_ranges_are_not_public(address: str) -> None:
    assert not is_public(address)


# ------------------------------------------------------------------------------------------------ governed


@pytest.mark.parametrize(
    ("name", "says"), [("empty", "returned no text: use another source"), ("captcha", "it asks for a captcha")]
)
async def test_a_page_without_content_is_an_unusable_result(site: Site, name: str, says: str) -> None:
    executor = ToolExecutor(ToolManager([local()]))
    (outcome,) = await executor.execute_calls([ToolCall("scrape_website", {"link": site.url(f"/{name}")})])
    assert (outcome.status, outcome.rollback) == ("low_quality", True)
    assert says in outcome.reason


async def test_the_same_page_is_a_duplicate_and_its_next_part_is_not(site: Site) -> None:
    executor = ToolExecutor(ToolManager([local()]))
    for url, status in (("/long", "ok"), ("/long", "duplicate"), ("/long#part=2", "ok")):
        (outcome,) = await executor.execute_calls([ToolCall("scrape_website", {"url": site.url(url)})])
        assert outcome.status == status
        assert not outcome.truncated
    assert executor.get_query_str_from_tool_call("scrape_website", {"url": "u"}) == "scrape_website_u"


async def test_demo_mode_cuts_the_text(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_MODE", "1")
    cut = ToolExecutor().post_process_tool_call_result("scrape_website", {"result": {"text": "x" * 30_000}})
    assert len(cut["result"]["text"]) == 20_000
    assert local().policy.demo_length == 20_000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_is_read_in_a_run(site: Site, stream: bool) -> None:
    model = ScriptedClient([call("scrape_website", website=site.url("/article")), answer("1832")])
    result = await Agent(model, tools=[local()], home=False, stream=stream).run("When was it opened?")
    assert result.answer == "1832"
    assert "was opened in 1832" in model.requests[-1].messages[-1].text
