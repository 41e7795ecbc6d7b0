"""`search_documents` and `read_document`: found by words of any language, with their source, inside the folder only."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout.errors import ToolError, UsageError
from closeout.results.html_text import main_text, plain_text
from closeout.tools.builtin import document_index as index_module
from closeout.tools.builtin import document_text as extract_module
from closeout.tools.builtin import document_tools, documents, openai_embeddings
from closeout.tools.builtin.document_index import PASSAGE_CHARACTERS, DocumentIndex, cut
from closeout.tools.builtin.document_text import decode_text, extract_text
from raw_server import Seen, http, raw_server

EXAMPLES = Path(__file__).parents[1] / "examples" / "documents"


@pytest.fixture
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search looks through the folder each time, as it does after two seconds."""
    monkeypatch.setattr(index_module, "FRESH_SECONDS", 0.0)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


async def search(folder: Path, query: str, **more: Any) -> Any:
    return await document_tools(folder)[0].call({"query": query, **more})


async def read(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = await document_tools(folder)[1].call({"name": name, **more})
    return found


# ------------------------------------------------------------------------------------------------ the example folder


@pytest.mark.parametrize(
    ("query", "source", "holds"),
    [
        ("Rideau Canal opening", "rideau-canal.md", "30 May 1832"),
        ("opening of the Panama Canal", "panama-canal.md", "15 August 1914"),
        ("when was the Suez Canal opened?", "suez-canal.md", "1869"),
        ("Humber Bridge main span", "great-bridges.csv", "Humber Bridge,England,1981,1410"),
        ("Makalu first ascent", "high-mountains.md", "15 May 1955"),
        ("Danube length", "long-rivers.json", "2850"),
        ("who built the first pound lock", "canal-locks.html", "Qiao Weiyue"),
        ("Bell Rock lighthouse height", "lighthouses.txt", "35 m high"),
        ("大运河有多长", "京杭大运河.md", "1794公里"),
        ("通惠河是哪一年开通的", "京杭大运河.md", "1293年"),
        ("邗沟", "京杭大运河.md", "公元前486年"),
        ("漕", "京杭大运河.md", "漕船"),
    ],
)
async def test_the_passage_that_answers_comes_first(query: str, source: str, holds: str) -> None:
    best = (await search(EXAMPLES, query))[0]
    assert best["source"].startswith(source)
    assert holds in best["text"]


def test_a_document_whose_whole_title_is_asked_for_comes_before_those_that_only_mention_it(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Orm Archers\n\nThe Orm Archers were founded in the year 1906. They have 57 members.\n"
    )
    (tmp_path / "b.md").write_text(
        "# Orm\n\nOrm is a village of 940 people at the foot of a hill. It was founded in 1618.\n"
    )
    index = DocumentIndex(tmp_path)
    assert [hit.title for hit in index.search("Orm founding year", 2)] == ["Orm", "Orm Archers"]
    assert index.search("Orm Archers founding year", 2)[0].title == "Orm Archers"


async def test_a_question_about_two_things_brings_both() -> None:
    question = "How many years passed between the opening of the Rideau Canal and the opening of the Panama Canal?"
    text = " ".join(passage["text"] for passage in await search(EXAMPLES, question))
    assert "1832" in text
    assert "1914" in text


async def test_no_single_document_answers_the_question_alone() -> None:
    both = [file.name for file in EXAMPLES.iterdir() if {"1832", "1914"} <= set(file.read_text("utf-8").split())]
    assert both == []


async def test_plain_results_are_the_text_of_a_passage_for_every_two_words_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "LONGEST_PLAIN", 10_000)
    plain, _ = document_tools(EXAMPLES, plain=True)
    first, second = await search(EXAMPLES, "Panama Canal opening year", limit=2)
    both = "\n".join(f"{each['title']}: {' '.join(each['text'].split())}" for each in (first, second))
    assert await plain.call({"query": "Panama Canal opening year"}) == both
    best = (await search(EXAMPLES, "Rideau skating"))[0]
    assert await plain.call({"query": "Rideau skating"}) == f"{best['title']}: {' '.join(best['text'].split())}"
    assert "results" in await plain.call({"query": "xylophone"})


async def test_the_paragraphs_of_a_plain_passage_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Orm\n\nOrm has 940\npeople.\n\nIts bell is\nold.\n\n- 2 inns\n- 3 mills\n\n全长\n1794\n公里，运\n河\n"
    )
    search, _ = document_tools(tmp_path, plain=True)
    found = await search.call({"query": "Orm people bell inns mills 全长"})
    assert found == "Orm has 940 people. Its bell is old.\n- 2 inns\n- 3 mills\n全长 1794 公里，运河"


