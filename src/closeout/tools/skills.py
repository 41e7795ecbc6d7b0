"""Skills: folders with a `SKILL.md`, in the open Agent Skills format. The model reads one when a task calls for it.

The prompt has the names and descriptions only. All files are read when the agent is made, so what the model reads is
what the record has the hash of, and no path or link can lead out of a skill.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import posixpath
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.errors import ToolError, UsageError
from closeout.file_values import File
from closeout.results.escape import escape_markers
from closeout.results.tool_output import ToolOutput
from closeout.settings_tree import NotYaml, parse_yaml
from closeout.tools.run_context import RunContext
from closeout.tools.tool import Tool, tool
from closeout.visible import visible

__all__ = ["NO_SKILLS", "READ_SKILL", "Skill", "Skills"]

READ_SKILL = "read_skill"
MAIN_FILE = "SKILL.md"
MAX_FILES = 1_000
MAX_BYTES = 20_000_000  # the size of one skill
MAX_TEXT = 1_000_000  # the longest file that is shown to the model
MAX_SKILLS = 200
MAX_FRONT = 65_536  # characters of front matter
MAX_DEPTH = 20  # folders in one another
MAX_LISTED = 100  # files that are listed for the model
MAX_FOR_SCRIPTS = 100  # files of a skill that scripts are given; a run keeps twice as many
FOLDER = "skills"  # The folder of the skills for scripts.
_FOR_SCRIPTS = "Scripts find them in the folder {}/{} and cannot change them."
# Limits of the specification, in characters.
MAX_NAME = 64
MAX_DESCRIPTION = 1_024
_MARK = "---"
_SECTION = """\
# Skills

Each skill has instructions for one kind of task. When a task fits a skill, read it with {tool} before you begin, and \
follow it. The files that it names are read with {tool} too.

