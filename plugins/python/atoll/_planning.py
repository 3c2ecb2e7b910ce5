"""Plans without a job: which mesh suits a machine, and how fast a model would train on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ._topology import Finding, make, many
from ._tools import report


@dataclass(frozen=True)
class MeshPlan:
    replicate: int
    shard: int
    tensor: int  # size of the innermost axis "tensor"
    order: tuple[int, ...]  # ranks in mesh order, the last axis varying fastest
    left_out: tuple[int, ...]  # ranks without which the job would run faster
    why: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Prediction:
    """The predicted step of one choice of settings."""

    strategy: str
    replicate: int
    shard: int
    micro_batch: int  # rows of a rank in a micro batch
    micro_batches: int
    recompute: str  # "none", "selective" or "full"
    step_s: float
    communication_s: float
    exposed_s: float  # communication that computing does not hide
    tokens_per_s: float  # of all ranks
    mfu: float  # model FLOP/s utilization, from 0 to 1
    memory_bytes: int  # of a rank
    fits: bool


def plan_mesh(source: str | os.PathLike[str] | None = None, *, ranks: int = 0, params: float = 0,
              tensor: int = 1) -> MeshPlan:
    """The mesh that suits a machine.

    source  as in topology(); None: this machine
    ranks   0: one for each GPU
    params  parameters of the model that must fit in memory; 0: not considered
    tensor  size of an innermost axis for tensor parallelism

    >>> import atoll
    >>> plan = atoll.plan_mesh("hgx-h100x2")
    >>> plan.replicate, plan.shard
    (2, 8)
    """
    arguments = ["--format", "json", "--mesh"]
    if source is not None:
        arguments += ["--from", os.fspath(source)]
    if ranks:
        arguments += ["--ranks", str(ranks)]
    if params:
        arguments += ["--params", str(params)]
    if tensor != 1:
        arguments += ["--tensor", str(tensor)]
    mesh = dict(report("atoll-topo", *arguments)["mesh"])
    mesh["findings"] = list(many(Finding, mesh["findings"]))
    return make(MeshPlan, mesh)


def predict(model: str, **settings: object) -> list[Prediction]:
    """Predicts the training step of a model, the fastest choice first.

    Settings are the flags of `atoll-plan --help` with _ instead of -, such as gpu="H100", hosts=2,
    seq=4096, strategy="full_shard".

    >>> import atoll
    >>> best = atoll.predict("mistral-7b", gpu="H100", hosts=2)[0]
    >>> best.fits
    True
    """
    arguments = ["--model", model]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not False and value is not None:
            arguments += [flag, str(value)]
    data = report("atoll-plan", *arguments, "--json", "-")
    return list(many(Prediction, data["candidates"]))
