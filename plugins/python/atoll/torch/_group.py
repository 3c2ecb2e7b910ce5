"""Registers the backend and opens it for the groups of torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import _build


def _open(options: Any, pg_options: Any = None) -> Any:
    timeout = options.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return _build.load().open(options.store, options.group_rank, options.group_size,
                              options.group_id or "default",
                              list(options.global_ranks_in_group), timeout,
                              getattr(options, "enable_reconfigure", False))  # torch 2.14


def register() -> None:
    """Makes the backend "atoll" known to torch.distributed. Importing atoll.torch does it."""
    if "atoll" not in dist.Backend.backend_list:
        dist.Backend.register_backend("atoll", _open, extended_api=True, devices=["cpu", "cuda"])