async def test_a_plain_passage_that_names_its_subject_goes_without_its_title(tmp_path: Path) -> None:
    plain, _ = document_tools(
        write(tmp_path, {"a.md": "# Orm Canal\n\nThe Orm canal is old.\n## Locks\n\nNine."}), plain=True
    )
    assert await plain.call({"query": "old"}) == "The Orm canal is old."
    assert await plain.call({"query": "nine"}) == "Orm Canal › Locks: Nine."


async def test_a_passage_names_its_subject_and_its_place() -> None:
    best = (await search(EXAMPLES, "Rideau Canal skating rink", limit=1))[0]
    assert list(best) == ["title", "text", "source"]
    assert best["title"] == "Rideau Canal › Today"
    whole = await read(EXAMPLES, best["source"])  # the source of a passage is a name to read on with
    assert best["text"] in whole["text"]


# ------------------------------------------------------------------------------------------------ searching


async def test_words_are_found_in_other_forms_and_accents(tmp_path: Path) -> None:
    write(
        tmp_path, {"a.txt": "The bridges were being constructed near the Café Coruña.", "b.txt": "Nothing of the kind."}
    )
    for query in ("bridge", "CONSTRUCTING", "cafe", "coruna"):
        assert (await search(tmp_path, query))[0]["source"] == "a.txt:1-1"


async def test_what_only_shares_a_common_word_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {f"{n}.md": f"# Canal {n}\n\nA canal with number {n}." for n in range(20)})
    write(tmp_path, {"x.md": "# Zanzibar\n\nThe zanzibar canal treaty."})
    assert [passage["source"] for passage in await search(tmp_path, "zanzibar canal treaty")] == ["x.md:3-3"]


@pytest.mark.parametrize(
    "hostile", ['"', "AND OR NOT", "title:x", "a* ^b -c", "NEAR(a b)", ")(", "'; DROP TABLE words;--"]
)
async def test_search_syntax_is_text(tmp_path: Path, hostile: str) -> None:
    write(tmp_path, {"a.txt": "plain words"})
    await search(tmp_path, hostile)
    assert (await search(tmp_path, f"plain {hostile}"))[0]["source"] == "a.txt:1-1"


@given(st.text(max_size=40))
@settings(max_examples=60)
def test_any_query_is_answered(query: str) -> None:
    index = _SHARED.setdefault("index", DocumentIndex(EXAMPLES))
    index.search(query, 3)


_SHARED: dict[str, DocumentIndex] = {}


async def test_nothing_found_says_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, {"a.md": "# Tea in China\n\nLeaves."})
    found = await search(tmp_path, "xylophone")
    assert found["results"] == []
    assert "Tea in China" in found["note"]
    (tmp_path / "a.md").unlink()
    assert "no documents" in (await search(tmp_path, "tea"))["note"]


@pytest.mark.usefixtures("always_looks")
def test_changes_in_the_folder_are_seen(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "alpha", "b.txt": "beta"})
    read_now: list[str] = []
    index = DocumentIndex(tmp_path, progress=lambda done, total, name: read_now.append(f"{done}/{total} {name}"))
    assert [hit.path for hit in index.search("alpha", 5)] == ["a.txt"]
    assert read_now == ["1/2 a.txt", "2/2 b.txt"]
    write(tmp_path, {"a.txt": "gamma gamma", "sub/c.txt": "delta"})
    (tmp_path / "b.txt").unlink()
    assert index.search("alpha", 5) == index.search("beta", 5) == []
    assert {hit.path for hit in index.search("gamma delta", 5)} == {"sub/c.txt", "a.txt"}
    assert read_now[2:] == ["1/2 a.txt", "2/2 sub/c.txt"]


def test_a_cache_file_spares_reading_again(tmp_path: Path) -> None:
    folder, cache = write(tmp_path / "docs", {"a.txt": "alpha"}), tmp_path / "cache" / "docs.sqlite"
    first = DocumentIndex(folder, cache=cache)
    assert first.search("alpha", 1)
    first.close()
    read_now: list[str] = []
    second = DocumentIndex(folder, cache=cache, progress=lambda *told: read_now.append(told[2]))
    assert second.search("alpha", 1)
    assert read_now == []
    second.close()


