"""atoll: collectives of sharded training on CPUs and GPUs, and the machines under them.

- topology(), plan_mesh(), predict(): examine a machine, choose a mesh, predict a training step
- World, Communicator: a job of several processes, and collectives on arrays
- atoll.torch: the backend "atoll" of torch.distributed

Errors are exceptions that derive from atoll.Error. Bandwidths are GB/s = 1e9 bytes per second in
one direction, times are seconds.
"""

from ._communicator import ANY, Communicator, Work
from ._errors import (
    Aborted,
    BackendError,
    BadData,
    Error,
    InputOutputError,
    InternalError,
    InvalidArgument,
    Mismatch,
    NotFound,
    OutOfMemory,
    PeerLost,
    Timeout,
    Unsupported,
)
from ._library import library as _library
from ._mesh import Mesh
from ._planning import MeshPlan, Prediction, plan_mesh, predict
from ._topology import Finding, Gpu, Host, Island, Nic, Rail, Topology, topology
from ._world import World


def version() -> str:
    """Version of the library, such as "0.1.0"."""
    return _library().version()


__all__ = [
    "ANY",
    "Aborted",
    "BackendError",
    "BadData",
    "Communicator",
    "Error",
    "Finding",
    "Gpu",
    "Host",
    "InputOutputError",
    "InternalError",
    "InvalidArgument",
    "Island",
    "Mesh",
    "MeshPlan",
    "Mismatch",
    "Nic",
    "NotFound",
    "OutOfMemory",
    "PeerLost",
    "Prediction",
    "Rail",
    "Timeout",
    "Topology",
    "Unsupported",
    "Work",
    "World",
    "plan_mesh",
    "predict",
    "topology",
    "version",
]
