"""The parts of an artifact for a launch op: its files, its tensors, and a recipe for each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tuner.core.plan.op_launches import ALIGNMENT_BYTES, Field, OpLaunch, OpLaunches
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Role
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for
from tuner.core.proof.own_plans import launches_for, own_digest
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.trial.limits import Limits

from ..source.own_launchable import OwnLaunchable
from ..source.own_source import own_source
from .nvrtc import Built

Json = dict[str, Any]
#: How a kernel was compiled, in the form of a manifest: a function of a file's name without extension, the kernel's
#: name, its build's key or None, and the bytes of its parameter.
Compiled = Callable[[str, str, str | None, int], Json]


class OwnArtifact(Protocol):
    """What `assemble` needs from a launch op."""

    #: The manifest's list of its recipes.
    section: ClassVar[str]

    @property
    def workload(self) -> Workload:
        """The workload of the op."""

    @property
    def gpu(self) -> Gpu:
        """The GPU for which it is compiled."""

    @property
    def index(self) -> int:
        """Index of the op, among launch ops."""

    @property
    def schedule(self) -> Any:
        """The chosen schedule of the op."""

    @property
    def source(self) -> str:
        """Source of all its kernels."""

    @property
    def launchable(self) -> OwnLaunchable | None:
        """The build; None if nothing was compiled."""

    @property
    def files(self) -> dict[str, bytes]:
        """The op's files, by name."""

    def recipes(self, compiled: Compiled, *, programmatic: bool) -> list[Json]:
        """Recipes of each launch, in order."""

    def tensors(self) -> list[Json]:
        """The tensors that its launches read and write."""


