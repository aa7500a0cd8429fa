"""Ranks that go on without others: Buffer(enable_shrink=True) of switchyard_ep.deep_ep.

Before every call of the low latency mode the processes meet in the store of torch.distributed. Who does not come within the
deadline is masked; the others join a world of their own, in which the experts of masked ranks are padding. A call that
breaks because a process has ended meanwhile is made again, after the next meeting.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Dict, List, Set, TypeVar

from . import _core
from ._deep_ep import not_here
from .errors import DeadlineExceeded, Unavailable

T = TypeVar("T")


class Meetings:
    """Meetings of processes that may not all come. The lowest rank that comes decides who has come."""

    def __init__(self, group: Any, timeout: float):
        if hasattr(group, "all_gather"):
            raise not_here("mask of ranks for such a group", "pass a process group of torch.distributed")
        import torch.distributed as dist

        self._rank, self._timeout, self._count = group.rank(), timeout, 0
        self._store = dist.PrefixStore("switchyard_ep.deep_ep", dist.distributed_c10d._get_default_store())

    def _wait(self, key: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._store.check([key]):
            if time.monotonic() > end:
                return False
            time.sleep(0.0002)
        return True

    def meet(self, members: List[int], unwanted: Set[int]) -> Dict[str, Any]:
        """Returns who goes on, and the name of a place where they can meet."""
        self._count += 1
        round_name = f"{self._count}"
        self._store.set(f"{round_name}/{self._rank}", "here")
        for leader in members:
            decided = f"{round_name}/decided"
            if leader != self._rank:
                # A leader waits for all others before it decides.
                if self._wait(decided, 2 * self._timeout):
                    return json.loads(self._store.get(decided))
                continue
            end = time.monotonic() + self._timeout
            here = [r for r in members if r == leader or self._wait(f"{round_name}/{r}", end - time.monotonic())]
            name = f"unix:@switchyard-{os.getpid()}-{time.monotonic_ns():x}"
            decision = {"members": [r for r in here if r not in unwanted], "name": name}
            self._store.set(decided, json.dumps(decision))
            return decision
        raise Unavailable("no other rank has come, and nobody has decided who goes on")


class Survivors:
    """The ranks of a Buffer that are not masked."""

    def __init__(self, buffer: Any, group: Any, timeout: float):
        self._buffer, self._meetings = buffer, Meetings(group, timeout)
        self._unwanted: Set[int] = set()

    def mask(self, rank: int) -> None:
        self._unwanted.add(rank)

    def call(self, function: Callable[[], T]) -> T:
        """Calls the function among those that have come."""
        for _ in range(self._buffer.group_size):
            self._gather()
            try:
                return function()
            except (DeadlineExceeded, Unavailable):
                self._buffer._leave_world()
        raise Unavailable("the ranks that are left cannot complete a step")

    def _gather(self) -> None:
        buffer = self._buffer
        decision = self._meetings.meet(buffer._members, self._unwanted)
        members = decision["members"]
        if buffer.rank not in members:
            raise Unavailable(f"rank {buffer.rank} has been masked: it came too late, or was asked to go")
        if members == buffer._members and buffer._world is not None:
            return
        buffer._leave_world()
        buffer._members = members
        buffer._world = _core.World.join(
            members.index(buffer.rank), len(members), rendezvous=decision["name"], **buffer._join_options()
        )
