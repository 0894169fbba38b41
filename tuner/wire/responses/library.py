"""How the vendor's library was called, for users who should use it."""

from __future__ import annotations

from pydantic import Field

from tuner.wire.base.view import View


class LibraryCallView(View):
    """One `cublasLtMatmul`: D[rows, columns] = A^T B in column-major order, where A is the weights and B the inputs."""

    op: str
    rows: int
    columns: int
    k: int
    data_type: str
    epilogue: str
    beta: int = Field(description="1 if the call adds the residual")
    algorithm: dict[str, int] = Field(description="id and attributes, for `cublasLtMatmulAlgoConfigSetAttribute`")
    heuristic_index: int = Field(description=("its rank in the heuristic's list of algorithms; 0 is the most likely"))
    workspace_bytes: int
    afterwards: str = Field(description="what an elementwise kernel does afterwards; empty if there is none")


class LibraryRecipeView(View):
    """The calls of one run."""

    cublaslt_version: int = Field(description="as returned by `cublasLtGetVersion`")
    beside: bool = Field(description="whether two independent products run concurrently, on two streams")
    calls: list[LibraryCallView]
    attention: str = Field(
        validation_alias="launch_ops",
        description="what computes the launch ops, in their order; empty if there are none",
    )
