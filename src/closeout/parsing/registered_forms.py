"""The tool-call forms that users registered, apart from the built-in ones, which take long to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeout.parsing.forms.form import Form

__all__ = ["REGISTERED", "registered_markers"]

REGISTERED: dict[str, Form] = {}  # keyed by family


def registered_markers() -> tuple[str, ...]:
    """Return the markers of the registered forms."""
    return tuple(marker for form in REGISTERED.values() for marker in form.markers)
