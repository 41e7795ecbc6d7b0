"""`closeout models encode`: the encoding on stdout, the forms side by side on stderr."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from cli_process import here
from closeout.cli.encode import encode_command
from closeout.results.encoding import FORMATS

ROWS = [{"id": number, "name": f"name {number}"} for number in range(20)]


def test_prints_the_cheapest_form_and_compares_them(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(ROWS), "utf-8")
    assert encode_command(str(file), "columns", None, False) == 0
    out, err = capfdbinary.readouterr()
    table = json.loads(out)
    assert table["#rows"][19] == [19, "name 19"]
    lines = err.decode().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["json.dumps", *FORMATS]
    assert lines[-1].startswith("printed: columns, ")


def test_json_mode_gives_one_object_that_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(ROWS), "utf-8")
    assert encode_command(str(file), "auto", 60, True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokens"] <= 60
    assert report["missing"].endswith("of 20 items")
    assert not report["lossless"]
    assert report["formats"]["columns"] < report["formats"]["json"] < report["formats"]["json.dumps"]


def test_text_from_stdin_stays_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("你好 {not json".encode())))
    assert encode_command("-", "auto", None, True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["text"]) == ("text", "你好 {not json")


def test_bad_usage_is_one_sentence_on_stderr(tmp_path: Path) -> None:
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    for file, form, sentence in [
        (tmp_path / "none.json", "auto", r"none\.json cannot be read: No such file or directory\.$"),
        (binary, "auto", r"x\.bin is not UTF-8 text"),
        (tmp_path, "auto", r"cannot be read: Is a directory\.$"),
        (Path(__file__), "klingon", r"klingon"),
    ]:
        done = here("models", "encode", str(file), "--format", form)
        assert (done.code, done.out) == (2, "")
        assert re.search(sentence, done.sentence)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end")
def test_what_has_no_end_is_refused() -> None:
    done = here("models", "encode", "/dev/zero")
    assert (done.code, done.out) == (2, "")
    assert done.sentence == "/dev/zero has more than 100 MB. Give a part of it."
