"""Ranks that go on without others: Buffer(enable_shrink=True) of switchyard_ep.deep_ep.

Before every call of the low latency mode the processes meet in the store of torch.distributed. Who does not come within the
deadline is masked; the others join a world of their own, in which the experts of masked ranks are padding. A call that
breaks because a process has ended meanwhile is made again, after the next meeting. A rank that is unmasked comes to the
next meeting of the others.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any, Callable, Dict, List, Set, TypeVar

from . import _core
from ._deep_ep import not_here
from .errors import DeadlineExceeded, Unavailable

T = TypeVar("T")
_numbers = itertools.count()


class Meetings:
    """Meetings of processes that may not all come. The lowest rank that comes decides who has come."""

    def __init__(self, group: Any, timeout: float):
        if hasattr(group, "all_gather"):
            raise not_here("mask of ranks for such a group", "pass a process group of torch.distributed")
        import torch.distributed as dist

        self._rank, self._timeout, self._count = group.rank(), timeout, 0
        self._num_returns: Dict[int, int] = {}
        # Ranks make their Buffers in the same order.
        prefix = f"switchyard_ep.deep_ep/{next(_numbers)}"
        self._store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())

    def _wait(self, key: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._store.check([key]):
            if time.monotonic() > end:
                return False
            time.sleep(0.0002)
        return True

    def meet(self, members: List[int], unwanted: Set[int], returning: Set[int], call: int) -> Dict[str, Any]:
        """Returns who goes on, which call they make (the earliest that any of them is in), and the name of a place where
        they can meet."""
        self._count += 1
        for rank in returning:
            self._store.set(f"back/{rank}/{self._num_returns.get(rank, 0)}", f"{self._count} {call}")
            self._num_returns[rank] = self._num_returns.get(rank, 0) + 1
        self._store.set(f"{self._count}/{self._rank}", str(call))
        decided = f"{self._count}/decided"
        for leader in members:
            if leader != self._rank:
                # A leader waits for all others before it decides.
                if self._wait(decided, 2 * self._timeout):
                    return json.loads(self._store.get(decided))
                continue
            decision = self._decide(sorted({*members, *returning}), unwanted)
            # Another may have taken this rank for late, and decided first: the first decision holds.
            return json.loads(self._store.compare_set(decided, "", json.dumps(decision)))
        raise Unavailable("no other rank has come, and nobody has decided who goes on")

    def _decide(self, candidates: List[int], unwanted: Set[int]) -> Dict[str, Any]:
        end = time.monotonic() + self._timeout
        keys = {rank: f"{self._count}/{rank}" for rank in candidates}
        here = [rank for rank in candidates if self._wait(keys[rank], max(0.0, end - time.monotonic()))]
        members = [rank for rank in here if rank not in unwanted]
        name = f"unix:@switchyard-{os.getpid()}-{time.monotonic_ns():x}"
        call = min(int(self._store.get(keys[rank])) for rank in members or here)
        return {"members": members, "call": call, "name": name}

    def come_back(self) -> int:
        """Waits until the others expect this rank, which was masked, and returns the number of their next call."""
        key = f"back/{self._rank}/{self._num_returns.get(self._rank, 0)}"
        if not self._wait(key, 2 * self._timeout):
            raise Unavailable(f"rank {self._rank} is masked, and no other rank has unmasked it")
        self._num_returns[self._rank] = self._num_returns.get(self._rank, 0) + 1
        meeting, call = self._store.get(key).decode().split()
        self._count = int(meeting) - 1
        return int(call)


class Survivors:
    """The ranks of a Buffer that are not masked."""

    def __init__(self, buffer: Any, group: Any, timeout: float):
        self._buffer, self._meetings = buffer, Meetings(group, timeout)
        self._unwanted: Set[int] = set()
        self._returning: Set[int] = set()  # this rank itself: the others are to expect it
        self._num_calls = 0
        self._last: Callable[[bool], Any] = lambda is_help: None

    def mask(self, rank: int) -> None:
        self._unwanted.add(rank)
        self._returning.discard(rank)

    def unmask(self, rank: int) -> None:
        self._unwanted.discard(rank)
        if rank not in self._buffer._members or rank == self._buffer.rank:
            self._returning.add(rank)

    def call(self, function: Callable[[bool], T]) -> T:
        """Calls the function among those that have come. Who has not completed the call before makes it again, and the
        others with it: of a call that a process has broken, some may have had all they need. The function is told whether
        it is called to help others, and has been completed here."""
        self._num_calls += 1
        if self._buffer.rank in self._returning:
            self._num_calls = self._meetings.come_back()
            self._buffer._leave_world()
            self._buffer._members = []
        for _ in range(2 * self._buffer.group_size):
            helps = self._gather() < self._num_calls
            try:
                result = (self._last if helps else function)(helps)
            except (DeadlineExceeded, Unavailable):
                self._buffer._leave_world()
                continue
            if not helps:
                self._last = function
                return result
        raise Unavailable("the ranks that are left cannot complete a step")

    def _gather(self) -> int:
        """Returns the number of the call that is to be made."""
        buffer, returning = self._buffer, self._returning - {self._buffer.rank}
        # A rank that comes back decides nothing.
        leaders = buffer._members or [rank for rank in range(buffer.group_size) if rank != buffer.rank]
        decision = self._meetings.meet(leaders, self._unwanted, returning, self._num_calls)
        self._returning = set()
        members = decision["members"]
        if buffer.rank not in members:
            buffer._leave_world()
            raise Unavailable(f"rank {buffer.rank} has been masked: it came too late, or was asked to go")
        if members == buffer._members and buffer._world is not None:
            return decision["call"]
        buffer._leave_world()
        buffer._members = members
        buffer._world = _core.World.join(
            members.index(buffer.rank), len(members), rendezvous=decision["name"], **buffer._join_options()
        )
        return decision["call"]
