"""Strategies for models that are small enough to be embedded."""
