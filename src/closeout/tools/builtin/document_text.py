"""Read a file as text: plain text of any usual encoding, HTML, CSV, JSON, PDF, Word, Excel.

The readers of PDF, Word and Excel files come with the extra `documents` and are imported on first use.
"""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

from closeout.errors import ToolError
from closeout.results.html_text import html_title, main_text

__all__ = [
    "MAX_FILE_BYTES",
    "TABLE_SUFFIXES",
    "decode_text",
    "extract_text",
    "is_database_file",
    "lacks_reader",
    "looks_like_text",
]

MAX_FILE_BYTES = 100_000_000
# An Office file is a zip archive: the bytes that it may unpack to.
MAX_UNPACKED_BYTES = 400_000_000
# Bytes of a Word document's XML, which is held in memory whole, at up to 40 times its size.
MAX_MARKUP_BYTES = 50_000_000
MAX_CHARACTERS = 20_000_000  # Characters of extracted text.
MAX_EXPANSION = 250  # The ratio to which an Office file over MAX_SMALL may unpack; real ones stay under 50.
MAX_SMALL = 4_000_000  # bytes
# Seconds for one file. The text that was read by then is returned: a small file can claim to be endless.
MAX_SECONDS = 20.0
# Cells of a sheet, empty ones included: a sheet may claim 16,384 columns for each of a million rows.
MAX_CELLS = 20_000_000
_FORMULA = re.compile(rb"<f[ >]")
ROW_COST = 16  # a row without cells takes as long as so many of them
MAX_SPAN = 63  # columns that one cell of a Word table may take: Word's own limit
# A merged cell's text up to this length is repeated in each place; longer text is written once.
REPEATED_CHARACTERS = 1_000
TABLE_SUFFIXES = frozenset({".csv", ".tsv"})

_Pieces = Iterator[str | None]  # None: nothing of a blank row or page, but time has passed
_DATABASE = re.compile(r"(?i)\.(?:db|db3|sqlite|sqlite3)(?:-(?:wal|shm|journal))?$|^journal\.(?:locks|synced)$")
_HIGH_BYTES = re.compile(rb"[\x80-\xff]+")


def extract_text(path: Path) -> str:
    """Return a file's text, with headings as Markdown writes them. Raises `ToolError` with the reason if it cannot."""
    if is_database_file(path):
        raise ToolError(f"{path.name} is a database and is not read.")
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ToolError(f"{path.name} has {size // 1_000_000} MB; files of up to 100 MB are read.")
        reader = _READERS.get(path.suffix.lower(), _read_plain)
        return reader(path)[:MAX_CHARACTERS].replace("\x00", "")
    except OSError as error:
        raise ToolError(f"{path.name} cannot be read: {error.strerror or error}.") from None


def lacks_reader(path: Path) -> bool:
    """Return whether the reader for a file's kind is not installed."""
    module = _MODULES.get(path.suffix.lower())
    return module is not None and find_spec(module) is None


def is_database_file(path: Path) -> bool:
    """Return whether a file's name says that it belongs to an SQLite database or to a journal.

    Such a file must not be opened: closing it again would release the locks that this process holds on it.
    """
    return _DATABASE.search(path.name) is not None


def looks_like_text(path: Path) -> bool:
    """Return whether a file is worth reading: a known type, or text by its first bytes. Never opens a database."""
    if is_database_file(path):
        return False
    if path.suffix.lower() in _READERS:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(2_048)
    except OSError:
        return False
    return bool(head) and (b"\x00" not in head or head[:2] in (b"\xff\xfe", b"\xfe\xff"))


def decode_text(raw: bytes) -> str:
    """Decode by the byte-order mark, else UTF-8, else GB 18030 if high bytes come in pairs, else Windows-1252."""
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if raw.startswith(mark):
            return raw.decode(encoding, "replace")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start > 0 and error.end >= len(raw) - 3:  # cut in the middle of the last character
            return raw.decode("utf-8", "replace")
    runs = [len(run) for run in _HIGH_BYTES.findall(raw[:200_000])]
    if sum(length > 1 for length in runs) * 2 > len(runs):
        with suppress(UnicodeDecodeError):
            return raw.decode("gb18030")
    return raw.decode("cp1252", "replace")


def _read_plain(path: Path) -> str:
    return decode_text(path.read_bytes())


def _read_html(path: Path) -> str:
    html = _read_plain(path)
    text, title = main_text(html), html_title(html)
    return text if not title or text.lstrip().startswith("#") else f"# {title}\n\n{text}"


def _read_pdf(path: Path) -> str:
    pypdf = _import("pypdf", path, "a PDF")
    with _errors_named(path, "PDF"):
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolError(f"{path.name} is protected with a password and cannot be read.")
        return _joined(_pdf_pages(reader))


def _pdf_pages(reader: Any) -> _Pieces:
    title = (reader.metadata.title if reader.metadata else None) or ""
    if str(title).strip():
        yield f"# {str(title).strip()}\n"
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text()
        yield f"## Page {number}\n\n{text.strip()}\n" if text.strip() else None


def _read_docx(path: Path) -> str:
    docx = _import("docx", path, "a Word document")
    _refuse_bomb(path, MAX_MARKUP_BYTES, (".xml", ".rels"))
    with _errors_named(path, "a Word document"):
        return _joined(_docx_blocks(docx.Document(str(path))))