@pytest.mark.parametrize("spoiled", ["garbage", "layout", "folder"])
def test_a_cache_that_does_not_fit_is_rebuilt(tmp_path: Path, spoiled: str) -> None:
    folder, cache = write(tmp_path / "docs", {"a.txt": "alpha"}), tmp_path / "docs.sqlite"
    if spoiled == "garbage":
        cache.write_bytes(b"no database at all" * 100)
    else:
        other = DocumentIndex(write(tmp_path / "other", {"z.txt": "omega"}), cache=cache)
        other.search("omega", 1)
        other.close()
        if spoiled == "layout":
            connection = sqlite3.connect(cache)
            connection.execute("PRAGMA user_version = 99")
            connection.close()
    index = DocumentIndex(folder, cache=cache)
    assert [hit.path for hit in index.search("alpha omega", 5)] == ["a.txt"]
    index.close()


def test_many_threads_share_one_index(tmp_path: Path) -> None:
    write(tmp_path, {f"{n}.txt": f"word{n}" for n in range(20)})
    tool, _ = document_tools(tmp_path)

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(tool.call({"query": f"word{n}"}) for n in range(20)))

    assert [found[0]["source"] for found in asyncio.run(all_at_once())] == [f"{n}.txt:1-1" for n in range(20)]


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(UsageError, match="no-such-folder does not exist"):
        document_tools("no-such-folder")
    with pytest.raises(UsageError, match="is a file"):
        document_tools(__file__)


# ------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    "name", ["rideau-canal.md", "RIDEAU-CANAL.MD", "./rideau-canal.md", "rideau-canal", "Rideau Canal", "rideau"]
)
async def test_a_document_is_found_by_its_names(name: str) -> None:
    found = await read(EXAMPLES, name)
    assert found["title"] == "Rideau Canal"
    assert found["source"] == "rideau-canal.md:1-22"
    assert "page" not in found


@pytest.mark.parametrize("name", ["Grayback Hut", "Grayback Hut number of beds"])
async def test_a_partial_name_of_one_document_is_enough(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"a.md": "# Grayback\n\nGrayback Hut has 26 beds.", "b.md": "# Storhorn\n\nStorhorn Hut has 40."})
    found = await read(tmp_path, name)
    assert found["title"] == "Grayback"
    assert found["note"] == f"No document is called {name!r}. This one fits it best."
    for doubtful in ("Hut", "Grayback Inn"):
        with pytest.raises(ToolError, match="no document"):
            await read(tmp_path, doubtful)


async def test_an_unknown_or_doubtful_name_is_answered_with_names(tmp_path: Path) -> None:
    write(tmp_path, {"a/notes.md": "# One", "b/notes.md": "# Two", "tea.md": "# Three"})
    with pytest.raises(ToolError, match=r"can mean: a/notes.md, b/notes.md"):
        await read(tmp_path, "notes.md")
    with pytest.raises(ToolError, match=r"no document 'teas.md'. Did you mean tea.md"):
        await read(tmp_path, "teas.md")
    assert (await read(tmp_path, "b/notes.md"))["title"] == "Two"


async def test_long_documents_have_pages(tmp_path: Path) -> None:
    lines = [f"line {n} " + "x" * 90 for n in range(1, 301)]
    write(tmp_path, {"long.txt": "\n".join(lines), "one-line.txt": "y" * 12_000})
    pages = [await read(tmp_path, "long.txt", page=n) for n in range(1, 7)]
    assert [page["page"] for page in pages] == [f"{n} of 6" for n in range(1, 7)]
    assert "\n".join(page["text"] for page in pages) == "\n".join(lines)
    assert (await read(tmp_path, "long.txt:280-285"))["page"] == "6 of 6"
    assert (await read(tmp_path, "one-line.txt"))["page"] == "1 of 3"
    with pytest.raises(ToolError, match="has 6 pages; page 7 does not exist"):
        await read(tmp_path, "long.txt", page=7)


