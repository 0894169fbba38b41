"""How the vendor's library was called: a recipe for those who are told to use it."""

from __future__ import annotations

from pydantic import Field

from tuner.wire.base.view import View


class LibraryCallView(View):
    """One `cublasLtMatmul`: D[rows, columns] = A^T B in column-major order, A being the weights and B the inputs."""

    op: str
    rows: int
    columns: int
    k: int
    data_type: str
    epilogue: str
    beta: int = Field(description="1 where the residual is added by the call")
    algorithm: dict[str, int] = Field(description="id and attributes, for `cublasLtMatmulAlgoConfigSetAttribute`")
    heuristic_index: int = Field(description="its place among those that the heuristic offered, the likeliest 0")
    workspace_bytes: int
    afterwards: str = Field(description="what one elementwise kernel does afterwards; empty where nothing is left")


class LibraryRecipeView(View):
    """The calls of one run."""

    cublaslt_version: int = Field(description="as `cublasLtGetVersion` says it")
    beside: bool = Field(description="whether two products that share nothing run side by side, on two streams")
    calls: list[LibraryCallView]
    attention: str = Field(
        validation_alias="launch_ops",
        description="what computes the launch ops at their places among them; empty where there are none",
    )
