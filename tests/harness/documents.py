"""Write texts as documents, and read these with the converters of files."""

from __future__ import annotations

import tempfile
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path
from xml.sax.saxutils import escape

from closeout.tools.builtin.document_text import extract_text

_SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)


def read_html_file(text: str) -> str:
    """Read a text as an HTML file."""
    return _read("page.html", text.encode("utf-8", "replace"))


def read_docx_paragraphs(text: str) -> str:
    """Read a Word document with a paragraph for each 16 characters of a text."""
    return _read("text.docx", _docx("".join(f"<w:p>{_run(part)}</w:p>" for part in _parts(text))))


def read_docx_rows(text: str) -> str:
    """Read a Word document with a table of a row for each 16 characters of a text."""
    rows = (f"<w:tr><w:tc><w:p>{_run(part)}</w:p></w:tc></w:tr>" for part in _parts(text))
    return _read("rows.docx", _docx(f"<w:tbl>{''.join(rows)}</w:tbl>"))


def read_docx_cells(text: str) -> str:
    """Read a Word document with a table of one row, and a cell for each 16 characters of a text."""
    cells = (f"<w:tc><w:p>{_run(part)}</w:p></w:tc>" for part in _parts(text))
    return _read("cells.docx", _docx(f"<w:tbl><w:tr>{''.join(cells)}</w:tr></w:tbl>"))


def read_xlsx(text: str) -> str:
    """Read an Excel workbook with a row for each 16 characters of a text."""
    rows = (f'<row><c t="inlineStr"><is><t>{_xml(part)}</t></is></c></row>' for part in _parts(text))
    return _read("book.xlsx", _rewritten(_empty_workbook(), "xl/worksheets/sheet1.xml", _SHEET.format("".join(rows))))


def read_pdf(text: str) -> str:
    """Read a PDF of one page with a line for each 16 characters of a text."""
    lines = "".join(f"({part}) Tj T*\n" for part in map(_pdf_string, _parts(text)))
    content = f"BT /F 9 Tf 9 TL 9 800 Td\n{lines}ET".encode("latin-1", "replace")
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 840]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, written in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj%s endobj\n" % (number, written)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(body)
    return _read("page.pdf", body + b"xref\n0 6\n0000000000 65535 f \n" + table + trailer)


def _read(name: str, data: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return extract_text(path)


def _parts(text: str) -> list[str]:
    return [text[at : at + 16] for at in range(0, len(text), 16)]


def _xml(text: str) -> str:
    """The text, escaped; what XML cannot hold is a question mark."""
    return escape("".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text))


def _run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{_xml(text)}</w:t></w:r>'


def _pdf_string(text: str) -> str:
    return "".join(sign if sign.isalnum() or sign in " <>{}[]|.,:#*-" else "?" for sign in text)


def _docx(body: str) -> bytes:
    name = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    return _rewritten(
        _empty_document(), "word/document.xml", f'<w:document xmlns:w="{name}"><w:body>{body}</w:body></w:document>'
    )


def _rewritten(archive: bytes, member: str, text: str) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(archive)) as source, zipfile.ZipFile(out, "w") as target:
        for item in source.infolist():
            target.writestr(item.filename, text if item.filename == member else source.read(item))
    return out.getvalue()


@cache
def _empty_document() -> bytes:
    import docx

    out = BytesIO()
    docx.Document().save(out)
    return out.getvalue()


@cache
def _empty_workbook() -> bytes:
    import openpyxl

    out = BytesIO()
    openpyxl.Workbook().save(out)
    return out.getvalue()
