"""Collectives and messages on arrays."""

from __future__ import annotations

import ctypes
from typing import Any

from ._arrays import CPU, CUDA, View, view
from ._errors import Error, InvalidArgument
from ._library import CommunicatorOptions, Handle, library

OPS = {"sum": 0, "avg": 1, "min": 2, "max": 3, "product": 4, "band": 5, "bor": 6, "bxor": 7}
ANY = -1  # any rank or tag of a receive


class _Device(Handle):
    _kind = "device"


class _Stream(Handle):
    _kind = "stream"


class Work(Handle):
    """An operation in flight. It keeps the arrays of the operation alive, so a Work that is closed,
    or to which nothing refers any more, waits for its operation. Keep it and call wait(), which also
    raises the error of the operation."""

    _kind = "work"

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the operation is complete and raises its error. Returns False if it is
        not complete after `timeout` seconds."""
        if timeout is None:
            library().call("work_synchronize", self.handle)
            return True
        return bool(library().number("work_synchronize_for", self.handle, int(timeout * 1000)))

    @property
    def done(self) -> bool:
        """True if the operation is complete or has failed."""
        return bool(library().number("work_done", self.handle))

    @property
    def error(self) -> Error | None:
        """The error of a failed operation."""
        try:
            library().call("work_error", self.handle)
        except Error as error:
            return error
        return None

    @property
    def source(self) -> tuple[int, int]:
        """Source and tag of the message that a complete recv() with tags has received."""
        source, tag = ctypes.c_int32(), ctypes.c_int32()
        library().call("work_source", self.handle, ctypes.byref(source), ctypes.byref(tag))
        return source.value, tag.value

    def close(self) -> None:
        if self._handle and self._keep:
            try:  # the memory must not go before the operation is complete
                library().call("work_synchronize", self._handle)
            except Error:
                pass
        super().close()


def _op(name: str) -> int:
    if name not in OPS:
        raise InvalidArgument(f'op="{name}" is none of {", ".join(OPS)}')
    return OPS[name]


class Communicator(Handle):
    """Collectives of some ranks. All ranks must call the same operations in the same order, with
    the same counts and dtypes.

    Arrays are contiguous, of numpy or anything with DLPack or `__cuda_array_interface__`. A call
    returns at once; wait() of its Work returns when the results are there. On a GPU, pass the
    stream (a cudaStream_t as a number) in whose order the operation runs.

    n is the size of the communicator. Sums of 16-bit floating-point numbers are added in f32.
    """

    _kind = "communicator"

    def __init__(self, handle: int, device: _Device, stream: _Stream, memory: int, ordinal: int,
                 world: Handle, tags: bool) -> None:
        super().__init__(handle, stream, device, owner=world)
        self._device, self._stream = device, stream
        self._memory, self._ordinal = memory, ordinal
        self._tags = tags

    @classmethod
    def open(cls, world: Handle, ranks: list[int], name: str, device: int | None, backend: str,
             timeout: float | None, tags: bool) -> Communicator:
        memory, ordinal = (CPU, 0) if device is None else (CUDA, device)
        on = _Device(library().make("device_open", memory, ordinal))
        options = CommunicatorOptions(size=ctypes.sizeof(CommunicatorOptions), name=name.encode(),
                                      backend=backend.encode() or None, device=on.handle,
                                      timeout_ms=int((timeout or 0) * 1000), tags=int(tags))
        handle = library().make("communicator_open_ranks", world.handle,
                                (ctypes.c_int32 * len(ranks))(*ranks), len(ranks),
                                ctypes.byref(options))
        stream = _Stream(library().make("stream_open", on.handle, name.encode()))
        return cls(handle, on, stream, memory, ordinal, world, tags)

    @property
    def rank(self) -> int:
        """Rank of this process in the communicator."""
        return library().number("communicator_rank", self.handle)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return library().number("communicator_size", self.handle)

    @property
    def name(self) -> str:
        return library().text("communicator_name", self.handle)

    @property
    def backend(self) -> str:
        """Name of the backend, such as "host"."""
        return library().text("communicator_backend", self.handle)

    def check(self) -> None:
        """Raises the error with which the communicator has ended, if it has."""
        library().call("communicator_check", self.handle)

    def abort(self, reason: str) -> None:
        """Ends the communicator on all its ranks, whose operations raise `reason`."""
        library().call("communicator_abort", self.handle, reason.encode())

    def close(self) -> None:
        """Waits for the enqueued operations and ends the use of the communicator."""
        if self._handle and self._stream._handle:
            try:  # a failure that was not read would otherwise fail the job
                library().call("stream_synchronize", self._stream.handle)
            except Error:
                pass
            self._stream.close()
        super().close()

    def _view(self, array: Any, what: str, writes: bool = False) -> View:
        result = view(array, what, writes)
        if result.memory != self._memory or (result.memory == CUDA
                                             and result.ordinal != self._ordinal):
            places = {CPU: "the CPU", CUDA: f"GPU {result.ordinal}"}
            own = "the CPU" if self._memory == CPU else f"GPU {self._ordinal}"
            raise InvalidArgument(f"{what} is on {places[result.memory]}, and the communicator "
                                  f"{self.name} is for {own}")
        return result

    def _start(self, name: str, arguments: list[Any], views: list[View],
               stream: int | None) -> Work:
        if stream is None:
            on = self._stream
            if self._tags and name in ("send", "recv"):  # messages must not wait for each other
                on = _Stream(library().make("stream_open", self._device.handle, b"message"))
        elif self._memory == CPU:
            raise InvalidArgument("stream is for GPUs: operations on the CPU have none")
        else:
            on = _Stream(library().make("stream_wrap", self._device.handle, stream, b"caller"))
        handle = library().make(name, self.handle, *arguments, on.handle)
        return Work(handle, on, self, [one.owner for one in views])

    def _move(self, name: str, src: Any, dst: Any, count: int, more: list[Any],
              stream: int | None, scale: tuple[int, int]) -> Work:
        """`scale`: how many times `count` elements src and dst have; 0: the array is optional."""
        views: list[View] = []
        addresses: list[int | None] = []
        dtype = -1
        for array, what, times in ((src, "src", scale[0]), (dst, "dst", scale[1])):
            if array is None and times == 0:
                addresses.append(None)
                continue
            one = self._view(array, what, writes=what == "dst")
            if times > 0 and one.count != count * times:
                raise InvalidArgument(f"{name}: {what} has {one.count} elements instead of "
                                      f"{count * times}")
            if dtype not in (-1, one.dtype):
                raise InvalidArgument(f"{name}: src and dst have different dtypes")
            dtype = one.dtype
            views.append(one)
            addresses.append(one.address)
        return self._start(name, [*addresses, count, dtype, *more], views, stream)

    def _reduced(self, name: str, src: Any, dst: Any, count: int, op: str, factor: float | None,
                 stream: int | None, scale: tuple[int, int]) -> Work:
        if factor is None:
            return self._move(name, src, dst, count, [_op(op)], stream, scale)
        return self._move(f"{name}_scaled", src, dst, count, [_op(op), factor], stream, scale)

    def all_reduce(self, src: Any, dst: Any = None, op: str = "sum", factor: float | None = None,
                   stream: int | None = None) -> Work:
        """dst[i] = op over all ranks of factor * src[i]. In place without dst.

        op      "sum", "avg", "min", "max", "product", "band", "bor" or "bxor"
        factor  of this rank, for "sum" and "avg"; either all ranks pass one or none does
        """
        dst = src if dst is None else dst
        count = self._view(src, "src").count
        return self._reduced("all_reduce", src, dst, count, op, factor, stream, (1, 1))

    def reduce_scatter(self, src: Any, dst: Any, op: str = "sum", factor: float | None = None,
                       stream: int | None = None) -> Work:
        """dst[i] = op over all ranks of factor * src[rank * count + i]. src has n times the count
        of dst."""
        count = self._view(dst, "dst").count
        return self._reduced("reduce_scatter", src, dst, count, op, factor, stream,
                             (self.size, 1))

    def all_gather(self, src: Any, dst: Any, stream: int | None = None) -> Work:
        """dst[r * count + i] = (src of rank r)[i]. dst has n times the count of src."""
        count = self._view(src, "src").count
        return self._move("all_gather", src, dst, count, [], stream, (1, self.size))

    def all_to_all(self, src: Any, dst: Any, stream: int | None = None) -> Work:
        """dst[r * k + i] = (src of rank r)[rank * k + i], with k = count / n."""
        count = self._view(src, "src").count // self.size
        return self._move("all_to_all", src, dst, count, [], stream, (self.size, self.size))

    def broadcast(self, data: Any, root: int = 0, stream: int | None = None) -> Work:
        """Copies `data` of `root` to `data` of all other ranks."""
        one = self._view(data, "data", writes=self.rank != root)
        return self._start("broadcast", [one.address, one.count, one.dtype, root], [one], stream)

    def reduce(self, src: Any, dst: Any = None, op: str = "sum", root: int = 0,
               stream: int | None = None) -> Work:
        """Like all_reduce(), but only `dst` of `root` is written; None: `src`, in place."""
        if dst is None and self.rank == root:
            dst = src
        count = self._view(src, "src").count
        return self._move("reduce", src, dst, count, [_op(op), root], stream,
                          (1, 1 if self.rank == root else 0))

    def gather(self, src: Any, dst: Any = None, root: int = 0, stream: int | None = None) -> Work:
        """dst[r * count + i] = (src of rank r)[i] on `root`. Other ranks may pass no dst."""
        count = self._view(src, "src").count
        return self._move("gather", src, dst, count, [root], stream,
                          (1, self.size if self.rank == root else 0))

    def scatter(self, src: Any, dst: Any, root: int = 0, stream: int | None = None) -> Work:
        """dst[i] = (src of `root`)[rank * count + i]. Other ranks may pass src=None."""
        count = self._view(dst, "dst").count
        return self._move("scatter", src, dst, count, [root], stream,
                          (self.size if self.rank == root else 0, 1))

    def send(self, src: Any, peer: int, tag: int = 0, stream: int | None = None) -> Work:
        """Sends src to a rank. Tags other than 0 need communicator(tags=True)."""
        one = self._view(src, "src")
        return self._start("send", [one.address, one.count, one.dtype, peer, tag], [one], stream)

    def recv(self, dst: Any, peer: int = ANY, tag: int = 0, stream: int | None = None) -> Work:
        """Receives from a rank. ANY as peer or tag needs communicator(tags=True)."""
        one = self._view(dst, "dst", writes=True)
        return self._start("recv", [one.address, one.count, one.dtype, peer, tag], [one], stream)

    def barrier(self, stream: int | None = None) -> Work:
        """Complete when all ranks have called it."""
        return self._start("barrier", [], [], stream)

