"""The model server behind the proxy: its address and keys, and requests to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from closeout.models import transport
from closeout.models.anthropic import VERSION, AnthropicClient
from closeout.models.http import HTTPClient
from closeout.models.openai import OpenAIClient
from closeout.server.app import HEADERS
from closeout.server.safety import client_key

__all__ = ["Upstream", "UpstreamKind", "headers_back", "kept"]

UpstreamKind = Literal["openai", "anthropic"]
K = TypeVar("K")
V = TypeVar("V")

ENDPOINTS_KEPT = 256

# Headers that concern one connection, or that are written again.
_NOT_FORWARDED = frozenset({
    "host", "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade",
    "transfer-encoding", "content-length", "content-encoding", "accept-encoding", "origin", "referer", "cookie",
    "set-cookie", "server", "date",
})  # fmt: skip
_KEYS = frozenset({"authorization", "x-api-key"})
# Headers with which the upstream server would speak to a browser in the name of the proxy.
_FOR_BROWSERS = frozenset({
    *map(str.lower, HEADERS), "access-control-allow-origin", "access-control-allow-credentials", "alt-svc",
    "clear-site-data", "content-security-policy-report-only", "link", "refresh", "service-worker-allowed",
    "sourcemap", "strict-transport-security", "www-authenticate",
}) - {"cache-control"}  # fmt: skip


class Upstream:
    """A model server.

    Args:
        address: The server's address, as `base_url` of its clients.
        kind: The protocol of the server.
        key: The key for the server. None passes the client's key on, unless `keeps_keys`.
        keeps_keys: Never pass the client's key on: it is a key of the proxy.

    Raises:
        ConfigError: The address cannot be used.
    """

    def __init__(
        self, address: str, kind: UpstreamKind = "openai", *, key: str | None = None, keeps_keys: bool = False
    ) -> None:
        base = address.strip().rstrip("/")
        self.base = f"{base.removesuffix('/v1')}/v1" if kind == "anthropic" else base
        self.kind = kind
        self._key = key
        self._keeps_keys = keeps_keys
        self._endpoints: OrderedDict[tuple[Any, ...], transport.Endpoint] = OrderedDict()
        self._clients: OrderedDict[tuple[str, str], HTTPClient] = OrderedDict()
        transport.Endpoint(self.base)  # raises for an address that cannot be used

    def endpoint(self, path: str, headers: Mapping[str, str]) -> transport.Endpoint:
        """Return where a request is sent, with the client's headers and the right key."""
        sent = {name: value for name, value in headers.items() if name.lower() not in _NOT_FORWARDED | _KEYS}
        key = self._key_for(headers)
        if key and self.kind == "anthropic":
            sent["x-api-key"] = key
        elif key:
            sent["Authorization"] = f"Bearer {key}"
        if self.kind == "anthropic":
            sent.setdefault("anthropic-version", VERSION)
        sent["Accept-Encoding"] = "identity"
        place = (path, *sent.items())
        found = self._endpoints.get(place) or transport.Endpoint(f"{self.base}/{path}", sent)
        return kept(self._endpoints, place, found, ENDPOINTS_KEPT)

    def client(self, model: str, headers: Mapping[str, str]) -> HTTPClient:
        """Return a client for requests that are translated for the server. It has learned nothing about it yet."""
        place = (model, self._key_for(headers))
        found = self._clients.get(place)
        if found is None:
            client = AnthropicClient if self.kind == "anthropic" else OpenAIClient
            found = client(model, self.base, place[1] or None)
        return kept(self._clients, place, found, ENDPOINTS_KEPT).pupil()

    async def aclose(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            await client.aclose()

    def _key_for(self, headers: Mapping[str, str]) -> str:
        """Return the key for the server: its own, else the client's."""
        if self._key is not None or self._keeps_keys:
            return self._key or ""
        return client_key(headers)


def kept(cache: OrderedDict[K, V], key: K, value: V, limit: int) -> V:
    """Put a value into a cache as its newest, and return it."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > limit:
        cache.popitem(last=False)
    return value


def headers_back(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a response that are passed on to the client.

    The bytes of the server come from the proxy's address, so a browser must not show them as a page: HTML, XML and
    multipart bodies are passed on as plain text.
    """
    unwanted = _NOT_FORWARDED | _FOR_BROWSERS
    found = {name: value for name, value in headers.items() if name.lower() not in unwanted}
    for name, value in found.items():
        kind = value.partition(";")[0].strip().lower()
        if name.lower() == "content-type" and ("html" in kind or "xml" in kind or kind.startswith("multipart/")):
            found[name] = "text/plain; charset=utf-8"
    return found
