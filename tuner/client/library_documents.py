"""The documents of what the vendor's library was asked for, as a type checker sees them: dicts with these keys."""

from __future__ import annotations

from typing import TypedDict


class LibraryCall(TypedDict):
    """One `cublasLtMatmul`: D[rows, columns] = A^T B in column-major order, A being the weights and B the inputs."""

    op: str
    rows: int
    columns: int
    k: int
    data_type: str
    epilogue: str
    beta: int
    algorithm: dict[str, int]
    heuristic_index: int
    workspace_bytes: int
    afterwards: str


class LibraryRecipe(TypedDict):
    """The calls of one run."""

    cublaslt_version: int
    beside: bool
    calls: list[LibraryCall]
    attention: str
