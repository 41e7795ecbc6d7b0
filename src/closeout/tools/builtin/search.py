"""The tool `web_search`: search the web with SearXNG, Serper, Tavily or Brave."""

from __future__ import annotations

import asyncio
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from closeout.codec import value_or_text
from closeout.config import WebSettings, load_config
from closeout.errors import ConfigError, ToolError
from closeout.redaction import redact
from closeout.tools.builtin.web import read_body
from closeout.tools.tool import Tool, tool

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "NO_PROVIDER",
    "SearchAnswer",
    "SearchHit",
    "SearchProvider",
    "SearchQuery",
    "search_provider",
    "search_tool",
    "web_search",
]

SECONDS = 30.0  # Seconds for one request.
MAX_BYTES = 5_000_000  # Bytes of a response, decompressed.
MAX_QUERY = 400  # characters that Brave and Tavily accept
MAX_WORDS = 50  # words that Brave accepts
MAX_SNIPPET = 1_000  # characters
# Attempts at a request that exceeds a rate limit; Brave's smallest plan allows one request per second.
TRIES = 3
MAX_WAIT = 5.0  # seconds between two tries

NO_PROVIDER = (
    "No search provider is configured. Set SERPER_API_KEY, TAVILY_API_KEY, BRAVE_API_KEY or SEARXNG_BASE_URL (such as "
    "http://localhost:8080), or the settings tools.web.provider with tools.web.api_key or tools.web.base_url."
)

_TAG = re.compile(r"<[^<>]{0,200}>")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """A query. `language` is an ISO 639-1 code, `country` an ISO 3166-1 code; empty leaves them open."""

    text: str
    page: int = 1
    count: int = 10
    language: str = ""
    country: str = ""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result. `date` is as the provider writes it, empty if unknown."""

    title: str
    url: str
    text: str
    date: str = ""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The results of a search, and the provider's own short answer, if it has one.

    `problem` says why there are no results although the query may be good: the provider's own sources failed.
    """

    hits: Sequence[SearchHit]
    answer: str = ""
    problem: str = ""


