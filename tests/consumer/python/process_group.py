"""Tests of the backend "atoll" of torch.distributed on CPUs."""

import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)
from torch.nn.parallel import DistributedDataParallel

import atoll.torch
from ranks import run_ranks

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def group(body, timeout=30):
    """A rank that joins the default group and then runs body(rank, size)."""
    def rank_main(rank, size, files):
        torch.set_num_threads(1)
        dist.init_process_group("cpu:atoll", init_method=f"file://{files.folder}/c10d", rank=rank,
                                world_size=size, timeout=timedelta(seconds=timeout))
        try:
            return body(rank, size)
        finally:
            dist.destroy_process_group()
    return rank_main


def error_of(call):
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def ramp(rank, *shape, dtype=torch.float32):
    """Small numbers that differ between ranks and elements, whose sums are exact."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + rank * 5) % 7 - 2).to(dtype).reshape(shape)


class Collectives(unittest.TestCase):
    def check(self, body, size=3):
        run_ranks(size, group(body))

    def test_all_reduce_of_all_types_and_ops(self):
        def body(rank, size):
            everyone = range(size)
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8,
                          torch.uint8, torch.int16, torch.int32, torch.int64):
                for op, expected in ((dist.ReduceOp.SUM, torch.sum), (dist.ReduceOp.MIN, torch.amin),
                                     (dist.ReduceOp.MAX, torch.amax),
                                     (dist.ReduceOp.PRODUCT, torch.prod)):
                    x = ramp(rank, 1000, dtype=dtype)
                    dist.all_reduce(x, op)
                    all_x = torch.stack([ramp(r, 1000, dtype=dtype) for r in everyone])
                    torch.testing.assert_close(x, expected(all_x, 0).to(dtype))
            x = ramp(rank, 100)
            dist.all_reduce(x, dist.ReduceOp.AVG)
            torch.testing.assert_close(x, torch.stack([ramp(r, 100) for r in everyone]).mean(0))
            x = ramp(rank, 100)
            dist.all_reduce(x, dist._make_nccl_premul_sum(0.25))
            torch.testing.assert_close(x, sum(ramp(r, 100) for r in everyone) / 4)
            bits = torch.tensor([rank, 6], dtype=torch.int32)
            dist.all_reduce(bits, dist.ReduceOp.BOR)
            assert bits.tolist() == [3, 6], bits
            flags = torch.tensor([rank == 1, False])
            dist.all_reduce(flags)
            assert flags.tolist() == [True, False]
            z = torch.complex(ramp(rank, 50), ramp(rank + 1, 50))
            dist.all_reduce(z)
            torch.testing.assert_close(
                z, sum(torch.complex(ramp(r, 50), ramp(r + 1, 50)) for r in everyone))
        self.check(body)

    def test_shapes_in_memory(self):
        def body(rank, size):
            for x in (ramp(rank, 6, 8).t(), ramp(rank, 6, 8)[:, ::2], ramp(rank, 6, 8)[2:, 1:3],
                      torch.empty(0), torch.tensor(float(rank))):
                before = x.clone()
                gathered = [torch.empty_like(before) for _ in range(size)]
                dist.all_gather(gathered, before)
                dist.all_reduce(x)
                torch.testing.assert_close(x, torch.stack(gathered).sum(0))
                out = torch.empty(size * before.numel())
                dist.all_gather_into_tensor(out, before.contiguous().flatten())
                torch.testing.assert_close(out.view(size, *before.shape), torch.stack(gathered))
        self.check(body)

    def test_gathers_and_scatters(self):
        def body(rank, size):
            own = ramp(rank, 4, 5)
            whole = torch.stack([ramp(r, 4, 5) for r in range(size)])
            flat = torch.full((size * 4, 5), -1.0)
            flat[rank * 4:(rank + 1) * 4] = own
            dist.all_gather_into_tensor(flat, flat[rank * 4:(rank + 1) * 4])  # in place
            torch.testing.assert_close(flat.view_as(whole), whole)
            uneven = [torch.empty(r + 1) for r in range(size)]
            dist.all_gather(uneven, ramp(rank, rank + 1))
            for r in range(size):
                torch.testing.assert_close(uneven[r], ramp(r, r + 1))
            part = torch.empty(4, 5)
            dist.reduce_scatter_tensor(part, whole.flatten(0, 1) * (rank + 1), dist.ReduceOp.AVG)
            torch.testing.assert_close(part, own * (size + 1) / 2)
            dist.reduce_scatter(part, [ramp(r, 4, 5) for r in range(size)])
            torch.testing.assert_close(part, own * size)
            lists = [torch.empty(4, 5) for _ in range(size)] if rank == 1 else None
            dist.gather(own, lists, dst=1)
            if rank == 1:
                torch.testing.assert_close(torch.stack(lists), whole)
            dist.scatter(part, [x for x in whole * 2] if rank == 1 else None, src=1)
            torch.testing.assert_close(part, own * 2)
            x = own.clone()
            dist.reduce(x, 2)
            torch.testing.assert_close(x, whole.sum(0) if rank == 2 else own)
            x = own.clone()
            dist.broadcast(x, 1)
            torch.testing.assert_close(x, whole[1])
            objects = [None] * size
            dist.all_gather_object(objects, {"rank": rank, "data": "x" * rank})
            assert [o["rank"] for o in objects] == list(range(size))
        self.check(body)

    def test_all_to_all(self):
        def body(rank, size):
            send = torch.arange(size * 2.0) + 100 * rank
            got = torch.empty(size * 2)
            dist.all_to_all_single(got, send)
            expected = [100.0 * r + 2 * rank + i for r in range(size) for i in range(2)]
            assert got.tolist() == expected
            splits = [r + 1 for r in range(size)]  # rows for rank r
            rows = torch.full((sum(splits), 3), float(rank))
            got = torch.empty(size * (rank + 1), 3)
            dist.all_to_all_single(got, rows, [rank + 1] * size, splits)
            assert got[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
            outs = [torch.empty(rank + 1) for _ in range(size)]
            dist.all_to_all(outs, [torch.full((r + 1,), float(rank)) for r in range(size)])
            assert [o[0].item() for o in outs] == list(range(size))
        self.check(body)

    def test_messages(self):
        def body(rank, size):
            up, down = (rank + 1) % size, (rank - 1) % size
            got = [torch.empty(3), torch.empty(3)]
            receives = [dist.irecv(got[i], down, tag=i) for i in (1, 0)]  # in the other order
            sends = [dist.isend(torch.full((3,), 10.0 * rank + i), up, tag=i) for i in (0, 1)]
            for work in sends + receives:
                work.wait()
            assert [x[0].item() for x in got] == [10.0 * down, 10.0 * down + 1]
            if rank == 0:
                sources = {dist.recv(torch.empty(1)) for _ in range(size - 1)}
                assert sources == set(range(1, size)), sources
            else:
                dist.send(torch.zeros(1), 0)
            dist.barrier()  # rank 0 must not take the next messages for those above
            x, y = torch.full((2,), float(rank)), torch.empty(2, 2).t()[0]
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, up),
                                                dist.P2POp(dist.irecv, y, down)]):
                work.wait()
            assert y.tolist() == [float(down)] * 2
        self.check(body)

    def test_futures_and_coalescing(self):
        def body(rank, size):
            work = dist.all_reduce(ramp(rank, 100), async_op=True)
            doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
            torch.testing.assert_close(doubled, 2 * sum(ramp(r, 100) for r in range(size)))
            assert work.is_completed()
            outs = [torch.empty(size * n) for n in (4, 5)]
            with dist._coalescing_manager(async_ops=True) as manager:
                for out in outs:
                    dist.all_gather_into_tensor(out, torch.full((len(out) // size,), float(rank)))
            manager.wait()
            for out in outs:
                assert out.view(size, -1)[:, 0].tolist() == list(range(size))
        self.check(body)

    def test_groups(self):
        def body(rank, size):
            pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=pairs[rank % 2])
            assert x.item() == (2 if rank % 2 == 0 else 4)
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=mesh["b"].get_group())
            assert x.item() == (1 if rank < 2 else 5)
            backwards = dist.new_group([3, 1, 0], use_local_synchronization=True) \
                if rank != 2 else None
            if backwards is not None:
                out = [torch.empty(1) for _ in range(3)]
                dist.all_gather(out, torch.tensor([float(rank)]), group=backwards)
                ranks = dist.get_process_group_ranks(backwards)
                assert [v.item() for v in out] == [float(r) for r in ranks]
            suggested = atoll.torch.device_mesh("cpu")
            assert suggested.mesh_dim_names == ("replicate", "shard")
            assert suggested.mesh.flatten().tolist() == list(range(size))
            assert atoll.torch.check_mesh(suggested) == []
        self.check(body, size=4)

    @unittest.skipUnless(hasattr(dist._Backend, "allocate_tensor"),
                         "this torch has no allocate_tensor")
    def test_memory_of_the_backend(self):
        def body(rank, size):
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            assert backend.supports_tensor_alloc(torch.device("cpu"))  # FSDP2 asks
            for _ in range(3):
                x = backend.allocate_tensor(100_000, dtype=torch.bfloat16,
                                            device=torch.device("cpu"))
                x.fill_(rank + 1)
                dist.all_reduce(x)
                assert x[-1].item() == size * (size + 1) / 2
        self.check(body)

    def test_messages_with_equal_tags_stay_in_order(self):
        def body(rank, size):
            for count in (1, 100_000):
                values = [torch.full((count,), float(i)) for i in range(20)]
                if rank == 0:
                    works = [dist.isend(x, 1) for x in values]
                else:
                    values = [torch.empty(count) for _ in values]
                    works = [dist.irecv(x, 0) for x in values]
                    works.reverse()
                for work in works:
                    work.wait()
                assert [x[-1].item() for x in values] == list(range(20))
        self.check(body, size=2)

    def test_messages_of_a_batch_do_not_wait_for_other_messages(self):
        def body(rank, size):
            early, late = torch.empty(1), torch.empty(1000)
            first = dist.irecv(early, 1 - rank)
            batch = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1 - rank),
                                            dist.P2POp(dist.irecv, late, 1 - rank)])
            first.wait()
            sent = dist.isend(torch.full((1000,), 2.0), 1 - rank)
            for work in [*batch, sent]:
                work.wait()
            assert early.item() == 1 and (late == 2).all()
        self.check(body, size=2)

    def test_a_wait_with_a_limit(self):
        def body(rank, size):
            x = torch.ones(1)
            if rank == 0:
                work = dist.irecv(x, 1)
                begin = time.monotonic()
                text = error_of(lambda: work.wait(timedelta(seconds=0.5)))
                assert 0.4 < time.monotonic() - begin < 5
                assert "recv" in text and "not complete after 500 ms" in text, text
                dist.barrier()
                work.wait()
            else:
                dist.barrier()
                dist.send(x, 0)
        self.check(body, size=2)

    def test_collectives_in_a_callback(self):
        def body(rank, size):
            def nested(future):
                x = torch.tensor([float(future.value()[0])])
                return dist.all_reduce(x, async_op=True).get_future().wait()[0]
            first = dist.all_reduce(torch.ones(1), async_op=True).get_future()
            assert first.then(nested).wait().item() == size * size
        self.check(body, size=2)

    def test_groups_of_a_default_group_of_another_backend(self):
        def body(rank, size, files):
            dist.init_process_group("cpu:gloo", init_method=f"file://{files.folder}/c10d",
                                    rank=rank, world_size=size)
            some = dist.new_group([0, 2], backend="cpu:atoll")
            if rank != 1:
                x = torch.tensor([float(rank)])
                dist.all_reduce(x, group=some)
                assert x.item() == 2
            dist.destroy_process_group()
        run_ranks(3, body)

    def test_wrong_calls(self):
        def body(rank, size):
            ones, empty = torch.ones, torch.empty
            assert "reduce_scatter of Float into Double" in error_of(
                lambda: dist.reduce_scatter_tensor(empty(1, dtype=torch.float64), ones(size)))
            assert "its own has 3" in error_of(lambda: dist.reduce_scatter(empty(3),
                                                                           [ones(1)] * size))
            if rank == 0:
                assert "its own has 1000" in error_of(lambda: dist.gather(ones(1000),
                                                                          [empty(10)] * size))
            assert "of 8 elements into 2" in error_of(lambda: dist.all_to_all_single(empty(2),
                                                                                     ones(8)))
            assert "into 3" in error_of(lambda: dist.all_gather_into_tensor(torch.empty(3),
                                                                           torch.empty(2)))
            assert "complex" in error_of(lambda: dist.group.WORLD.allreduce(
                [torch.zeros(2, dtype=torch.complex64)], self.options(dist.ReduceOp.MAX)))
            x = torch.ones(1)
            dist.all_reduce(x)  # the group still works
            assert x.item() == size
        self.check(body, size=2)

    @staticmethod
    def options(op):
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return options


class Training(unittest.TestCase):
    """Trainings whose losses equal those of one process with the data of all ranks."""

    @staticmethod
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
                                     for _ in range(3)], torch.nn.Linear(64, 8))

    @staticmethod
    def train(model, optimizer, data):
        losses = []
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    @staticmethod
    def data(steps, size):
        draw = torch.Generator().manual_seed(1)
        return [(torch.randn(size * 4, 64, generator=draw),
                 torch.randint(0, 8, (size * 4,), generator=draw)) for _ in range(steps)]

    def check(self, wrap, size=4, steps=8, tolerance=1e-5):
        data = self.data(steps, size)
        alone = self.model()
        expected = self.train(alone, torch.optim.SGD(alone.parameters(), 0.1), data)

        def body(rank, size):
            model = wrap(self.model())
            own = slice(rank * 4, (rank + 1) * 4)
            return self.train(model, torch.optim.SGD(model.parameters(), 0.1),
                              [(x[own], y[own]) for x, y in data])
        losses = run_ranks(size, group(body))
        mean = [sum(losses[r][i] for r in range(size)) / size for i in range(steps)]
        for got, wanted in zip(mean, expected):
            self.assertAlmostEqual(got, wanted, delta=tolerance)

    def test_ddp(self):
        self.check(DistributedDataParallel)

    @unittest.skipIf(VERSION < (2, 7), "FSDP2 of torch 2.6 needs a GPU")
    def test_fsdp2(self):
        def wrap(model):
            # FSDP2 of torch 2.7 fails on CPUs with a mesh of two axes.
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")) \
                if VERSION >= (2, 9) else None
            for layer in model:
                fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)
        self.check(wrap)

    def test_tensor_parallel(self):
        def model():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(),
                                       torch.nn.Linear(96, 8))
        data = self.data(8, 2)
        alone = model()
        expected = self.train(alone, torch.optim.SGD(alone.parameters(), 0.1), data)

        def body(rank, size):
            mesh = init_device_mesh("cpu", (size,))
            split = parallelize_module(model(), mesh, {"0": ColwiseParallel(),
                                                       "2": RowwiseParallel()})
            return self.train(split, torch.optim.SGD(split.parameters(), 0.1), data)
        for losses in run_ranks(4, group(body)).values():
            for got, wanted in zip(losses, expected):
                self.assertAlmostEqual(got, wanted, delta=1e-5)

    def test_functional_collectives_compiled(self):
        def body(rank, size):
            @torch.compile(backend="aot_eager", fullgraph=True)
            def step(x):
                whole = funcol.all_gather_tensor(x * 2, 0, dist.group.WORLD)
                part = funcol.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)
                return funcol.all_reduce(part + 1, "avg", dist.group.WORLD)
            got = step(torch.tensor([float(rank)]))
            assert got.item() == sum(2 * r * size + 1 for r in range(size)) / size, got
        run_ranks(3, group(body))

    def test_checkpoint(self):
        def body(rank, size, files):
            def job(rank, size):
                model = fully_shard(self.model())
                state = {"model": model.state_dict()}
                checkpoint.save(state, checkpoint_id=f"{files.folder}/saved")
                wanted = [p.full_tensor().clone() for p in model.parameters()]
                with torch.no_grad():
                    for p in model.parameters():
                        p.zero_()
                checkpoint.load(state, checkpoint_id=f"{files.folder}/saved")
                model.load_state_dict(state["model"])
                for p, value in zip(model.parameters(), wanted):
                    assert torch.equal(p.full_tensor(), value)
            group(job)(rank, size, files)
        run_ranks(2, body)

    @unittest.skipIf(VERSION < (2, 7), "FSDP2 of torch 2.6 needs a GPU")
    def test_fsdp2_reducing_in_bf16(self):
        def wrap(model):
            for layer in model:
                fully_shard(layer, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
            return fully_shard(model)
        self.check(wrap, tolerance=0.02)


if __name__ == "__main__":
    unittest.main()
