"""Measure how many sequences a trial is with a real llama.cpp server that takes token ids, and embedded weights.

    python bench/token_in.py [--model local] [--runs 20]

Needs `closeout[local]` and the weights (`closeout models pull local`). Each question over the documents in
`bench/data/local_documents` is a run of several turns. Baseline, from the same requests: the sequences of a chat
server, which writes every prompt anew with the model's chat template and tokenizes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xllamacpp

from closeout import Agent
from closeout.errors import UsageError
from closeout.evaluate.token_samples import token_samples
from closeout.messages import ModelReply, ModelRequest
from closeout.models.local.gguf import read_gguf
from closeout.models.local.local_engine import _signals_kept
from closeout.models.local.weights import find_weights
from closeout.models.openai import tool_definitions
from closeout.models.token_in import TokenClient
from closeout.tools.builtin import calculate, document_tools

DATA = Path(__file__).parent / "data"
CONTEXT = 8192


class CountingClient(TokenClient):
    """Counts what a chat server's prompts would be: those that do not extend the one before and its reply."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sampled: list[tuple[int, ...]] = []
        self.chat_sequences = 0
        self._before: list[int] = []

    async def generate(self, prompt: Sequence[int], request: ModelRequest, **options: Any) -> ModelReply:
        anew = await self.tokenize(self._template.write(request.messages, tool_definitions(request.tools)))
        self.chat_sequences += not self._before or anew[: len(self._before)] != self._before
        reply = await super().generate(prompt, request, **options)
        assert reply.tokens is not None
        self.sampled.append(reply.tokens.ids)
        self._before = [*anew, *reply.tokens.ids]
        return reply


def serve(path: Path) -> Any:
    """Start llama.cpp's server in this process."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(path), CONTEXT, 1
    params.verbosity, params.warmup, params.ui, params.n_threads_http = -1, False, False, 4
    params.hostnames, params.port = ["127.0.0.1"], 0
    with _signals_kept():
        server = xllamacpp.Server(params)
    server.handle_completions(b'{"prompt": "a", "max_tokens": 1}', lambda _: False)  # waits until it has loaded
    return server


async def measure(path: Path, address: str, questions: Sequence[str]) -> str:
    """Run the questions, and return the summary."""
    runs = sequences = chat = requests = learned = foreign = rollbacks = 0
    for number, question in enumerate(questions):
        template = read_gguf(path).template
        client = CountingClient(
            path.stem, f"{address}/v1", template=template, server="llama.cpp", temperature=0.7, max_tokens=160
        )
        agent = Agent(
            client,
            [calculate, *document_tools(DATA / "local_documents")],
            dialect="function_call",
            max_turns=8,
            context_compress_limit=0,
            home=False,
        )
        result = await agent.run(question)
        try:
            samples = token_samples(result.read_rows())
        except UsageError:
            samples = []
        known = {i for ids in client.sampled for i in ids}
        masked = [(i, m) for each in samples for i, m in zip(each["input_ids"], each["loss_mask"], strict=True)]
        runs += 1
        sequences += len(samples)
        chat += client.chat_sequences
        requests += len(client.sampled)
        rollbacks += result.rollbacks
        learned += sum(m for _, m in masked)
        foreign += sum(m and i not in known for i, m in masked)
        print(
            f"{number + 1}: {len(client.sampled)} requests, {len(samples)} sequences (chat {client.chat_sequences}), "
            f"{result.rollbacks} rollbacks, {result.status}: {result.answer!r:.40}",
            flush=True,
        )
    return (
        f"{runs} runs of {requests / runs:.1f} requests: split rate {sequences / runs:.2f} with token ids, "
        f"{chat / runs:.2f} with a chat server; {rollbacks} rollbacks, {learned:,} tokens learned, "
        f"{foreign} not sampled"
    )


def main() -> None:
    """Print a line for each run, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="local")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    path = find_weights(options.model)
    if path is None:
        parser.error(f"The weights of {options.model} are missing. Run `closeout models pull {options.model}`.")
    rows = json.loads((DATA / "local_questions.json").read_text("utf-8"))
    chosen = [row["question"] for row in rows if row["kind"] != "arithmetic"][: options.runs]
    server = serve(path)
    print(asyncio.run(measure(path, server.listening_address, chosen)))


if __name__ == "__main__":
    main()
