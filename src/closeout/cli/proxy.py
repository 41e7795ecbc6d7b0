"""The command `proxy`: a governed endpoint in front of a model server."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from closeout.cli.exits import OK
from closeout.cli.serve import Listening
from closeout.errors import UsageError

__all__ = ["proxy_command"]

UPSTREAM_KEY = "CLOSEOUT_UPSTREAM_KEY"
KINDS = ("auto", "openai", "anthropic")
DIALECTS = ("auto", "text")


def proxy_command(
    upstream: str,
    listening: Listening,
    *,
    api: str,
    dialect: str,
    record_only: bool,
    max_requests: int,
    max_queue: int,
) -> int:
    """Govern a model server until a signal stops it. Return the exit code."""
    from closeout.config import home_folder
    from closeout.journal.store import open_store
    from closeout.server.proxy import Proxy
    from closeout.server.serving import proxy_app, serve_until_stopped
    from closeout.server.upstream import Upstream

    keys = listening.keys()
    if not upstream.strip():
        raise UsageError("--upstream is empty. Give the address of the model server, such as http://localhost:8000/v1.")
    kind: Any = _chosen("--api", api, KINDS)
    if kind == "auto":
        host = urlsplit(upstream).hostname or ""
        kind = "anthropic" if host == "anthropic.com" or host.endswith(".anthropic.com") else "openai"
    chosen: Any = _chosen("--dialect", dialect, DIALECTS)

    async def serve() -> None:
        key = os.environ.get(UPSTREAM_KEY, "").strip() or None
        proxy = Proxy(
            Upstream(upstream, kind, key=key, keeps_keys=bool(keys)),
            open_store(home_folder()),
            record_only=record_only,
            dialect=chosen,
            max_requests=max_requests,
            max_queue=max_queue,
        )
        app = proxy_app(proxy, address=listening.address, keys=keys)

        def ready(url: str) -> None:
            what = "Recording" if record_only else "Governing"
            print(f"{what} {proxy.upstream.base} at {url}/v1 (Ctrl-C stops)", file=sys.stderr, flush=True)

        await serve_until_stopped(app, listening.address, listening.port, on_ready=ready)

    logging.basicConfig(level=logging.WARNING, format="closeout: %(message)s", stream=sys.stderr)
    asyncio.run(serve())
    return OK


def _chosen(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)}, got {value:.80}.")
    return value
