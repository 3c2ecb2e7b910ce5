"""Runs a function on several processes, the ranks of a test."""

import multiprocessing
import tempfile
import time
import traceback
from pathlib import Path


class Files:
    """A key-value store in a folder, as a program might have one."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def put(self, key, value):
        path = self.folder / key.replace("/", "_")
        path.with_suffix(".new").write_bytes(value)
        path.with_suffix(".new").rename(path)

    def get(self, key):
        path = self.folder / key.replace("/", "_")
        deadline = time.monotonic() + 30
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody has put {key}")
            time.sleep(0.002)
        return path.read_bytes()


def _main(body, rank, size, folder, results):
    try:
        results.put((rank, None, body(rank, size, Files(folder))))
    except BaseException:
        results.put((rank, traceback.format_exc(), None))


def run_ranks(size, body, victims=(), limit=100):
    """Returns the results of body(rank, size, files) by rank. Fails if a rank raises, or does not
    end in time. Ranks in `victims` may end without a result."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=_main, args=(body, rank, size, folder, results))
                 for rank in range(size)]
        for rank in ranks:
            rank.start()
        try:
            found = {}
            for _ in range(size - len(victims)):
                rank, problem, result = results.get(timeout=limit)
                if problem:
                    raise AssertionError(f"rank {rank} of {size}:\n{problem}")
                found[rank] = result
            for rank in ranks:
                rank.join(limit)
            return found
        finally:
            for rank in ranks:
                if rank.is_alive():
                    rank.kill()
