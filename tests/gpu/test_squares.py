"""The kernel that runs before a norm of an input: it sums the squares of each row."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest

from tests.support.on_card import problem
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.ops.gemm.op import GemmOp
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.source.tools import tools_source

pytest.importorskip("cupy")

from tuner.workers.gpu.launching.squares import InputSquares
from tuner.workers.gpu.tensors.data import ProblemData
from tuner.workers.gpu.tensors.op_data import from_bits
from tuner.workers.protocol.stopwatch import Stopwatch

NUM_RUNS = 3


@pytest.fixture(scope="module")
def tools(builder: Builder, gpu: Gpu) -> Any:
    module = cupy.cuda.function.Module()
    module.load(builder.build(tools_source(gpu.arch), gpu.arch).cubin)
    return module


def normed(m: int, k: int, dtype: Dtype) -> Workload:
    """One product with a normed input."""
    op = GemmOp(name="up", m=m, n=64, k=k, source="x", norm="x", eps=1e-5)
    down = GemmOp(name="down", m=m, n=64, k=64, source="up")
    return Workload(kind=WorkloadKind.CHAIN, ops=(op, down), dtype=dtype)


@pytest.mark.parametrize("is_programmatic", [True, False])
@pytest.mark.parametrize("dtype", UNSCALED)
@pytest.mark.parametrize(("m", "k"), [(1, 8192), (3, 96), (16, 8192), (17, 3584), (64, 8192), (130, 1032), (700, 512)])
def test_they_are_what_numpy_says_behind_what_was_there(
    tools: Any, m: int, k: int, dtype: Dtype, is_programmatic: bool
) -> None:
    workload = normed(m, k, dtype)
    data = ProblemData(problem(workload), 1 << 20, Stopwatch())
    squares, stream = InputSquares(workload, tools), cupy.cuda.Stream(non_blocking=True)
    inputs = data._check_inputs[1]
    inputs["x.squares"][:] = cupy.nan
    cupy.cuda.Device().synchronize()
    for _ in range(NUM_RUNS):
        squares.enqueue(data.check_ops(1), stream.ptr, is_programmatic=is_programmatic)
    stream.synchronize()
    found = inputs["x.squares"].get()
    wanted = (from_bits(inputs["x"], dtype, as_type=cupy.float64).get() ** 2).sum(axis=1)
    np.testing.assert_allclose(found[:m], wanted, rtol=2e-6)
    assert np.isnan(found[m:]).all(), "memory after the last row is not written"
