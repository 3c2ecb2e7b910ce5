"""The backend "atoll" of torch.distributed, for torch 2.6 and later.

    import atoll.torch                                   # not needed from torch 2.14 on
    torch.distributed.init_process_group("cpu:atoll")    # or "cpu:atoll,cuda:atoll", ...

device_mesh() makes the DeviceMesh that suits the machines of the job, and check_mesh() says what a
given mesh costs.
"""

from ._group import register
from ._mesh import check_mesh, device_mesh

register()

__all__ = ["check_mesh", "device_mesh", "register"]
