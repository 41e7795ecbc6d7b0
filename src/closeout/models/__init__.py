"""Clients of model servers, OpenAI-compatible, Anthropic and embedded, with transport, retries and prices."""
