"""A proxy that governs the requests of other clients to a model server."""
