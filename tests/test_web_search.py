"""`web_search` over real HTTP: each provider's requests and responses, its errors, and its calls in a run."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from closeout import Agent, ToolExecutor
from closeout.config import WebSettings, load_config
from closeout.errors import ConfigError, ToolError
from closeout.messages import ToolCall
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.builtin import search_tool
from closeout.tools.builtin.search import SearchAnswer, SearchHit, SearchQuery, search_provider
from closeout.tools.manager import ToolManager
from serving import listening

KEY = "secret-key-0123456789"
PROVIDERS = ("searxng", "serper", "tavily", "brave")
HIT = ("Rideau Canal", "https://example.org/canal", "Opened in <strong>1832</strong> &amp; still in use.")
FOUND: dict[str, dict[str, Any]] = {
    "searxng": {"results": [{"title": HIT[0], "url": HIT[1], "content": HIT[2]}], "answers": ["1832"]},
    "serper": {"organic": [{"title": HIT[0], "link": HIT[1], "snippet": HIT[2]}], "answerBox": {"answer": "1832"}},
    "tavily": {"results": [{"title": HIT[0], "url": HIT[1], "content": HIT[2], "score": 0.9}], "answer": "1832"},
    "brave": {"web": {"results": [{"title": HIT[0], "url": HIT[1], "description": HIT[2], "age": "May 2, 2024"}]}},
}
NOTHING: dict[str, dict[str, Any]] = {
    "searxng": {"results": [], "answers": [], "unresponsive_engines": []},
    "serper": {"organic": []},
    "tavily": {"results": [], "answer": None},
    "brave": {"query": {"original": "x"}},
}


@dataclass
class Scripted:
    """A search service that answers with the next response, the last one for ever, and keeps what it was sent."""

    url: str = ""
    responses: list[tuple[int, Any, dict[str, str]]] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, Any], dict[str, str]]] = field(default_factory=list)

    def answers(self, body: Any, status: int = 200, **headers: str) -> None:
        self.responses.append((status, body, {name.replace("_", "-"): value for name, value in headers.items()}))

    async def handle(self, request: web.Request) -> web.Response:
        sent = await request.json() if request.can_read_body else dict(request.query)
        self.requests.append((request.method, request.path, sent, dict(request.headers)))
        status, body, headers = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=data, headers={"Content-Type": "application/json", **headers})


@pytest.fixture
async def service() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    async with listening(app) as port:
        scripted.url = f"http://127.0.0.1:{port}"
        yield scripted


def settings(service: Scripted, provider: Any, **more: Any) -> WebSettings:
    return WebSettings(provider=provider, base_url=service.url, api_key=KEY, **more)


async def search(service: Scripted, provider: str, query: str = "canal", page: int = 1, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = await search_tool(settings(service, provider, **more)).call({"query": query, "page": page})
    return found


# ------------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_each_provider_gives_titles_addresses_and_excerpts(service: Scripted, provider: str) -> None:
    service.answers(FOUND[provider])
    found = await search(service, provider)
    (hit,) = found["results"]
    assert (hit["title"], hit["url"], hit["text"]) == (HIT[0], HIT[1], "Opened in 1832 & still in use.")
    assert found.get("answer") == (None if provider == "brave" else "1832")
    assert hit.get("date") == ("May 2, 2024" if provider == "brave" else None)


@pytest.mark.parametrize(
    ("provider", "request_line", "sent", "header"),
    [
        (
            "searxng", ("GET", "/search"),
            {"q": "大运河 全长", "format": "json", "pageno": "2", "language": "zh-CN"},
            ("Authorization", f"Bearer {KEY}"),
        ),
        (
            "serper", ("POST", "/search"),
            {"q": "大运河 全长", "num": 10, "page": 2, "hl": "zh-cn", "gl": "cn"}, ("X-API-KEY", KEY),
        ),
        (
            "tavily", ("POST", "/search"),
            {"query": "大运河 全长", "max_results": 20}, ("Authorization", f"Bearer {KEY}"),
        ),
        (
            "brave", ("GET", "/web/search"),
            {
                "q": "大运河 全长", "count": "10", "offset": "1", "text_decorations": "false",
                "search_lang": "zh-hans", "country": "CN",
            },
            ("X-Subscription-Token", KEY),
        ),
    ],
)  # fmt: skip
async def test_the_second_page_of_a_chinese_query_is_asked_for_as_each_provider_expects(
    service: Scripted, provider: str, request_line: tuple[str, str], sent: dict[str, Any], header: tuple[str, str]
) -> None:
    service.answers(NOTHING[provider])
    await search(service, provider, " 大运河\n全长 ", 2, country="cn")
    method, path, body, headers = service.requests[0]
    assert (method, path) == request_line
    assert body == sent
    assert headers[header[0]] == header[1]


@pytest.mark.parametrize(
    ("query", "language"), [("Panamakanal", None), ("パナマ運河", "ja"), ("파나마 운하", "ko"), ("巴拿马运河", "zh-cn")]
)
async def test_the_language_follows_the_script_of_the_query(
    service: Scripted, query: str, language: str | None
) -> None:
    service.answers(NOTHING["serper"])
    await search(service, "serper", query)
    assert service.requests[0][2].get("hl") == language


async def test_the_second_page_of_tavily_follows_the_first(service: Scripted) -> None:
    service.answers({"results": [{"title": str(n), "url": f"https://example.org/{n}"} for n in range(6)]})
    found = await search(service, "tavily", page=2, max_results=3)
    assert [hit["title"] for hit in found["results"]] == ["3", "4", "5"]


async def test_results_that_are_not_web_addresses_or_repeat_one_are_left_out(service: Scripted) -> None:
    urls = ["javascript:alert(1)", HIT[1], HIT[1], None, "file:///etc/passwd", "http://example.org/b"]
    service.answers({"organic": [{"title": 5, "link": url} for url in urls]})
    assert [hit["url"] for hit in (await search(service, "serper"))["results"]] == [HIT[1], "http://example.org/b"]


async def test_long_queries_and_excerpts_are_cut(service: Scripted) -> None:
    service.answers({"web": {"results": [{"title": "t", "url": HIT[1], "description": "<b>" * 9 + "x" * 90_000}]}})
    found = await search(service, "brave", "word " * 1_000)
    assert len(found["results"][0]["text"]) == 1_002
    assert len(service.requests[0][2]["q"].split()) == 50


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("provider", "status", "body", "says"),
    [
        ("serper", 403, {"message": "Unauthorized.", "statusCode": 403}, "Unauthorized.*check SERPER_API_KEY or tools"),
        ("tavily", 401, {"detail": {"error": "Unauthorized: bad key"}}, "check TAVILY_API_KEY or tools.web.api_key"),
        ("brave", 422, {"error": {"detail": "The provided subscription token is invalid."}}, "check BRAVE_API_KEY"),
        ("searxng", 403, b"<h1>Forbidden</h1>", "add json to search.formats"),
        ("serper", 400, {"message": "Not enough credits"}, "no credits left: buy more, or set another tools.web.pro"),
        ("tavily", 432, {"detail": {"error": "plan limit"}}, "limit is used up: raise it, or set another"),
        ("brave", 422, {"error": {"detail": "query too odd"}}, "query too odd.*Change the query"),
        ("searxng", 404, b"nothing", "check tools.web.base_url"),
        ("searxng", 302, b"", "set tools.web.base_url to the new one"),
        ("searxng", 200, b"<html>Welcome</html>", "did not answer with a JSON object. Check that tools.web.base_url"),
        ("serper", 200, b"[1, 2", "did not answer with a JSON object"),
        ("serper", 200, [1], "did not answer with a JSON object"),
        ("serper", 200, b"[" * 90_000, "did not answer with a JSON object"),
        ("tavily", 200, {"results": {"a": 1}}, "unknown format: results is not a list. Check tools.web.provider"),
        ("brave", 200, {"web": {"results": "x"}}, "web.results is not a list"),
    ],
)
async def test_an_error_of_the_provider_names_the_next_step(
    service: Scripted, provider: str, status: int, body: Any, says: str
) -> None:
    service.answers(body, status, Location="http://127.0.0.1:1/")
    with pytest.raises(ToolError, match=says):
        await search(service, provider)
    assert len(service.requests) == 1


async def test_a_rate_limit_is_waited_for_and_then_reported(service: Scripted) -> None:
    service.answers({"error": {"detail": "slow down"}}, 429, Retry_After="0")
    service.answers(FOUND["brave"])
    assert (await search(service, "brave"))["results"]
    service.responses[:] = [(429, {}, {"Retry-After": "0"})]
    with pytest.raises(ToolError, match=r"HTTP 429.*work with what you have, and search again later"):
        await search(service, "brave")
    assert len(service.requests) == 2 + 3


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failing_provider_is_worth_a_second_try(service: Scripted, status: int) -> None:
    service.answers(b"oops", status)
    with pytest.raises(ConnectionError, match=f"Serper answered HTTP {status} .oops.. .*try again later"):
        await search(service, "serper")


async def test_a_key_that_the_provider_echoes_is_not_shown(service: Scripted) -> None:
    service.answers({"message": f"Invalid key {KEY}"}, 403)
    with pytest.raises(ToolError) as caught:
        await search(service, "serper")
    assert KEY not in str(caught.value)
    assert "Invalid key ***" in str(caught.value)


async def test_a_compressed_response_may_not_grow_without_limit(service: Scripted) -> None:
    import gzip

    service.answers(gzip.compress(b"0" * 50_000_000), Content_Encoding="gzip")
    with pytest.raises(ToolError, match="longer than 5 MB"):
        await search(service, "serper")


async def test_an_unreachable_provider_is_named_with_its_setting() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://user:word@127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(
            ConnectionError, match=r"cannot be reached at http://127.*Check tools\.web\.base_url"
        ) as caught:
            await search_tool(WebSettings(provider="searxng", base_url=url)).call({"query": "x"})
    assert "word" not in str(caught.value)


async def test_engines_that_failed_are_not_an_empty_result(service: Scripted) -> None:
    service.answers({"results": [], "unresponsive_engines": [["google", "CAPTCHA"], ["bing", "timeout"]]})
    with pytest.raises(ConnectionError, match=r"engines failed: google \(CAPTCHA\), bing \(timeout\)"):
        await search(service, "searxng")


async def test_an_empty_query_is_refused(service: Scripted) -> None:
    with pytest.raises(ToolError, match="query is empty"):
        await search(service, "serper", " \n ")


# ------------------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SEARXNG_BASE_URL": "http://localhost:8080"}, "SearXNG"),
        ({"SERPER_API_KEY": "k"}, "Serper"),
        ({"TAVILY_API_KEY": "k"}, "Tavily"),
        ({"BRAVE_API_KEY": "k"}, "Brave"),
        ({"CLOSEOUT_TOOLS__WEB__PROVIDER": "brave", "CLOSEOUT_TOOLS__WEB__API_KEY": "12345678"}, "Brave"),
        ({"CLOSEOUT_TOOLS__WEB__PROVIDER": "tavily", "TAVILY_API_KEY": "k", "SERPER_API_KEY": "k"}, "Tavily"),
    ],
)
def test_the_provider_comes_from_the_environment(environment: dict[str, str], name: str) -> None:
    assert search_provider(environment=environment).name == name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "No search provider is configured. Set SERPER_API_KEY, .* or the settings tools.web.provider"),
        ({"provider": "serper"}, "Serper needs an API key. Set SERPER_API_KEY or tools.web.api_key"),
        ({"provider": "searxng"}, "SearXNG needs an address. Set SEARXNG_BASE_URL or tools.web.base_url"),
        ({"provider": "searxng", "base_url": "localhost:8080"}, "must start with http:// or https://"),
        ({"api_key": "k"}, "tools.web.provider is not set. Set it to one of: searxng, serper, tavily, brave"),
    ],
)
def test_what_is_missing_in_the_configuration_is_named(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        search_provider(WebSettings(**values), {})


def test_an_unknown_key_and_an_unknown_provider_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"'tools\.web\.provder'. Did you mean 'tools\.web\.provider'"):
        load_config(overrides=["tools.web.provder=serper"], environment={})
    with pytest.raises(ConfigError, match=r"tools\.web\.provider.*'google'"):
        load_config({"tools": {"web": {"provider": "google"}}}, environment={})


def test_the_key_is_not_shown() -> None:
    config = load_config({"tools": {"web": {"api_key": KEY}}}, environment={})
    assert KEY not in repr(config)


# ------------------------------------------------------------------------------------------------ in a run


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("web_search", {"query": "canal"}), ("google_search", {"q": "canal"}), ("sogou_search", {"Query": "canal"})],
)
async def test_a_search_by_any_of_its_names_answers_in_a_run(
    service: Scripted, name: str, arguments: dict[str, str], stream: bool
) -> None:
    service.answers(FOUND["serper"])
    model = ScriptedClient([call(name, **arguments), answer("1832")])
    agent = Agent(model, tools=[search_tool(settings(service, "serper"))], home=False, stream=stream)
    result = await agent.run("When was it opened?")
    assert result.answer == "1832"
    assert "https://example.org/canal" in model.requests[-1].messages[-1].text


async def test_a_tool_that_has_the_name_itself_is_preferred(service: Scripted) -> None:
    from closeout import tool

    @tool
    def google_search(q: str) -> str:
        """Search."""
        return f"own result for {q}"

    executor = ToolExecutor(ToolManager([google_search, search_tool(settings(service, "serper"))]))
    (outcome,) = await executor.execute_calls([ToolCall("google_search", {"q": "x"})])
    assert outcome.text == "own result for x"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_results_ask_for_other_words_once_and_are_evidence_then(service: Scripted, provider: str) -> None:
    service.answers(NOTHING[provider])
    executor = ToolExecutor(ToolManager([search_tool(settings(service, provider))]))
    (first,) = await executor.execute_calls([ToolCall("web_search", {"query": "xyzzy"})])
    assert (first.status, first.rollback) == ("low_quality", True)
    assert "found nothing: ask with other words" in first.reason
    (second,) = await executor.execute_calls([ToolCall("web_search", {"query": "xyzzy plugh"})])
    assert not second.rollback


async def test_an_answer_without_results_is_not_empty(service: Scripted) -> None:
    service.answers({"results": [], "answers": [{"answer": "42", "url": "x"}]})
    executor = ToolExecutor(ToolManager([search_tool(settings(service, "searxng"))]))
    (outcome,) = await executor.execute_calls([ToolCall("web_search", {"query": "6*7"})])
    assert (outcome.status, "42" in outcome.text) == ("ok", True)


async def test_the_same_query_is_a_duplicate_and_its_next_page_is_not(service: Scripted) -> None:
    service.answers(FOUND["serper"])
    executor = ToolExecutor(ToolManager([search_tool(settings(service, "serper"))]))
    for call_, status in (
        (ToolCall("web_search", {"query": "canal"}), "ok"),
        (ToolCall("google_search", {"q": "canal"}), "duplicate"),
        (ToolCall("web_search", {"query": "canal", "page": 2}), "ok"),
    ):
        (outcome,) = await executor.execute_calls([call_])
        assert outcome.status == status
    assert len(service.requests) == 2


async def test_without_a_provider_the_model_is_told_how_to_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY", "SEARXNG_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ToolError, match=r"No search provider is configured\. Set SERPER_API_KEY"):
        await search_tool().call({"query": "x"})


async def test_a_provider_of_your_own_answers() -> None:
    class Library:
        async def search(self, query: SearchQuery) -> SearchAnswer:
            return SearchAnswer([SearchHit(query.text, "https://example.org/", query.language)])

    found = await search_tool(provider=Library()).call({"query": "运河"})
    assert found == {"results": [{"title": "运河", "url": "https://example.org/", "text": "zh"}]}
