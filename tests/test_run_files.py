"""Files of a run: scripts and programs read those of the task, and what they leave and tools return is kept."""

from __future__ import annotations

import base64
import pickle
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, File, RunContext, ToolOutput, UsageError, tool
from closeout.file_values import FileView
from closeout.homes import Home
from closeout.journal import events as ev
from closeout.journal.check import check_home
from closeout.journal.store import close_stores, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.builtin import python_tool
from closeout.tools.mcp.mcp_result import McpResult
from journal_file import cut_after, cuts

run_python = python_tool(isolation="none")  # test_python_isolation.py runs scripts in a sandbox
CREW = "name,age\nAda,36\nBlaise,39\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)

READ = "import csv\nrows = list(csv.DictReader(open('crew.csv')))\nopen('sum.txt', 'w').write(str(len(rows)))"
MORE = "old = open('sum.txt').read()\nopen('sum.txt', 'w').write(old + '!')\nopen('sub.txt', 'w').write('x')\nold"
CLEAN = "import os\nos.makedirs('out')\nos.rename('sub.txt', 'out/表.txt')\nsorted(os.listdir())"


@pytest.fixture
def crew(tmp_path: Path) -> Path:
    path = tmp_path / "crew.csv"
    path.write_text(CREW)
    return path


def script_agent(home: Path, *codes: str, python: Any = run_python, **options: Any) -> Agent:
    """An agent that runs one script after the other, whatever they print, and then answers."""

    def script(view: Any) -> Turn:
        done = sum(message["role"] == "tool" for message in view.messages)
        return Turn("", calls=[call("run_python", code=codes[done])]) if done < len(codes) else answer("done")

    return Agent(ScriptedClient(script), [python], home=home, **options)


def shown(result: Any) -> list[str]:
    return [m.text for m in result.messages if m.role == "tool"]


def test_scripts_see_the_files_of_the_task_and_leave_files_of_the_run(home: Path, crew: Path, tmp_path: Path) -> None:
    result = script_agent(home, READ, MORE, CLEAN).run_sync("Count.", files=[crew])
    assert {file.name: file.text for file in result.files} == {"sum.txt": "2!", "out/表.txt": "x"}
    assert shown(result)[0] == "1\n\nFiles written: sum.txt (text/plain, 1 byte)"
    assert shown(result)[1] == "'2'\n\nFiles written: sub.txt (text/plain, 1 byte); sum.txt (text/plain, 2 bytes)"
    assert "['crew.csv', 'out', 'sum.txt']" in shown(result)[2]
    assert "Files removed: sub.txt" in shown(result)[2]
    assert "run_python can open them by their names." in result.messages[-8].text

    found = next(file for file in result.files if file.name == "sum.txt")
    assert (found.media_type, found.size, found.data) == ("text/plain", 2, b"2!")
    saved = [file.save(tmp_path / "saved") for file in result.files]
    assert saved[0].read_bytes() == result.files[0].data
    assert (tmp_path / "saved/out/表.txt").read_text() == "x"
    assert [file.data for file in pickle.loads(pickle.dumps(result)).files] == [file.data for file in result.files]
    assert result.to_dict()["files"][0]["sha256"] == result.files[0].sha256
    assert [file.name for file in result.work_files if file.read_only] == ["crew.csv"]


def test_a_file_of_the_task_stays_as_it_was(home: Path, crew: Path) -> None:
    change = "import os\nos.chmod('crew.csv', 0o644)\nopen('crew.csv', 'w').write('gone')"
    result = script_agent(home, change, "print(open('crew.csv').read())").run_sync("Count.", files=[crew])
    assert shown(result)[0].endswith("Files not kept: 'crew.csv' (a file of the task stays as it was)")
    assert shown(result)[1].startswith("name,age")
    assert result.files == ()
    assert crew.read_text().startswith("name,age")


def test_a_script_that_fails_leaves_nothing(home: Path) -> None:
    result = script_agent(home, "open('a', 'w').write('x')\n1/0", "import os\nos.listdir()").run_sync("Go.")
    assert shown(result)[1] == "[]"
    assert result.files == ()


