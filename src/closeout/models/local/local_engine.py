"""Runs llama.cpp through `xllamacpp`: one loaded model for all its users in this process, one job at a time."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import http.client
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.errors import ModelUnavailable
from closeout.models.local.gguf import read_gguf
from closeout.models.local.local_machine import Speed, Speeds, idle_cores, pick_threads, processor_flags, usable_cores
from closeout.models.local.prompt_states import PromptStates
from closeout.models.local.weights import PullProgress, find_weights, models_folder, pull_weights

__all__ = ["Engine", "EngineKey", "borrow", "give_back", "speeds_of", "unused_instructions"]

_log = logging.getLogger(__name__)

# Prompt tokens in one batch. A request can be stopped only between batches, which take a few seconds on a slow core.
# Larger batches are hardly faster (see docs/design/local-model.md).
_BATCH = 128
# Memory for the prompts of other runs, so that runs that alternate keep their cached prefix.
_PROMPT_CACHE_MIB = 512
# A thread that waits for the others spins this often, a fraction of a millisecond, before it sleeps. Without a limit it
# takes its core from all other work; if it slept at once, replies would be a third slower.
_SPIN = "30000"
_SHORTEST_KEPT = 1000  # characters of a prompt's beginning whose state is kept on disk; shorter ones are read quickly

_SAVE_SECONDS = 60.0
# The library's names → those of Linux.
_INSTRUCTIONS = {
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AVX_VNNI": "avx_vnni",
    "AMX_INT8": "amx_int8",
}


@dataclass(frozen=True, slots=True)
class EngineKey:
    """The key by which users share one loaded model."""

    model: str
    threads: int | None  # None: chosen when the model is loaded
    context: int  # tokens


class Engine:
    """A model and the one thread that runs it. Jobs wait for their turn in order."""

    def __init__(self, key: EngineKey) -> None:
        self.key = key
        self.users = 0
        self.threads = key.threads or 0  # known once the model is loaded
        self._library: _Library | None = None
        self._states = PromptStates(models_folder() / "prompts")
        self._prepared: set[str] = set()  # keys of the prompt beginnings that this model has read
        self._best = Speed(0, 0.0, 0.0)
        self._speeds: Speeds | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="closeout-local")

    def submit(self, job: Callable[[Engine], None]) -> Future[None]:
        """Run `job(engine)` in the engine's thread, after the jobs submitted before."""
        return self._thread.submit(job, self)

    def load(self, on_status: Callable[[str], None], stop: threading.Event, *, pull: bool = True) -> None:
        """Load the model if it is not loaded, and download missing weights. Only in the engine's thread.

        Raises:
            ModelUnavailable: The weights are missing or cannot be loaded.
        """
        if self._library is not None:
            return
        xllamacpp = _import_library()
        path = find_weights(self.key.model)
        if path is None and not pull:
            raise ModelUnavailable(
                f"The weights of {self.key.model} are not downloaded. Run `closeout models pull {self.key.model}`."
            )
        if path is None:
            path = pull_weights(self.key.model, on_progress=_as_status(on_status), stop=stop)
        on_status(f"Loading {path.name}")
        self._speeds = _speeds(xllamacpp, path)
        self.threads = self.key.threads or pick_threads(idle_cores(usable_cores()), self._speeds.read())
        self._library = _Library(xllamacpp, path, self.key.context, self.threads, self._states)

    def generate(self, *, chat: bool, body: bytes, on_chunk: Callable[[bytes], bool]) -> None:
        """Run one request until it is done or `on_chunk` returns True. Only in the engine's thread, once loaded.

        `body` and the chunks are JSON in OpenAI's shape; a failure is a chunk `{"error": …}`.

        Raises:
            ValueError: The request cannot be read.
        """
        assert self._library is not None
        self._library.generate(chat=chat, body=body, on_chunk=on_chunk)

    def prepare(self, beginning: str, on_chunk: Callable[[bytes], bool]) -> bool:
        """Read the fixed beginning of a prompt, or restore its state from disk. Only in the engine's thread.

        Args:
            beginning: The text that other runs share. Its state is kept on disk, unless it is short.
            on_chunk: Receives the progress of reading, as in `generate`. It is not called if nothing must be read.

        Returns:
            Whether the beginning was read now.
        """
        library = self._library
        assert library is not None
        if len(beginning) < _SHORTEST_KEPT:
            return False
        key = self._states.key(library.identity, beginning)
        if key in self._prepared:
            return False
        try:
            if (name := self._states.find(key)) is not None:
                if library.restore(name):
                    self._prepared.add(key)
                    return False
                self._states.discard(name)
            if not library.read(beginning, on_chunk):
                return True
            self._prepared.add(key)
            name = self._states.begin()
            if library.save(name):
                self._states.finish(key, name)
            else:
                self._states.discard(name)
        except OSError as error:  # the prompt is then read again next time
            _log.debug("the state of the prompt is not kept: %s", error)
        return True

    def note_speed(self, speed: Speed) -> None:
        """Note the speed of a request; 0 tokens per second are unknown."""
        best = self._best
        self._best = Speed(self.threads, max(best.prompt, speed.prompt), max(best.reply, speed.reply))

    def close(self) -> None:
        """Free the model after the job that is running; waiting jobs are cancelled."""
        with contextlib.suppress(RuntimeError):  # shut down before
            self._thread.submit(self._free)
        self._thread.shutdown(wait=False)

    def _free(self) -> None:
        library, self._library = self._library, None
        self._prepared.clear()
        if library is not None:
            library.close()
        if self._speeds is not None and self._best.prompt and self._best.reply:
            self._speeds.keep(self._best)
        del library
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
        weights, origin = progress.weights, f" from {progress.source}" if progress.source else ""
        percent = 100 * progress.done_bytes // weights.size
        text = {
            "waiting": f"Waiting for another process that downloads {weights.title}",
            "downloading": f"Downloading {weights.title} ({weights.megabytes:,} MB){origin}: {percent} %",
            "checking": f"Checking {weights.title}",
            "done": f"Downloaded {weights.title}{origin}",
        }[progress.stage]
        if text != shown:
            shown = text
            on_status(text)

    return report


