"""Ollama's own text completion: its OpenAI-compatible one puts the prompt into the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeout.messages import ModelReply, Usage
from closeout.models.streaming import MOST_COUNTED

__all__ = ["GENERATE_PATH", "OLLAMA_PORT", "generate_options", "read_generated"]

GENERATE_PATH = "/api/generate"
OLLAMA_PORT = 11434  # The default port.
# The option of a text completion → Ollama's.
_NAMES = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "num_predict", "stop": "stop"}


def generate_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a text completion as `/api/generate` takes them. The reply is not streamed."""
    own = {_NAMES[name]: value for name, value in options.items() if name in _NAMES}
    others = {name: value for name, value in options.items() if name not in {*_NAMES, "stream", "stream_options"}}
    return {**others, "raw": True, "stream": False, "options": own}


def read_generated(value: Any) -> ModelReply | None:
    """Return the reply in a body of `/api/generate`; None for any other body."""
    text = value.get("response") if isinstance(value, dict) else None
    if not isinstance(text, str):
        return None
    counts = [value.get(name) for name in ("prompt_eval_count", "eval_count")]
    read, written = (n if isinstance(n, int) and 0 <= n <= MOST_COUNTED else 0 for n in counts)
    reason = value.get("done_reason")
    finish = reason if isinstance(reason, str) and reason else "stop"
    return ModelReply(
        text, finish_reason=finish, usage=Usage(read, written, requests=1), model=str(value.get("model", ""))
    )
