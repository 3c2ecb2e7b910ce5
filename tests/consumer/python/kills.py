"""Kills a rank of a DDP training again and again, and checks what the others see.

    run BUILD kills [--trials N] [--ranks N]

Every other rank must raise an error that names the killed rank within a second, and must then train
in a new group. Prints median and worst time from the kill to the error and to the first result of
the new group.
"""

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import atoll.torch  # noqa: F401  registers the backend


def join(folder, name, rank, size):
    dist.init_process_group("cpu:atoll", init_method=f"file://{folder}/{name}", rank=rank,
                            world_size=size)


def survive(folder, rank, size, victim, pipe):
    """A rank: trains until an error, then with the others that are left."""
    torch.set_num_threads(1)
    join(folder, "first", rank, size)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    pipe.send("ready")
    try:
        while True:
            model(torch.randn(8, 64)).sum().backward()
    except Exception as error:
        raised, text = time.monotonic(), str(error)
    dist.destroy_process_group()
    left = [other for other in range(size) if other != victim]
    join(folder, "second", left.index(rank), len(left))
    ones = torch.ones(10)
    dist.all_reduce(ones)
    went_on = time.monotonic()
    dist.destroy_process_group()
    pipe.send((raised, text, went_on, ones[-1].item()))


def trial(size):
    """Returns the seconds until each rank raised, and until it went on; or text of what is wrong."""
    context = multiprocessing.get_context("fork")
    victim = random.randrange(size)
    with tempfile.TemporaryDirectory() as folder:
        pipes, ranks = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            ranks.append(context.Process(target=survive,
                                         args=(folder, rank, size, victim, theirs)))
            pipes.append(mine)
            ranks[-1].start()
        try:
            for pipe in pipes:
                if not pipe.poll(60):
                    return None, "a rank did not start"
                pipe.recv()
            time.sleep(random.uniform(0, 0.3))
            killed = time.monotonic()
            os.kill(ranks[victim].pid, signal.SIGKILL)
            times = []
            for rank, pipe in enumerate(pipes):
                if rank == victim:
                    continue
                if not pipe.poll(30):
                    return None, f"rank {rank} hangs"
                raised, text, went_on, value = pipe.recv()
                if f"rank {victim} " not in text:
                    return None, f"rank {victim} was killed, but rank {rank} raised: {text}"
                if value != size - 1:
                    return None, f"the sum of {size - 1} ones is {value}"
                if raised - killed > 1:
                    return None, f"rank {rank} raised after {raised - killed:.1f} s"
                times.append((raised - killed, went_on - killed))
            return times, None
        finally:
            for process in ranks:
                process.join(10)
                if process.is_alive():
                    process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    raised, went_on, failed = [], [], 0
    for number in range(args.trials):
        times, problem = trial(args.ranks)
        if problem:
            failed += 1
            print(f"trial {number}: {problem}")
            continue
        raised += [one[0] for one in times]
        went_on += [one[1] for one in times]
    print(f"{args.trials} kills of one of {args.ranks} ranks, {failed} failed")
    for what, times in (("error", raised), ("new group", went_on)):
        if times:
            print(f"{what}: median {statistics.median(times):.3f} s, worst {max(times):.3f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
