"""Vendors whose servers attach state to their replies and refuse a conversation that does not send it back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from closeout.messages import ModelReply

__all__ = ["VENDORS", "Vendor", "find_vendor"]


def _scripted_error(reason: str) -> dict[str, Any]:
    return {"error": {"message": reason, "type": "scripted", "code": 400}}


@dataclass(frozen=True, slots=True)
class Vendor:
    """The fields that a vendor's server adds to its replies, and those that it wants in a request.

    Attributes:
        attach: Returns the reply with what the server adds, given the number of its turn.
        refuse: Returns why the server refuses a request's messages, None if it does not.
        error: Returns the body of its error.
    """

    attach: Callable[[ModelReply, int], ModelReply]
    refuse: Callable[[list[dict[str, Any]]], str | None]
    error: Callable[[str], dict[str, Any]] = _scripted_error


def find_vendor(name: str) -> Vendor | None:
    """Return the vendor of a name, None for an empty one. Raises ValueError for an unknown name."""
    if name and name not in VENDORS:
        raise ValueError(f"Unknown vendor '{name}'. Choose one of: {', '.join(VENDORS)}.")
    return VENDORS.get(name)


def _by_model(messages: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(index, message) for index, message in enumerate(messages) if message.get("role") == "assistant"]


# https://ai.google.dev/gemini-api/docs/thought-signatures: the first call of a message has a signature.
def _sign(reply: ModelReply, turn: int) -> ModelReply:
    signature = {"extra_content": {"google": {"thought_signature": f"c2lnbmVk{turn}"}}}
    if not reply.tool_calls:
        return replace(reply, attached={"message": signature})
    return replace(reply, attached={"calls": {reply.tool_calls[0].id: signature}})


def _unsigned(messages: list[dict[str, Any]]) -> str | None:
    for index, message in _by_model(messages):
        first = next(iter(message.get("tool_calls") or ()), None)
        if first is not None and not first.get("extra_content", {}).get("google", {}).get("thought_signature"):
            name = first["function"]["name"]
            return (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                f"work correctly. Additional data, function call `default_api:{name}` , position {index}."
            )
    return None


# https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning: the sequence must be unchanged.
def _details(turn: int) -> list[dict[str, Any]]:
    text = {"type": "reasoning.text", "text": f"Thought {turn}.", "signature": f"c2ln{turn}", "index": 0}
    return [text, {"type": "reasoning.encrypted", "data": f"b3BhcXVl{turn}", "index": 1}]


def _with_details(reply: ModelReply, turn: int) -> ModelReply:
    return replace(reply, reasoning=f"Thought {turn}.", attached={"message": {"reasoning_details": _details(turn)}})


def _without_details(messages: list[dict[str, Any]]) -> str | None:
    for turn, (index, message) in enumerate(_by_model(messages), 1):
        if message.get("tool_calls") and message.get("reasoning_details") != _details(turn):
            return f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
    return None


# https://api-docs.deepseek.com/guides/thinking_mode#tool-calls: every message of the assistant has the field.
def _without_thought(reply: ModelReply, turn: int) -> ModelReply:
    return replace(reply, attached={"message": {"reasoning_content": ""}})


def _missing_thought(messages: list[dict[str, Any]]) -> str | None:
    found = next((index for index, message in _by_model(messages) if "reasoning_content" not in message), None)
    if found is None:
        return None
    return (
        f"Missing `reasoning_content` field in the assistant message at message index {found}. For more information, "
        "please refer to https://api-docs.deepseek.com/guides/thinking_mode#tool-calls"
    )


# https://docs.mistral.ai/capabilities/function_calling: ids are nine letters and digits.
def _nine_letters(reply: ModelReply, turn: int) -> ModelReply:
    calls = [replace(call, id=f"id{turn:04}{place:03}") for place, call in enumerate(reply.tool_calls)]
    return replace(reply, tool_calls=tuple(calls))


def _long_id(messages: list[dict[str, Any]]) -> str | None:
    for message in messages:
        ids = [call.get("id") for call in message.get("tool_calls") or ()] + [message.get("tool_call_id", "a23456789")]
        for each in ids:
            if not re.fullmatch(r"[a-zA-Z0-9]{9}", str(each)):
                return f"Tool call id was {each} but must be a-z, A-Z, 0-9, with a length of 9."
    return None


# https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking#preserving-thinking-blocks: complete, in order.
def _thinking(turn: int) -> list[dict[str, Any]]:
    return [
        {"type": "thinking", "thinking": f"Thought {turn}.", "signature": f"c2ln{turn}"},
        {"type": "redacted_thinking", "data": f"b3BhcXVl{turn}"},
    ]


def _with_thinking(reply: ModelReply, turn: int) -> ModelReply:
    return replace(reply, attached={"content": _thinking(turn)})


def _changed_thinking(messages: list[dict[str, Any]]) -> str | None:
    for turn, (index, message) in enumerate(_by_model(messages), 1):
        kinds = [block.get("type") for block in message["content"]]
        if "tool_use" not in kinds:
            continue
        if "thinking" not in kinds[0]:
            return (
                f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kinds[0]}`."
            )
        if message["content"][:2] != _thinking(turn):
            return f"messages.{index}.content.0: `thinking` blocks in the latest assistant message cannot be modified."
    return None


# https://inference-docs.cerebras.ai/capabilities/reasoning: the reply has `reasoning`, and a request may have it.
# https://github.com/QwenLM/qwen-code/issues/11045: any other field is refused, in an error without an "error" object.
_STRICT = frozenset({"role", "content", "tool_calls", "name"})


def _with_reasoning(reply: ModelReply, turn: int) -> ModelReply:
    return replace(reply, attached={"message": {"reasoning": f"Thought {turn}."}})


def _unknown_to_cerebras(messages: list[dict[str, Any]]) -> str | None:
    places = [
        f"messages.{index}.assistant.{name}"
        for index, message in _by_model(messages)
        for name in message.keys() - _STRICT - {"reasoning"}
    ]
    return "\n".join(f"{place}: property '{place}' is unsupported" for place in places) or None


def _cerebras_error(reason: str) -> dict[str, Any]:
    return {
        "message": reason,
        "type": "invalid_request_error",
        "param": "validation_error",
        "code": "wrong_api_format",
    }


# https://github.com/janhq/jan/issues/8136, https://github.com/vercel/ai/pull/8057: a model without reasoning.
def _unknown_to_groq(messages: list[dict[str, Any]]) -> str | None:
    for index, message in _by_model(messages):
        if "reasoning" in message:
            return f"messages[{index}].reasoning: reasoning is not supported with this model"
        for name in message.keys() - _STRICT:
            place = f"'messages.{index}'"
            return (
                f"{place} : for 'role:assistant' the following must be satisfied[({place} : property '{name}' is "
                "unsupported)]"
            )
    return None


VENDORS: Mapping[str, Vendor] = {
    "anthropic": Vendor(_with_thinking, _changed_thinking),
    "cerebras": Vendor(_with_reasoning, _unknown_to_cerebras, _cerebras_error),
    "deepseek": Vendor(_without_thought, _missing_thought),
    "gemini": Vendor(_sign, _unsigned),
    "groq": Vendor(lambda reply, turn: reply, _unknown_to_groq),
    "mistral": Vendor(_nine_letters, _long_id),
    "openrouter": Vendor(_with_details, _without_details),
}
"""The vendors that the scripted server can be, by name."""
