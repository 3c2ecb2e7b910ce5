"""Machines: hosts, GPUs, NICs, and the islands and rails that they form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ._tools import report, report_on

T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    id: str
    name: str
    packages: int
    numa_nodes: int
    cores: int  # physical cores that this process may use
    threads: int  # hardware threads that this process may use
    memory_bytes: int
    gpu_links: str  # "known", "none" or "unknown"


@dataclass(frozen=True)
class Gpu:
    id: str  # "HOST/gpuN"
    host: str
    model: str
    busid: str
    index: int
    numa: int  # -1: unknown


@dataclass(frozen=True)
class Nic:
    id: str  # "HOST/mlx5_0"
    host: str
    layer: str  # "infiniband", "ethernet", ...
    state: str  # "active", "down", ...; "": unknown
    rate_gbit_s: float | None
    numa: int  # -1: unknown


@dataclass(frozen=True)
class Island:
    """GPUs that a fast fabric joins. A host without GPUs is an island of its CPUs."""

    gpus: tuple[str, ...]
    hosts: tuple[str, ...]
    fabric: str  # "nvlink", "xgmi", "cpu" or ""
    state: str  # "known", "none" or "unknown"
    pair_gbyte_s: float | None  # GB/s in one direction between the slowest pair


@dataclass(frozen=True)
class Rail:
    """NICs on one leaf switch, one or more on each host, and the GPUs that use them."""

    nics: tuple[str, ...]
    gpus: tuple[str, ...]
    evidence: str  # "fabric" or "assumed"


@dataclass(frozen=True)
class Finding:
    """A problem: what was seen, what it costs and how to fix it."""

    id: str
    severity: str  # "info", "warning" or "error"
    subjects: tuple[str, ...]
    evidence: str
    consequence: str
    fix: str

    def __str__(self) -> str:
        return "; ".join(part for part in (self.evidence, self.consequence, self.fix) if part)


@dataclass(frozen=True)
class Topology:
    hosts: tuple[Host, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    islands: tuple[Island, ...]
    rails: tuple[Rail, ...]
    findings: tuple[Finding, ...]  # of the doctor (`atoll-topo --doctor`)


def make(kind: type[T], values: Mapping[str, Any]) -> T:
    """Makes a dataclass of the members of a JSON object that it has."""
    taken = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = values[field.name]
        taken[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**taken)


def many(kind: type[T], values: list[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(make(kind, one) for one in values)


def _topology(data: Mapping[str, Any]) -> Topology:
    return Topology(many(Host, data["hosts"]), many(Gpu, data["gpus"]), many(Nic, data["nics"]),
                    many(Island, data["islands"]), many(Rail, data["rails"]),
                    many(Finding, data["findings"]))


def parse_topology(text: str) -> Topology:
    """Makes a Topology of the JSON form of atoll."""
    return _topology(report_on(text, "atoll-topo", "--format", "json", "--doctor"))


def topology(source: str | os.PathLike[str] | None = None) -> Topology:
    """Examines this machine.

    source  a file to read instead: hwloc XML, NCCL XML, nvidia-smi output, atoll JSON, or a name
            of the catalog (`atoll-topo --cluster list`)

    >>> import atoll
    >>> len(atoll.topology("hgx-h100x2").islands)
    2
    """
    arguments = [] if source is None else ["--from", os.fspath(source)]
    return _topology(report("atoll-topo", "--format", "json", "--doctor", *arguments))
