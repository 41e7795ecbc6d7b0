"""The errors with which servers reject a call that their own model wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from closeout.codec import encode_json

__all__ = ["REJECTIONS", "Rejection"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """An error about a call.

    Attributes:
        source: Where it is described.
        status: The HTTP status.
        body: Returns the body of the error, given the call as the model wrote it.
        holds_call: Whether the body holds the whole call.
        in_stream: Whether a stream reports it as an event, after the status 200.
    """

    source: str
    status: int
    body: Callable[[str], dict[str, Any]]
    holds_call: bool = False
    in_stream: bool = False


def _openai(message: str, kind: str, code: Any = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, **more}}


def _groq(written: str) -> dict[str, Any]:
    message = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."
    return _openai(message, "invalid_request_error", "tool_use_failed", failed_generation=written)


def _litellm(written: str) -> dict[str, Any]:
    quoted = encode_json(_groq(written)).decode()
    return _openai(f"litellm.BadRequestError: GroqException - {quoted}", "invalid_request_error", "400")


def _parse_error(position: int) -> Callable[[str], dict[str, Any]]:
    def body(written: str) -> dict[str, Any]:
        return _openai(f"Failed to parse input at pos {position}: {written[position:]}", "server_error", 500)

    return body


def _ollama(written: str) -> dict[str, Any]:
    arguments = written[written.rfind("{") : written.find("}") + 1]
    error = "invalid character '}' looking for beginning of object key string"
    return _openai(f"error parsing tool call: raw='{arguments}', err={error}", "api_error")


def _fixed(*error: Any) -> Callable[[str], dict[str, Any]]:
    return lambda _: _openai(*error)


_LLAMA = "https://github.com/ggml-org/llama.cpp/issues"
REJECTIONS: Mapping[str, Rejection] = {
    "rejected_llama_cpp": Rejection(f"{_LLAMA}/23838", 500, _parse_error(0), holds_call=True, in_stream=True),
    "rejected_llama_cpp_cut": Rejection(f"{_LLAMA}/20761", 500, _parse_error(15), in_stream=True),
    "rejected_llama_cpp_peg": Rejection(
        f"{_LLAMA}/27025",
        500,
        _fixed("The model produced output that does not match the expected peg-native format", "server_error", 500),
        in_stream=True,
    ),
    "rejected_groq": Rejection(
        "https://github.com/groq/groq-typescript/issues/103", 400, _groq, holds_call=True, in_stream=True
    ),
    "rejected_litellm": Rejection(
        "https://github.com/huggingface/smolagents/issues/1119", 400, _litellm, holds_call=True
    ),
    "rejected_ollama": Rejection("https://github.com/ollama/ollama/issues/12884", 500, _ollama),
    "rejected_ollama_xml": Rejection(
        "https://github.com/ollama/ollama/issues/17276",
        500,
        _fixed("XML syntax error on line 7: element <parameter> closed by </function>", "api_error"),
        in_stream=True,
    ),
    "rejected_vllm": Rejection(
        "https://github.com/vllm-project/vllm/issues/51977",
        500,
        _fixed(
            'unexpected tokens remaining in message header: Some("to=functions.lookup")', "InternalServerError", 500
        ),
    ),
    "rejected_vllm_required": Rejection(
        "https://github.com/speakleash/bielik-tools/issues/9",
        400,
        _fixed(
            "1 validation error for list[function-wrap[__log_extra_fields__()]]\n  Invalid JSON: expected value "
            'at line 1 column 1 [type=json_invalid, input_value=\'<tool_call> {"name": "lo...k1"}}</tool_call>\', '
            "input_type=str]",
            "BadRequestError",
            400,
        ),
    ),
    "rejected_lm_studio": Rejection(
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1528",
        500,
        lambda _: {"error": "Failed to parse tool call: Extra content after end of tool call"},
        in_stream=True,
    ),
    "rejected_sglang": Rejection(
        "https://github.com/sgl-project/sglang/issues/4300",
        400,
        lambda _: {
            "object": "error",
            "message": "400",
            "type": "Failed to parse fc related info to json format!",
            "param": None,
            "code": 400,
        },
    ),
    "rejected_tgi": Rejection(
        "https://github.com/huggingface/text-generation-inference/issues/2310",
        422,
        lambda _: {
            "error": "Tool error: Failed to parse generated text: EOF while parsing",
            "error_type": "tool_error",
        },
    ),
    "rejected_bedrock": Rejection(
        "https://github.com/strands-agents/harness-sdk/issues/649",
        424,
        _fixed("Model produced invalid sequence as part of ToolUse.", "ModelErrorException"),
    ),
    "rejected_openai": Rejection(
        "https://github.com/langchain-ai/langchain/issues/23407",
        500,
        _fixed("The model produced invalid content.", "model_error"),
    ),
}
"""The errors by the name of the fault."""
