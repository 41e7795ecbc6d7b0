"""Clients on the wire: OpenAI-compatible, Anthropic, the embedded model; retries, usage and prices. No conversations.

Import from the modules: `closeout.llm.base`, `.connect`, `.openai`, `.anthropic`, `.pricing`, `.retry`.
"""
