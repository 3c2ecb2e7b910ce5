"""The errors of atoll as exceptions. Their texts are those of the library."""

from __future__ import annotations


class Error(RuntimeError):
    """An error of atoll. Its text names the argument or, where they are known, the rank,
    communicator, operation and sequence number."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong; nothing was sent."""


class NotFound(Error, LookupError):
    """There is no such thing."""


class Unsupported(Error, NotImplementedError):
    """This build, backend or device cannot do it."""


class Timeout(Error, TimeoutError):
    """A time limit has passed; the text names the ranks that were waited for."""


class PeerLost(Error, ConnectionError):
    """A rank was lost; the text names it."""


class Aborted(Error):
    """A rank has ended the communicator or the job on purpose."""


class Mismatch(Error, ValueError):
    """Ranks made different calls, or have different settings."""


class InputOutputError(Error, OSError):
    """A file or a network connection failed."""


class OutOfMemory(Error, MemoryError):
    """There is not enough memory on a rank."""


class BadData(Error, ValueError):
    """A file or a message is malformed."""


class BackendError(Error):
    """A library under a backend has failed, such as NCCL."""


class InternalError(Error):
    """A fault of atoll."""


# By atoll_status of include/atoll/plugin.h.
_CLASSES: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: NotFound,
    3: Unsupported,
    4: Timeout,
    5: PeerLost,
    6: Aborted,
    7: Mismatch,
    8: InputOutputError,
    9: OutOfMemory,
    10: BadData,
    11: BackendError,
    12: InternalError,
}


def error_of(status: int, text: str) -> Error:
    """Makes the exception of a status of the C API."""
    return _CLASSES.get(status, Error)(text)
