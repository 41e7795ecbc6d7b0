"""Closeout: a runtime for tool-using LLM agents that finish."""

__version__ = "0.1.0"
