"""Tests of the package without other packages: `import atoll` needs neither numpy nor torch."""

import array
import doctest
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import unittest

import atoll
from ranks import run_ranks


class Floats:
    """An array of another library: it has nothing but the interface of numpy."""

    def __init__(self, values, read_only=False, strides=None):
        self.values = array.array("f", values)
        address, count = self.values.buffer_info()
        self.__array_interface__ = {"data": (address, read_only), "typestr": "<f4",
                                    "shape": (count,), "strides": strides, "version": 3}


def job(body, **settings):
    """A rank that joins through files and then runs body(world)."""
    def rank_main(rank, size, files):
        with atoll.World.from_exchange(rank, size, files.put, files.get, timeout=20,
                                       **settings) as world:
            return body(world)
    return rank_main


class Machines(unittest.TestCase):
    def test_without_other_packages(self):
        self.assertNotIn("numpy", sys.modules)
        self.assertNotIn("torch", sys.modules)

    def test_this_machine(self):
        here = atoll.topology()
        self.assertEqual(len(here.hosts), 1)
        self.assertGreaterEqual(here.hosts[0].threads, 1)

    def test_a_machine_of_the_catalog(self):
        two = atoll.topology("hgx-h100x2")
        self.assertEqual([len(island.gpus) for island in two.islands], [8, 8])
        self.assertEqual(len(two.rails), 8)
        self.assertEqual(two.islands[0].fabric, "nvlink")
        self.assertIn("leaf switches", str(two.findings[0]))

    def test_plans(self):
        plan = atoll.plan_mesh("hgx-h100x2")
        self.assertEqual((plan.replicate, plan.shard, sorted(plan.order)), (2, 8, list(range(16))))
        best, second = atoll.predict("mistral-7b", gpu="H100", hosts=2)[:2]
        self.assertGreaterEqual(best.tokens_per_s, second.tokens_per_s)
        self.assertLessEqual(best.exposed_s, best.communication_s)

    def test_errors_have_the_texts_of_the_tools(self):
        with self.assertRaisesRegex(atoll.Error, "nosuchmachine"):
            atoll.topology("nosuchmachine")
        with self.assertRaisesRegex(atoll.InvalidArgument, "--no-such-flag"):
            atoll.predict("mistral-7b", no_such_flag=1)
        with self.assertRaisesRegex(atoll.InvalidArgument, "mistral-900b"):
            atoll.predict("mistral-900b")

    def test_examples_in_docstrings(self):
        for name in ("_topology", "_planning", "_world"):
            failed, tried = doctest.testmod(importlib.import_module(f"atoll.{name}"))
            self.assertEqual(failed, 0)
            self.assertGreater(tried, 0)


    @unittest.skipUnless(importlib.util.find_spec("mypy") and importlib.util.find_spec("torch"),
                         "type hints are checked where mypy and torch are installed")
    def test_type_hints(self):
        folder = os.path.dirname(os.path.dirname(atoll.__file__))
        checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null",
                                  "-p", "atoll"], cwd=folder, capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


