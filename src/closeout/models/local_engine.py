"""Runs llama.cpp through `xllamacpp`: one loaded model for all its users in this process, one job at a time."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.errors import ModelUnavailable
from closeout.models.weights import PullProgress, find_weights, pull_weights

__all__ = ["Engine", "EngineKey", "borrow", "give_back"]

# Prompt tokens in one batch. A request can be stopped only between batches, which take a few seconds on a slow core.
# Larger batches are hardly faster (see docs/design/local-model.md).
_BATCH = 128
# Memory for the prompts of other runs, so that runs that alternate keep their cached prefix.
_PROMPT_CACHE_MIB = 512


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What makes two users share one loaded model."""

    model: str
    threads: int
    context: int  # tokens


class Engine:
    """A model and the one thread that runs it. Jobs wait for their turn in order."""

    def __init__(self, key: EngineKey) -> None:
        self.key = key
        self.users = 0
        self._server: Any = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="closeout-local")

    def submit(self, job: Callable[[Engine], None]) -> Future[None]:
        """Run `job(engine)` in the engine's thread, after the jobs submitted before."""
        return self._thread.submit(job, self)

    def load(self, on_status: Callable[[str], None], stop: threading.Event, *, pull: bool = True) -> None:
        """Load the model if it is not loaded, and download missing weights. Only in the engine's thread.

        Raises:
            ModelUnavailable: The weights are missing or cannot be loaded.
        """
        if self._server is not None:
            return
        try:
            import xllamacpp
        except ImportError:
            raise ModelUnavailable(
                "The embedded model needs the package xllamacpp. Install it with: pip install 'closeout[local]'"
            ) from None
        path = find_weights(self.key.model)
        if path is None and not pull:
            raise ModelUnavailable(
                f"The weights of {self.key.model} are not downloaded. Run `closeout models pull {self.key.model}`."
            )
        if path is None:
            path = pull_weights(self.key.model, on_progress=_as_status(on_status), stop=stop)
        on_status(f"Loading {path.name}")
        self._server = _open_server(xllamacpp, path, self.key)

    def generate(self, *, chat: bool, body: bytes, on_chunk: Callable[[bytes], bool]) -> None:
        """Run one request until it is done or `on_chunk` returns True. Only in the engine's thread, once loaded.

        `body` and the chunks are JSON in OpenAI's shape; a failure is a chunk `{"error": …}`.

        Raises:
            ValueError: The request cannot be read.
        """
        run = self._server.handle_chat_completions if chat else self._server.handle_completions
        run(body, on_chunk)

    def close(self) -> None:
        """Free the model after the job that is running; waiting jobs are cancelled."""
        with contextlib.suppress(RuntimeError):  # shut down before
            self._thread.submit(self._free)
        self._thread.shutdown(wait=False)

    def _free(self) -> None:
        self._server = None
        gc.collect()


_engines: dict[EngineKey, Engine] = {}
_lock = threading.Lock()


def borrow(key: EngineKey) -> Engine:
    """Return the engine of a key, shared by all its users. Call `give_back` once for each `borrow`."""
    with _lock:
        engine = _engines.get(key)
        if engine is None:
            engine = _engines[key] = Engine(key)
        engine.users += 1
        return engine


def give_back(engine: Engine) -> None:
    """End one use of an engine; the last one frees the model."""
    with _lock:
        engine.users -= 1
        if engine.users > 0:
            return
        if _engines.get(engine.key) is engine:
            del _engines[engine.key]
    engine.close()


@atexit.register
def _free_all() -> None:
    """End the library's threads before the interpreter shuts down."""
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine._free()


def _as_status(on_status: Callable[[str], None]) -> Callable[[PullProgress], None]:
    shown = ""

    def report(progress: PullProgress) -> None:
        nonlocal shown
        weights = progress.weights
        percent = 100 * progress.done_bytes // weights.size
        text = {
            "waiting": f"Waiting for another process that downloads {weights.title}",
            "downloading": f"Downloading {weights.title} ({weights.megabytes:,} MB): {percent} %",
            "checking": f"Checking {weights.title}",
            "done": f"Downloaded {weights.title}",
        }[progress.stage]
        if text != shown:
            shown = text
            on_status(text)

    return report


# ------------------------------------------------------------------------------------------------ the library


def _open_server(library: Any, path: Path, key: EngineKey) -> Any:
    params = library.CommonParams()
    params.model.path = str(path)
    params.n_ctx = key.context
    params.n_batch = params.n_ubatch = _BATCH
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = key.threads
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.verbosity = -1  # no log: our own errors say what went wrong
    params.warmup = False
    params.ui = False
    params.endpoint_slots = False
    params.n_threads_http = 1
    with _unreachable(params), _signals_kept():
        try:
            server = library.Server(params)
        except RuntimeError:
            size = path.stat().st_size // 1_000_000 if path.exists() else 0
            raise ModelUnavailable(
                f"The model file {path} cannot be loaded: it is damaged, it is not a GGUF model, or there is too "
                f"little memory for its {size:,} MB and {key.context:,} tokens of context."
            ) from None
    # Freeing a model before its own loop runs hangs for ever. One generated token makes sure that it runs.
    server.handle_completions(b'{"prompt": "a", "max_tokens": 1}', lambda _: False)
    return server


@contextlib.contextmanager
def _unreachable(params: Any) -> Iterator[None]:
    """Make the HTTP server that the library always opens unreachable.

    It listens on a Unix socket in a private folder, which is removed at once; on Windows on a loopback port with a
    random, secret key.
    """
    params.api_keys = [secrets.token_urlsafe(32)]
    if os.name == "nt":
        params.hostnames, params.port = ["127.0.0.1"], 0
        yield
        return
    folder = tempfile.mkdtemp(prefix="closeout-")
    try:
        params.hostnames = [str(Path(folder) / "s.sock")]
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore Python's signal handlers, which some versions of the library replace. Works in any thread."""
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
    put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    before = {number: get(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if get(number) != handler:
                put(number, handler)
