"""DeepEP's events."""

from .._deep_ep import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
