"""Read web pages within limits, from public addresses only: `PageReader`, and the tool `fetch_url`.

The address is checked where a socket is made for it, after its name was resolved: between check and connection there
is no second look-up, and every redirect makes a new connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from closeout.errors import ToolError, UsageError
from closeout.results.html_text import html_title, main_text
from closeout.tools.builtin.document_text import decode_text, extract_text
from closeout.tools.threads import run_in_thread
from closeout.tools.tool import Tool, tool

if TYPE_CHECKING:
    import aiohttp

__all__ = ["AddressGuard", "Link", "PageReader", "WebPage", "fetch_url", "is_public", "read_body", "web_tool"]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# RFC 4291 and the IANA registry: all unicast addresses of the public internet. Outside of it lie forms that carry an
# IPv4 address (::a.b.c.d, ::ffff:0:a.b.c.d, 64:ff9b:1::) and site-local ones, which older Pythons take for global.
_UNICAST = ipaddress.ip_network("2000::/3")
# Special ranges of the IANA registries that Python's `is_global` accepts in part or whole: protocol assignments, the
# retired 6to4 relays, and what IPv6 has for protocols, documentation and segment routing.
_SPECIAL = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20"))
)
_AZURE_HOST = ipaddress.ip_address("168.63.129.16")  # looks public; answers each virtual machine with its settings


def is_public(address: str) -> bool:
    """Return True if an address belongs to the public internet, looking through the ways to write IPv4 in IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is None and found not in _UNICAST:
            return False
        if not found.teredo and any(found in network for network in _SPECIAL if network.version == 6):
            return False
        found = inner or found
    if any(found in network for network in _SPECIAL if network.version == found.version == 4):
        return False
    return found.is_global and not found.is_multicast and found != _AZURE_HOST


class AddressGuard:
    """Makes sockets for allowed addresses only; `refused` lists the others that were asked for."""

    def __init__(self, allow_private: bool | str | Iterable[str] = False) -> None:
        """`allow_private`: True for any address, or networks such as "10.0.0.0/8"."""
        self._any = allow_private is True
        networks = [allow_private] if isinstance(allow_private, str) else allow_private
        try:
            self._networks = [] if isinstance(networks, bool) else [ipaddress.ip_network(text) for text in networks]
        except ValueError as error:
            raise UsageError(f"allow_private: {error}. Write networks such as '10.0.0.0/8' or '127.0.0.1'.") from None

    def allows(self, address: str) -> bool:
        if self._any or is_public(address):
            return True
        bare = ipaddress.ip_address(address.partition("%")[0])
        return any(bare in network for network in self._networks if network.version == bare.version)

    def socket_factory(self, refused: list[str]) -> Callable[[Any], socket.socket]:
        """For aiohttp's connector: a socket for each address it is about to connect to, or `OSError`."""

        def make(info: tuple[Any, ...]) -> socket.socket:
            family, kind, protocol, _, target = info
            if not self.allows(str(target[0])):
                refused.append(str(target[0]))
                raise PermissionError(f"{target[0]} is not a public address")
            return socket.socket(family=family, type=kind, proto=protocol)

        return make


