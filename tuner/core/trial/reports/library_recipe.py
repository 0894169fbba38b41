"""How to call the vendor's library as it was timed: what a pipeline needs where the library is the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

#: The released key of what computes launch ops.
_LAUNCH_OPS = "attention"


@dataclass(frozen=True, kw_only=True)
class LibraryCall:
    """One `cublasLtMatmul`: D[rows, columns] = A^T B in column-major order, A being the weights and B the inputs."""

    #: Op of the workload, e.g. ``up``.
    op: str
    rows: int
    columns: int
    k: int
    #: As cublasLt.h names them.
    data_type: str
    epilogue: str
    #: 1 where the residual is added by the call, else 0.
    beta: int
    #: For `cublasLtMatmulAlgoInit` and `cublasLtMatmulAlgoConfigSetAttribute`: the id, then the attributes by name.
    algorithm: dict[str, int]
    #: Its place among those that the heuristic offered, the likeliest 0.
    heuristic_index: int
    #: That the algorithm needs.
    workspace_bytes: int
    #: What one elementwise kernel does afterwards, since no epilogue can; empty where nothing is left.
    afterwards: str = ""


@dataclass(frozen=True, kw_only=True)
class LibraryRecipe:
    """The calls of one run, and of which version."""

    #: As `cublasLtGetVersion` says it.
    cublaslt_version: int
    #: Whether products that read nothing of each other run side by side, each on a stream of its own.
    beside: bool
    #: One per product.
    calls: tuple[LibraryCall, ...]
    #: What computes its launch ops at their places among these calls; empty where the workload has none.
    launch_ops: str = ""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        data = asdict(self) | {"calls": [asdict(call) for call in self.calls]}
        return data | {_LAUNCH_OPS: data.pop("launch_ops")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        given = {name: data[name] for name in ("cublaslt_version", "beside")}
        calls = tuple(LibraryCall(**call) for call in data["calls"])
        return cls(**given, calls=calls, launch_ops=data.get(_LAUNCH_OPS, ""))
