"""What the wgmma engine requires of a workload and a GPU, whatever the tiles."""

from __future__ import annotations

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype, Workload

#: Only this architecture, since the instructions exist only on sm_90a.
COMPUTE_CAPABILITY = (9, 0)
#: The rows that TMA reads begin and end at multiples of this size.
ROW_ALIGNMENT_BYTES = 16
#: A line: the width of the swizzle.
LINE_BYTES = 128
#: CTAs, or clusters, whose first tasks fit in the launch parameter: `kMaxCtas` in shared_wgmma.cuh.
MAX_CTAS = 160


def workload_problem(workload: Workload, gpu: Gpu) -> str | None:
    """Why no tiling of this engine runs the workload on the GPU."""
    if gpu.compute_capability != COMPUTE_CAPABILITY:
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: the wgmma engine needs 9.0, use mma"
    if gpu.num_sms > MAX_CTAS:
        return f"{gpu.name} has {gpu.num_sms} SMs: the wgmma engine supports up to {MAX_CTAS} CTAs, use mma"
    aligned = workload.dtype.elements(ROW_ALIGNMENT_BYTES)
    line = line_elements(workload.dtype)
    for op in workload.tile_ops:
        if op.IS_PRODUCT and (op.n % aligned or op.k % aligned):
            return f"{op.name} has n {op.n} and k {op.k}: TMA needs multiples of {aligned}, use mma"
        if op.im2col and op.im2col.channels % line:
            return f"{op.name} reads {op.im2col.channels} channels: TMA gathers {line} at a time, use mma"
    return None


def line_elements(dtype: Dtype) -> int:
    """Elements of a line."""
    return dtype.elements(LINE_BYTES)