class SearchProvider(Protocol):
    """The interface of a provider for `search_tool`."""

    async def search(self, query: SearchQuery) -> SearchAnswer:
        """Return the results of a query. Raise `ToolError` with what to do, or ConnectionError if it may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchRequest:
    """One HTTP request to a provider."""

    method: Literal["GET", "POST"] = "GET"
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class _HttpProvider(ABC):
    """A provider with an HTTP interface. A subclass writes its requests and reads its responses.

    The address comes from the configuration, so it may be private. Redirects are not followed: they could lead the key
    elsewhere.
    """

    name: str
    variable: str  # prefix of the environment variables
    default_url: str = ""
    needs_key = True
    languages: Mapping[str, str] = {}  # the provider's codes where they differ from ISO 639-1

    def __init__(self, api_key: str = "", base_url: str = "") -> None:
        url = (base_url or self.default_url).rstrip("/")
        if not url:
            raise ConfigError(
                f"{self.name} needs an address. Set {self.variable}_BASE_URL or tools.web.base_url, "
                "such as http://localhost:8080."
            )
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(f"tools.web.base_url must start with http:// or https://, got {redact(url)!r:.100}.")
        if self.needs_key and not api_key:
            raise ConfigError(f"{self.name} needs an API key. Set {self.variable}_API_KEY or tools.web.api_key.")
        self._key = api_key
        self._url = url

    @abstractmethod
    def request(self, query: SearchQuery) -> _SearchRequest:
        """Return the request for a query."""

    @abstractmethod
    def read(self, found: Mapping[str, Any], query: SearchQuery) -> SearchAnswer:
        """Return the results in a response."""

    def refusal(self, status: int, detail: str) -> str | None:
        """Return what to do about an HTTP error; None if the general advice applies."""
        return None

    def language(self, query: SearchQuery) -> str:
        """Return the provider's code for the query's language."""
        return self.languages.get(query.language, query.language)

    async def search(self, query: SearchQuery) -> SearchAnswer:
        import aiohttp

        request = self.request(query)
        for number in range(TRIES):
            try:
                async with asyncio.timeout(SECONDS):
                    status, wait, body = await self._send(request)
            except TimeoutError:
                raise TimeoutError(f"{self.name} did not answer within {SECONDS:g} s.") from None
            except (aiohttp.ClientError, OSError) as error:
                where = f"{urlsplit(self._url).scheme}://{urlsplit(self._url).netloc.rpartition('@')[2]}"
                detail = redact(str(error), [self._key])
                raise ConnectionError(
                    f"{self.name} cannot be reached at {where}: {detail or type(error).__name__}. "
                    "Check tools.web.base_url and the network."
                ) from None
            if status != 429 or number + 1 == TRIES:
                break
            await asyncio.sleep(min(2.0**number if wait is None else wait, MAX_WAIT))
        found = self._checked(status, body)
        answer = self.read(found, query)
        if not answer.hits and answer.problem:
            raise ConnectionError(f"{self.name} found nothing: {answer.problem}. Search again later, or use a source.")
        return answer

    async def _send(self, request: _SearchRequest) -> tuple[int, float | None, bytes]:
        """Send a request. Return the status, the seconds to wait that the response states, and the body."""
        import aiohttp

        headers = {"Accept": "application/json", **request.headers}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(
                request.method,
                f"{self._url}{request.path}",
                params=request.parameters or None,
                json=request.body,
                allow_redirects=False,
            ) as response,
        ):
            return response.status, _seconds(response), await read_body(response, MAX_BYTES)

    def _checked(self, status: int, body: bytes) -> Mapping[str, Any]:
        """Return the response's JSON object, or raise what to do about it."""
        found = value_or_text(body)
        detail = redact(_detail(body if found is None else found), [self._key])
        answered = f"{self.name} answered HTTP {status}{f' ({detail})' if detail else ''}."
        if status == 429:
            raise ToolError(f"{answered} Too many searches: work with what you have, and search again later.")
        if status >= 500 or status == 408:
            raise ConnectionError(f"{answered} The provider has a problem: try again later.")
        advice = self.refusal(status, detail) if status >= 300 else None
        if advice is not None:
            raise ToolError(f"{answered} {advice}")
        if status in (401, 403):
            raise ToolError(
                f"{answered} The key was refused: check {self.variable}_API_KEY or tools.web.api_key. "
                "Until then every search fails."
            )
        if 300 <= status < 400:
            raise ToolError(f"{answered} The address has moved: set tools.web.base_url to the new one.")
        if status == 404:
            raise ToolError(f"{answered} There is no such interface: check tools.web.base_url.")
        if status >= 400:
            raise ToolError(f"{answered} Change the query.")
        if not isinstance(found, Mapping):
            raise ToolError(
                f"{self.name} did not answer with a JSON object. Check that tools.web.base_url is the address of its "
                "search interface."
            )
        return found

    def _list(self, found: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
        """Return the objects of a list in a response; empty if the list is missing or null."""
        value: Any = found
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return []
        if not isinstance(value, list):
            raise ToolError(
                f"{self.name} answered in an unknown format: {'.'.join(path)} is not a list. Check tools.web.provider."
            )
        return [item for item in value if isinstance(item, Mapping)]


class _SearXNG(_HttpProvider):
    """A SearXNG server. `search.formats` in its settings.yml must include json."""

    name, variable, needs_key = "SearXNG", "SEARXNG", False
    languages: Mapping[str, str] = {"zh": "zh-CN"}

    def request(self, query: SearchQuery) -> _SearchRequest:
        parameters = {"q": query.text, "format": "json", "pageno": str(query.page)}
        if query.language:
            parameters["language"] = self.language(query)
        # A proxy in front of it may want a key.
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return _SearchRequest(path="/search", parameters=parameters, headers=headers)

    def read(self, found: Mapping[str, Any], query: SearchQuery) -> SearchAnswer:
        hits = [_hit(item, "url", "content", "publishedDate") for item in self._list(found, "results")]
        answers = found.get("answers") or [box.get("content") for box in self._list(found, "infoboxes")]
        first = answers[0] if isinstance(answers, list) and answers else ""  # a text; an object since 2024
        answer = first.get("answer") if isinstance(first, Mapping) else first
        failed = found.get("unresponsive_engines")
        engines = [each for each in failed if isinstance(each, list) and each] if isinstance(failed, list) else []
        names = [f"{each[0]} ({each[1]})" if len(each) > 1 else str(each[0]) for each in engines]
        problem = f"its engines failed: {', '.join(names[:5])}" if names else ""
        return SearchAnswer(hits, _clean(answer), problem)

    def refusal(self, status: int, detail: str) -> str | None:
        if status == 403:
            return "Its JSON format is not enabled: add json to search.formats in the server's settings.yml."
        return None


class _Serper(_HttpProvider):
    """Google results by Serper, https://serper.dev."""

    name, variable, default_url = "Serper", "SERPER", "https://google.serper.dev"
    languages: Mapping[str, str] = {"zh": "zh-cn"}

    def request(self, query: SearchQuery) -> _SearchRequest:
        body: dict[str, Any] = {"q": query.text, "num": query.count, "page": query.page}
        body |= {"hl": self.language(query)} if query.language else {}
        body |= {"gl": query.country.lower()} if query.country else {}
        return _SearchRequest(method="POST", path="/search", body=body, headers={"X-API-KEY": self._key})

    def read(self, found: Mapping[str, Any], query: SearchQuery) -> SearchAnswer:
        hits = [_hit(item, "link", "snippet", "date") for item in self._list(found, "organic")]
        box, graph = found.get("answerBox"), found.get("knowledgeGraph")
        answer = (box.get("answer") or box.get("snippet")) if isinstance(box, Mapping) else None
        if not answer and isinstance(graph, Mapping) and graph.get("description"):
            answer = f"{graph.get('title', '')}: {graph['description']}"
        return SearchAnswer(hits, _clean(answer))

    def refusal(self, status: int, detail: str) -> str | None:
        if "credit" in detail.lower():
            return "The account has no credits left: buy more, or set another tools.web.provider."
        return None


class _Tavily(_HttpProvider):
    """Tavily, https://tavily.com. It has no pages, so a later page is cut from a longer list of at most 20."""

    name, variable, default_url = "Tavily", "TAVILY", "https://api.tavily.com"
    MOST = 20

    def request(self, query: SearchQuery) -> _SearchRequest:
        body = {"query": query.text, "max_results": min(query.count * query.page, self.MOST)}
        return _SearchRequest(
            method="POST", path="/search", body=body, headers={"Authorization": f"Bearer {self._key}"}
        )

    def read(self, found: Mapping[str, Any], query: SearchQuery) -> SearchAnswer:
        items = self._list(found, "results")[query.count * (query.page - 1) :]
        hits = [_hit(item, "url", "content", "published_date") for item in items]
        return SearchAnswer(hits, _clean(found.get("answer")))

    def refusal(self, status: int, detail: str) -> str | None:
        if status in (432, 433):  # the plan's limit; the limit set for pay-as-you-go
            return "The account's limit is used up: raise it, or set another tools.web.provider."
        return None


class _Brave(_HttpProvider):
    """Brave Search, https://api-dashboard.search.brave.com."""

    name, variable, default_url = "Brave", "BRAVE", "https://api.search.brave.com/res/v1"
    languages: Mapping[str, str] = {"zh": "zh-hans", "ja": "jp", "pt": "pt-br"}
    LAST_PAGE = 10

    def request(self, query: SearchQuery) -> _SearchRequest:
        parameters = {
            "q": " ".join(query.text.split()[:MAX_WORDS]),
            "count": str(query.count),
            "offset": str(min(query.page, self.LAST_PAGE) - 1),
            "text_decorations": "false",
        }
        parameters |= {"search_lang": self.language(query)} if query.language else {}
        parameters |= {"country": query.country.upper()} if query.country else {}
        return _SearchRequest(path="/web/search", parameters=parameters, headers={"X-Subscription-Token": self._key})

    def read(self, found: Mapping[str, Any], query: SearchQuery) -> SearchAnswer:
        return SearchAnswer([_hit(item, "url", "description", "age") for item in self._list(found, "web", "results")])

    def refusal(self, status: int, detail: str) -> str | None:
        if status == 422 and "token" in detail.lower():
            return "The key was refused: check BRAVE_API_KEY or tools.web.api_key. Until then every search fails."
        return None


_PROVIDERS: Mapping[str, type[_HttpProvider]] = {
    "searxng": _SearXNG,
    "serper": _Serper,
    "tavily": _Tavily,
    "brave": _Brave,
}


def search_provider(
    settings: WebSettings | None = None, environment: Mapping[str, str] | None = None
) -> SearchProvider:
    """Return the configured search provider. No request is sent.

    Args:
        settings: The settings `tools.web`. By default those of the environment (`CLOSEOUT_TOOLS__WEB__PROVIDER`, …).
        environment: Instead of `os.environ`. Keys and addresses that the settings leave out come from
            `SERPER_API_KEY`, `SERPER_BASE_URL` and so on.

    Raises:
        ConfigError: No provider is configured, or its key or address is missing. The message says how to set it.
    """
    settings = load_config(environment=environment).tools.web if settings is None else settings
    variables = os.environ if environment is None else environment
    name: str | None = settings.provider
    if name is None:
        if settings.api_key or settings.base_url:
            raise ConfigError(f"tools.web.provider is not set. Set it to one of: {', '.join(_PROVIDERS)}.")
        found = (each for each, kind in _PROVIDERS.items() if _variable(variables, kind))
        if (name := next(found, None)) is None:
            raise ConfigError(NO_PROVIDER)
    kind = _PROVIDERS[name]
    key = settings.api_key or variables.get(f"{kind.variable}_API_KEY") or ""
    return kind(key, settings.base_url or variables.get(f"{kind.variable}_BASE_URL") or "")


def _variable(variables: Mapping[str, str], kind: type[_HttpProvider]) -> str | None:
    """The environment variable that configures a provider."""
    return variables.get(f"{kind.variable}_{'API_KEY' if kind.needs_key else 'BASE_URL'}")


def search_tool(settings: WebSettings | None = None, *, provider: SearchProvider | None = None) -> Tool[..., Any]:
    """Return a `web_search`.

    Args:
        settings: The settings `tools.web`. By default those of the environment, read at each call.
        provider: A provider of your own. By default the configured one.
    """

    @tool(
        name="web_search",
        read_only=True,
        idempotent=True,
        retries=1,
        timeout=SECONDS * TRIES + MAX_WAIT * TRIES,
        other_names=("google_search", "sogou_search", "bing_search", "search_web", "search"),
        aliases={
            "query": ("q", "Query", "keyword", "keywords", "search_query", "question", "text", "search_term"),
            "page": ("pageno", "page_number"),
        },
        duplicate_key=("query", "page"),
        empty_at=("results", "answer"),
    )
    async def search(query: str, page: int = 1) -> dict[str, Any]:
        """Search the web. Returns titles, addresses and excerpts of pages; read a page before you rely on it.

        Args:
            query: A few key words or a question, for example: Rideau Canal opening date
            page: 2 for the next results of the same query, and so on.
        """
        text = " ".join(query.split())[:MAX_QUERY]
        if not text:
            raise ToolError("The query is empty. Pass a few key words.")
        options = load_config().tools.web if settings is None else settings
        try:
            source = provider or search_provider(options)
        except ConfigError as error:
            raise ToolError(f"{error} Until then every search fails.") from None
        language = options.language or _language_of(text)
        count = options.max_results
        asked = SearchQuery(text=text, page=max(page, 1), count=count, language=language, country=options.country or "")
        return _shown(await source.search(asked), count)

    return search


def _shown(found: SearchAnswer, count: int) -> dict[str, Any]:
    """The results as the model sees them: web addresses only, each once."""
    hits: dict[str, dict[str, str]] = {}
    for hit in found.hits:
        if hit.url.lower().startswith(("http://", "https://")) and len(hits) < count:
            date = {"date": hit.date} if hit.date else {}
            hits.setdefault(hit.url, {"title": hit.title, "url": hit.url, "text": hit.text, **date})
    results = {"results": list(hits.values())}
    if not found.answer:
        return results
    return {"answer": found.answer, **(results if hits else {})}


def _language_of(text: str) -> str:
    """The language that a query's script shows; empty for scripts that many languages share."""
    for language, script in (("ja", _KANA), ("ko", _HANGUL), ("zh", _HAN)):
        if script.search(text):
            return language
    return ""


def _hit(item: Mapping[str, Any], url: str, text: str, date: str) -> SearchHit:
    address = item.get(url)
    return SearchHit(
        _clean(item.get("title"))[:300],
        address.strip() if isinstance(address, str) else "",
        _clean(item.get(text)),
        _clean(item.get(date))[:40],
    )


def _clean(text: Any) -> str:
    """A provider's text without tags, entities and line breaks; empty for other values."""
    if not isinstance(text, str):
        return ""
    plain = " ".join(unescape(_TAG.sub("", text[: MAX_SNIPPET * 4])).split())
    return plain if len(plain) <= MAX_SNIPPET else f"{plain[:MAX_SNIPPET]} …"


def _detail(found: Any) -> str:
    """Return the message of an error response, in any of the providers' forms."""
    if isinstance(found, bytes):
        found = _TAG.sub(" ", found[:2_000].decode("utf-8", "replace"))
    for _ in range(3):  # {"detail": {"error": "…"}}, {"error": {"detail": "…"}}, {"message": "…"}
        if not isinstance(found, Mapping):
            break
        found = next((found[key] for key in ("detail", "error", "message", "code") if found.get(key)), "")
    return " ".join(found.split())[:200] if isinstance(found, str) else ""


def _seconds(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of a Retry-After header; None if it is missing or a date."""
    stated = response.headers.get("Retry-After", "")
    return float(stated) if re.fullmatch(r"\d{1,6}", stated) else None


web_search = search_tool()
