"""A file as a value: what a tool returns, what a script leaves, and what a run keeps."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from closeout.errors import UsageError
from closeout.shared_files import write_whole

__all__ = [
    "MAX_FILES",
    "MAX_FILE_SIZE",
    "MAX_RUN_SIZE",
    "NO_FILES",
    "File",
    "FileView",
    "check_file_name",
    "media_type_of",
    "safe_file_name",
    "shown_size",
]

MAX_FILES = 200  # files of one run
MAX_FILE_SIZE = 50_000_000  # bytes of one file
MAX_RUN_SIZE = 200_000_000  # bytes of all files of a run, earlier versions of a file included
MAX_NAME = 200  # bytes of a name with its folders: what every system takes, below a folder of some length
_BYTES = "application/octet-stream"
_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})  # Images that models and browsers show.

_FORBIDDEN = frozenset('<>:"|?*\\')  # characters that Windows forbids
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³"}
)
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_BY_SUFFIX = {  # Types that not every version of Python knows.
    ".md": "text/markdown",
    ".jsonl": "application/jsonl",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


class File:
    """A file: its name, its bytes, and the media type of what is in it.

    A tool returns files as they are, in a list, or as values of a dict; they become files of the run. `result.files` of
    a run holds such files too; the bytes of these are read when they are needed.

    ```python
    File("report.md", "# Crew\\n")
    File.table("crew.csv", [{"name": "Ada", "age": 36}])
    File.from_path("chart.png").save("out")
    ```

    Args:
        name: Its name, with `/` between folders: "chart.png", "tables/2026.csv".
        data: Its content. A text is written as UTF-8.
        media_type: What it is, such as "image/png". Defaults to what its first bytes or its suffix say.

    Raises:
        UsageError: Not every system could write a file of this name.
    """

    __slots__ = ("_data", "_load", "_sha256", "hidden", "media_type", "name", "read_only", "size")

    name: str
    media_type: str
    size: int
    read_only: bool  # a file of the task, which scripts may read and not change
    hidden: bool  # for scripts only: the variables that `run_python` keeps

    def __init__(self, name: str, data: bytes | str, *, media_type: str = "") -> None:
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        if not isinstance(data, bytes):
            raise UsageError(f"The content of a file must be bytes or a text, got {type(data).__name__}.")
        self.name = check_file_name(name)
        self._data: bytes | None = data
        self._load: Callable[[str], bytes] | None = None
        self._sha256 = ""
        self.size = len(data)
        self.media_type = media_type or media_type_of(self.name, data)
        self.read_only = self.hidden = False

    @classmethod
    def from_path(cls, path: str | Path, *, name: str = "", media_type: str = "") -> File:
        """Read a file of the disk.

        Args:
            path: Where it is.
            name: Its name in the run. Defaults to the last part of the path.
            media_type: As for `File`.

        Raises:
            UsageError: It cannot be read, or is too large to be kept.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_SIZE + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
        if len(data) > MAX_FILE_SIZE:
            raise UsageError(f"{path} is too large: a run keeps files of up to {shown_size(MAX_FILE_SIZE)}.")
        return cls(name or path.name, data, media_type=media_type)

    @classmethod
    def table(cls, name: str, rows: Iterable[Mapping[str, Any] | Iterable[Any]]) -> File:
        """Write rows as a CSV file, or as JSON if the name ends in .json.

        Args:
            name: The name of the file.
            rows: Dicts, whose keys become the columns, or lists of cells.
        """
        kept = [dict(row) if isinstance(row, Mapping) else list(row) for row in rows]
        if name.lower().endswith(".json"):
            return cls(name, json.dumps(kept, ensure_ascii=False, default=str, indent=1))
        import csv
        import io

        text = io.StringIO(newline="")
        columns = list(dict.fromkeys(key for row in kept if isinstance(row, dict) for key in row))
        writer = csv.writer(text)
        if columns:
            writer.writerow(columns)
        for row in kept:
            writer.writerow([row.get(column, "") for column in columns] if isinstance(row, dict) else row)
        return cls(name, text.getvalue())

    @classmethod
    def recorded(cls, fields: Mapping[str, Any], load: Callable[[str], bytes]) -> File:
        """Return the file that `to_dict` describes.

        Args:
            fields: What `to_dict` returned.
            load: Returns the content with a SHA-256.
        """
        file = cls.__new__(cls)
        file.name = check_file_name(str(fields["name"]))
        file.media_type = str(fields["media_type"])
        file.size = int(fields["size"])
        file.read_only, file.hidden = bool(fields.get("read_only")), bool(fields.get("hidden"))
        file._sha256, file._data, file._load = str(fields["sha256"]), None, load
        return file

    def to_dict(self) -> dict[str, Any]:
        """Return what is known of the file without its content: name, media type, size in bytes and SHA-256."""
        fields = {"name": self.name, "media_type": self.media_type, "size": self.size, "sha256": self.sha256}
        return fields | {flag: True for flag in ("read_only", "hidden") if getattr(self, flag)}

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content, in hexadecimal."""
        if not self._sha256:
            self._sha256 = hashlib.sha256(self.data).hexdigest()
        return self._sha256

    @property
    def data(self) -> bytes:
        """The content. It is read from the journal at each access, if the file is a run's."""
        if self._data is not None:
            return self._data
        assert self._load is not None
        return self._load(self._sha256)

    @property
    def text(self) -> str:
        """The content as text. Bytes that are not UTF-8 become U+FFFD."""
        return self.data.decode("utf-8-sig", "replace")

    @property
    def is_image(self) -> bool:
        """True for a PNG, JPEG, WebP or GIF, which models and browsers show."""
        return self.media_type in _IMAGES

    def save(self, folder: str | Path = ".") -> Path:
        """Write the file into a folder under its name, whole or not at all, and return where it is.

        The folder is made if it is missing. A file that is there is replaced.
        """
        target = Path(folder).joinpath(*PurePosixPath(self.name).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, self.data)
        return target

    def __repr__(self) -> str:
        return f"File({self.name!r}, {self.media_type}, {shown_size(self.size)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and (self.name, self.sha256) == (other.name, other.sha256)

    def __hash__(self) -> int:
        return hash((self.name, self.sha256))

    def __reduce__(self) -> tuple[Any, ...]:  # with its content: where it is read again, the journal may not be
        return _whole_file, (self.name, self.data, self.media_type, self.read_only)


