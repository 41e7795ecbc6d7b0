"""The viewer: web pages that show recorded runs."""
