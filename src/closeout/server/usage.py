"""Token usage as the wire formats state it."""

from __future__ import annotations

from typing import Any

from closeout.messages import Usage

__all__ = ["chat_usage", "messages_usage", "responses_usage"]


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage object of Chat Completions."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }


def responses_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage object of Responses."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def messages_usage(usage: Usage) -> dict[str, int]:
    """Return the usage object of Anthropic Messages. Its input tokens exclude those of the prompt cache."""
    return {
        "input_tokens": max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0),
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    }
