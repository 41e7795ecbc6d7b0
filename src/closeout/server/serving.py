"""Serve an agent: the application with all its routes, and a server that shuts down cleanly."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

from aiohttp import web

from closeout.errors import ConfigError
from closeout.homes import Home
from closeout.observe.run_figures import Family, RunFigures, exposition
from closeout.run.result import Status
from closeout.server.api_errors import api_errors, log
from closeout.server.app import LOOPBACK_HOSTS, create_app
from closeout.server.proxy.proxy_server import Proxy
from closeout.server.safety import is_loopback, key_check, origin_check, separate_clients, separate_users
from closeout.server.serve.anthropic_chat import add_messages
from closeout.server.serve.host import AgentHost
from closeout.server.serve.mcp_endpoint import add_mcp
from closeout.server.serve.openai_chat import add_chat
from closeout.server.serve.page_chat import add_page_chat
from closeout.server.serve.responses import add_responses
from closeout.server.serve.runs_api import add_runs_api
from closeout.server.viewer.routes import add_viewer

__all__ = [
    "agent_app",
    "check_address",
    "listening",
    "mounted_app",
    "on_first_signal",
    "proxy_app",
    "run_metrics",
    "serve_until_stopped",
    "viewer_app",
]

MAX_PROXY_BODY = 256 * 2**20  # bytes: conversations may hold pictures
LATE_SECONDS = 5.0  # seconds that cancelled runs may take to end
CLOSE_SECONDS = 2.0  # seconds that connections may take after the runs have been stopped
IDLE_SECONDS = 20.0  # seconds until a connection without a whole request header is closed
LOG_SECONDS = 10.0  # seconds between two reports that no connection can be accepted


def agent_app(
    host: AgentHost,
    *,
    address: str = "127.0.0.1",
    keys: Sequence[str] = (),
    operator_keys: Sequence[str] = (),
    description: str = "",
) -> web.Application:
    """Create the application that serves an agent. It enters and leaves the host.

    Args:
        host: Executes the runs.
        address: Where the server listens.
        keys: Clients must send one of them. Without keys, everybody at this address is trusted. With several keys, a
            client sees the runs begun with its own key.
        operator_keys: Further keys, with which all runs can be seen and decided.
        description: What the agent is for. MCP clients see it.

    Raises:
        ConfigError: Other computers could use the agent without a key.
    """
    all_keys = (*keys, *operator_keys)
    check_address(address, all_keys)
    app = create_app(host.store.home, hosts=LOOPBACK_HOSTS if is_loopback(address) else None)
    app.middlewares.extend([key_check(all_keys), origin_check, api_errors])
    if len(all_keys) > 1:
        separate_clients(app, operator_keys)
    _add_agent(app, host, description)
    if is_loopback(address) and not all_keys:  # everybody who can reach the viewer may see all runs
        add_viewer(app, host=host)
    return app


def mounted_app(host: AgentHost, *, with_users: bool) -> web.Application:
    """Create the application to mount into one of the user's own, which authenticates requests.

    Args:
        host: Executes the runs.
        with_users: Requests have the `USER_HEADER`: a user sees what they began.
    """
    app = create_app(host.store.home, hosts=None)
    app.middlewares.extend([origin_check, api_errors])
    if with_users:
        separate_users(app)
    _add_agent(app, host)
    return app


def _add_agent(app: web.Application, host: AgentHost, description: str = "") -> None:
    """Add the APIs of an agent. The application enters and leaves the host."""
    add_responses(app, host)
    add_chat(app, host)
    add_messages(app, host)
    add_runs_api(app, host)
    add_page_chat(app, host)
    add_mcp(app, host, description)
    _add_health(app, host)

    async def run_host(_: web.Application) -> AsyncIterator[None]:
        async with host:
            yield

    async def stop_runs(_: web.Application) -> None:
        await host.stop()

    app.cleanup_ctx.append(run_host)
    app.on_shutdown.append(stop_runs)  # while clients are still connected


def proxy_app(
    proxy: Proxy, *, address: str = "127.0.0.1", keys: Sequence[str] = (), max_body: int = MAX_PROXY_BODY
) -> web.Application:
    """Create the application of a proxy.

    Args:
        proxy: What governs the requests.
        address: Where the server listens.
        keys: Clients must send one of them. Without keys, everybody at this address is trusted.
        max_body: The bytes that the body of a request may have.

    Raises:
        ConfigError: Other computers could use it without a key.
    """
    check_address(address, keys)
    hosts = LOOPBACK_HOSTS if is_loopback(address) else None
    app = create_app(proxy.store.home, hosts=hosts, max_body=max_body)
    app.middlewares.extend([key_check(keys), origin_check, api_errors])
    proxy.add_routes(app)

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def metrics(_: web.Request) -> web.Response:
        return _metrics_response(_proxy_families(proxy))

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app


def viewer_app(home: Home) -> web.Application:
    """Create the application of the viewer, for this computer only.

    It needs a port of its own: the pages approve calls, so they share no origin with the bytes of a model server.

    Args:
        home: The folder that stores the runs.
    """
    app = create_app(home)
    app.middlewares.append(origin_check)
    add_viewer(app)
    return app


def check_address(address: str, keys: Sequence[str]) -> None:
    """Raise ConfigError if a server at this address can be reached from elsewhere and requires no key."""
    if not is_loopback(address) and not any(keys):
        raise ConfigError(
            f"Other computers can reach {address}, so clients must have a key. "
            "Put one into CLOSEOUT_SERVER_KEY, or one on each line of a file and pass it with --keys."
        )


async def serve_until_stopped(
    app: web.Application,
    address: str,
    port: int,
    *,
    on_ready: Callable[[str], object],
    before_stop: Callable[[], object] = lambda: None,
    drain: float | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. A second signal ends the process at once.

    Args:
        app: What to serve.
        address: Where to listen.
        port: The port; 0 chooses a free one.
        on_ready: Called with the URL once the server listens.
        before_stop: Called when the first signal arrives.
        drain: Seconds that runs may continue then, if the application has some.

    Raises:
        ConfigError: It cannot listen there.
    """
    stopped = asyncio.Event()

    def stop() -> None:
        before_stop()
        stopped.set()

    async with listening(app, address, port) as url:
        on_first_signal(stop, drain=drain)
        asyncio.get_running_loop().set_exception_handler(_few_reports())
        on_ready(url)
        await stopped.wait()


