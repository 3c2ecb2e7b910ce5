"""Arrays of other libraries as addresses: anything with `__array_interface__` (numpy),
`__cuda_array_interface__` (CuPy, Numba) or `__dlpack__` (PyTorch, JAX and others)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ._errors import InvalidArgument, Unsupported

CPU, CUDA = 0, 1  # ATOLL_MEMORY_CPU, ATOLL_MEMORY_CUDA
DTYPES = {"f32": 0, "bf16": 1, "f16": 2, "f64": 3, "i32": 4, "i64": 5, "u8": 6, "i8": 7, "u16": 8,
          "u32": 9, "u64": 10, "f8e4m3": 11, "f8e5m2": 12, "i16": 13, "bool": 14}
_TYPESTR = {"f4": "f32", "f2": "f16", "f8": "f64", "i4": "i32", "i8": "i64", "u1": "u8",
            "i1": "i8", "u2": "u16", "u4": "u32", "u8": "u64", "i2": "i16", "b1": "bool"}
_COMPLEX = {"c8": "f32", "c16": "f64"}
# By code and bits of DLDataType (dlpack.h).
_DLPACK = {(0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64", (1, 8): "u8",
           (1, 16): "u16", (1, 32): "u32", (1, 64): "u64", (2, 16): "f16", (2, 32): "f32",
           (2, 64): "f64", (4, 16): "bf16", (6, 8): "bool", (10, 8): "f8e4m3", (12, 8): "f8e5m2"}
_DLPACK_COMPLEX = {(5, 64): "f32", (5, 128): "f64"}


@dataclass
class View:
    """Memory of an array: `count` elements at `address`. A complex number is two elements."""

    address: int
    count: int
    dtype: int
    memory: int  # CPU or CUDA
    ordinal: int  # of the GPU
    owner: Any  # keeps the memory alive


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _is_contiguous(shape: list[int], strides: list[int] | None, unit: int) -> bool:
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides or []), strict=False):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _product(shape: list[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _refuse_gaps(what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} is not contiguous: pass a contiguous copy")


def _ordinal(address: int) -> int:
    """The GPU of an address, as the driver of CUDA knows it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    ordinal = ctypes.c_int(0)
    device_ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL (cuda.h)
    driver.cuPointerGetAttribute(ctypes.byref(ordinal), device_ordinal, ctypes.c_uint64(address))
    return ordinal.value


def _from_interface(array: Any, interface: dict[str, Any], memory: int, what: str,
                    writes: bool) -> View:
    address, read_only = interface["data"]
    if writes and read_only:
        raise InvalidArgument(f"{what} is read-only, but the operation writes it")
    typestr = str(interface["typestr"])
    name = _TYPESTR.get(typestr[1:]) or _COMPLEX.get(typestr[1:])
    if name is None or typestr[0] == ">":
        raise Unsupported(f"{what} has the type {typestr}, which atoll does not have")
    shape = list(interface["shape"])
    strides = interface.get("strides")
    if not _is_contiguous(shape, list(strides) if strides else None, int(typestr[2:])):
        raise _refuse_gaps(what)
    count = _product(shape) * (2 if typestr[1:] in _COMPLEX else 1)
    ordinal = _ordinal(address) if memory == CUDA and address else 0
    return View(address or 0, count, DTYPES[name], memory, ordinal, array)


def _from_dlpack(array: Any, what: str, writes: bool) -> View:
    if writes and type(array).__module__.startswith("jax"):
        raise InvalidArgument(f"{what} is an array of JAX, which nothing may write: copy it, for "
                              "example into numpy")
    capsule = array.__dlpack__()
    tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    if tensor.device_type not in (1, 2, 3, 13):  # CPU, CUDA, CUDA host memory, CUDA managed
        raise Unsupported(f"{what} is on a device of DLPack type {tensor.device_type}; atoll has "
                          "memory of CPUs and of CUDA")
    key = (tensor.code, tensor.bits)
    name = _DLPACK.get(key) or _DLPACK_COMPLEX.get(key)
    if name is None or tensor.lanes != 1:
        raise Unsupported(f"{what} has the DLPack type {key}, which atoll does not have")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    strides = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
    if not _is_contiguous(shape, strides, 1):
        raise _refuse_gaps(what)
    memory = CUDA if tensor.device_type == 2 else CPU
    count = _product(shape) * (2 if key in _DLPACK_COMPLEX else 1)
    address = (tensor.data or 0) + tensor.byte_offset
    return View(address, count, DTYPES[name], memory, tensor.device_id, (array, capsule))


def view(array: Any, what: str, writes: bool = False) -> View:
    """Returns the memory of an array. `what` names it in errors."""
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        return _from_interface(array, interface, CPU, what, writes)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, what, writes)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(array, interface, CUDA, what, writes)
    raise InvalidArgument(f"{what} is a {type(array).__name__}, which has neither "
                          "__array_interface__, nor __cuda_array_interface__, nor __dlpack__")