{lines}"""


@dataclass(frozen=True, kw_only=True)
class Skill:
    """One skill.

    Attributes:
        name: Its name, which is that of its folder.
        description: What it does and when to use it.
        text: The instructions, without the front matter.
        files: The texts of its other files by their relative paths; None for a file that is not text.
        contents: Those files that every system can write, as scripts find them.
        digest: A hash of all its files.
    """

    name: str
    description: str
    text: str
    files: Mapping[str, str | None]
    contents: tuple[File, ...]
    digest: str


class Skills:
    """The skills of an agent.

    Args:
        folders: Folders of skills, each in a folder of its own, or the folders of single skills.

    Raises:
        UsageError: A folder has no skill, or a skill cannot be used. The text says what to change.
    """

    def __init__(self, folders: Iterable[str | os.PathLike[str]] = ()) -> None:
        found: dict[str, Skill] = {}
        places: dict[str, Path] = {}
        for folder in folders:
            for place in _skill_folders(Path(folder).expanduser()):
                skill = _read_skill(place)
                if skill.name in found:
                    raise UsageError(
                        f"Two skills have the name {skill.name}: {places[skill.name]} and {place}. Leave one out."
                    )
                if len(found) == MAX_SKILLS:
                    raise UsageError(f"There are more than {MAX_SKILLS} skills. Name the folders of those you need.")
                found[skill.name], places[skill.name] = skill, place
        self._skills = dict(sorted(found.items()))

    def __bool__(self) -> bool:
        return bool(self._skills)

    @property
    def digests(self) -> dict[str, str]:
        """The hashes by name."""
        return {name: skill.digest for name, skill in self._skills.items()}

    def instruction(self) -> str:
        """Return the text about the skills for the model, empty without skills."""
        if not self._skills:
            return ""
        said = {name: " ".join(skill.description.split()) for name, skill in self._skills.items()}
        lines = [f"- {name}: {escape_markers(visible(text))}" for name, text in said.items()]
        return _SECTION.format(tool=READ_SKILL, lines="\n".join(lines))

    def tool(self, *, for_scripts: bool = False) -> Tool[..., Any]:
        """Return the tool with which the model reads skills.

        Args:
            for_scripts: Give scripts the files of a skill once its instructions were read.
        """

        @tool(name=READ_SKILL, read_only=True, idempotent=True, repeatable=True, inline=True, returns="trusted")
        def read_skill(name: str, path: str = MAIN_FILE) -> str | ToolOutput:
            """Read the instructions of a skill, or a file that they name.

            Args:
                name: The skill's name.
                path: A file of the skill, such as references/forms.md.
            """
            text = self.read(name, path)
            skill, view = self._skills[name], RunContext.current().files
            given, added = skill.contents, 0
            if not (for_scripts and given and text.startswith(skill.text)):
                return text
            if all(file.name in view for file in given):
                given = ()
            for file in given:
                if view.refusal(file.name, file.size, added=added):  # there is no room for it
                    return text
                added += file.size
            return ToolOutput(result=f"{text}\n{_FOR_SCRIPTS.format(FOLDER, name)}", files=given)

        return read_skill

    def read(self, name: str, path: str = MAIN_FILE) -> str:
        """Return the instructions of a skill with a list of its files, or one of these files.

        Raises:
            ToolError: There is no such skill or file, or it is not text.
        """
        skill = self._skills.get(name)
        if skill is None:
            raise ToolError(f"No skill is named {name!r:.100}. {_hint(name, self._skills)}")
        place = unicodedata.normalize("NFC", posixpath.normpath(path.strip().replace("\\", "/") or "."))
        if place not in skill.files:
            place = place.removeprefix(f"{name}/")
        if place in (MAIN_FILE, "."):
            return _with_files(skill)
        if place not in skill.files:
            raise ToolError(f"The skill {name} has no file {path!r:.200}. {_hint(place, skill.files)}")
        text = skill.files[place]
        if text is None:
            raise ToolError(f"{place} of the skill {name} is not a text that can be shown.")
        return text


NO_SKILLS = Skills()


def _with_files(skill: Skill) -> str:
    if not skill.files:
        return skill.text
    names = list(skill.files)
    more = f", and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{skill.text}\n\nFiles of this skill: {', '.join(map(visible, names[:MAX_LISTED]))}{more}"


def _hint(wanted: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(wanted, names, n=1)
    if near:
        return f"Did you mean {visible(near[0])}?"
    return f"There are: {', '.join(map(visible, names[:20]))}." if names else "It has no other files."


# ------------------------------------------------------------------------------------------------ reading folders


def _skill_folders(folder: Path) -> list[Path]:
    """Return the folders of the skills in a folder, or the folder itself if it is a skill."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"The folder of skills {folder} cannot be read: {error.strerror}.") from None
    if (folder / MAIN_FILE).exists():
        return [folder.absolute()]
    found = [each for each in entries if not each.name.startswith(".") and (each / MAIN_FILE).exists()]
    if not found:
        raise UsageError(
            f"{folder} has no skills: neither it nor a folder in it has a {MAIN_FILE}. Name the folder that holds them."
        )
    whole = folder.resolve()
    for each in found:
        if not each.resolve().is_relative_to(whole):
            raise UsageError(f"{each} is a link that leads out of {folder}. Name {each.resolve()} itself.")
    return [each.absolute() for each in found]


