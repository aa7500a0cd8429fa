"""What traced kernels have recorded (ExpertParallel.enable_trace and take_trace)."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

from .plots import Svg, gantt


class Event(NamedTuple):
    """A role of a block, or a wait that was not satisfied at its first poll, with its begin and its end."""

    block: int
    name: str
    phase: str
    begin_ns: int
    end_ns: int
    late_rank: int
    """Waits: the rank waited for; -1: no rank in particular."""
    expert: int
    """Waits: the expert; -1: no expert in particular."""

    @property
    def is_wait(self) -> bool:
        return "wait" in self.name


class Trace:
    """The events of every rank since the last take_trace(). Notebooks show it as a Gantt chart."""

    def __init__(self, ranks: Sequence[Sequence[tuple]]):
        self.ranks: List[List[Event]] = [[Event(*event) for event in events] for events in ranks]

    def gantt(self, max_blocks_per_rank: int = 8) -> Svg:
        """Draws when each role of each block ran, and its waits."""
        return gantt(self, max_blocks_per_rank)

    def _repr_svg_(self) -> str:
        return str(self.gantt())

    def __repr__(self) -> str:
        return f"<Trace of {len(self.ranks)} ranks, {sum(map(len, self.ranks))} events>"