HOSTILE = """
import os, socket
os.symlink("/etc/passwd", "link.txt")
os.symlink("/etc", "folder")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.mkdir("nul"); open("nul/x", "w").write("x")
for name in ["a:b", "end.", "CON.txt", "Ada.txt", "ada.txt", "\\udcff", "x" * 150 + "y" * 100, ".hidden", "ok.txt"]:
    open(name, "w").write(name.encode("utf-8", "replace").decode())
os.link("ok.txt", "same.txt")
open("empty", "w")
with open("large", "wb") as file: file.truncate(60_000_000)
"""


def test_links_devices_unsafe_names_and_large_files_are_not_kept(home: Path) -> None:
    result = script_agent(home, HOSTILE).run_sync("Go.")
    assert [file.name for file in result.files] == ["Ada.txt", "empty", "ok.txt", "same.txt"]
    text = shown(result)[0]
    assert "Files not kept: 'CON.txt' (" in text
    assert "; and " in text  # more of them than are listed
    assert "root:" not in text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nfor n in range(1_500):\n    os.mkdir('d')\n    os.chdir('d')", "in too many folders"),
        ("import os\nfor n in range(2_100): os.mkdir(f'd{n}')", "more than 2,000 files or folders"),
    ],
)
def test_a_flood_of_folders_is_not_kept_and_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = script_agent(home, code).run_sync("Go.")
    assert said in shown(result)[0]
    assert list(tmp_path.glob("closeout-python-*")) == []


def test_a_name_is_not_that_of_a_file_and_of_a_folder(home: Path) -> None:
    @tool(on_crash="rerun")
    def make(name: str) -> File:
        """Make a file."""
        return File(name, name)

    def script(view: Any) -> Turn:
        done = sum(message["role"] == "tool" for message in view.messages)
        turns = [Turn("", calls=[call("make", name="a")]), Turn("", calls=[call("make", name="a/b")])]
        # Concurrent calls do not see each other's files: a script finds one of them.
        turns.append(Turn("", calls=[call("make", name="c"), call("make", name="c/d")]))
        code = "from pathlib import Path\nPath('c' if Path('c').is_file() else 'c/d').read_text()"
        steps = [turns[0], turns[1], turns[2], None, Turn("", calls=[call("run_python", code=code)])]
        return answer("done") if done >= len(steps) else steps[done] or answer("done")

    result = Agent(ScriptedClient(script), [make, run_python], home=home).run_sync("Go.")
    assert "The file 'a/b' is not kept: a name cannot be that of a file and that of a folder." in shown(result)[1]
    assert shown(result)[4] in ("'c'", "'c/d'"), "the one that ended first"
    assert [file.name for file in result.files] == ["a", "c", "c/d"]


def test_a_run_keeps_so_many_files_and_bytes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.file_values.MAX_FILES", 3)
    monkeypatch.setattr("closeout.file_values.MAX_RUN_SIZE", 100)
    many = "for n in range(5): open(f'{n}.txt', 'w').write(str(n))"
    big = "open('0.txt', 'w').write('x' * 98)\nopen('1.txt', 'w').write('y' * 90)"
    result = script_agent(home, many, big, "open('2.txt', 'w').write('z' * 50)").run_sync("Go.")
    assert {file.name: file.size for file in result.files} == {"0.txt": 1, "1.txt": 90, "2.txt": 1}
    assert "'3.txt' (a run keeps 3 files)" in shown(result)[0]
    assert "'0.txt' (the files of a run may have 100 bytes together)" in shown(result)[1]
    assert "'2.txt' (the files of a run" in shown(result)[2]


def test_what_has_no_text_is_a_file_for_scripts_only(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"\0\1\2")
    result = script_agent(home, "len(open('data.bin', 'rb').read())").run_sync("Count.", files=[data])
    assert shown(result) == ["3"]
    assert "[left out: no text is shown of it, run_python can read it]" in result.messages[-4].text
    with pytest.raises(UsageError, match="is binary"):
        Agent(ScriptedClient([answer("x")]), home=home).run_sync("Count.", files=[data])