def _read_skill(folder: Path) -> Skill:
    whole = hashlib.sha256()
    files: dict[str, str | None] = {}
    contents: list[File] = []
    for path, data in _files(folder):
        if path != MAIN_FILE:
            with suppress(UsageError):  # a name that some system cannot write
                contents.append(File(f"{FOLDER}/{folder.name}/{path}", data))
                contents[-1].read_only = True
        whole.update(f"{len(path)} {path} {len(data)} ".encode("utf-8", "surrogateescape") + data)
        files[path] = _text(data)
    text = files.pop(MAIN_FILE, None)
    main = folder / MAIN_FILE
    if text is None:
        raise UsageError(f"{main} is not UTF-8 text of at most {MAX_TEXT:,} bytes.")
    front, body = _split(text, main)
    name = _name(front, folder, main)
    return Skill(
        name=name,
        description=_description(front, main),
        text=body.strip() or "This skill has no instructions.",
        files=files,
        contents=tuple(contents) if len(contents) <= MAX_FOR_SCRIPTS else (),
        digest=whole.hexdigest()[:16],
    )


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a skill in order, by relative path, without hidden ones and compiled Python."""
    real, number, size = folder.resolve(), 0, 0
    path = folder
    try:
        for path in _paths(folder, real):
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
                raise UsageError(f"{path} is not a regular file. Remove it from the skill.")
            with path.open("rb") as file:
                data = file.read(MAX_BYTES - size + 1)
            number, size = number + 1, size + len(data)
            if number > MAX_FILES or size > MAX_BYTES:
                raise UsageError(
                    f"The skill {folder} has more than {MAX_FILES:,} files or {MAX_BYTES / 1e6:.0f} MB. Keep in it "
                    "what the model should read, and large data elsewhere."
                )
            yield unicodedata.normalize("NFC", path.relative_to(folder).as_posix()), data
    except OSError as error:
        raise UsageError(f"{error.filename or path} cannot be read: {error.strerror}.") from None


def _paths(folder: Path, real: Path, depth: int = 0) -> Iterator[Path]:
    if depth > MAX_DEPTH:
        raise UsageError(f"The folders of a skill may be {MAX_DEPTH} deep, and {folder} is deeper.")
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_symlink():
            if not entry.resolve().is_relative_to(real):
                raise UsageError(f"{entry} is a link that leads out of its skill. Put a copy in its place.")
            if entry.is_dir():  # its files are found where they are
                continue
        if entry.is_dir():
            yield from _paths(entry, real, depth + 1)
        else:
            yield entry


def _text(data: bytes) -> str | None:
    if len(data) > MAX_TEXT or b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


# ------------------------------------------------------------------------------------------------ the front matter


def _split(text: str, file: Path) -> tuple[Mapping[str, Any], str]:
    """Return the front matter and the text after it."""
    first, *lines = text.splitlines(keepends=True) or [""]
    end = next((number for number, line in enumerate(lines) if line.rstrip() == _MARK), None)
    if first.rstrip() != _MARK or end is None:
        raise UsageError(
            f"{file} must begin with front matter: {_MARK}, then name: and description:, then {_MARK} on a line."
        )
    front_matter = "".join(lines[:end])
    if len(front_matter) > MAX_FRONT:
        raise UsageError(f"The front matter of {file} is longer than {MAX_FRONT:,} characters. Put the text below it.")
    try:
        front = parse_yaml(front_matter)[0]
    except NotYaml as error:
        raise UsageError(
            f"The front matter of {file} {error}. Put a text with a colon or a sign in it in quotes."
        ) from None
    if not isinstance(front, Mapping):
        raise UsageError(f"The front matter of {file} must have keys and values, such as name: and description:.")
    return front, "".join(lines[end + 1 :])


def _name(front: Mapping[str, Any], folder: Path, file: Path) -> str:
    name = front.get("name")
    if not isinstance(name, str) or not _is_name(name):
        raise UsageError(
            f"{file}: name must have at most {MAX_NAME} lower-case letters, digits and single hyphens, "
            f"got {name!r:.80}."
        )
    name = unicodedata.normalize("NFC", name)
    if unicodedata.normalize("NFC", folder.name) != name:
        raise UsageError(f"{file}: the skill {name} must be in a folder of this name, and is in {folder.name}.")
    return name


def _is_name(name: str) -> bool:
    parts = name.split("-")
    return len(name) <= MAX_NAME and name == name.lower() and all(part.isalnum() for part in parts)


def _description(front: Mapping[str, Any], file: Path) -> str:
    found = front.get("description")
    if not isinstance(found, str) or not found.strip():
        raise UsageError(f"{file}: description must say what the skill does and when to use it, got {found!r:.80}.")
    if len(found) > MAX_DESCRIPTION:
        raise UsageError(
            f"{file}: description has {len(found):,} characters, and {MAX_DESCRIPTION:,} are allowed: it is in every "
            "prompt. Put the rest below the front matter."
        )
    return found
