"""The scripted model and the payment service of all cases, over HTTP, in the judge's own process."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from world import CutOff, World


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless a killed process has closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """Serves `/CASE/ROLE/v1/chat/completions` and `/CASE/ROLE/tools/NAME`, on a port of its own."""

    def __init__(self) -> None:
        self.worlds: dict[str, World] = {}
        self.pids: dict[str, int] = {}  # by "CASE/ROLE": the process that asks there
        self.known = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                with suppress(CutOff, BrokenPipeError, ConnectionResetError):
                    outer.answer(self)
                    return
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._http = _Threads(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def began(self, place: str, pid: int) -> None:
        with self.known:
            self.pids[place] = pid
            self.known.notify_all()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        data = handler.rfile.read(length)
        if len(data) < length:  # the sender was killed amid the request
            raise CutOff
        body = json.loads(data or b"{}")
        _, case, role, *rest = handler.path.split("/")
        place = f"{case}/{role}"
        with self.known:
            self.known.wait_for(lambda: place in self.pids, 10)
        world, pid = self.worlds[case], self.pids[place]
        if rest[0] == "tools":
            texts = world.use(rest[1], body, pid)
            data = json.dumps({"text": next(texts)}).encode()
            self._head(handler, 200, "application/json", len(data))
            handler.wfile.write(data)
            self._finish(texts)
        elif rest[-2:] == ["chat", "completions"]:
            self._reply(handler, world.ask(body, pid), streams=bool(body.get("stream")))
        else:
            self._head(handler, 404, "application/json", 2)
            handler.wfile.write(b"{}")

    def _reply(self, handler: BaseHTTPRequestHandler, parts: Iterator[tuple[int, bytes]], *, streams: bool) -> None:
        status, first = next(parts)
        kind = "text/event-stream" if streams and status == 200 else "application/json"
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        self._chunk(handler, first)
        second = next(parts, (status, b""))[1]
        if second:
            self._chunk(handler, second)
        self._chunk(handler, b"")
        self._finish(parts)

    @staticmethod
    def _finish(parts: Iterator[Any]) -> None:
        for _ in parts:
            raise AssertionError("a reply has two parts")

    @staticmethod
    def _chunk(handler: BaseHTTPRequestHandler, data: bytes) -> None:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.flush()

    @staticmethod
    def _head(handler: BaseHTTPRequestHandler, status: int, kind: str, length: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