# ------------------------------------------------------------------------------------------------ the library


def speeds_of(model: str) -> dict[int, Speed]:
    """Return the best speeds that an embedded model has reached on this machine, by threads.

    Raises:
        ModelUnavailable: There is no such model, or the extra `local` is not installed.
    """
    path = find_weights(model)
    return {} if path is None else _speeds(_import_library(), path).read()


def unused_instructions() -> list[str]:
    """Return the processor's vector instructions that the installed library is not built for.

    Raises:
        ModelUnavailable: The extra `local` is not installed.
    """
    info = _import_library().get_system_info()
    built = {name.strip() for name, _, value in (part.partition("=") for part in info.split("|")) if "1" in value}
    built |= {name.rpartition(":")[2].strip() for name in built}
    return [name for name, flag in _INSTRUCTIONS.items() if flag in processor_flags() and name not in built]


def _import_library() -> Any:
    # Read by the OpenMP library when it is loaded; child processes do not inherit it.
    ours = not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if ours:
        os.environ["GOMP_SPINCOUNT"] = _SPIN
    try:
        import xllamacpp
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp" else f" ({error})"
        raise ModelUnavailable(
            f"The embedded model needs the package xllamacpp{why}. Install it with: pip install 'closeout[local]'"
        ) from None
    finally:
        if ours:
            del os.environ["GOMP_SPINCOUNT"]
    return xllamacpp


def _speeds(library: Any, path: Path) -> Speeds:
    return Speeds(models_folder() / "speed.json", path.name, f"xllamacpp {library.__version__}")