def test_two_files_of_one_name_get_two(home: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Data.csv").write_text(folder)
    agent = script_agent(home, "import os\nsorted(os.listdir())")
    result = agent.run_sync("Count.", files=[tmp_path / "a/Data.csv", tmp_path / "b/Data.csv"])
    assert shown(result) == ["['Data-2.csv', 'Data.csv']"]
    assert '<file name="Data-2.csv">\nb' in result.messages[-4].text


# ------------------------------------------------------------------------------------------------ tools


@tool(on_crash="rerun")
def report(kind: str, context: RunContext) -> Any:
    """Make a file."""
    match kind:
        case "one":
            return File("one.txt", "1")
        case "picture":
            return {
                "title": "Crew",
                "chart": File("chart.png", PNG),
                "rows": [{"file": File.table("t.csv", [{"a": 1}])}],
            }
        case "beside":
            return ToolOutput(result="made", files=(File("beside.png", PNG),))
        case "seen":
            return {name: file.text for name, file in context.files.items()}
        case _:
            return File("large.bin", bytes(60_000_000))


def report_agent(home: Path, *kinds: str, **options: Any) -> Agent:
    turns = [Turn("", calls=[call("report", kind=kind) for kind in kinds]), answer("done")]
    return Agent(ScriptedClient(turns), [report], home=home, **options)


def test_a_tool_returns_files_wherever_in_its_result(home: Path) -> None:
    result = report_agent(home, "one", "picture", "beside", "large").run_sync("Go.")
    assert {file.name: file.media_type for file in result.files} == {
        "one.txt": "text/plain",
        "t.csv": "text/csv",
        "chart.png": "image/png",
        "beside.png": "image/png",
    }
    texts = shown(result)
    assert "one.txt" in texts[0]
    assert "108 bytes" in texts[1]
    assert texts[2] == "made"
    assert "'large.bin' is not kept: it has 60.0 MB; a file may have 50.0 MB" in texts[3]
    returned = next(event for event in events_of(home, result.run_id) if isinstance(event, ev.TurnAccepted)).returns
    assert [len(each.get("images", ())) for each in returned] == [0, 1, 0, 0]  # what a tool returns is shown to models


def test_a_tool_sees_what_calls_before_it_left(home: Path, crew: Path) -> None:
    turns = [Turn("", calls=[call("report", kind="one")]), Turn("", calls=[call("report", kind="seen")]), answer("x")]
    result = Agent(ScriptedClient(turns), [report], home=home).run_sync("Go.", files=[crew])
    output = result.tool_outputs[1].result
    assert output == {"crew.csv": crew.read_text(), "one.txt": "1"}


def events_of(home: Path, run_id: str) -> list[ev.Event]:
    return [row.event for row in open_store(home).rows(run_id)]


def test_a_tool_cannot_replace_a_file_of_the_task(home: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("mine")
    result = report_agent(home, "one").run_sync("Go.", files=[tmp_path / "one.txt"])
    assert "The file 'one.txt' is not kept: a file of the task stays as it was." in shown(result)[0]
    assert [file.text for file in result.work_files] == ["mine"]
    assert result.files == ()


def test_a_run_in_memory_has_files_too() -> None:
    agent = Agent(ScriptedClient([Turn("", calls=[call("report", kind="one")]), answer("x")]), [report], home=False)
    assert [file.text for file in agent.run_sync("Go.").files] == ["1"]


# ------------------------------------------------------------------------------------------------ the record


def contents(home: Home) -> set[bytes]:
    return {body for (body,) in open_store(home).query("SELECT body FROM bodies")}


def test_content_is_kept_once_and_goes_with_the_last_run_that_has_it(any_home: Home) -> None:
    code = "open('a.bin', 'wb').write(b'\\0same')"
    first, second = (script_agent(any_home, code).run_sync("Go.") for _ in range(2))
    store = open_store(any_home)
    assert b"\0same" in contents(any_home)
    store.delete_runs([first.run_id])
    assert second.files[0].data == b"\0same"
    store.delete_runs([second.run_id])
    assert b"\0same" not in contents(any_home)
    third = script_agent(any_home, code).run_sync("Go.")  # the store knows that it has to write it again
    assert third.files[0].data == b"\0same"


def test_a_lost_content_is_an_error_that_names_the_file_and_doctor_finds_it(home: Path) -> None:
    result = script_agent(home, "open('a.txt', 'w').write('once')").run_sync("Go.", run_id="run")
    close_stores()
    with closing(sqlite3.connect(home / "journal.sqlite3")) as db, db:
        db.execute("UPDATE bodies SET body=? WHERE hash=?", (b"twice", bytes.fromhex(result.files[0].sha256)))
    assert check_home(home).run_problems == (("run", ("the content of the file 'a.txt' is missing or damaged",)),)
    saved = here("runs", "files", "run", "-o", str(home / "out"))
    assert (saved.code, "is missing in" in saved.sentence) == (2, True)
    assert not (home / "out").exists() or not any((home / "out").iterdir())


async def test_a_run_killed_at_any_event_has_the_same_files_when_it_is_resumed(home: Path, crew: Path) -> None:
    rerun = python_tool(isolation="none", keep_variables=True)
    rerun.policy = replace(rerun.policy, on_crash="rerun")  # as that of an isolated one
    codes = (READ, CLEAN.replace("sub", "sum").replace("sorted(", "len(rows), sorted("))
    whole = await script_agent(home, *codes, python=rerun).run("Count.", files=[crew], run_id="run")
    assert shown(whole)[1].startswith("(2, ['crew.csv', 'out'])")
    crew.unlink()  # noqa: ASYNC240
    for kept in cuts(home):
        again = await script_agent(home, *codes, python=rerun).resume("run")
        assert (again.files, shown(again)) == (whole.files, shown(whole)), kept


async def test_a_fork_has_the_files_up_to_its_place(home: Path, crew: Path) -> None:
    agent = script_agent(home, READ, MORE, CLEAN)
    await agent.run("Count.", files=[crew], run_id="run")
    other = script_agent(home, READ, "sorted(__import__('os').listdir())")
    result = await other.fork("run", at=2)
    assert shown(result)[1] == "['crew.csv', 'sum.txt']"
    assert [file.text for file in result.files] == ["2"]


async def test_a_later_message_of_a_session_finds_the_files(home: Path, crew: Path) -> None:
    look = "import os\n{name: open(name).read() for name in sorted(os.listdir())}"
    first = script_agent(home, READ).session("talk")
    await first.run("Count.", files=[crew])
    agent = script_agent(home, "", look)  # the first call is in the history
    result = await agent.session("talk").run("Look.")
    assert shown(result)[-1] == str({"crew.csv": CREW, "sum.txt": "2"})
    assert result.files == ()
    assert [file.name for file in agent.session("talk").files] == ["crew.csv", "sum.txt"]
    open_store(home).delete_runs(["talk.1"])
    assert {file.name for file in agent.session("talk").files} == {"crew.csv", "sum.txt"}
    assert agent.session("talk").files[1].text == "2"


async def test_sub_agents_share_the_files(home: Path, crew: Path) -> None:
    helper = script_agent(home, READ).as_tool("helper", "Counts.")
    turns = [
        Turn("", calls=[call("helper", task="Count.")]),
        Turn("", calls=[call("run_python", code=MORE)]),
        answer("x"),
    ]
    result = await Agent(ScriptedClient(turns), [helper, run_python], home=home).run("Go.", files=[crew])
    assert {file.name: file.text for file in result.files} == {"sum.txt": "2!", "sub.txt": "x"}


async def test_the_next_run_continues_with_the_files_of_another_home(home: Path, tmp_path: Path) -> None:
    first = await script_agent(home, "open('a.txt', 'w').write('1')").run("Go.")
    look = "open('a.txt', 'a').write('2')\nopen('a.txt').read()"
    second = await script_agent(tmp_path / "other", look).run("Go.", work_files=first.files)
    assert [file.text for file in second.files] == ["12"]
    with pytest.raises(UsageError, match="work_files must be a list of File"):
        await script_agent(home).run("Go.", work_files="a.txt")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ variables

KEEPS = python_tool(isolation="none", keep_variables=True)


def test_variables_live_for_a_run_if_they_are_asked_for(home: Path) -> None:
    codes = (
        "import json as j\ndef twice(x, *, by=2):\n    return x * by\na = b = [1]\nopen_file = open('x', 'w')",
        "a.append(2)\nprint(b, twice(3), j.dumps(a))",
        "1/0\n",
        "del b\na = 5",
        "'b' in globals(), a, twice(4)",
    )
    result = script_agent(home, *codes, python=KEEPS).run_sync("Go.")
    texts = shown(result)
    assert "Variables not kept: open_file (TextIOWrapper)" in texts[0]
    assert texts[1] == "[1, 2] 6 [1, 2]"
    assert texts[4] == "(False, 5, 8)"
    assert [file.name for file in result.files] == ["x"]  # they are no files of the run
    assert "NameError" in shown(script_agent(home, "a = 1", "a").run_sync("Go."))[1]  # by default nothing is kept


def test_variables_that_are_too_large_take_the_place_of_earlier_ones(home: Path) -> None:
    codes = ("a = 1", "big = bytes(60_000_000)", "'a' in globals(), 'big' in globals()")
    texts = shown(script_agent(home, *codes, python=KEEPS).run_sync("Go."))
    assert "they have 60,000," in texts[1]
    assert texts[1].endswith("No variables are kept for the next call.")
    assert texts[2] == "(False, False)"


async def test_variables_that_cannot_be_read_are_lost_and_the_model_is_told(home: Path) -> None:
    await script_agent(home, "a = 1", "a", python=KEEPS).run("Go.", run_id="run")
    [kept] = [file for event in events_of(home, "run") for file in getattr(event, "files", ()) if file["name"]][:1]
    assert kept["hidden"]
    close_stores()
    with closing(sqlite3.connect(home / "journal.sqlite3")) as db, db:  # as another version of Python would write them
        for row, body in db.execute("SELECT place, body FROM events").fetchall():
            changed = body.replace(b"variables.none", b"variables.bubblewrap")
            db.execute("UPDATE events SET body=?, crc=NULL WHERE place=?", (changed, row))
    result = await script_agent(home, "a = 1", "'a' in globals()", python=KEEPS).fork("run", at=2)
    assert shown(result)[1] == "False\n\nThe variables of earlier calls are lost: they were kept by another isolation."


# ------------------------------------------------------------------------------------------------ programs

PROGRAMS = (
    """
rows = open("crew.csv").read().split()[1:]
with open("sum.txt", "w") as f:
    for row in rows:
        f.write(row + ";")
len(rows)
""",
    """
made = report(kind="one")
open("sum.txt", "a").write(open(made["file"]).read())
open("sub.txt", "w").write("x")
len(rows)
""",
    """
import os
from pathlib import Path
Path("out").mkdir()
os.rename("sub.txt", "out/表.txt")
sorted(os.listdir(".")), rows[0], Path("sum.txt").read_text()
""",
)


def program_agent(home: Path, *programs: str) -> Agent:
    def script(view: Any) -> Any:
        done = sum(str(message["content"]).startswith("Result:\n") for message in view.messages)
        code = programs[done] if done < len(programs) else "final_answer('done')"
        return f"Next.\n```python\n{code}\n```\n"

    return Agent(ScriptedClient(script, by="question"), [report], dialect="code", home=home)


def results(result: Any) -> list[str]:
    texts = [output.result for output in result.tool_outputs if output.telemetry.tool_name == "run_program"]
    return [str(text) for text in texts][:-1]


async def test_programs_read_and_write_the_same_files(home: Path, crew: Path) -> None:
    pytest.importorskip("pydantic_monty")
    whole = await program_agent(home, *PROGRAMS).run("Count.", files=[crew], run_id="run")
    assert {file.name: file.text for file in whole.files} == {
        "sum.txt": "Ada,36;Blaise,39;1",
        "one.txt": "1",
        "out/表.txt": "x",
    }
    assert results(whole)[0] == "2\nFiles written: sum.txt (text/plain, 17 bytes)"
    assert results(whole)[2].startswith("(['crew.csv', 'one.txt', 'out', 'sum.txt'], 'Ada,36', 'Ada,36;Blaise,39;1')")
    assert "A program can open them by their names." in whole.messages[0].text + whole.messages[1].text
    for kept in cuts(home, 3):
        again = await program_agent(home, *PROGRAMS).resume("run")
        assert (again.files, results(again)[-1]) == (whole.files, results(whole)[-1]), kept


async def test_programs_stay_within_the_files_and_limits_of_a_run(home: Path, crew: Path) -> None:
    pytest.importorskip("pydantic_monty")
    programs = (
        "open('crew.csv', 'w').write('gone')",
        "open('../../etc/passwd').read()",
        "open('nul', 'w').write('x')",
        "from pathlib import Path\nPath('a').write_text('x')\n1 / 0",
        "f = open('big', 'w')\nfor n in range(60):\n    f.write('x' * 1_000_000)",
        "import os\nos.remove('crew.csv')",
    )
    result = await program_agent(home, *programs).run("Go.", files=[crew])
    errors = [output.telemetry.error_message or "" for output in result.tool_outputs]
    assert "'crew.csv' is a file of the task, which stays as it is" in errors[0]
    assert "No such file or directory: '/etc/passwd'" in errors[1]
    assert "Windows has a device of that name" in errors[2]
    assert "ZeroDivisionError" in errors[3]
    assert "a file may have 50.0 MB" in errors[4]
    assert "stays as it is" in errors[5]
    assert result.files == ()


# ------------------------------------------------------------------------------------------------ the command line


def test_the_command_line_lists_and_writes_files(home: Path, tmp_path: Path) -> None:
    run_id = report_agent(home, "one", "picture").run_sync("Go.").run_id
    assert here("runs", "files", run_id).out.startswith("one.txt  text/plain  1 byte\n")
    out = tmp_path / "out"
    assert here("runs", "files", run_id, "--out", str(out)).out == f"3 files in {out}.\n"
    assert (out / "chart.png").read_bytes() == PNG
    (out / "one.txt").write_text("mine")
    refused = here("runs", "files", run_id, "one.txt", "-o", str(out))
    assert (refused.code, refused.sentence.endswith("Add --yes to replace it, or pass another folder.")) == (2, True)
    assert (out / "one.txt").read_text() == "mine"
    replaced = here("runs", "files", run_id, "one.txt", "-o", str(out), "--yes", "--json").json
    assert (replaced["written"], (out / "one.txt").read_text()) == ([str(out / "one.txt")], "1")
    unknown = here("runs", "files", run_id, "../x")
    assert (unknown.code, "has no file '../x'. It has: one.txt, " in unknown.sentence) == (2, True)
    assert here("runs", "files").code == 2


def test_the_media_type_of_a_file_cannot_write_to_the_terminal(home: Path) -> None:
    @tool(on_crash="rerun")
    def make() -> File:
        """Make a file."""
        return File("a.txt", "1", media_type="text/\x1b[2Jplain")

    agent = Agent(ScriptedClient([Turn("", calls=[call("make")]), answer("done")]), [make], home=home)
    assert here("runs", "files", agent.run_sync("Go.").run_id).out == "a.txt  text/[2Jplain  1 byte\n"


def test_exported_runs_have_their_files(any_home: Home, tmp_path: Path) -> None:
    from closeout.journal.copying import copy_runs

    run_id = report_agent(any_home, "one").run_sync("Go.").run_id
    close_stores()
    other = open_store(tmp_path / "other")
    assert copy_runs(any_home, other) == 1
    assert other.content(next(open_files(other, run_id))["sha256"]) == b"1"


def open_files(store: Any, run_id: str) -> Any:
    return (file for row in store.rows(run_id) if isinstance(row.event, ev.ToolFinished) for file in row.event.files)


async def test_what_an_mcp_server_hands_over_becomes_a_file_and_is_there_after_a_kill(home: Path) -> None:
    server = {
        "name": "everything",
        "command": sys.executable,
        "args": [str(Path(__file__).parent / "mcp_servers" / "everything.py")],
    }
    look = call("run_python", code="import os; print(sorted(os.listdir()))")

    def agent() -> tuple[Agent, ScriptedClient]:
        def script(view: RequestView) -> Any:
            if "['image.png']" in view.text:
                return answer("done")
            return look if "image.png" in view.text else call("picture")

        client = ScriptedClient(script)
        return Agent(client, [run_python], mcp_servers=[server], home=home), client

    first, client = agent()
    result = await first.run("Draw.", run_id="r")
    assert [file.name for file in result.files] == ["image.png"]
    assert (result.answer, len(client.requests)) == ("done", 3)
    cut_after(home, "ToolFinished")
    again, client = agent()
    resumed = await again.resume("r")
    assert resumed.files[0].data == result.files[0].data
    assert (resumed.answer, len(client.requests)) == ("done", 2)


def test_parts_of_an_mcp_result_are_kept_while_the_run_has_room() -> None:
    data = base64.b64encode(b"%PDF-1").decode()
    resource = {"uri": "file:///a/%E6%8A%A5.pdf", "mimeType": "application/pdf", "blob": data}
    part = {"type": "resource", "resource": resource}
    sound = {"type": "audio", "mimeType": "audio/x-wav", "data": data}
    view = FileView({"报.pdf": File("报.pdf", "x")})
    output = McpResult((part, part, sound, {"type": "image", "data": "?"})).output(view)
    assert [file.name for file in output.files] == ["报-2.pdf", "报-3.pdf", "audio.wav"]
    assert [each.get("file") for each in output.result] == ["报-2.pdf", "报-3.pdf", "audio.wav", None]
    full = FileView({}, size=200_000_000)
    assert McpResult((part,)).output(full).files == ()