def _docx_blocks(document: Any) -> _Pieces:
    names = {style.style_id: style.name or "" for style in document.styles}  # the library searches all for each block
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            yield from _docx_table(block)
            continue
        text = block.text.strip()
        if not text:
            yield None
            continue
        style = names.get(block._p.style, "")
        level = "1" if style == "Title" else style.removeprefix("Heading ")
        is_heading = len(level) == 1 and level.isdecimal()
        yield f"{'#' * min(int(level), 6)} {text}\n" if is_heading else f"{text}\n"


def _docx_table(table: Any) -> _Pieces:
    """A line for each row. Merged cells are followed here: the library walks up a column for each of its cells, and
    believes any width.
    """
    from docx.table import _Cell

    above: dict[int, str] = {}  # column → text
    for number, row in enumerate(table._tbl.tr_lst):
        cells: list[str] = []
        columns: dict[int, str] = {}
        for cell in row.tc_lst:
            column = row.grid_before + len(cells)
            text = above.get(column, "") if cell.vMerge == "continue" else _Cell(cell, table).text
            columns[column] = repeated = text if len(text) <= REPEATED_CHARACTERS else ""
            cells += [text] + [repeated] * (min(cell.grid_span, MAX_SPAN) - 1)
        yield _markdown_row(cells)
        if number == 0:
            yield _markdown_row(["---"] * len(cells))
        above = columns
    yield ""


def _read_xlsx(path: Path) -> str:
    openpyxl = _import("openpyxl", path, "an Excel workbook")
    _refuse_bomb(path)
    with (
        _errors_named(path, "an Excel workbook"),
        closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as workbook,
        closing(openpyxl.load_workbook(path, read_only=True)) if _has_formulas(path) else nullcontext() as written,
    ):
        return _joined(_sheets(workbook, written or workbook))


def _has_formulas(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/"):
                with archive.open(name) as sheet:
                    tail = b""
                    while part := sheet.read(1 << 20):
                        if _FORMULA.search(tail + part):
                            return True
                        tail = part[-2:]
    return False


def _sheets(workbook: Any, written: Any) -> _Pieces:
    """The sheets as tables. A formula that no program has calculated is shown in place of its value.

    `workbook` has the values of formulas, `written` the formulas; the two are one workbook if there are no formulas.
    """
    for sheet, source in zip(workbook.worksheets, written.worksheets, strict=True):
        yield f"## {sheet.title}\n"
        if (sheet.max_row or 1) * (sheet.max_column or 1) > MAX_CELLS:
            sheet.reset_dimensions()  # formatted to its end, or wrong: each row is as long as its cells
            source.reset_dimensions()
        first, walked = True, 0
        formulas = repeat(()) if source is sheet else source.iter_rows(values_only=True)
        for row, formulas_of_row in zip(sheet.iter_rows(values_only=True), formulas, strict=False):
            walked += len(row) + ROW_COST
            if walked > MAX_CELLS:
                break
            cells = [
                str(value if value is not None else getattr(formula, "text", formula) or "")
                for value, formula in zip_longest(row, formulas_of_row)
            ]
            if not any(cells):
                yield None
                continue
            yield _markdown_row(cells)
            if first:
                yield _markdown_row(["---"] * len(cells))
            first = False


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _joined(pieces: _Pieces) -> str:
    kept: list[str] = []
    size = 0
    end = time.monotonic() + MAX_SECONDS
    for piece in pieces:
        if piece is not None:
            kept.append(piece)
            size += len(piece)
        if size > MAX_CHARACTERS:
            break
        if time.monotonic() > end:
            kept.append(f"… [cut here: a file is read for at most {MAX_SECONDS:g} s]")
            break
    return "\n".join(kept)


def _refuse_bomb(path: Path, most: int = MAX_UNPACKED_BYTES, suffixes: tuple[str, ...] = ("",)) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(item.file_size for item in archive.infolist() if item.filename.lower().endswith(suffixes))
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise ToolError(f"{path.name} is damaged: it is not the zip archive that its name says.") from None
    if unpacked > most:
        bound = f"{most // 1_000_000} MB"
        raise ToolError(f"{path.name} unpacks to {unpacked // 1_000_000} MB; files of up to {bound} are read.")
    expansion = unpacked // max(path.stat().st_size, 1)
    if unpacked > MAX_SMALL and expansion > MAX_EXPANSION:
        raise ToolError(f"{path.name} unpacks to {expansion} times its size; at most {MAX_EXPANSION} times is read.")


@contextmanager
def _errors_named(path: Path, kind: str) -> Iterator[None]:
    """Turn any error of a library over a damaged file into a `ToolError` that names the file."""
    try:
        yield
    except ToolError:
        raise
    except Exception as error:
        raise ToolError(f"{path.name} cannot be read as {kind}: {error}.") from None


def _import(module: str, path: Path, kind: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ToolError(
            f"{path.name} is {kind}, and the reader for it is not installed: pip install 'closeout[documents]'."
        ) from None


# Libraries of the extra `documents`.
_MODULES = {".pdf": "pypdf", ".docx": "docx", ".xlsx": "openpyxl", ".xlsm": "openpyxl"}
_READERS: dict[str, Callable[[Path], str]] = {
    ".txt": _read_plain, ".md": _read_plain, ".markdown": _read_plain, ".rst": _read_plain, ".json": _read_plain,
    ".jsonl": _read_plain, ".csv": _read_plain, ".tsv": _read_plain, ".html": _read_html, ".htm": _read_html,
    ".xhtml": _read_html, ".pdf": _read_pdf, ".docx": _read_docx, ".xlsx": _read_xlsx, ".xlsm": _read_xlsx,
}  # fmt: skip
