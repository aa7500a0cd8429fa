"""What traced kernels have recorded (ExpertParallel.enable_trace and take_trace)."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Union

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

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the events as JSON for Perfetto (ui.perfetto.dev) or chrome://tracing: a process for each rank, and in it a
        row for each block. Waits, which overlap, are rows of their own. On GPUs each rank has the clock of its GPU."""
        begin_ns = min((event.begin_ns for events in self.ranks for event in events), default=0)
        events = [event for rank in range(len(self.ranks)) for event in self._json_events(rank, begin_ns)]
        with open(path, "w") as file:
            json.dump({"displayTimeUnit": "ns", "traceEvents": events}, file)

    def _json_events(self, rank: int, begin_ns: int) -> Iterator[Dict[str, Any]]:
        process = rank + 1  # Perfetto gives process 0 and thread 0 a meaning of their own

        def microseconds(ns: int) -> float:
            return (ns - begin_ns) / 1e3

        def named(kind: str, thread: int, name: str) -> Dict[str, Any]:
            return dict(ph="M", name=kind, pid=process, tid=thread, args=dict(name=name))

        yield named("process_name", 0, f"rank {rank}")
        for block in sorted({event.block for event in self.ranks[rank]}):
            yield named("thread_name", block + 1, f"block {block}")
        open_ends: Dict[int, List[int]] = {}  # by block, of the roles that the next one lies in
        for number, event in enumerate(sorted(self.ranks[rank], key=lambda event: (event.begin_ns, -event.end_ns))):
            where = dict(cat=event.phase, pid=process, tid=event.block + 1)
            if event.is_wait:
                name = event.name if event.late_rank < 0 else f"{event.name} for rank {event.late_rank}"
                facts = dict(block=event.block, late_rank=event.late_rank, expert=event.expert)
                wait = dict(where, name=name, id=f"{rank}.{number}")
                yield dict(wait, ph="b", ts=microseconds(event.begin_ns), args=facts)
                yield dict(wait, ph="e", ts=microseconds(event.end_ns))
                continue
            # A role ends within that which it began in.
            ends = open_ends.setdefault(event.block, [])
            while ends and ends[-1] <= event.begin_ns:
                ends.pop()
            end_ns = min(event.end_ns, ends[-1]) if ends else event.end_ns
            ends.append(end_ns)
            duration = (end_ns - event.begin_ns) / 1e3
            yield dict(where, ph="X", name=event.name, ts=microseconds(event.begin_ns), dur=duration)

    def _repr_svg_(self) -> str:
        return str(self.gantt())

    def __repr__(self) -> str:
        return f"<Trace of {len(self.ranks)} ranks, {sum(map(len, self.ranks))} events>"
