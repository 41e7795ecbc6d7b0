"""Strategies for particular models, each an object that an agent may be given."""
