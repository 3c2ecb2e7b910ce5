"""Meshes: the axes along which ranks replicate and shard a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._errors import NotFound
from ._library import Axis, Handle, MeshOptions, library
from ._library import Finding as RawFinding
from ._topology import Finding

if TYPE_CHECKING:
    from ._world import World

_SEVERITIES = ("info", "warning", "error")


class _Topology(Handle):
    _kind = "topology"


def _discover(world: Handle) -> _Topology:
    return _Topology(library().make("topology_discover", world.handle))


def discover_json(world: Handle) -> str:
    """Examines all hosts of the job and returns the JSON form. Collective."""
    topology = _discover(world)
    return library().own_text("topology_to_json", topology.handle)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


class Mesh(Handle):
    """Axes over the ranks of a World, the outermost first, such as `replicate` x `shard`."""

    _kind = "mesh"

    @classmethod
    def plan(cls, world: World, tensor: int, params: float, islands: int) -> Mesh:
        options = MeshOptions(ctypes.sizeof(MeshOptions), tensor, islands, params)
        topology = _discover(world)
        return cls(library().make("mesh_plan", topology.handle, world.handle,
                                  ctypes.byref(options)), owner=world)

    @classmethod
    def make(cls, world: World, axes: Sequence[tuple[str, int]]) -> Mesh:
        """The mesh with these axes (name, size), checked against the machines. Collective."""
        array = (Axis * len(axes))(*[Axis(name.encode(), size) for name, size in axes])
        topology = _discover(world)
        return cls(library().make("mesh_make", world.handle, array, len(axes), topology.handle),
                   owner=world)

    @property
    def reason(self) -> str:
        """Why the planner chose these axes."""
        return library().text("mesh_reason", self.handle)

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the axes by name, the outermost first."""
        result: dict[str, int] = {}
        axis = Axis()
        while True:
            try:
                library().call("mesh_axis", self.handle, len(result), ctypes.byref(axis))
            except NotFound:
                return result
            result[_text(axis.name)] = axis.size

    def ranks(self, axis: str = "world") -> list[int]:
        """The ranks along an axis through this rank, in order; "world": all of them."""
        ranks = ctypes.POINTER(ctypes.c_int32)()
        count, index = ctypes.c_int32(), ctypes.c_int32()
        library().call("mesh_ranks", self.handle, axis.encode(), ctypes.byref(ranks),
                       ctypes.byref(count), ctypes.byref(index))
        return [ranks[i] for i in range(count.value)]

    @property
    def findings(self) -> list[Finding]:
        """What is wrong with the mesh or the machines, such as a shard axis that crosses islands."""
        result: list[Finding] = []
        raw = RawFinding(size=ctypes.sizeof(RawFinding))
        while True:
            try:
                library().call("mesh_finding", self.handle, len(result), ctypes.byref(raw))
            except NotFound:
                return result
            subjects = _text(raw.subjects)
            result.append(Finding(_text(raw.id), _SEVERITIES[raw.severity],
                                  tuple(subjects.split(", ")) if subjects else (),
                                  _text(raw.evidence), _text(raw.consequence), _text(raw.fix)))

    def __str__(self) -> str:
        return library().text("mesh_text", self.handle)