MAX_CHARACTERS = 200_000  # Characters of a page's text that fetch_url returns.
MAX_LINKS = 1_000  # Links of a page that are looked at.
USER_AGENT = "Mozilla/5.0 (compatible; closeout)"
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.-]{1,40})", re.IGNORECASE)
_TEXT_TYPES = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|javascript|x-ndjson)", re.IGNORECASE)
# Python's own codecs that no page is written in. Two take time that grows with the square of the text.
_NO_CHARSET = re.compile(r"(?i)idna|puny|undefined|(?:raw_)?unicode[_-]?escape")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})  # the same request may succeed later
_DOCUMENTS = {
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
_HREF = re.compile(r"""\shref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_ANCHOR = re.compile(r"<a\s", re.IGNORECASE)
_ANCHOR_END = re.compile(r"</a\s*>", re.IGNORECASE)
_EMPHASIS = re.compile(r"[*_`~]+")
_TAG = re.compile(r"<[^>]{0,1000}>")


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a page: its text and its absolute address."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page as text. `url` is the address after redirects; `links` are those in the text, without duplicates."""

    url: str
    title: str
    text: str
    links: tuple[Link, ...] = ()

    @property
    def head(self) -> dict[str, str]:
        """The address, and the title if the page has one, as results show them."""
        return {"url": self.url, "title": self.title} if self.title else {"url": self.url}


class PageReader:
    """Downloads pages and reads their text.

    Args:
        allow_private: Which addresses outside the public internet may be read: True for all, or networks such as
            "10.0.0.0/8".
        seconds: Limit of a download.
        max_bytes: Limit of a page, after decompression.
        max_redirects: How many redirects are followed.

    Proxies from the environment are not used: a proxy would look names up itself, where no address can be checked.
    """

    def __init__(
        self,
        *,
        allow_private: bool | str | Iterable[str] = False,
        seconds: float = 30.0,
        max_bytes: int = 5_000_000,
        max_redirects: int = 5,
    ) -> None:
        self._guard = AddressGuard(allow_private)
        self.seconds = seconds
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects

    async def read(self, url: str) -> WebPage:
        """Return a page.

        Raises:
            ToolError: The page cannot be read. The text says why.
            ConnectionError: The same, for a failure that may be temporary.
            TimeoutError: The download took too long.
        """
        address = _address(url)
        refused: list[str] = []
        try:
            async with asyncio.timeout(self.seconds):
                downloaded = await self._download(address, refused)
        except TimeoutError:
            raise TimeoutError(f"{address} did not answer within {self.seconds:g} s.") from None
        except Exception as error:
            raise _explained(error, address, refused) from None
        page: WebPage = await run_in_thread(lambda: _readable(*downloaded))
        return page

    async def _download(self, address: str, refused: list[str]) -> tuple[str, str, bytes, str]:
        """The page's final URL, content type, bytes and declared encoding."""
        import aiohttp

        connector = aiohttp.TCPConnector(socket_factory=self._guard.socket_factory(refused), happy_eyeballs_delay=None)
        headers = {"User-Agent": USER_AGENT, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers, trust_env=False) as session,
            session.get(address, max_redirects=self._max_redirects) as response,
        ):
            if response.status >= 400:
                message = f"{response.url} answered HTTP {response.status} {response.reason or ''}".rstrip() + "."
                raise ConnectionError(message) if response.status in _TRANSIENT else ToolError(message)
            body = await read_body(response, self._max_bytes)
            return str(response.url), response.content_type, body, response.charset or ""


def web_tool(
    *,
    allow_private: bool | str | Iterable[str] = False,
    seconds: float = 30.0,
    max_bytes: int = 5_000_000,
    max_redirects: int = 5,
) -> Tool[..., Any]:
    """Return a `fetch_url` with limits of its own. The arguments are those of `PageReader`."""
    reader = PageReader(allow_private=allow_private, seconds=seconds, max_bytes=max_bytes, max_redirects=max_redirects)

    @tool(
        name="fetch_url",
        read_only=True,
        idempotent=True,
        retries=1,
        timeout=seconds * 2 + 10.0,  # the download has its own limit; extracting the text takes time too
        duplicate_key="url",
        check_content=True,
        aliases={"url": ("link", "website", "page", "address", "href", "source", "uri")},
    )
    async def fetch(url: str) -> dict[str, str]:
        """Read a web page. Returns its title and main text.

        Args:
            url: The address, for example: https://www.example.org/page
        """
        page = await reader.read(url)
        text = page.text
        if len(text) > MAX_CHARACTERS:
            text = f"{text[:MAX_CHARACTERS]}\n… [cut: the whole text has {len(text):,} characters]"
        return {**page.head, "text": text}

    return fetch


def _address(url: str) -> str:
    text = url.strip().strip("<>\"'`")
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        text = f"https://{text}"
    if not re.match(r"https?://[^\s/?#]", text, re.IGNORECASE):
        raise ToolError(f"{url[:200]!r} is not a web address. Pass one that starts with https://.")
    return text


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return a response's body, decompressed. Raises `ToolError` as soon as it is longer than `max_bytes`."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > max_bytes:
            raise ToolError(f"{response.url} is longer than {max_bytes / 1_000_000:g} MB and was not read.")
    return bytes(body)


def _explained(error: Exception, address: str, refused: list[str]) -> Exception:
    """A failed download as one sentence for a model; a ConnectionError if a second try may succeed."""
    import aiohttp

    if isinstance(error, ToolError | ConnectionError) and not isinstance(error, aiohttp.ClientError):
        return error
    if refused:
        return ToolError(f"{address} leads to {refused[-1]}, which is not a public address, and is refused.")
    if isinstance(error, aiohttp.TooManyRedirects):
        return ToolError(f"{address} redirects in circles or too often.")
    if isinstance(error, aiohttp.NonHttpUrlClientError):
        return ToolError(f"{address} redirects to something that is not a web page.")
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return ToolError(f"{address} is not a web address.")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ToolError(f"The host {error.host} does not exist. Check the address.")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ToolError(f"The certificate of {error.host} is not valid.")
    return ConnectionError(f"{address} cannot be read: {str(error) or type(error).__name__}.")


def _readable(url: str, content_type: str, body: bytes, charset: str) -> WebPage:
    if content_type in _DOCUMENTS:
        return WebPage(url, "", _document_text(body, _DOCUMENTS[content_type]))
    if body[:2] == b"\x1f\x8b":  # gzip, beneath what the server stated
        raise ToolError(f"{url} is a compressed file, which holds no text.")
    if "html" in content_type or (body[:200].lstrip()[:1] == b"<" and b"<html" in body[:2_000].lower()):
        html = _decoded(body, charset)
        text = main_text(html)
        return WebPage(url, html_title(html), text, _links(html, url, text))
    if body[:5] == b"%PDF-":  # servers often send documents as application/octet-stream
        return WebPage(url, "", _document_text(body, ".pdf"))
    if _TEXT_TYPES.match(content_type) or (b"\x00" not in body[:2_048] and not content_type.startswith("image/")):
        return WebPage(url, "", _decoded(body, charset))
    raise ToolError(f"{url} is {content_type}, which holds no text.")


def _links(html: str, base: str, text: str) -> tuple[Link, ...]:
    """The links whose words occur in the page's main text, which leaves out menus. One pass over the HTML."""
    found: dict[str, Link] = {}
    words = _words(text)
    for href, label in _anchors(html):
        try:
            url = urljoin(base, href.strip()).partition("#")[0]
        except ValueError:  # an invalid IPv6 address
            continue
        is_new = url not in found and url != base.partition("#")[0]
        said = _words(label)
        if is_new and url.lower().startswith(("http://", "https://")) and len(url) <= 2_000 and said and said in words:
            found[url] = Link(label, url)
    return tuple(found.values())


def _words(text: str) -> str:
    """Return a text on one line and without Markdown's emphasis."""
    return " ".join(_EMPHASIS.sub("", text).split())


def _anchors(html: str) -> Iterator[tuple[str, str]]:
    """The addresses and texts of the first links."""
    at = 0
    for _ in range(MAX_LINKS):
        tag = _ANCHOR.search(html, at)
        close = html.find(">", tag.end()) if tag is not None else -1
        if tag is None or close < 0:
            return
        at = close + 1
        href = _HREF.search(html, tag.start(), min(close, tag.start() + 4_000))
        end = _ANCHOR_END.search(html, at, at + 2_000)
        if href is not None and end is not None:
            label = " ".join(unescape(_TAG.sub(" ", html[at : end.start()])).split())
            if 0 < len(label) <= 200:
                yield unescape(href[1] or href[2] or href[3] or ""), label


def _decoded(body: bytes, charset: str) -> str:
    """Decode a page by its header, its own statement or its bytes: the first that fits, else the one that fits best.

    An encoding fits if it can read most of the characters outside ASCII.
    """
    found = _META_CHARSET.search(body[:4_096])
    best, fewest = "", len(body) + 1
    for name in (charset, found[1].decode("ascii", "replace") if found else "", None):
        if name is not None and (not name or _NO_CHARSET.match(name)):
            continue
        try:
            text = decode_text(body) if name is None else body.decode(name, "replace")
        except (LookupError, UnicodeError):  # no such encoding, or not of these bytes
            continue
        unreadable = text.count("\ufffd")
        if unreadable * 3 <= len(text) - len(text.encode("ascii", "ignore")):
            return text
        if unreadable < fewest:
            best, fewest = text, unreadable
    return best


def _document_text(body: bytes, suffix: str) -> str:
    with tempfile.TemporaryDirectory(prefix="closeout-fetch-") as folder:
        file = Path(folder, f"document{suffix}")
        file.write_bytes(body)
        return extract_text(file)


fetch_url = web_tool()
