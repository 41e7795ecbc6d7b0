"""Wrappers around what `create_message` hands back: a failure as a value, a reply with a remark beside it.

Which failures there are is said in `closeout.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = ["ErrorBox", "ResponseBox"]


class ErrorBox:
    """A request that failed, as a value; its text is the message. `error` is the exception behind it, where known."""

    __slots__ = ("error", "message")

    def __init__(self, message: str, error: Exception | None = None) -> None:
        self.message = message
        self.error = error

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"ErrorBox({self.message!r})"

    @staticmethod
    def is_error_box(something: object) -> TypeGuard[ErrorBox]:
        return isinstance(something, ErrorBox)


class ResponseBox:
    """A reply, and remarks about it: `{"warning_msg": "…"}` is shown to the person who watches."""

    __slots__ = ("extra_info", "response")

    def __init__(self, response: Any, extra_info: Mapping[str, Any] | None = None) -> None:
        self.response = response
        self.extra_info = extra_info

    def __repr__(self) -> str:
        return f"ResponseBox({self.response!r}, {self.extra_info!r})"

    @staticmethod
    def is_response_box(something: object) -> TypeGuard[ResponseBox]:
        return isinstance(something, ResponseBox)

    def has_extra_info(self) -> bool:
        return bool(self.extra_info)

    def get_extra_info(self) -> Mapping[str, Any]:
        """The remarks; an empty mapping where there are none."""
        return self.extra_info or {}

    def get_response(self) -> Any:
        return self.response