def on_first_signal(act: Callable[[], object], *, drain: float | None = None) -> None:
    """Call a function at the first SIGINT or SIGTERM. A second one ends the process at once.

    Args:
        act: The function.
        drain: Seconds that runs may continue after it. The process ends soon after that, even if a tool hangs.
    """
    loop = asyncio.get_running_loop()

    def first() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        act()
        if drain is not None:
            late = threading.Timer(drain + LATE_SECONDS, _end_late)
            late.daemon = True
            late.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, first)


def _end_late() -> None:
    """Exit as after a crash: the journal is safe, and other processes continue the runs."""
    log.warning("A tool ignores its cancellation. Its run is left as after a crash.")
    sys.stderr.flush()
    os._exit(0)


@asynccontextmanager
async def listening(app: web.Application, address: str, port: int) -> AsyncIterator[str]:
    """Serve an application as long as the context is entered. Yields its URL.

    Args:
        app: What to serve.
        address: Where to listen.
        port: The port; 0 chooses a free one.

    Raises:
        ConfigError: It cannot listen there.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=CLOSE_SECONDS,
        keepalive_timeout=IDLE_SECONDS,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address, port, backlog=1024).start()
        except OSError as error:
            raise ConfigError(
                f"Cannot listen on {address}:{port}: {error.strerror or error}. Choose another port; 0 is a free one."
            ) from None
        shown = f"[{address}]" if ":" in address else address
        yield f"http://{shown}:{runner.addresses[0][1]}"
    finally:
        for site in list(runner.sites):
            await site.stop()
        await runner.cleanup()


def _few_reports() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler that rarely reports too many open files: asyncio retries in a loop."""
    silent_until = 0.0

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal silent_until
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= silent_until:
            silent_until = loop.time() + LOG_SECONDS
            log.warning("No connection can be accepted: %s. Raise the limit of open files (ulimit -n).", error.strerror)

    return handle


# ------------------------------------------------------------------------------------------------ health


def _add_health(app: web.Application, host: AgentHost) -> None:
    async def healthz(_: web.Request) -> web.Response:
        status = "stopping" if host.stopping else "problem" if host.problem else "ok"
        return web.json_response({"status": status}, status=200 if status == "ok" else 503)

    async def metrics(_: web.Request) -> web.Response:
        return run_metrics(active=host.active, queued=host.queued, ended=host.ended, figures=host.figures)

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)


def run_metrics(*, active: int, queued: int, ended: Mapping[str, int], figures: RunFigures) -> web.Response:
    """Return the figures of a process that executes runs, in Prometheus's text format.

    Args:
        active: The runs that it executes.
        queued: Those that wait in it.
        ended: Those that ended, by status.
        figures: What happened in them.
    """
    # From zero: Prometheus sees no increase in a counter that begins at one.
    counts = {**dict.fromkeys(get_args(Status), 0), **ended}
    by_status = [("", (("status", status),), count) for status, count in sorted(counts.items())]
    families: list[Family] = [
        ("closeout_runs_active", "gauge", "Runs that are executed.", [("", (), active)]),
        ("closeout_runs_queued", "gauge", "Runs that wait.", [("", (), queued)]),
        ("closeout_runs_ended_total", "counter", "Runs that ended, by status.", by_status),
    ]
    return _metrics_response([*families, *figures.families()])


def _proxy_families(proxy: Proxy) -> list[Family]:
    about = {
        "requests": "Requests with a conversation.",
        "repaired": "Requests whose reply was repaired.",
        "again": "Replies that were asked for again.",
        "unrepaired": "Requests whose reply could not be made valid.",
        "failed": "Requests that failed.",
    }
    families: list[Family] = [
        (f"closeout_proxy_{name}_total", "counter", text, [("", (), proxy.counts[name])])
        for name, text in about.items()
    ]
    repairs = [("", (("kind", kind),), count) for kind, count in sorted(proxy.repairs.items())]
    families.append(
        ("closeout_proxy_active", "gauge", "Requests that are served or wait.", [("", (), proxy.admission.present)])
    )
    return [*families, ("closeout_proxy_repairs_total", "counter", "Repairs by kind.", repairs)]


def _metrics_response(families: Sequence[Family]) -> web.Response:
    """Figures in Prometheus's text format."""
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    return web.Response(text=exposition(families), headers=headers)