async def test_no_way_leads_out_of_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "docs", {"a.txt": "inside"})
    secret = write(tmp_path, {"secret.txt": "treasure"}) / "secret.txt"
    (folder / "link.txt").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "alias.txt").symlink_to(folder / "a.txt")
    os.mkfifo(folder / "pipe.txt")
    assert (await search(folder, "treasure"))["results"] == []
    for name in (
        "../secret.txt",
        str(secret),
        "link.txt",
        "up/secret.txt",
        "..",
        "a.txt/../../secret.txt",
        "a\x00.txt",
    ):
        with pytest.raises(ToolError, match="no document"):
            await read(folder, name)
    assert (await read(folder, "alias.txt"))["text"] == "inside"
    search_tool, read_tool = document_tools(folder)
    await search_tool.call({"query": "inside"})
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to(secret)  # swapped after it was listed
    with pytest.raises(ToolError, match=r"no longer exists|no document"):
        await read_tool.call({"name": "a.txt"})


async def test_hidden_and_binary_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {".env": "hidden word", ".git/config": "hidden word", "code.py": "visible = 'word'"})
    (tmp_path / "image.bin").write_bytes(b"word\x00\x01word")
    assert [passage["source"] for passage in await search(tmp_path, "word")] == ["code.py:1-1"]


# ------------------------------------------------------------------------------------------------ kinds of files


async def test_office_and_pdf_files_are_read(tmp_path: Path) -> None:
    import docx
    import openpyxl

    document = docx.Document()
    document.add_heading("Lighthouse log", level=1)
    document.add_paragraph("The lamp was lit at dusk.")
    table = document.add_table(rows=2, cols=2)
    for row, values in zip(table.rows, [("keeper", "years"), ("Flannan", "12|13")], strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = value
    document.save(str(tmp_path / "log.docx"))
    book = openpyxl.Workbook()
    book.active.title = "Tides"
    for row in (["port", "metres"], ["Saint-Malo", 13.5], [None, None]):
        book.active.append(row)
    book.save(tmp_path / "tides.xlsx")
    (tmp_path / "map.pdf").write_bytes(_pdf("Chart of the Skerries"))

    text = (await read(tmp_path, "log.docx"))["text"]
    assert text.startswith("# Lighthouse log")
    assert "| keeper | years |\n| --- | --- |\n| Flannan | 12\\|13 |" in text
    assert "| Saint-Malo | 13.5 |" in (await read(tmp_path, "tides.xlsx"))["text"]
    found = await search(tmp_path, "Skerries chart")
    assert found[0]["source"].startswith("map.pdf")
    assert found[0]["title"].endswith("Page 1")


def _pdf(words: str) -> bytes:
    """The smallest PDF with one page of text."""
    stream = f"BT /F1 12 Tf 72 700 Td ({words}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 %s >> >> >>"
        % b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return body + b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        table, len(body),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["broken.pdf", "broken.docx", "broken.xlsx"])
async def test_a_damaged_file_is_reported_and_affects_no_other(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 not really")
    write(tmp_path, {"a.txt": "fine words"})
    assert (await search(tmp_path, "fine"))[0]["source"] == "a.txt:1-1"
    with pytest.raises(ToolError, match=name):
        await read(tmp_path, name)
    assert name in (await search(tmp_path, "xylophone"))["note"]


async def test_a_sheet_that_claims_to_be_endless_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    sheet = (
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{}<sheetData>'
        '<row r="1"><c r="A1"><v>17</v></c></row><row r="{}"><c r="A{}"><v>18</v></c></row></sheetData></worksheet>'
    )
    for name, size, last in (("wide.xlsx", '<dimension ref="A1:XFD1048576"/>', 1_048_576), ("deep.xlsx", "", 10**12)):
        openpyxl_save(tmp_path / name)
        rewrite(tmp_path / name, "xl/worksheets/sheet1.xml", sheet.format(size, last, last))
        assert "| 17 |" in (await read(tmp_path, name))["text"]


async def test_a_cell_that_claims_any_width_and_merged_cells_are_read(tmp_path: Path) -> None:
    import docx

    document = docx.Document()
    table = document.add_table(rows=3, cols=3)
    for number, row in enumerate(table.rows):
        for cell, word in zip(row.cells, ("keeper", "lamp", "oil"), strict=True):
            cell.text = f"{word} {number}"
    table.cell(0, 0).merge(table.cell(2, 0))
    document.save(str(tmp_path / "log.docx"))
    merged = "keeper 0 keeper 1 keeper 2"
    text = (await read(tmp_path, "log.docx"))["text"]
    assert [line for line in text.splitlines() if "lamp" in line] == [
        f"| {merged} | lamp {number} | oil {number} |" for number in range(3)
    ]
    with zipfile.ZipFile(tmp_path / "log.docx") as archive:
        body = archive.read("word/document.xml").decode()
    wide = body.replace("<w:tcPr>", '<w:tcPr><w:gridSpan w:val="100000000"/>', 1)
    rewrite(tmp_path / "log.docx", "word/document.xml", wide)
    assert "lamp 2" in (await read(tmp_path, "log.docx"))["text"]


async def test_a_file_that_takes_too_long_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_module, "MAX_SECONDS", 0.0)
    openpyxl_save(tmp_path / "tides.xlsx")
    assert "cut here: a file is read for at most" in (await read(tmp_path, "tides.xlsx"))["text"]


