"""What kernels do not support with 8-bit elements, or with outputs of a different type than the operands."""

from __future__ import annotations

from functools import lru_cache

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Epilogue, Tiling


def max_promoted(workload: Workload) -> int | None:
    """Maximum fp32 sums per thread if the tensor cores' sums are promoted; None if they are not."""
    product = workload.dtype.row.tensor_product
    return product.max_promoted if product else None


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
    product = dtype.row.tensor_product
    if engine is Engine.SIMT or (product and engine in product.engines):
        return None
    if product is None:
        return f"the tensor-core engines do not multiply {dtype}: use simt"
    return f"{engine} does not multiply {dtype}: use {' or '.join((*product.engines, 'simt'))}"


def stored_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why a kernel of the `wgmma` engine cannot store the workload's outputs with this tiling."""
    others = [op for op in workload.tile_ops if op.out_dtype not in (None, workload.dtype)]
    if not others and workload.dtype.row.has_pairs:
        return None
    if tiling.epilogue is Epilogue.TMA:
        return "epilogue tma needs 16-bit elements in and out: use direct"
    if tiling.in_band:
        return "in_band needs 16-bit elements in and out: use in_band false"
    return None


def parts_problem(workload: Workload, engine: Engine) -> str | None:
    """Parts of its epilogues that the engine supports only with outputs of 16-bit elements."""
    if engine is Engine.SIMT or workload.dtype.row.has_pairs:
        return None
    for index, op in enumerate(workload.tile_ops):
        if op.stored_in(workload.dtype).row.has_pairs and not op.written_cache:
            continue
        part = next((part.field for part in op.parts if part.is_of_words), None)
        if found := part or ("norm after it" if workload.writes_squares(index) else None):
            what = f"{op.name} has a {found}, which {engine} supports only with 16-bit elements"
            return f"{what}: leave it out, use simt, or give {op.name} an out_dtype of 16 bits"
    return None
