"""What a model's name says of its size, and that only small models behind servers are treated as such."""

from __future__ import annotations

import pytest

from closeout.models.sizes import SMALL, parameters_in

SMALL_MODELS = {
    "qwen2.5-coder:1.5b": 1.5,
    "qwen2.5-coder:1.5b-instruct-q4_K_M": 1.5,
    "qwen2.5:0.5b": 0.5,
    "qwen3:0.6b": 0.6,
    "qwen3:1.7b-q8_0": 1.7,
    "llama3.2:1b": 1,
    "llama3.2:1b-instruct-q4_K_M": 1,
    "gemma:2b": 2,
    "gemma2:2b": 2,
    "gemma3:1b-it-qat": 1,
    "gemma3:270m": 0.27,
    "smollm2:135m": 0.135,
    "tinyllama:1.1b": 1.1,
    "deepseek-r1:1.5b": 1.5,
    "deepseek-coder:1.3b": 1.3,
    "granite3.1-moe:1b": 1,
    "exaone-deep:2.4b": 2.4,
    "moondream:1.8b": 1.8,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.5,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct-AWQ": 1.5,
    "Qwen/Qwen3-0.6B-FP8": 0.6,
    "google/gemma-2-2b-it": 2,
    "meta-llama/Llama-3.2-1B-Instruct": 1,
    "meta-llama/llama-3.2-1b-instruct:free": 1,
    "us.meta.llama3-2-1b-instruct-v1:0": 1,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 0.36,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.7,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.1,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.5,
    "allenai/OLMo-2-0425-1B-Instruct": 1,
    "microsoft/bitnet-b1.58-2B-4T": 2,
    "ibm-granite/granite-3.0-1b-a400m-instruct": 1,
    "mlx-community/Qwen2.5-1.5B-Instruct-4bit": 1.5,
    "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M": 1,
    "/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": 1.5,
    r"C:\models\7b\SmolLM2-360M-Instruct-Q8_0.gguf": 0.36,
}
LARGER_MODELS = {
    "llama3.2:3b": 3,
    "qwen2.5:3b-instruct": 3,
    "ministral-3b-2512": 3,
    "phi3:3.8b": 3.8,
    "mistral:7b-instruct-v0.3-q4_K_M": 7,
    "mistralai/Mistral-7B-Instruct-v0.3": 7,
    "mixtral-8x7b": 56,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 176,
    "8x1.5b": 12,
    "qwen3-30b-a3b": 30,
    "qwen3-coder:30b-a3b-q4_K_M": 30,
    "Qwen/Qwen3-235B-A22B-Instruct-2507": 235,
    "baidu/ERNIE-4.5-21B-A3B-PT": 21,
    "LFM2-8B-A1B": 8,
    "allenai/OLMoE-1B-7B-0924": 7,
    "Qwen/Qwen2.5-7B-Instruct-1M": 7,
    "01-ai/Yi-34B-200K": 34,
    "gpt-oss-20b": 20,
    "openai/gpt-oss:120b": 120,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": 70,
    "qwen_2_7b": 7,
    "internlm2_5-1_8b-chat": 8,  # 1.8 in truth: an underscore is not read as a decimal point
}
UNKNOWN = [
    "gpt-4.1-nano",
    "gpt-4o-mini-2024-07-18",
    "gpt-3.5-turbo-16k",
    "gpt-4.1-1m",
    "o3-mini",
    "ft:gpt-4o-mini-2024-07-18:acme::b1b2c3",
    "claude-haiku-4-5-20251001",
    "gemini-2.0-flash-lite",
    "mistral-small-2503",
    "deepseek-chat",
    "deepseek-v3.1",
    "kimi-k2-0905",
    "phi-3-mini-4k-instruct",
    "phi-3.5-mini-instruct-q4_k_m",
    "microsoft/Phi-4-mini-128k",
    "llama3.2",
    "llama-3.2",
    "qwen2.5-coder",
    "tinyllama",
    "gemma3n:e2b",
    "google/gemma-3n-E2B-it",
    "qwen1.5-moe-a2.7b",
    "hunyuan-a13b",
    "command-r7b-12-2024",
    "glm-4-1m",
    "exl2-4.0bpw",
    "model-int4-4bit-q2_k",
    "bnb-4bit",
    "my-model",
    "local",
    "default",
    "1b/my-model",
    "",
    "/",
]


@pytest.mark.parametrize(("name", "billions"), [*SMALL_MODELS.items(), *LARGER_MODELS.items()])
def test_a_name_that_states_a_size(name: str, billions: float) -> None:
    assert parameters_in(name) == billions
    assert (billions < SMALL) == (name in SMALL_MODELS)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_states_none(name: str) -> None:
    assert parameters_in(name) is None