async def test_a_document_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import docx

    monkeypatch.setattr(extract_module, "MAX_MARKUP_BYTES", 100_000)
    docx.Document().save(str(tmp_path / "log.docx"))
    rewrite(tmp_path / "log.docx", "word/document.xml", "<w:p/>" * 20_000)
    with pytest.raises(ToolError, match=r"log\.docx unpacks to"):
        await read(tmp_path, "log.docx")


def openpyxl_save(path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(["port", "metres"])
    book.save(path)


def rewrite(path: Path, member: str, text: str) -> None:
    """Put another text in the place of one member of a zip archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, member: text.encode()}.items():
            archive.writestr(name, content)


async def test_a_missing_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "map.pdf").write_bytes(_pdf("x"))
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(ToolError, match=r"pip install 'closeout\[documents\]'"):
        await read(tmp_path, "map.pdf")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_chinese_text_of_any_usual_encoding_is_read(encoding: str) -> None:
    text = "大运河北起北京，南到杭州。The Grand Canal."
    assert decode_text(text.encode(encoding)) == text


def test_western_text_is_not_taken_for_chinese() -> None:
    assert decode_text("Café Müller, naïve façade".encode("cp1252")) == "Café Müller, naïve façade"


def test_a_long_head_over_short_rows_does_not_make_the_index_many_times_the_table() -> None:
    table = "h" * 700 + "\n" + "a\n" * 20_000
    assert sum(len(passage.text) for passage in cut(table, table=True)) < 3 * len(table)


def test_a_table_keeps_its_head_in_every_passage() -> None:
    rows = "\n".join(f"| bridge {n} | {1800 + n} |" for n in range(100))
    passages = list(cut(f"# Bridges\n\n| name | year |\n|---|---|\n{rows}"))
    assert len(passages) > 2
    assert all(passage.text.startswith("| name | year |\n|---|---|\n") for passage in passages)
    assert all(passage.heading == "Bridges" for passage in passages)
    assert passages[-1].last_line == 104


def test_an_indented_hash_is_not_a_heading_and_loses_nothing() -> None:
    (passage,) = cut("To count:\n\n    # add one\n    n = n + 1\n")
    assert "# add one\n    n = n + 1" in passage.text


def test_a_line_longer_than_a_passage_is_within_the_lines_of_each_passage_with_a_part_of_it() -> None:
    lines = ["Short.", " ".join(f"Sentence {number}." for number in range(200)), "End."]
    for passage in cut("\n".join(lines)):
        covered = "\n".join(lines[passage.first_line - 1 : passage.last_line])
        assert all(part in covered for part in passage.text.split("\n")), passage


@given(st.text(alphabet="ab #|\n-。中文.x\x00\ud800", max_size=400))
@settings(max_examples=100)
def test_cutting_loses_no_words_and_keeps_to_the_lines(text: str) -> None:
    passages = list(cut(text))
    lines = text.splitlines()
    for passage in passages:
        assert 1 <= passage.first_line <= passage.last_line <= len(lines)
        assert len(passage.text) <= 3 * PASSAGE_CHARACTERS
    told = "".join(f"{passage.heading}\n{passage.text}" for passage in passages)
    for line in lines:
        if not line.startswith("#"):
            for word in line.split():
                assert word in told


# ------------------------------------------------------------------------------------------------ HTML


def test_html_gives_its_main_text_with_headings_and_tables() -> None:
    html = (EXAMPLES / "canal-locks.html").read_text("utf-8")
    for text in (plain_text(html), main_text(html)):
        assert "# How a canal lock works" in text
        assert "| Caen Hill, England | 29 | 72 m |" in text
        assert "max-width" not in text
        assert "Written for the example folder" not in text


@pytest.mark.parametrize(
    "hostile",
    ["<" * 200_000, "<!--" * 100_000, "<a " * 100_000, "<p><" * 50_000, "<script>" * 50_000, "</" * 100_000,
     "&#x;" * 100_000, "<ul><li>" * 50_000, "<nav>" * 50_000 + "</aside>" * 50_000, "\ud800<b>\x00", "<title>" * 50_000,
     "<![CDATA[" * 50_000, f"<title>{' ' * 501}" * 5_000],
)  # fmt: skip
def test_hostile_html_is_read_in_linear_time(hostile: str) -> None:
    assert isinstance(plain_text(hostile), str)
    assert plain_text(f"<p>before</p>{hostile}").startswith("before")


# ------------------------------------------------------------------------------------------------ what is not read


async def test_databases_and_a_journals_files_are_never_opened(tmp_path: Path) -> None:
    names = ("journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm", "journal.locks", "journal.synced", "a.db")
    for name in names:
        (tmp_path / name).write_text("SQLite format 3 secret", "utf-8")
    (tmp_path / "note.txt").write_text("a secret note", "utf-8")
    opened: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(tmp_path)):
            opened.append(Path(arguments[0]).name)

    sys.addaudithook(audit)
    index = DocumentIndex(tmp_path)
    assert [document.path for document in index.documents()] == ["note.txt"]
    assert set(opened) == {"note.txt"}
    with pytest.raises(ToolError, match="is a database"):
        extract_text(tmp_path / "journal.sqlite3")


def test_a_small_docx_that_unpacks_to_very_much_is_refused_with_the_bound_and_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.docx"
    body = "<w:p><w:r><w:t>x</w:t></w:r></w:p>" * 700_000
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f"<w:document><w:body>{body}</w:body></w:document>")
    assert file.stat().st_size < 100_000
    unpacked: list[object] = []
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda archive, name, *rest: unpacked.append(name))
    with pytest.raises(ToolError, match=r"unpacks to \d+ times its size; at most 250 times is read"):
        extract_text(file)
    assert unpacked == []


def test_a_long_plain_passage_loses_the_ends_that_have_no_word_of_the_query() -> None:
    first = "Many people worked for years in the mud and in the rain. " * 4
    last = " It had cost more than anybody had expected at the beginning." * 4
    told = "The canal was opened on 30 May 1832."
    trimmed = documents._trimmed(first + told + last, "Rideau Canal opening")
    assert told in trimmed
    assert len(trimmed) <= documents.LONGEST_PLAIN
    assert documents._trimmed(first + told + last, "who paid") == first + told + last
    assert documents._trimmed(told + " It is short.", "opening") == told + " It is short."


# ------------------------------------------------------------------------------------------------ found by meaning

MEANINGS = {"automobile": 0, "car": 0, "bread": 1, "loaf": 1}


def embed_meanings(texts: Sequence[str]) -> list[list[float]]:
    meant = [[MEANINGS.get(word.strip(".").lower()) for word in text.split()] for text in texts]
    return [[each.count(0), each.count(1), 0.01] for each in meant]


async def test_passages_are_found_by_meaning_beside_their_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"red.md": "The automobile was red.", "baker.md": "The bread was warm.", "car.md": "A car key."})
    embedded: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        embedded.extend(texts)
        return embed_meanings(texts)

    search, _ = document_tools(tmp_path, embed=embed)

    async def found(query: str) -> list[str]:
        return [each["source"].partition(":")[0] for each in await search.call({"query": query, "limit": 2})]

    assert await found("car") == ["car.md", "red.md"]  # both rankings have the first
    assert (await found("warm loaf"))[0] == "baker.md"
    assert len(embedded) == 3 + 2, "each passage is embedded once"
    broken, _ = document_tools(tmp_path, embed=lambda _: [])
    assert [each["source"] for each in await broken.call({"query": "car"})] == ["car.md:1-1"]
    assert "searched by words only: embed failed: ValueError" in caplog.text


async def test_an_openai_compatible_endpoint_embeds(tmp_path: Path) -> None:
    write(tmp_path, {"red.md": "The automobile was red."})

    def reply(number: int, seen: Seen) -> bytes:
        vectors = embed_meanings(seen.sent[number]["input"])
        return http({"data": [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]})

    async with raw_server(reply) as server:
        embed = openai_embeddings("e5", base_url=server.url, api_key="k")
        search, _ = document_tools(tmp_path, embed=embed)
        assert [each["source"] for each in await search.call({"query": "car"})] == ["red.md:1-1"]
    assert "/embeddings" in server.heads[0]
    assert "Bearer k" in server.heads[0]
    assert server.sent[0]["model"] == "e5"
