"""The tool `fetch_url`: a web page's main text, within limits. What addresses it may reach: addresses.py."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolError
from closeout.tools.builtin.addresses import AddressGuard
from closeout.tools.builtin.extract import decode_text, extract_text
from closeout.tools.builtin.html_text import html_title, main_text
from closeout.tools.threads import run_in_thread
from closeout.tools.tool import Tool, tool

if TYPE_CHECKING:
    import aiohttp

__all__ = ["fetch_url", "web_tool"]

MAX_CHARACTERS = 200_000  # of a page's text
USER_AGENT = "Mozilla/5.0 (compatible; closeout)"
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.-]{1,40})", re.IGNORECASE)
_TEXT_TYPES = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|javascript|x-ndjson)", re.IGNORECASE)
# Python's own codecs that no page is written in. Two take time that grows with the square of the text.
_NO_CHARSET = re.compile(r"(?i)idna|puny|undefined|(?:raw_)?unicode[_-]?escape")
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # the same request may succeed later
_DOCUMENTS = {
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}


def web_tool(
    *,
    allow_private: bool | str | Iterable[str] = False,
    seconds: float = 30.0,
    max_bytes: int = 5_000_000,
    max_redirects: int = 5,
) -> Tool[..., Any]:
    """A `fetch_url` with limits of its own.

    `allow_private` opens addresses that are not on the public internet: True for all, or networks ("10.0.0.0/8").
    `seconds` bounds the whole download, `max_bytes` the page after decompression. Proxies from the environment are not
    used: a proxy would look names up itself, where no address can be checked.
    """
    guard = AddressGuard(allow_private)

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
        address = _address(url)
        refused: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                page = await _download(address, guard, refused, max_bytes, max_redirects)
        except TimeoutError:
            raise TimeoutError(f"{address} did not answer within {seconds:g} s.") from None
        except Exception as error:
            raise _told(error, address, refused) from None
        readable: dict[str, str] = await run_in_thread(lambda: _readable(*page))
        return readable

    return fetch


def _address(url: str) -> str:
    text = url.strip().strip("<>\"'`")
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        text = f"https://{text}"
    if not re.match(r"https?://[^\s/?#]", text, re.IGNORECASE):
        raise ToolError(f"{url[:200]!r} is no web address. Give one that starts with https://.")
    return text


async def _download(
    address: str, guard: AddressGuard, refused: list[str], max_bytes: int, max_redirects: int
) -> tuple[str, str, bytes, str]:
    """The page's final URL, content type, bytes and declared encoding."""
    import aiohttp

    connector = aiohttp.TCPConnector(socket_factory=guard.socket_factory(refused), happy_eyeballs_delay=None)
    headers = {"User-Agent": USER_AGENT, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers, trust_env=False) as session,
        session.get(address, max_redirects=max_redirects) as response,
    ):
        if response.status >= 400:
            told = f"{response.url} answered HTTP {response.status} {response.reason or ''}".rstrip() + "."
            raise ConnectionError(told) if response.status in _PASSING else ToolError(told)
        body = await _read(response, max_bytes)
        return str(response.url), response.content_type, body, response.charset or ""


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > max_bytes:
            raise ToolError(f"{response.url} is longer than {max_bytes / 1_000_000:g} MB and was not read.")
    return bytes(body)


def _told(error: Exception, address: str, refused: list[str]) -> Exception:
    """What a failed download is for a model: one sentence. What may pass is a ConnectionError, worth a second try."""
    import aiohttp

    if isinstance(error, ToolError | ConnectionError) and not isinstance(error, aiohttp.ClientError):
        return error
    if refused:
        return ToolError(f"{address} leads to {refused[-1]}, which is no public address, and is refused.")
    if isinstance(error, aiohttp.TooManyRedirects):
        return ToolError(f"{address} redirects in circles or too often.")
    if isinstance(error, aiohttp.NonHttpUrlClientError):
        return ToolError(f"{address} redirects to something that is no web page.")
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return ToolError(f"{address} is no web address.")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ToolError(f"There is no host {error.host}. Check the address.")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ToolError(f"The certificate of {error.host} is not valid.")
    return ConnectionError(f"{address} cannot be read: {str(error) or type(error).__name__}.")


def _readable(url: str, content_type: str, body: bytes, charset: str) -> dict[str, str]:
    title = ""
    if content_type in _DOCUMENTS:
        text = _document_text(body, _DOCUMENTS[content_type])
    elif "html" in content_type or (body[:200].lstrip()[:1] == b"<" and b"<html" in body[:2_000].lower()):
        html = _decoded(body, charset)
        text, title = main_text(html), html_title(html)
    elif _TEXT_TYPES.match(content_type) or (b"\x00" not in body[:2_048] and not content_type.startswith("image/")):
        text = _decoded(body, charset)
    else:
        raise ToolError(f"{url} is {content_type}, which holds no text.")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\n… [cut: the whole text has {len(text):,} characters]"
    return {"url": url, **({"title": title} if title else {}), "text": text}


def _decoded(body: bytes, charset: str) -> str:
    found = _META_CHARSET.search(body[:4_096])
    for name in (charset, found[1].decode("ascii", "replace") if found else ""):
        if name and not _NO_CHARSET.match(name):
            try:
                return body.decode(name, "replace")
            except (LookupError, UnicodeError):  # no such encoding, or not of these bytes
                continue
    return decode_text(body)


def _document_text(body: bytes, suffix: str) -> str:
    with tempfile.TemporaryDirectory(prefix="closeout-fetch-") as folder:
        file = Path(folder, f"document{suffix}")
        file.write_bytes(body)
        return extract_text(file)


fetch_url = web_tool()
