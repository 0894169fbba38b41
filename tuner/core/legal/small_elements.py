"""What kernels do not support with 8-bit elements, or if an output is stored in another type than the operands."""

from __future__ import annotations

from functools import lru_cache

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Epilogue, Tiling

#: Maximum promoted fp32 sums per thread: it has as many of the tensor cores' besides.
MAX_PROMOTED = 96


def has_promoted_sums(workload: Workload) -> bool:
    """Whether the tensor cores' sums are added to separate ones as they arrive."""
    return workload.dtype.row.fp8_kind is not None


def conversion_problem(workload: Workload, gpu: Gpu) -> str | None:
    """Why the GPU lacks instructions for a type of the workload."""
    return _conversion_problem(workload.dtypes, gpu.name, gpu.compute_capability)


@lru_cache(maxsize=256)
def _conversion_problem(dtypes: tuple[Dtype, ...], gpu_name: str, compute_capability: tuple[int, int]) -> str | None:
    for dtype in dtypes:
        needed = dtype.row.compute_capability
        if compute_capability < needed:
            have, need = (".".join(map(str, one)) for one in (compute_capability, needed))
            return f"{gpu_name} has compute capability {have}, and {dtype} needs {need}: use another dtype"
    return None


@lru_cache(maxsize=256)
def multiply_problem(dtype: Dtype, engine: Engine) -> str | None:
    """Why the engine lacks an instruction that multiplies such elements."""
    if engine is Engine.SIMT or dtype.row.tensor_kind is not None:
        return None
    if dtype.row.fp8_kind is None:
        return f"the tensor-core engines do not multiply {dtype}: use simt"
    return None if engine is Engine.WGMMA else f"{engine} multiplies only 16-bit elements, not {dtype}: use simt"


def stored_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why a kernel of the `wgmma` engine cannot store these outputs like this."""
    others = [op for op in workload.tile_ops if op.out_dtype not in (None, workload.dtype)]
    if not others and workload.dtype.size_bytes == 2:
        return None
    if tiling.epilogue is Epilogue.TMA:
        return "epilogue tma needs 16-bit elements in and out: use direct"
    if tiling.in_band:
        return "in_band needs 16-bit elements in and out: use in_band false"
    return None


def parts_problem(workload: Workload, engine: Engine) -> str | None:
    """Parts of its epilogues that the engine supports only with 16-bit elements."""
    if engine is Engine.SIMT or workload.dtype.size_bytes == 2:
        return None
    for op in workload.tile_ops:
        if part := next((part for part in op.parts if part.is_of_words), None):
            what = f"{op.name} has a {part.field}, which {engine} supports only with 16-bit elements"
            return f"{what}: leave it out, or use simt"
    return None
