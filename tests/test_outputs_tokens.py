"""Counting tokens: exact by model family, honest about estimates, calibrated by reported usage, bounded in time."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import quicktok

from closeout.results.tokens import TokenCounter, count, count_tokens, estimate_tokens, vocabulary_of

PAYLOADS = sorted((Path(__file__).parent.parent / "bench" / "data" / "payloads").glob("*.json"))


@pytest.mark.parametrize(
    ("model", "vocabulary"),
    [
        (None, "o200k_base"),
        ("openai:gpt-5", "o200k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("openai/gpt-oss-20b", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3"),
        ("llama3.2:1b", "llama3"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("qwen2.5:7b", "qwen3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama3"),
        ("Qwen/Qwen3.5-9B", None),
        ("anthropic:claude-sonnet-4-5", None),
        ("omni-large", None),
        ("local", None),
    ],
)
def test_a_models_name_tells_its_vocabulary(model: str | None, vocabulary: str | None) -> None:
    assert vocabulary_of(model) == vocabulary


def test_the_vocabularies_are_the_published_ones() -> None:
    """As tiktoken's files: its checksums of OpenAI's two vocabularies, and that of Meta's tokenizer.model."""
    published = {
        "cl100k": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "o200k": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        "llama3": "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    }
    for name, checksum in published.items():
        packed = (Path(quicktok.__file__).parent / "data" / f"{name}.vocab").read_bytes()
        (count,), place, tokens = struct.unpack_from("<I", packed), 4, []
        for _ in range(count):
            start = place + 2
            place = start + int.from_bytes(packed[place:start], "little")
            tokens.append((int.from_bytes(packed[place : place + 4], "little"), packed[start:place]))
            place += 4
        lines = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in sorted(tokens))
        assert hashlib.sha256(lines).hexdigest() == checksum, name


@pytest.mark.parametrize(("model", "vocabulary"), [("gpt-5", "o200k_base"), ("qwen3-8b", "qwen3")])
def test_a_known_family_is_counted_exactly(model: str, vocabulary: str) -> None:
    text = "def f(x):\n    return {'答案': 12345.678}  # <|im_start|> is text here"
    assert count(text, model) == (len(quicktok.get_encoding(vocabulary).encode_ordinary(text)), True)


def test_an_unknown_family_is_an_estimate_and_says_so() -> None:
    found = count("The quick brown fox jumps over the lazy dog.", "claude-sonnet-4-5")
    assert not found.exact
    assert 8 <= found.tokens <= 12


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: path.stem)
def test_the_estimate_is_close_on_real_payloads(path: Path) -> None:
    value = json.loads(path.read_text("utf-8"))
    for text in (json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        assert estimate_tokens(text) == pytest.approx(count_tokens(text), rel=0.16, abs=3)


def test_the_estimate_knows_chinese_and_numbers() -> None:
    chinese = "工具输出必须简洁，并且告诉模型还有多少内容没有显示，以及如何读取。" * 20
    numbers = ",".join(str(number * 7919 % 100_003) for number in range(500))
    for text in (chinese, numbers):
        assert estimate_tokens(text) == pytest.approx(count_tokens(text), rel=0.3)
    assert estimate_tokens(numbers, digits=1) == pytest.approx(count_tokens(numbers, "qwen3"), rel=0.1)


def test_huge_and_hostile_texts_are_sampled() -> None:
    text = "some words and 123 numbers; " * 400_000
    found = count(text)
    assert not found.exact
    assert found.tokens == pytest.approx(count_tokens(text[:280_000]) * 40, rel=0.02)
    for hostile in (" " * 3_000_000, "a" * 3_000_000, "\n " * 1_000_000, '"' * 1_000_000):
        assert estimate_tokens(hostile) > 0


def test_lone_surrogates_and_special_tokens_are_counted_as_text() -> None:
    assert count_tokens("\ud800") == count_tokens("\ufffd")
    assert count_tokens("<|endoftext|>") > 1
    assert count_tokens("") == 0


def test_a_counter_learns_from_reported_usage() -> None:
    counter = TokenCounter("claude-x")
    text = "word " * 2_000
    for _ in range(12):
        counter.calibrate(2_000, 2_600)
    assert counter.count(text).tokens == pytest.approx(2_600, rel=0.03)
    assert not counter.count(text).exact
    assert TokenCounter("claude-x").count(text).tokens == pytest.approx(2_000, rel=0.05)  # nothing is shared


def test_a_counter_uses_what_a_server_lends_it() -> None:
    counter = TokenCounter("local", lambda text: len(text.split()))
    assert counter.count("three short words") == (3, True)


def test_importing_costs_no_vocabulary() -> None:
    code = (
        "import sys; import closeout.results.present as p; p.present({'a': 1}); p.present('text ' * 100); "
        "print([m for m in ('quicktok', 'numpy', 'toon_format', 'pydantic', 'jsonschema_rs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_extras_there_are_estimates_and_columns() -> None:
    code = (
        "import sys; sys.modules['quicktok'] = sys.modules['toon_format'] = None\n"
        "from closeout.results.encoding import decode, encode\n"
        "from closeout.results.present import present\n"
        "from closeout.results.tokens import count\n"
        "rows = [{'id': n, 'name': f'name {n}'} for n in range(400)]\n"
        "text = encode(rows)\n"
        "assert text.format == 'columns' and decode(text, 'columns') == rows\n"
        "assert not count('some words').exact\n"
        "assert present(rows, budget=90).tokens <= 90\n"
        "try: encode(rows, 'toon')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'EncodingError TOON needs its package: pip install "closeout[toon]". Or use columns.'