class _Library:
    """A loaded model of the library.

    The library always opens an HTTP server, which takes a secret, random key. It listens on a Unix socket in a private
    folder, on Windows on a loopback port. Requests do not go through it; only prompt states are saved and restored by
    its endpoint `/slots`.
    """

    def __init__(self, library: Any, path: Path, context: int, threads: int, states: PromptStates) -> None:
        stat = path.stat()
        self.identity = f"{path.name} {stat.st_size} {stat.st_mtime_ns} xllamacpp {library.__version__}"
        self._used = False
        self._secret = secrets.token_urlsafe(32)
        self._folder = "" if os.name == "nt" else tempfile.mkdtemp(prefix="closeout-")
        params = library.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_batch = params.n_ubatch = _BATCH
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib = _PROMPT_CACHE_MIB
        params.verbosity = -1  # no log: our own errors say what went wrong
        params.warmup = False
        params.ui = False
        params.endpoint_slots = True
        params.slot_save_path = f"{states.folder}{os.sep}"
        params.n_threads_http = 1
        params.api_keys = [self._secret]
        if self._folder:
            params.hostnames = [str(Path(self._folder) / "s.sock")]
        else:
            params.hostnames, params.port = ["127.0.0.1"], 0
        try:
            with _signals_kept():
                self._server = library.Server(params)
        except RuntimeError:
            self.close()
            raise ModelUnavailable(
                f"The model file {path} cannot be loaded: {_why_not(path, context, library.__version__)}."
            ) from None
        # Freeing a model before its own loop runs hangs for ever. One generated token makes sure that it runs.
        self._server.handle_completions(b'{"prompt": "a", "max_tokens": 1, "cache_prompt": false}', lambda _: False)

    def generate(self, *, chat: bool, body: bytes, on_chunk: Callable[[bytes], bool]) -> None:
        """Run one request."""
        self._used = True
        run = self._server.handle_chat_completions if chat else self._server.handle_completions
        run(body, on_chunk)

    def read(self, text: str, on_chunk: Callable[[bytes], bool]) -> bool:
        """Read a whole prompt without a reply. Return False if reading stopped before its end."""
        done = False

        def watch(chunk: bytes) -> bool:
            nonlocal done
            done = done or b'"timings"' in chunk
            return on_chunk(chunk)

        body = {"prompt": text, "max_tokens": 0, "stream": True, "return_progress": True, "timings_per_token": True}
        self.generate(chat=False, body=json.dumps(body).encode(), on_chunk=watch)
        return done

    def save(self, name: str) -> bool:
        """Write the state after the prompt that was read last."""
        return self._slot("save", name)

    def restore(self, name: str) -> bool:
        """Load a state, as if its prompt had been read just now."""
        if self._used:
            # Another prompt makes the library put the last one into its cache; a restored state replaces it.
            self._server.handle_completions(b'{"prompt": "a", "max_tokens": 1}', lambda _: False)
        self._used = True
        return self._slot("restore", name)

    def _slot(self, action: str, name: str) -> bool:
        connection = _Connection(self._folder, getattr(self._server, "listening_address", ""))
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
            connection.request("POST", f"/slots/0?action={action}", json.dumps({"filename": name}), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status == http.client.OK

    def close(self) -> None:
        """Free the model."""
        self._server = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _why_not(path: Path, context: int, version: str) -> str:
    """Say what is wrong with a file that the library refused; it gives no reason."""
    try:
        found = read_gguf(path)
    except ValueError:
        return "it is damaged, or not a GGUF model"
    if found.cut:
        return "it is incomplete"
    return (
        f"it is damaged, its chat template is invalid, xllamacpp {version} does not know its architecture "
        f"({found.architecture or 'not stated'}), or there is too little memory for its "
        f"{path.stat().st_size // 1_000_000:,} MB and {context:,} tokens of context"
    )


class _Connection(http.client.HTTPConnection):
    """A connection to the library's own server: by the Unix socket of a folder, otherwise by an address."""

    def __init__(self, folder: str, address: str) -> None:
        super().__init__(address.removeprefix("http://") if not folder else "localhost", timeout=_SAVE_SECONDS)
        self._socket_folder = folder

    def connect(self) -> None:
        if not self._socket_folder:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(Path(self._socket_folder) / "s.sock"))


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
