"""One loaded model for all its users in this process: llama.cpp through `xllamacpp`, one job at a time.

Which file is loaded is decided in `weights`; requests and replies are put together in `local`.
"""

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
from closeout.llm.weights import PullProgress, find_weights, pull_weights

__all__ = ["Engine", "EngineKey", "borrow", "give_back"]

# Tokens read at a time. A stop is seen between two batches, so a batch is a few seconds on a slow core; larger ones
# are hardly faster (see docs/design/local-model.md).
_BATCH = 128
# Finished prompts of other runs are kept in this much memory, so that runs that take turns keep their cached prefix.
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
        """Runs `job(engine)` in the engine's thread when its turn comes."""
        return self._thread.submit(job, self)

    def load(self, on_status: Callable[[str], None], stop: threading.Event, *, pull: bool = True) -> None:
        """Loads the model unless it is; fetches its weights if they are missing. Only in the engine's thread.

        Raises ModelUnavailable.
        """
        if self._server is not None:
            return
        library = _library()
        path = find_weights(self.key.model)
        if path is None and not pull:
            raise ModelUnavailable(
                f"The weights of {self.key.model} are not here yet. Fetch them with `closeout models pull "
                f"{self.key.model}`."
            )
        if path is None:
            path = pull_weights(self.key.model, on_progress=_as_status(on_status), stop=stop)
        on_status(f"Loading {path.name}")
        self._server = _open_server(library, path, self.key)

    def generate(self, *, chat: bool, body: bytes, on_chunk: Callable[[bytes], bool]) -> None:
        """Runs one request to its end, or until `on_chunk` returns True. Only in the engine's thread, once loaded.

        `body` and the chunks are JSON in the OpenAI shape; an error comes as a chunk `{"error": …}`. Raises ValueError
        for a request that cannot be read.
        """
        run = self._server.handle_chat_completions if chat else self._server.handle_completions
        run(body, on_chunk)

    def close(self) -> None:
        """Frees the model once the job in hand has ended; the jobs still waiting are cancelled."""
        with contextlib.suppress(RuntimeError):  # shut down before
            self._thread.submit(self._free)
        self._thread.shutdown(wait=False)

    def _free(self) -> None:
        self._server = None
        gc.collect()


_engines: dict[EngineKey, Engine] = {}
_lock = threading.Lock()


def borrow(key: EngineKey) -> Engine:
    """The engine of a key, the same for all who hold it; give it back once for each time it was borrowed."""
    with _lock:
        engine = _engines.get(key)
        if engine is None:
            engine = _engines[key] = Engine(key)
        engine.users += 1
        return engine


def give_back(engine: Engine) -> None:
    """Ends one use; the last one frees the model."""
    with _lock:
        engine.users -= 1
        if engine.users > 0:
            return
        if _engines.get(engine.key) is engine:
            del _engines[engine.key]
    engine.close()


@atexit.register
def _free_all() -> None:
    """The library's threads must end before the interpreter takes its memory apart."""
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine._free()


def _as_status(on_status: Callable[[str], None]) -> Callable[[PullProgress], None]:
    told = [""]

    def report(progress: PullProgress) -> None:
        weights = progress.weights
        percent = 100 * progress.done_bytes // weights.size
        text = {
            "waiting": f"Waiting for another process that fetches {weights.title}",
            "downloading": f"Fetching {weights.title} ({weights.megabytes:,} MB): {percent} %",
            "checking": f"Checking {weights.title}",
            "done": f"Fetched {weights.title}",
        }[progress.stage]
        if text != told[0]:
            told[0] = text
            on_status(text)

    return report


# ------------------------------------------------------------------------------------------------ the library


def _library() -> Any:
    try:
        import xllamacpp
    except ImportError:
        raise ModelUnavailable(
            "The embedded model needs the package xllamacpp. Install it with: pip install 'closeout[local]'"
        ) from None
    return xllamacpp


def _open_server(library: Any, path: Path, key: EngineKey) -> Any:
    params = library.CommonParams()
    params.model.path = str(path)
    params.n_ctx = key.context
    params.n_batch = params.n_ubatch = _BATCH
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = key.threads
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.verbosity = -1  # nothing of its log; what goes wrong is told by our own errors
    params.warmup = False
    params.ui = False
    params.endpoint_slots = False
    params.n_threads_http = 1
    with _nobody_listens(params), _signals_kept():
        try:
            server = library.Server(params)
        except RuntimeError:
            size = path.stat().st_size // 1_000_000 if path.exists() else 0
            raise ModelUnavailable(
                f"The model file {path} cannot be loaded: it is damaged or no GGUF model, or there is too little "
                f"memory for its {size:,} MB and {key.context:,} tokens of context."
            ) from None
    # Freeing a model whose own loop has not begun yet hangs for ever; once a token went through it, it has.
    server.handle_completions(b'{"prompt": "a", "max_tokens": 1}', lambda _: False)
    return server


@contextlib.contextmanager
def _nobody_listens(params: Any) -> Iterator[None]:
    """The library opens an HTTP server with the model and cannot be told not to.

    Where there are Unix sockets it gets one in a private folder that is removed at once, so that nobody can reach it;
    elsewhere a loopback port with a random key that nobody is told.
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
    """Some versions of the library take Ctrl-C for themselves; it stays Python's. Works in any thread."""
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
