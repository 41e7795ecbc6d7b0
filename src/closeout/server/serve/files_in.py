"""Read the files that a client sends with its messages: parts of OpenAI's and Anthropic's APIs, content in Base64."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Mapping
from typing import Any

from closeout.assembly.files import MAX_FILES
from closeout.file_values import File, safe_file_name
from closeout.server.api_errors import ApiError

__all__ = ["FILE_PARTS", "file_in", "file_of_part"]

FILE_PARTS = ("file", "input_file", "input_image", "image_url", "image", "document")
FORM = "Send it as Base64: file_data of a file, a data URI of an image, or a source of the type base64"


def file_of_part(part: Mapping[str, Any], place: str, files: list[File]) -> None:
    """Add the file of a part of a message to files.

    Raises:
        ApiError: The part does not hold the content of a file.
    """
    kind = part.get("type")
    name: Any = ""
    data: Any = None
    media_type: Any = ""
    if kind in ("file", "input_file"):
        fields = part.get("file") if kind == "file" else part
        if isinstance(fields, dict):
            name, data = fields.get("filename") or "", fields.get("file_data")
    elif kind in ("input_image", "image_url"):
        url = part.get("image_url")
        data = url.get("url") if isinstance(url, dict) else url
        data = data if isinstance(data, str) and data.startswith("data:") else None
    else:
        source = part.get("source")
        if isinstance(source, dict) and source.get("type") in ("base64", "text"):
            name, media_type, data = part.get("title") or "", source.get("media_type"), source.get("data")
            if source["type"] == "text":
                files.append(_made(str(data or "").encode(), name, "text/plain", files))
                return
    if not isinstance(data, str):
        raise ApiError(400, f"{place} has a part of the type {kind} without content. {FORM}.")
    files.append(file_in(data, name, media_type, place=place, files=files))


def file_in(data: str, name: Any, media_type: Any, *, place: str, files: list[File]) -> File:
    """Return a file by its content in Base64 or as a data URI, with a name that no other file has.

    Raises:
        ApiError: The content is not Base64, or there are too many files.
    """
    if data.startswith("data:"):
        head, _, data = data.partition(",")
        media_type = head.removeprefix("data:").partition(";")[0]
    try:
        content = base64.b64decode("".join(data.split()), validate=True)
    except (ValueError, binascii.Error):
        raise ApiError(400, f"The content of a file in {place} is not Base64. {FORM}.") from None
    if not content:
        raise ApiError(400, f"A file in {place} is empty.")
    return _made(content, name, media_type, files)


def _made(content: bytes, name: Any, media_type: Any, files: list[File]) -> File:
    if len(files) >= MAX_FILES:  # a name that no other has takes time in proportion to their number
        raise ApiError(400, f"A task may have {MAX_FILES} files.")
    kind = media_type if isinstance(media_type, str) else ""
    text = name if isinstance(name, str) and name.strip() else f"file{mimetypes.guess_extension(kind) or ''}"
    return File(safe_file_name(text, [file.name for file in files]), content)
