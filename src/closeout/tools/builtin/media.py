"""Tools that ask a model about a picture, a recording or a hard question.

The setting `tools.models` names the model of each; without it they ask the agent's own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from closeout.errors import ToolError
from closeout.messages import ToolPolicy
from closeout.tools.run_context import RunContext
from closeout.tools.tool import Ask, ModelTool, Prompt

__all__ = ["ask_about_image", "reasoning", "transcribe"]

SECONDS = 600.0
_POLICY = ToolPolicy(read_only=True, idempotent=True, timeout=SECONDS)  # it asks a model, and changes nothing
_PICTURES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".webp": "webp"}
_RECORDINGS = {".mp3": "mp3", ".wav": "wav", ".flac": "flac", ".m4a": "m4a", ".ogg": "ogg"}


async def _asked(ask: Ask | None, prompt: Prompt, name: str) -> str:
    if ask is None:
        raise ToolError(f"{name} has no model. Pass it to an agent: Agent(model, tools=['{name}']).")
    return "".join([reply async for reply in ask([prompt])])


def _file(name: str, kinds: Mapping[str, str]) -> tuple[str, str]:
    """Return the kind and the base64 text of a file of the run."""
    path = name.removeprefix("file://")
    kind = kinds.get(PurePosixPath(path).suffix.lower())
    if kind is None:
        raise ToolError(f"{name} must end in {', '.join(kinds)}.")
    files = RunContext.current().files
    found = files.get(path) or files.get(PurePosixPath(path).name)
    if found is None:
        raise ToolError(f"The task has no file {name!r}. It has: {', '.join(files) or 'none'}.")
    return kind, base64.b64encode(found.data).decode()


def _make_ask_about_image(ask: Ask | None) -> Any:
    async def ask_about_image(image: str, question: str) -> str:
        """Ask a question about a picture.

        Args:
            image: The name of a file of the task, or an address on the web.
            question: What to find out.
        """
        url = (
            image
            if image.startswith(("https://", "http://"))
            else "data:image/{};base64,{}".format(*_file(image, _PICTURES))
        )
        parts: Prompt = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
        return await _asked(ask, parts, "ask_about_image")

    return ask_about_image


def _make_transcribe(ask: Ask | None) -> Any:
    async def transcribe(audio: str, question: str = "") -> str:
        """Write down what is said in a recording, or answer a question about it.

        Args:
            audio: The name of a file of the task.
            question: What to find out; without it, all that is said is written down.
        """
        kind, data = _file(audio, _RECORDINGS)
        text = question or "Write down exactly what is said in this recording, and nothing else."
        sound = {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
        parts: Prompt = [sound, {"type": "text", "text": text}]
        return await _asked(ask, parts, "transcribe")

    return transcribe


def _make_reasoning(ask: Ask | None) -> Any:
    async def reasoning(question: str) -> str:
        """Ask a stronger model a question that needs long thought: mathematics, logic, a puzzle.

        Args:
            question: The whole question. The model sees nothing else.
        """
        return await _asked(ask, question, "reasoning")

    return reasoning


class _Seeing(ModelTool):
    opens = "image"  # the kind of files of a task that the model need not take itself


class _Hearing(ModelTool):
    opens = "audio"


ask_about_image = _Seeing(
    _make_ask_about_image,
    policy=replace(
        _POLICY,
        other_names=("visual_question_answering",),
        aliases={"image": ("image_path_or_url", "media_path_or_url", "image_path", "path", "url")},
    ),
)
transcribe = _Hearing(
    _make_transcribe,
    policy=replace(
        _POLICY,
        other_names=("audio_transcription", "audio_question_answering"),
        aliases={"audio": ("audio_path_or_url", "audio_path", "path", "url")},
    ),
)
reasoning = ModelTool(_make_reasoning, policy=_POLICY)
