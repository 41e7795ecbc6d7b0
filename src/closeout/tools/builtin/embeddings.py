"""Vectors of texts, from any endpoint that follows OpenAI's `/embeddings`."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Sequence
from operator import itemgetter

__all__ = ["Embed", "openai_embeddings"]

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]  # a vector for each text
SECONDS = 60.0  # Seconds for one request.


def openai_embeddings(model: str, *, base_url: str = "https://api.openai.com/v1", api_key: str | None = None) -> Embed:
    """Return a function that embeds texts, for `document_tools(embed=…)`.

    Args:
        model: The name of the embedding model.
        base_url: Of the server: OpenAI, vLLM, llama.cpp, Ollama.
        api_key: Default: the variable OPENAI_API_KEY.
    """
    key = os.environ.get("OPENAI_API_KEY", "") if api_key is None else api_key
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def embed(texts: Sequence[str]) -> list[list[float]]:
        body = json.dumps({"model": model, "input": list(texts)}).encode()
        request = urllib.request.Request(f"{base_url.rstrip('/')}/embeddings", body, headers)  # noqa: S310  the user's
        with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
            return [each["embedding"] for each in sorted(json.load(response)["data"], key=itemgetter("index"))]

    embed.__qualname__ = f"{model} {base_url}"  # an index keeps its vectors apart from those of other models
    return embed