def _whole_file(name: str, data: bytes, media_type: str, read_only: bool) -> File:
    file = File(name, data, media_type=media_type)
    file.read_only = read_only
    return file


class FileView(Mapping[str, File]):
    """The files that a call of a tool sees, by name: those of the task, which it cannot change, and those left before.

    Attributes:
        variables: What `run_python` keeps between calls, beside the files.
        size: Bytes that the run keeps already.
    """

    def __init__(self, files: Mapping[str, File], *, variables: File | None = None, size: int = 0) -> None:
        self._files = files
        self.variables = variables
        self.size = size

    def __getitem__(self, name: str) -> File:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def refusal(self, name: str, size: int, others: Collection[str] = (), added: int = 0) -> str:
        """Say why a run does not keep a file, empty if it does. `others` are to be kept too, and have `added` bytes."""
        try:
            check_file_name(name)
        except UsageError as error:
            return str(error)
        if name in self._files and self._files[name].read_only:
            return "a file of the task stays as it was"
        if size > MAX_FILE_SIZE:
            return f"it has {shown_size(size)}; a file may have {shown_size(MAX_FILE_SIZE)}"
        if self.size + added + size > MAX_RUN_SIZE:
            return f"the files of a run may have {shown_size(MAX_RUN_SIZE)} together"
        names = {*self._files, *others}
        if name in names:
            return ""
        if len(names) >= MAX_FILES:
            return f"a run keeps {MAX_FILES} files"
        folded = name.casefold()
        for each in map(str.casefold, names):
            if folded == each:
                return "another file has the same name but for the case of its letters"
            if folded.startswith(f"{each}/") or each.startswith(f"{folded}/"):
                return "a name cannot be that of a file and that of a folder"
        return ""