@dataclass(frozen=True, kw_only=True)
class OwnKernels:
    """The artifact parts of a launch op, from its launches' arguments alone."""

    section: ClassVar[str] = "own_launches"

    workload: Workload
    gpu: Gpu
    #: Index of the op among launch ops.
    index: int
    schedule: Any
    launches: OpLaunches
    #: Hex digest of the op's proof.
    proof: str
    source: str
    #: None if nothing was compiled.
    launchable: OwnLaunchable | None = None
    #: Maximum duration of a wait.
    spin_limit_cycles: int = Limits.spin_limit_cycles

    @property
    def _file(self) -> str:
        return f"op{self.index}"

    @property
    def files(self) -> dict[str, bytes]:
        """The op's files, by name."""
        files = {f"{self._file}.cu": self.source.encode()}
        for launch, one in enumerate(self.launches.launches):
            files |= {self._table(launch, field): field.table for field in one.fields if field.table is not None}
        return files | ({f"{self._file}.cubin": self.launchable.cubin} if self.launchable else {})

    def _table(self, launch: int, field: Field) -> str:
        return f"{self._file}_{launch}_{field.name}.bin"

    def recipes(self, compiled: Compiled, *, programmatic: bool) -> list[Json]:
        """Recipes of each launch, in order; all use the same workspace."""
        build = self.launchable.ties.build if self.launchable else None
        return [
            self._recipe(number, one, compiled(self._file, one.kernel, build, one.parameter_bytes), programmatic)
            for number, one in enumerate(self.launches.launches)
        ]

    def _recipe(self, number: int, one: OpLaunch, kernel: Json, programmatic: bool) -> Json:
        is_programmatic = programmatic and one.waits
        return {
            "op": self.workload.launch_ops[self.index].name,
            "kernel": kernel,
            "proof": self.proof,
            "grid": [one.num_ctas, 1, 1],
            "block": [one.num_threads, 1, 1],
            "cluster": [one.cluster, 1, 1],
            "allows_non_portable_cluster": one.cluster > _MOST_PORTABLE_CLUSTER,
            "cooperative": one.needs_all_ctas,
            "needs_all_ctas": one.needs_all_ctas,
            "programmatic_dependent_launch": is_programmatic,
            "dynamic_smem_bytes": one.smem_bytes,
            "parameter": parameter_json(one, self.spin_limit_cycles, lambda field: self._table(number, field)),
            "tensor_maps": maps_json(one, self.workload),
            "workspace": {
                "index": self.index,
                "bytes": self.launches.workspace_bytes,
                "zero_bytes": self.launches.zero_bytes,
                "alignment_bytes": ALIGNMENT_BYTES,
                "per": "stream; the launches of one run that name the same index share it",
                "zero": "once, when it is allocated",
            },
            "stream": 0,
        }

    def tensors(self) -> list[Json]:
        """All tensors that it names and owns; row-major, contiguous. Arguments of a launch include the range of their
        elements.
        """
        op, workload = self.workload.launch_ops[self.index], self.workload
        found = []
        for tensor in op.tensors(workload.dtype):
            is_made = tensor.role is Role.OUTPUT
            if tensor.name in workload.written and not is_made:
                continue  # another op's
            leaves = workload.leaves(op) if tensor.name == op.name else not workload.is_read(tensor.name)
            role = "intermediate" if is_made and not leaves else str(tensor.role)
            entry: Json = {"name": tensor.name, "role": role, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
            entry |= {"alignment_bytes": 16} | ({"range": list(tensor.range)} if tensor.range else {})
            entry |= {"written": True} if tensor.role is Role.CACHE else {}
            found.append(entry)
        return found


#: Clusters larger than every card supports need an opt-in by the kernel. Source: CUDA C++ Programming Guide, "Thread
#: Block Clusters".
_MOST_PORTABLE_CLUSTER = 8


def own_kernels(
    workload: Workload,
    gpu: Gpu,
    candidate: Candidate,
    launchables: Sequence[OwnLaunchable] = (),
    built: Callable[[str], Built | None] = lambda source: None,
    *,
    spin_limit_cycles: int = Limits.spin_limit_cycles,
) -> tuple[OwnArtifact, ...]:
    """The artifact parts of each launch op of a candidate. `launchables` are their builds, and `built` compiles other
    sources that a kind has in an artifact, if anything is compiled. A kind with a file ``artifact`` defines its parts
    there.

    Raises:
        IllegalSchedule, PlanError: the candidate is refused.
        BuildError: a source does not compile, or not in time.
    """
    workload, candidate = launched(workload, candidate)
    schedules = candidate.schedule.launch_ops if candidate.schedule else ()
    plans, found = own_plans_for(workload, gpu, candidate), list[OwnArtifact]()
    for index, (schedule, plan) in enumerate(zip(schedules, plans, strict=True)):
        op, launchable = workload.launch_ops[index], launchables[index] if launchables else None
        facts: Json = {"workload": workload, "gpu": gpu, "index": index, "schedule": schedule}
        facts |= {"launchable": launchable}
        facts |= {"proof": own_digest(workload, op, schedule, plan), "spin_limit_cycles": spin_limit_cycles}
        facts |= {"source": own_source(op, schedule, workload.dtype)}
        if own := part_of(op.KIND, "artifact"):
            found.append(own.kernels_of(plan, built, **facts))
        else:
            found.append(OwnKernels(launches=launches_for(workload, op, schedule, plan), **facts))
    return tuple(found)


def parameter_json(one: OpLaunch, spin_limit_cycles: int, file_of: Callable[[Field], str]) -> Json:
    """The struct that a kernel takes by value, field by field; `file_of` names the file of a table."""
    fields = []
    for field, offset in zip(one.fields, one.offsets, strict=True):
        entry: Json = {"name": field.name, "offset": offset, "type": field.type, "meaning": field.meaning}
        if field.tensor or field.is_null:
            entry["tensor"] = field.tensor
        elif field.room is not None:
            entry["room"] = field.room
        elif field.table is not None:
            entry["file"] = file_of(field)
        elif field.data is not None:
            entry["value"] = field.data.hex()
        elif field.map is None:
            entry["value"] = spin_limit_cycles if field.is_spin_limit else field.value
        fields.append(entry)
    return {"size_bytes": one.parameter_bytes, "fields": fields}


def maps_json(one: OpLaunch, workload: Workload) -> list[Json]:
    """Arguments of cuTensorMapEncodeTiled for each map of a parameter."""
    types = {tensor.name: tensor.dtype for op in workload.ops for tensor in op.tensors(workload.dtype)}
    return [
        {
            "name": field.name,
            "tensor": field.map.tensor,
            "data_type": Dtype(types[field.map.tensor]).row.map_type.name,
            "dims": list(field.map.dims),
            "strides_bytes": list(field.map.strides_bytes),
            "box": list(field.map.box),
            "element_strides": [1] * len(field.map.dims),
            "interleave": "CU_TENSOR_MAP_INTERLEAVE_NONE",
            "swizzle": "CU_TENSOR_MAP_SWIZZLE_128B",
            "l2_promotion": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
            "oob_fill": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
        }
        for field in one.fields
        if field.map
    ]
