"""Adapters for frameworks of others: a LangGraph node that runs tools, and engines that schedule runs."""
