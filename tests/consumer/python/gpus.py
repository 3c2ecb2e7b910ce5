"""Tests of the backend "atoll" of torch.distributed on CUDA tensors. Two ranks share a GPU if there
is only one; NCCL then connects them by sockets. ATOLL_TEST_DEVICE=cpu runs all but the test of the
order in streams on CPU tensors, to check the tests themselves."""

import os
import time
import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import atoll.torch  # noqa: F401  registers the backend
from ranks import run_ranks

DEVICE = os.environ.get("ATOLL_TEST_DEVICE", "cuda")
SIZE = 2


def group(body):
    """A rank that joins the default group and then runs body(rank)."""
    def rank_main(rank, size, files):
        if DEVICE == "cuda":
            if torch.cuda.device_count() < size:
                os.environ["NCCL_HOSTID"] = f"r{rank}"
            torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
        dist.init_process_group("cpu:atoll,cuda:atoll", init_method=f"file://{files.folder}/c10d",
                                rank=rank, world_size=size)
        try:
            return body(rank)
        finally:
            dist.destroy_process_group()
    return rank_main


class OnGpus(unittest.TestCase):
    def check(self, body):
        return run_ranks(SIZE, group(body), limit=200)

    def test_collectives(self):
        def body(rank):
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                x = torch.full((1000, 3), rank + 1, dtype=dtype)
                dist.all_reduce(x)
                assert (x == 3).all(), x
                out = torch.empty(SIZE * 1000, dtype=dtype)
                dist.all_gather_into_tensor(out, torch.full((1000,), rank + 1, dtype=dtype))
                assert out[::1000].tolist() == [1, 2]
                part = torch.empty(1000, dtype=dtype)
                dist.reduce_scatter_tensor(part, out)
                assert (part == 2 * (rank + 1)).all(), part
            x = torch.full((7,), float(rank))
            dist.all_reduce(x, dist.ReduceOp.AVG)
            assert x.tolist() == [0.5] * 7
            dist.broadcast(x.fill_(rank), 1)
            assert x.tolist() == [1] * 7
            got = torch.empty(SIZE)
            dist.all_to_all_single(got, torch.arange(2.0) + 10 * rank)
            assert got.tolist() == [float(rank), 10.0 + rank]
            strided = torch.full((4, 4), float(rank)).t()[:2]
            dist.all_reduce(strided)
            assert (strided == 1).all()
            host = torch.ones(3, device="cpu")
            dist.all_reduce(host)
            assert host.tolist() == [2] * 3
        self.check(body)

    def test_messages(self):
        def body(rank):
            x, y = torch.full((1000,), float(rank)), torch.empty(1000)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank),
                                            dist.P2POp(dist.irecv, y, 1 - rank)])
            for work in works:
                work.wait()
            assert (y == 1 - rank).all()
        self.check(body)

    @unittest.skipIf(DEVICE == "cpu", "CPU tensors have no streams")
    def test_the_host_does_not_wait_for_the_gpu(self):
        def body(rank):
            x = torch.zeros(1 << 20)
            dist.all_reduce(x)  # opens the communicator
            torch.cuda.synchronize()
            side, done = torch.cuda.Stream(), torch.cuda.Event()
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000_000)  # clocks: about a second
                x += rank + 1
                begin = time.monotonic()
                work = dist.all_reduce(x, async_op=True)
                work.wait()  # makes the stream wait, not the host
                x *= 2
                done.record()
                enqueued = time.monotonic() - begin
                was_done = done.query()
            torch.cuda.current_stream().wait_stream(side)
            assert (x == 6).all(), x
            assert not was_done, "a collective waited for the work before it"
            return enqueued
        for seconds in self.check(body).values():
            self.assertLess(seconds, 0.5)

    def test_fsdp2(self):
        def model():
            torch.manual_seed(0)
            return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])

        def train(module, rows):
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            losses = []
            for step in range(5):
                torch.manual_seed(step)
                x = torch.randn(8, 64)[rows]
                loss = module(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return torch.tensor(losses)

        def body(rank):
            expected = train(model(), slice(None))
            module = model()
            mesh = init_device_mesh(DEVICE, (SIZE,))
            for layer in module:
                fully_shard(layer, mesh=mesh)
            fully_shard(module, mesh=mesh)
            losses = train(module, slice(rank * 4, rank * 4 + 4))
            dist.all_reduce(losses, dist.ReduceOp.AVG)
            torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
        self.check(body)


if __name__ == "__main__":
    unittest.main()