NO_FILES = FileView({})


def check_file_name(name: str) -> str:
    """Return a name that every system can write below a folder, as it is.

    Raises:
        UsageError: Some system cannot write it. The message says why.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"A file needs a name, got {name!r:.80}.")
    parts = name.split("/")
    for part in parts:
        if problem := _problem(part):
            raise UsageError(f"{name!r:.120} cannot be the name of a file: {problem}.")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        raise UsageError(f"{name!r:.120} cannot be the name of a file: it is longer than {MAX_NAME} bytes.")
    return name


def _problem(part: str) -> str:
    """Why a part of a path is not safe on every system, empty if it is."""
    if part in ("", ".", ".."):
        return "it must be a path below a folder, without empty parts and without '..'"
    if bad := next((char for char in part if char in _FORBIDDEN or not char.isprintable()), ""):
        return f"it has the character {bad!r}"
    if part[0] == "." or part[-1] in ". " or part[0] == " ":
        return "a part begins with '.', or begins or ends with a blank or '.'"
    if part.partition(".")[0].rstrip().casefold() in _DEVICES:
        return "Windows has a device of that name"
    return "" if unicodedata.is_normalized("NFC", part) else "it is not in Unicode's form NFC"


def safe_file_name(text: str, taken: Collection[str] = ()) -> str:
    """Return a name for a file that every system can write, near to a text, and different from names that are taken."""
    text = unicodedata.normalize("NFC", text.replace("/", "_"))
    text = "".join("_" if char in _FORBIDDEN or not char.isprintable() else char for char in text).strip(" .") or "file"
    path = PurePosixPath(text)
    stem = path.stem.encode()[: MAX_NAME // 2].decode("utf-8", "ignore").strip(" .") or "file"
    suffix = path.suffix.encode()[: MAX_NAME // 4].decode("utf-8", "ignore").rstrip(" .")
    if stem.partition(".")[0].rstrip().casefold() in _DEVICES:
        stem = f"_{stem}"
    names = {name.casefold() for name in taken}
    found, number = stem + suffix, 1
    while found.casefold() in names:
        number += 1
        found = f"{stem}-{number}{suffix}"
    return found


def media_type_of(name: str, data: bytes) -> str:
    """Return the media type of a file by its first bytes, else by its suffix, else by whether it is text."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if found := next((kind for magic, kind in _MAGIC if data.startswith(magic)), ""):
        return found
    suffix = PurePosixPath(name).suffix.lower()
    by_suffix = _BY_SUFFIX.get(suffix) or _types().get(suffix)
    if by_suffix is not None:
        return by_suffix if by_suffix not in _IMAGES else _BYTES  # the content is not that of an image
    if b"\0" in data[:1024]:
        return _BYTES
    try:
        data[:1024].decode()
    except UnicodeDecodeError as error:
        return "text/plain" if error.start > 1020 else _BYTES  # the last character may be cut
    return "text/plain"


@cache
def _types() -> Mapping[str, str]:
    """The media types by suffix that Python knows, without those that the system adds."""
    import mimetypes

    return mimetypes.MimeTypes(()).types_map[True]


def shown_size(size: int) -> str:
    """Write a number of bytes for people and models: "812 bytes", "12.3 kB", "4.0 MB"."""
    if size < 1000:
        return f"{size} byte{'s' * (size != 1)}"
    return f"{size / 1e3:.1f} kB" if size < 1_000_000 else f"{size / 1e6:.1f} MB"
