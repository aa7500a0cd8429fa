"""Runs a function in several processes, each with a group of them all."""

import multiprocessing
import traceback

CONTEXT = multiprocessing.get_context("spawn")


class Group:
    """A process group over pipes: rank 0 collects what each sends, and sends all of it to each."""

    def __init__(self, rank, size, pipes):
        self._rank, self._size, self._pipes = rank, size, pipes

    def rank(self):
        return self._rank

    def size(self):
        return self._size

    def all_gather(self, mine):
        if self._rank == 0:
            parts = [mine] + [pipe.recv() for pipe in self._pipes]
            for pipe in self._pipes:
                pipe.send(parts)
            return parts
        self._pipes[0].send(mine)
        return self._pipes[0].recv()


def _work(function, group, results):
    try:
        function(group)
        results.put((group.rank(), None))
    except BaseException:
        results.put((group.rank(), traceback.format_exc()))


def run(function, n_ranks, timeout=60):
    """Calls function(group) in each process, and raises what any of them does."""
    results = CONTEXT.Queue()
    ends = [CONTEXT.Pipe() for _ in range(n_ranks - 1)]
    pipes = [[end[0] for end in ends]] + [[end[1]] for end in ends]
    groups = [Group(rank, n_ranks, pipes[rank]) for rank in range(n_ranks)]
    processes = [CONTEXT.Process(target=_work, args=(function, group, results)) for group in groups]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            rank, error = results.get(timeout=timeout)
            assert error is None, f"rank {rank}: {error}"
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
