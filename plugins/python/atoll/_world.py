"""Jobs: the World of a process, and how it joins one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ._communicator import Communicator
from ._errors import Error, InvalidArgument
from ._library import BroadcastFn, Handle, Regroup, library
from ._mesh import Mesh, discover_json
from ._topology import Topology, parse_topology

Settings = Mapping[str, object]


def _config(settings: Settings | None) -> Handle:
    """Settings of the environment, then those of the program by name, such as timeout=60."""
    config = _Config(library().make("config_open"))
    for name, value in (settings or {}).items():
        text = str(int(value)) if isinstance(value, bool) else str(value)
        library().call("config_set", config.handle, name.encode(), text.encode())
    return config


class _Config(Handle):
    _kind = "config"


def _wish(tag: str, needed: int, min_ranks: int, grace: float) -> Regroup:
    return Regroup(ctypes.sizeof(Regroup), tag.encode(), needed, min_ranks, int(grace * 1000))


class World(Handle):
    """The job as one of its ranks sees it.

    >>> import atoll
    >>> with atoll.World.join() as world:
    ...     print(world.rank, "of", world.size)
    0 of 1

    Settings are those of `atoll-topo --env`, by name without ATOLL_ in lower case:
    `World.join(timeout=60, failure_scope="communicator")`. Times are seconds.
    """

    _kind = "world"

    @classmethod
    def join(cls, **settings: object) -> World:
        """Joins the job that the environment describes (mpirun, srun, torchrun, ATOLL_RANK ...).
        Without a launcher the job has one rank. Collective."""
        config = _config(settings)
        return cls(library().make("world_open", config.handle))

    @classmethod
    def from_exchange(cls, rank: int, size: int, put: Callable[[str, bytes], Any],
                      get: Callable[[str], bytes], **settings: object) -> World:
        """Joins a job whose ranks share a key-value store. Rank 0 calls `put` once, the others
        call `get` once, which waits for the value. The value contains the secret of the job, so
        use a new store, or a new prefix, for each job. Collective."""
        problem: list[BaseException] = []

        def broadcast(_: Any, data: int, count: int) -> int:
            try:
                if rank == 0:
                    put("atoll/world", ctypes.string_at(data, count))
                else:
                    value = get("atoll/world")
                    if len(value) != count:
                        raise InvalidArgument(f"get() returned {len(value)} bytes instead of the "
                                              f"{count} that rank 0 has put")
                    ctypes.memmove(data, value, count)
                return 0
            except BaseException as error:  # it must not pass through C
                problem.append(error)
                return 1

        config = _config(settings)
        try:
            return cls(library().make("world_open_ranks", rank, size, BroadcastFn(broadcast), None,
                                      config.handle))
        except Error as error:
            if problem:
                raise problem[0] from error
            raise

    @classmethod
    def enter(cls, tag: str = "", needed: int = 1, **settings: object) -> World:
        """Enters a running job as a new process: waits until its ranks call regroup()."""
        config = _config(settings)
        return cls(library().make("world_enter", ctypes.byref(_wish(tag, needed, 1, 0)),
                                  config.handle))

    def regroup(self, tag: str = "", needed: int = 1, min_ranks: int = 1,
                grace: float = 10) -> World:
        """Makes the World of the next epoch from the ranks that are left; ends this one. The World
        must have failure_scope="communicator"; with "job", the default, a lost rank ends all.

        tag        replica of the model to which this rank belongs; "": it is a replica alone
        needed     ranks of a whole replica
        min_ranks  with fewer ranks no epoch begins
        grace      seconds to wait for living ranks that do not call this function
        """
        return World(library().make("world_regroup", self.handle,
                                    ctypes.byref(_wish(tag, needed, min_ranks, grace))))

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is not None and self._handle:
            library().fail(self._handle, f"{type(error).__name__}: {error}")
        self.close()

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return library().number("world_rank", self.handle)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return library().number("world_size", self.handle)

    @property
    def local_rank(self) -> int:
        """Index of this rank among the ranks of its host."""
        return library().number("world_local_rank", self.handle)

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return library().number("world_local_size", self.handle)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return library().number("world_hosts", self.handle)

    @property
    def epoch(self) -> int:
        """0 for the World that the launcher starts; regroup() adds 1."""
        return library().number("world_epoch", self.handle)

    def host_of(self, rank: int) -> int:
        """Index of the host on which a rank runs."""
        return library().number("world_host_of", self.handle, rank)

    def put(self, key: str, value: bytes) -> None:
        """Stores a value of at most 16 MiB for all ranks."""
        library().call("world_put", self.handle, key.encode(), value, len(value))

    def get(self, key: str, timeout: float = 300) -> bytes:
        """Waits until a rank has put the key; raises Timeout after `timeout` seconds."""
        size = ctypes.c_size_t(4096)
        while True:
            room = ctypes.create_string_buffer(size.value)
            before = size.value
            try:
                library().call("world_get", self.handle, key.encode(), int(timeout * 1000), room,
                               ctypes.byref(size))
                return room.raw[:size.value]
            except InvalidArgument:
                if size.value <= before:  # the value fits, so something else is wrong
                    raise

    def barrier(self) -> None:
        """Returns when all ranks have called it. Collective."""
        library().call("world_barrier", self.handle)

    def check(self) -> None:
        """Raises the error with which the job has failed, if it has."""
        library().call("world_check", self.handle)

    def fail(self, reason: str) -> None:
        """Declares that the job has failed: the calls of all ranks raise `reason`."""
        library().fail(self.handle, reason)

    def leave(self) -> None:
        """Takes this rank, which is not rank 0, out of the job, while the others go on."""
        library().call("world_leave", self.handle)

    def departed(self) -> list[int]:
        """The ranks that have left or were lost."""
        count = ctypes.c_size_t(self.size)
        ranks = (ctypes.c_int32 * self.size)()
        library().call("world_departed", self.handle, ranks, ctypes.byref(count))
        return list(ranks[:count.value])

    def communicator(self, ranks: Sequence[int] | None = None, name: str = "all",
                     device: int | None = None, backend: str = "",
                     timeout: float | None = None, tags: bool = False) -> Communicator:
        """Opens a communicator of these ranks, in this order. Collective over them.

        ranks    all ranks of the World by default
        device   ordinal of a GPU; None: the CPU
        backend  "host", "verbs", "mpi" or "nccl"; "": the best that all ranks have
        timeout  seconds of one operation; None: the setting "timeout"
        tags     messages have tags and may come from any rank
        """
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        return Communicator.open(self, chosen, name, device, backend, timeout, tags)

    def topology(self) -> Topology:
        """Examines all hosts of the job: hosts, GPUs, NICs and links. Collective."""
        return parse_topology(discover_json(self))

    def mesh(self, tensor: int = 1, params: float = 0, islands: int = 0) -> Mesh:
        """The mesh `replicate` x `shard` that suits the machines of the job. Collective.

        tensor   size of an innermost axis "tensor"
        params   parameters of the model that must fit in memory; 0: not considered
        islands  number of islands to emulate; 0: none
        """
        return Mesh.plan(self, tensor, params, islands)

