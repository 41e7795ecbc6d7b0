"""Model clients: OpenAI-compatible, Anthropic, embedded; transport, retries and prices.

Import from the modules: `closeout.models.base`, `.connect`, `.openai`, `.anthropic`, `.catalog`, `.retry`.
"""
