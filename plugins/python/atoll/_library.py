"""Loads libatoll and declares the functions of include/atoll/atoll.h that the package calls."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from ._errors import Error, error_of

C_ABI = 1  # ATOLL_C_ABI of the header that this file follows

BroadcastFn = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_size_t)
DoneFn = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Regroup(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tag", c_char_p), ("needed", c_int32),
                ("min_ranks", c_int32), ("grace_ms", c_int64)]


class MeshOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tensor", c_int32), ("emulated_islands", c_int32),
                ("params", c_double)]


class Axis(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("size", c_int32)]


class Finding(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("id", c_char_p), ("severity", c_int32),
                ("evidence", c_char_p), ("consequence", c_char_p), ("fix", c_char_p),
                ("line", c_char_p), ("subjects", c_char_p)]


class CommunicatorOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("backend", c_char_p),
                ("device", c_void_p), ("parent", c_void_p), ("timeout_ms", c_int64),
                ("deterministic", c_int32), ("one_level", c_int32), ("algorithm", c_char_p),
                ("compute_units", c_int32), ("tags", c_int32), ("stop", c_void_p)]


_H = c_void_p  # a handle
_OUT = ctypes.POINTER(c_void_p)
_TEXT = ctypes.POINTER(c_char_p)
_INT = ctypes.POINTER(c_int32)
_SIZE = ctypes.POINTER(c_size_t)
_MOVE = [_H, c_void_p, c_void_p, c_uint64, c_int32]  # comm, src, dst, count, dtype
_END = [_H, _OUT]  # stream, work

# Arguments of each function that returns a status.
_STATUS: dict[str, list[Any]] = {
    "config_open": [_OUT],
    "config_set": [_H, c_char_p, c_char_p],
    "world_open": [_H, _OUT],
    "world_open_ranks": [c_int32, c_int32, BroadcastFn, c_void_p, _H, _OUT],
    "world_rank": [_H, _INT],
    "world_size": [_H, _INT],
    "world_local_rank": [_H, _INT],
    "world_local_size": [_H, _INT],
    "world_hosts": [_H, _INT],
    "world_host_of": [_H, c_int32, _INT],
    "world_put": [_H, c_char_p, c_char_p, c_size_t],
    "world_get": [_H, c_char_p, c_int64, c_void_p, _SIZE],
    "world_barrier": [_H],
    "world_leave": [_H],
    "world_regroup": [_H, ctypes.POINTER(Regroup), _OUT],
    "world_enter": [ctypes.POINTER(Regroup), _H, _OUT],
    "world_epoch": [_H, _INT],
    "world_check": [_H],
    "world_departed": [_H, _INT, _SIZE],
    "device_open": [c_int32, c_int32, _OUT],
    "stream_open": [_H, c_char_p, _OUT],
    "stream_wrap": [_H, c_void_p, c_char_p, _OUT],
    "stream_wait": [_H, _H],
    "stream_synchronize": [_H],
    "buffer_open": [_H, c_size_t, _OUT, c_size_t, _OUT],
    "buffer_open_alone": [_H, c_size_t, _OUT, c_size_t, _OUT],
    "buffer_data": [_H, _OUT],
    "topology_discover": [_H, _OUT],
    "topology_to_json": [_H, _OUT],
    "mesh_plan": [_H, _H, ctypes.POINTER(MeshOptions), _OUT],
    "mesh_make": [_H, ctypes.POINTER(Axis), c_size_t, _H, _OUT],
    "mesh_text": [_H, _TEXT],
    "mesh_reason": [_H, _TEXT],
    "mesh_axis": [_H, c_size_t, ctypes.POINTER(Axis)],
    "mesh_ranks": [_H, c_char_p, ctypes.POINTER(_INT), _INT, _INT],
    "mesh_finding": [_H, c_size_t, ctypes.POINTER(Finding)],
    "communicator_open_ranks": [_H, _INT, c_size_t, ctypes.POINTER(CommunicatorOptions), _OUT],
    "communicator_rank": [_H, _INT],
    "communicator_size": [_H, _INT],
    "communicator_name": [_H, _TEXT],
    "communicator_backend": [_H, _TEXT],
    "communicator_check": [_H],
    "communicator_abort": [_H, c_char_p],
    "all_reduce": [*_MOVE, c_int32, *_END],
    "all_reduce_scaled": [*_MOVE, c_int32, c_double, *_END],
    "all_gather": [*_MOVE, *_END],
    "reduce_scatter": [*_MOVE, c_int32, *_END],
    "reduce_scatter_scaled": [*_MOVE, c_int32, c_double, *_END],
    "reduce": [*_MOVE, c_int32, c_int32, *_END],
    "broadcast": [_H, c_void_p, c_uint64, c_int32, c_int32, *_END],
    "all_to_all": [*_MOVE, *_END],
    "gather": [*_MOVE, c_int32, *_END],
    "scatter": [*_MOVE, c_int32, *_END],
    "send": [_H, c_void_p, c_uint64, c_int32, c_int32, c_int32, *_END],
    "recv": [_H, c_void_p, c_uint64, c_int32, c_int32, c_int32, *_END],
    "barrier": [_H, *_END],
    "work_wait": [_H, _H],
    "work_synchronize": [_H],
    "work_synchronize_for": [_H, c_int64, _INT],
    "work_done": [_H, _INT],
    "work_error": [_H],
    "work_source": [_H, _INT, _INT],
}
_CLOSED = ("config", "world", "device", "stream", "buffer", "topology", "mesh", "communicator",
           "work")


def folder() -> Path:
    """The folder of the libraries, tools and headers that came with the package."""
    return Path(__file__).parent / "_atoll"


class _Library:
    def __init__(self) -> None:
        path = folder() / "lib" / "libatoll.so.0.1"
        try:
            self._dll = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise Error(f"{path} does not load ({error}): install the package again") from error
        self._dll.atoll_c_abi.restype = c_uint32
        if self._dll.atoll_c_abi() != C_ABI:
            raise Error(f"{path} has version {self._dll.atoll_c_abi()} of the C API, and this "
                        f"package needs {C_ABI}: install the package again")
        for name in ("version", "last_error", "status_name"):
            getattr(self._dll, f"atoll_{name}").restype = c_char_p
        for name, arguments in _STATUS.items():
            function = getattr(self._dll, f"atoll_{name}")
            function.argtypes, function.restype = arguments, c_int32
        for name in _CLOSED:
            close = getattr(self._dll, f"atoll_{name}_close")
            close.argtypes, close.restype = [c_void_p], None
        self._dll.atoll_free.argtypes, self._dll.atoll_free.restype = [c_void_p], None
        self._dll.atoll_world_fail.argtypes = [c_void_p, c_char_p]
        self._dll.atoll_world_fail.restype = None

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function and raises its error."""
        status = getattr(self._dll, f"atoll_{name}")(*arguments)
        if status != 0:
            raise error_of(status, self._dll.atoll_last_error().decode(errors="replace"))

    def make(self, name: str, *arguments: Any) -> int:
        """Calls a function that stores a handle through its last argument."""
        handle = c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle.value or 0

    def number(self, name: str, *arguments: Any) -> int:
        """Calls a function that stores an int32 through its last argument."""
        result = c_int32()
        self.call(name, *arguments, ctypes.byref(result))
        return result.value

    def text(self, name: str, *arguments: Any) -> str:
        """Calls a function that stores a text of the handle through its last argument."""
        result = c_char_p()
        self.call(name, *arguments, ctypes.byref(result))
        return (result.value or b"").decode(errors="replace")

    def own_text(self, name: str, *arguments: Any) -> str:
        """Calls a function that stores a text which the caller frees."""
        result = c_void_p()
        self.call(name, *arguments, ctypes.byref(result))
        try:
            return ctypes.string_at(result.value or 0).decode(errors="replace")
        finally:
            self._dll.atoll_free(result)

    def close(self, kind: str, handle: int) -> None:
        getattr(self._dll, f"atoll_{kind}_close")(handle)

    def fail(self, world: int, reason: str) -> None:
        self._dll.atoll_world_fail(world, reason.encode())

    def version(self) -> str:
        return str(self._dll.atoll_version().decode())


_library: _Library | None = None


def library() -> _Library:
    """The loaded library."""
    global _library
    if _library is None:
        _library = _Library()
    return _library


class Handle:
    """A handle of the C API, closed once: by close(), or when nothing refers to it any more."""

    _kind = ""

    def __init__(self, handle: int, *keep: object, owner: Handle | None = None) -> None:
        """keep: what must live as long as this handle; owner: closes this handle when it closes."""
        self._handle = handle
        self._keep: tuple[object, ...] = (*keep, owner)
        self._parts: weakref.WeakSet[Handle] = weakref.WeakSet()
        if owner is not None:
            owner._parts.add(self)

    @property
    def handle(self) -> int:
        if not self._handle:
            raise Error(f"the {self._kind} has been closed")
        return self._handle

    def close(self) -> None:
        """Ends the use of this object. Does nothing the second time."""
        for part in list(self._parts):
            part.close()
        handle, self._handle = self._handle, 0
        if handle:
            library().close(self._kind, handle)
        self._keep = ()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()
