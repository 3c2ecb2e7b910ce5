"""Tests of what the backend "atoll" of torch.distributed does when something is missing or lost."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from process_group import VERSION, error_of, group
from ranks import run_ranks


class Compiling(unittest.TestCase):
    def test_a_missing_compiler_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "import atoll.torch._build as build; build.load()"
            result = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True,
                env=dict(os.environ, CXX="no-such-g++", XDG_CACHE_HOME=folder))
        self.assertEqual(result.returncode, 1)
        self.assertIn("no C++ compiler no-such-g++", result.stderr)
        self.assertIn("install g++", result.stderr)


class Failures(unittest.TestCase):
    def test_a_lost_rank_is_named_and_a_new_group_goes_on(self):
        def body(rank, size, files):
            def join(name, rank, size):
                dist.init_process_group("cpu:atoll", init_method=f"file://{files.folder}/{name}",
                                        rank=rank, world_size=size)
            join("first", rank, size)
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begin = time.monotonic()
            text = error_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(100_000)])
            seconds = time.monotonic() - begin
            dist.destroy_process_group()
            join("second", 0 if rank == 0 else 1, size - 1)
            x = torch.ones(1)
            dist.all_reduce(x)
            dist.destroy_process_group()
            return text, seconds, x.item()
        for text, seconds, after in run_ranks(3, body, victims=[1]).values():
            self.assertIn("rank 1 ", text)
            self.assertIn("all_reduce", text)
            self.assertLess(seconds, 1)
            self.assertEqual(after, 2)

    def test_the_last_operations_are_written_at_a_failure(self):
        def body(rank, size, files):
            os.environ["ATOLL_FLIGHT"] = f"{files.folder}/flight"

            def job(rank, size):
                dist.barrier()
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                error_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(100_000)])
            group(job)(rank, size, files)
            return json.loads(Path(f"{files.folder}/flight.{rank}.json").read_text())
        for rank, log in run_ranks(3, body, victims=[1]).items():
            self.assertEqual(log["rank"], rank)
            self.assertIn("rank 1 ", log["failure"])
            self.assertIn("all_reduce", [one["kind"] for one in log["operations"]])

    @unittest.skipIf(VERSION < (2, 14), "reconfigure() came with torch 2.14")
    def test_a_group_goes_on_with_other_members(self):
        def body(rank, size, files):
            dist.init_process_group("atoll", init_method=f"file://{files.folder}/c10d", rank=rank,
                                    world_size=size, enable_reconfigure=True,
                                    timeout=timedelta(seconds=20))
            self.assertRegex(error_of(dist.barrier), r"call reconfigure\(\)")
            handles = [None] * size

            def meet(uuid, members):
                dist._reconfigure(uuid, [handles[r] for r in members]).wait()
                self.assertEqual((dist.get_rank(), dist.get_world_size()),
                                 (members.index(rank), len(members)))
            files.put(f"handle{rank}", dist._get_reconfigure_handle().encode())
            handles = [files.get(f"handle{r}").decode() for r in range(size)]
            meet(1, [0, 1, 2, 3])
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            text = error_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(100_000)])
            meet(2, [3, 0, 2])
            x = torch.tensor([float(rank)])
            dist.all_reduce(x)
            text2 = error_of(lambda: meet(2, [3, 0, 2]))
            wrong = error_of(lambda: dist._reconfigure(3, ["another"]))
            dist.destroy_process_group()
            return text, x.item(), text2, wrong
        for text, total, again, wrong in run_ranks(4, body, victims=[1]).values():
            self.assertIn("rank 1 ", text)
            self.assertEqual(total, 5)
            self.assertIn("uuid 2 was already used", again)
            self.assertIn("do not contain that of this process", wrong)

    def test_a_rank_that_does_not_come(self):
        def body(rank, size):
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            texts = []
            for missing in (None, 1):
                texts.append("" if rank == missing else error_of(
                    lambda: backend.monitored_barrier(timedelta(seconds=1))))
            time.sleep(2 if rank == 1 else 0)
            return texts
        texts = run_ranks(3, group(body))
        self.assertEqual([text[0] for text in texts.values()], ["", "", ""])
        self.assertIn("Rank 1 failed to pass monitoredBarrier in 1000 ms", texts[0][1])
        self.assertIn("Rank 2 successfully reached monitoredBarrier", texts[2][1])

    @unittest.skipIf(VERSION < (2, 7), "torch has no abort")
    def test_abort(self):
        def body(rank, size):
            if rank == 0:
                time.sleep(0.2)
                dist.group.WORLD.abort()
            return error_of(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(100_000)])
        for text in run_ranks(2, group(body)).values():
            self.assertRegex(text, "abort")


if __name__ == "__main__":
    unittest.main()
