"""DeepEP's events."""

from typing import Any

from .._deep_ep import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap", "check_nvlink_connections"]


def check_nvlink_connections(group: Any) -> None:
    """Does nothing: the library finds out itself which ranks reach each other's memory."""
