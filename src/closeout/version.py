"""The version of this package, for rooms that state it without importing the package's front."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
