"""Serve agents, govern model endpoints and view runs over HTTP."""
