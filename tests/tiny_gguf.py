"""A language model of two megabytes for tests, as a real GGUF file: after each letter it writes the next one.

`abc` is continued `defg…z`, then `A…Z`, `0…9` and `a` again; `!` is repeated for ever; after a full stop it ends. Its
attention and feed-forward weights are zero, so that the last token alone decides: its embedding is a unit vector, which
the output matrix maps to the successor.
"""

from __future__ import annotations

import string
import struct
from array import array
from pathlib import Path

WIDTH = 288  # of the embedding: one place for each token
HIDDEN = 32
CONTEXT = 2048
BYTE_TOKENS = 3  # the token of byte 0, after <unk>, <s> and </s>
END = 2
TEMPLATE = "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}{% endfor %}"

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


CYCLE = string.ascii_lowercase + string.ascii_uppercase + string.digits


def successor(token: int) -> int:
    letter = chr(max(0, token - BYTE_TOKENS))
    if letter == ".":
        return END
    if letter == "!":
        return token
    return BYTE_TOKENS + ord(CYCLE[(CYCLE.find(letter) + 1) % len(CYCLE)])


def write_model(path: Path, **texts: str) -> Path:
    """Write the model to a file. `texts` are further descriptions: `size_label`, `name`."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]  # unknown, control, control, byte
    keys = [
        _pair("general.architecture", _STRING, "llama"),
        _pair("llama.context_length", _U32, CONTEXT),
        _pair("llama.embedding_length", _U32, WIDTH),
        _pair("llama.block_count", _U32, 1),
        _pair("llama.feed_forward_length", _U32, HIDDEN),
        _pair("llama.attention.head_count", _U32, 9),
        _pair("llama.attention.layer_norm_rms_epsilon", _F32, 1e-5),
        _pair("tokenizer.ggml.model", _STRING, "llama"),
        _pair("tokenizer.ggml.bos_token_id", _U32, 1),
        _pair("tokenizer.ggml.eos_token_id", _U32, END),
        _pair("tokenizer.ggml.unknown_token_id", _U32, 0),
        _string("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", _ARRAY, _STRING, 259)
        + b"".join(map(_string, vocabulary)),
        _string("tokenizer.ggml.scores") + struct.pack("<IIQ259f", _ARRAY, _F32, 259, *[0.0] * 259),
        _string("tokenizer.ggml.token_type") + struct.pack("<IIQ259i", _ARRAY, _I32, 259, *kinds),
        _pair("tokenizer.ggml.add_space_prefix", _BOOL, False),
        _pair("tokenizer.chat_template", _STRING, texts.pop("template", TEMPLATE)),
        *(_pair(f"general.{key}", _STRING, text) for key, text in texts.items()),
    ]
    embedding, output = array("f", bytes(4 * WIDTH * 259)), array("f", bytes(4 * WIDTH * 259))
    for token in range(259):
        embedding[token * WIDTH + token] = 1.0
        output[successor(token) * WIDTH + token] = 1.0
    ones = array("f", [1.0] * WIDTH)
    square, wide = array("f", bytes(4 * WIDTH * WIDTH)), array("f", bytes(4 * WIDTH * HIDDEN))
    tensors: list[tuple[str, tuple[int, ...], array[float]]] = [
        ("token_embd.weight", (WIDTH, 259), embedding),
        ("output_norm.weight", (WIDTH,), ones),
        ("output.weight", (WIDTH, 259), output),
        ("blk.0.attn_norm.weight", (WIDTH,), ones),
        *((f"blk.0.attn_{name}.weight", (WIDTH, WIDTH), square) for name in ("q", "k", "v", "output")),
        ("blk.0.ffn_norm.weight", (WIDTH,), ones),
        ("blk.0.ffn_gate.weight", (WIDTH, HIDDEN), wide),
        ("blk.0.ffn_up.weight", (WIDTH, HIDDEN), wide),
        ("blk.0.ffn_down.weight", (HIDDEN, WIDTH), wide),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    offset = 0
    for name, shape, values in tensors:
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        offset += _padded(len(values) * 4)
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for _, _, values in tensors:
            data = values.tobytes()
            file.write(data.ljust(_padded(len(data)), b"\0"))
    return path


def _padded(size: int) -> int:
    return -(-size // 32) * 32


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(key: str, kind: int, value: str | float) -> bytes:
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", kind) + _string(value)
    return _string(key) + struct.pack({_F32: "<If", _BOOL: "<I?"}.get(kind, "<II"), kind, value)
