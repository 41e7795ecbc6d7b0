"""From what a user names (`openai:gpt-5`, `anthropic:…`, `local`) to the client for it. The clients know the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from closeout.config import LLMSettings
from closeout.errors import ConfigError
from closeout.llm.base import BaseClient
from closeout.llm.retry import RetryPolicy

__all__ = ["connect"]

FORMS = "openai:NAME (any OpenAI-compatible server, with base_url), anthropic:NAME, local, local:small, local:FILE.gguf"


def connect(
    model: str | BaseClient | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    settings: LLMSettings | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> BaseClient:
    """The client for a model; a client comes back as it is.

    What is not given comes from the settings, then from `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL`,
    `ANTHROPIC_API_KEY`. Raises ConfigError with the forms that there are, for a bad address, or for a missing key.
    """
    if isinstance(model, BaseClient):
        return model
    settings = settings or LLMSettings()
    named = model or _named(settings)
    if not isinstance(named, str):
        raise ConfigError(f"{named!r:.80} is no model: give a client, or a name. The forms are: {FORMS}.")
    provider, _, name = named.partition(":")
    if provider == "local":
        return _local(named, settings)
    if provider not in {"openai", "anthropic"} or not name:
        raise ConfigError(f"'{named}' is no model. The forms are: {FORMS}.")
    given: Mapping[str, str] = os.environ if environment is None else environment
    prefix = provider.upper()
    url = base_url or settings.base_url or given.get(f"{prefix}_BASE_URL") or None
    key = api_key or settings.api_key or given.get(f"{prefix}_API_KEY") or None
    if key is None and url is None:
        raise ConfigError(
            f"No API key for {named}: set {prefix}_API_KEY, or name your own server with base_url (--base-url). "
            "Without either, the model 'local' runs on this machine."
        )
    options: dict[str, Any] = {
        "extra_body": settings.extra_body,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "timeout": settings.timeout,
        "prices": settings.prices,
        "retry": RetryPolicy(retries=settings.max_retries),
    }
    client = _openai(name, url, key, options) if provider == "openai" else _anthropic(name, url, key, options)
    stated = {"max_context": settings.max_context_length, "images": settings.images}
    said: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    client.capabilities = replace(client.capabilities, **said)
    return client


def _named(settings: LLMSettings) -> str:
    if settings.provider is None and settings.model_name is None:
        raise ConfigError(f"No model is named. The forms are: {FORMS}.")
    if settings.provider is None:
        return str(settings.model_name)
    if settings.provider == "local" and settings.model_name is None:
        return "local"
    return f"{settings.provider}:{settings.model_name or ''}"


def _openai(name: str, url: str | None, key: str | None, options: dict[str, Any]) -> BaseClient:
    from closeout.llm.openai import OpenAIClient

    return OpenAIClient(name, url, key, **options)


def _anthropic(name: str, url: str | None, key: str | None, options: dict[str, Any]) -> BaseClient:
    from closeout.llm.anthropic import AnthropicClient

    return AnthropicClient(name, url, key, **options)


def _local(named: str, settings: LLMSettings) -> BaseClient:
    from closeout.llm.local import LocalClient

    return LocalClient(
        named,
        max_context=settings.max_context_length,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
    )
