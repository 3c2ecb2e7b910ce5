"""DeviceMeshes that suit the machines of the job."""

from __future__ import annotations

import logging
import uuid

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .._errors import InvalidArgument
from .._mesh import Mesh
from .._topology import Finding
from .._world import World

_log = logging.getLogger("atoll")


def _world(rank: int) -> World:
    """A World of all ranks of the default group. It finds its ranks through the store of torch."""
    c10d = dist.distributed_c10d
    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0)  # the store may have keys of earlier calls
    store = c10d.PrefixStore(f"atoll/mesh/{name[0]}", c10d._get_default_store())

    def put(key: str, value: bytes) -> None:
        store.set(key, value.hex())  # values of the store are texts in torch's type hints

    def get(key: str) -> bytes:
        return bytes.fromhex(store.get(key).decode())

    return World.from_exchange(rank, dist.get_world_size(), put, get, log="off", flight="")


def device_mesh(device_type: str | None = None, *, tensor: int = 1,
                params: float = 0) -> DeviceMesh:
    """The mesh `replicate` x `shard` that suits the machines of the job, with the ranks in the
    right order. Collective over the default group. Logs why to the logger "atoll".

    device_type  "cpu" or "cuda"; None: "cuda" if there is a GPU
    tensor       size of an innermost axis "tensor"
    params       parameters of the model that must fit in memory; 0: not considered
    """
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    with _world(dist.get_rank()) as world:
        mesh = world.mesh(tensor=tensor, params=params)
        axes, order, reason = mesh.axes, mesh.ranks(), mesh.reason
        findings = mesh.findings
    if dist.get_rank() == 0:
        _log.info("mesh %s: %s", " x ".join(f"{name} {n}" for name, n in axes.items()), reason)
        for finding in findings:
            _log.warning("%s", finding)
    return DeviceMesh(device_type, torch.tensor(order).view(*axes.values()),
                      mesh_dim_names=tuple(axes))


def check_mesh(mesh: DeviceMesh) -> list[Finding]:
    """What is wrong with a mesh of all ranks: which of its axes cross islands or rails, what that
    costs and how to avoid it. Empty if nothing is. Collective over the default group.

    The axis "shard" should stay inside an island. A mesh of one axis without a name counts as
    "shard". In the texts, rank i is the i-th rank of the mesh.
    """
    order = mesh.mesh.flatten().tolist()
    if len(order) != dist.get_world_size():
        raise InvalidArgument(f"the mesh has {len(order)} of {dist.get_world_size()} ranks")
    names = mesh.mesh_dim_names or (("shard",) if mesh.ndim == 1 else ("replicate", "shard"))
    if len(names) != mesh.ndim:
        raise InvalidArgument(f"a mesh of {mesh.ndim} dimensions needs mesh_dim_names")
    with _world(order.index(dist.get_rank())) as world:
        made = Mesh.make(world, list(zip(names, mesh.mesh.shape, strict=True)))
        return made.findings