class Jobs(unittest.TestCase):
    def test_collectives(self):
        def body(world):
            comm = world.communicator()
            own = Floats([world.rank + 1.0] * 3)
            comm.all_reduce(own, op="avg").wait()
            everyone = Floats([0.0] * world.size)
            comm.all_gather(Floats([float(world.rank)]), everyone).wait()
            part = Floats([0.0])
            comm.reduce_scatter(everyone, part, factor=0.5).wait()
            swapped = Floats([0.0] * world.size)
            comm.all_to_all(Floats([10.0 * world.rank + r for r in range(world.size)]),
                            swapped).wait()
            got = Floats([0.0])
            comm.scatter(everyone if world.rank == 1 else None, got, root=1).wait()
            comm.barrier().wait()
            return [list(x.values) for x in (own, everyone, part, swapped, got)]
        for rank, got in run_ranks(3, job(body)).items():
            self.assertEqual(got, [[2.0] * 3, [0.0, 1.0, 2.0], [1.5 * rank],
                                   [10.0 * r + rank for r in range(3)], [float(rank)]])

    def test_messages_with_tags(self):
        def body(world):
            comm = world.communicator(tags=True)
            got = Floats([0.0])
            receive = comm.recv(got, tag=7)
            comm.send(Floats([float(world.rank)]), (world.rank + 1) % world.size, tag=7).wait()
            receive.wait()
            return receive.source, list(got.values)
        for rank, got in run_ranks(3, job(body)).items():
            last = (rank + 2) % 3
            self.assertEqual(got, ((last, 7), [float(last)]))

    def test_mesh_and_store(self):
        def body(world):
            world.put(f"{world.rank}", bytes(10_000) + b"end")
            value = world.get(f"{1 - world.rank}")
            mesh = world.mesh()
            return value[-3:], mesh.axes, mesh.ranks("shard"), len(world.topology().hosts), str(mesh)
        expected = (b"end", {"replicate": 1, "shard": 2}, [0, 1], 1, "1x2")
        self.assertEqual(run_ranks(2, job(body)), {0: expected, 1: expected})

    def test_wrong_calls(self):
        def body(world):
            comm = world.communicator()
            texts = []
            for call in (lambda: comm.all_reduce(Floats([1.0], read_only=True)),
                         lambda: comm.all_reduce(Floats([1.0, 2.0], strides=(8,))),
                         lambda: comm.all_gather(Floats([1.0]), Floats([1.0])),
                         lambda: comm.all_reduce([1.0]),
                         lambda: comm.all_reduce(Floats([1.0]), op="mean"),
                         lambda: world.get("never", timeout=0.1),
                         lambda: world.communicator([0, 0], "twice")):
                try:
                    call()
                except atoll.Error as error:
                    texts.append(f"{type(error).__name__}: {error}")
            comm.close()
            try:
                comm.barrier()
            except atoll.Error as error:
                texts.append(str(error))
            return texts
        patterns = ("src is read-only|dst is read-only", "not contiguous", "1 elements instead of 2",
                    "src is a list", '"mean" is none of sum', "Timeout.*never", "InvalidArgument.*0",
                    "communicator has been closed")
        for texts in run_ranks(2, job(body)).values():
            self.assertEqual(len(texts), len(patterns), texts)
            for text, pattern in zip(texts, patterns):
                self.assertRegex(text, pattern)

    def test_a_lost_rank_and_the_next_epoch(self):
        def body(rank, size, files):
            world = atoll.World.from_exchange(rank, size, files.put, files.get, timeout=20,
                                              failure_scope="communicator")
            comm = world.communicator()
            comm.barrier().wait()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begin = time.monotonic()
            try:
                comm.all_reduce(Floats([1.0])).wait()
            except atoll.PeerLost as error:
                text = str(error)
            after = time.monotonic() - begin
            with world.regroup() as rest:
                ones = Floats([1.0])
                rest.communicator().all_reduce(ones).wait()
                return text, after, rest.rank, rest.size, rest.epoch, ones.values[0]
        for rank, got in run_ranks(3, body, victims=[1]).items():
            self.assertIn("rank 1 ", got[0])
            self.assertLess(got[1], 2)
            self.assertEqual(got[2:], (rank // 2, 2, 1, 2.0))

    def test_an_exception_reaches_the_other_ranks(self):
        def body(world):
            if world.rank == 0:
                raise RuntimeError("no more data")
            world.get("never", timeout=20)

        def rank_main(rank, size, files):
            try:
                job(body)(rank, size, files)
            except Exception as error:
                return str(error)
        texts = run_ranks(2, rank_main)
        self.assertEqual(texts[0], "no more data")
        self.assertIn("RuntimeError: no more data", texts[1])

    def test_an_exchange_that_fails(self):
        def put(key, value):
            raise KeyError("no store")
        with self.assertRaisesRegex(KeyError, "no store"):
            atoll.World.from_exchange(0, 2, put, lambda key: b"")


if __name__ == "__main__":
    unittest.main()
