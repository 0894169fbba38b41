"""How to call the vendor's library as it was timed: needed by a pipeline if the library is the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

#: The released key for the code that computes launch ops.
_LAUNCH_OPS = "attention"


@dataclass(frozen=True, kw_only=True)
class LibraryCall:
    """One `cublasLtMatmul`: D[rows, columns] = A^T B in column-major order, where A is the weights and B the inputs."""

    #: Op of the workload, e.g. ``up``.
    op: str
    rows: int
    columns: int
    k: int
    #: Names of types in cublasLt.h.
    data_type: str
    epilogue: str
    #: 1 if the call adds the residual, else 0.
    beta: int
    #: For `cublasLtMatmulAlgoInit` and `cublasLtMatmulAlgoConfigSetAttribute`: the id, then the attributes by name.
    algorithm: dict[str, int]
    #: The algorithm's rank among those that the heuristic returned, 0 for the first.
    heuristic_index: int
    #: Size of the workspace that the algorithm needs.
    workspace_bytes: int
    #: What an elementwise kernel does afterwards, since no epilogue of the library can; empty if nothing is left to do.
    afterwards: str = ""


@dataclass(frozen=True, kw_only=True)
class LibraryRecipe:
    """The calls of one run, and the library's version."""

    #: As `cublasLtGetVersion` returns it.
    cublaslt_version: int
    #: Whether independent products run in parallel, each on its own stream.
    beside: bool
    #: One per product.
    calls: tuple[LibraryCall, ...]
    #: The code that computes launch ops, at their positions among these calls; empty if the workload has none.
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
