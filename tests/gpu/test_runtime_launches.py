"""Launches by the runtime on a GPU: fresh memory, a failing second launch, green contexts, and recovery after
aborts."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.native.recorder import HERE, compile_c
from tests.support.packs_on_card import kernel_on_card, pack_of
from tests.support.repository import ROOT
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.runtime import Artifact, RuntimeFailure, load
from tuner.runtime.device.driver import driver
from tuner.workers.builder.nvrtc import Builder

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("cuda.bindings.driver")

from tests.support import runtime_on_card as on_card  # noqa: E402
from tests.support.arrays_on_card import Operands, operands  # noqa: E402
from tuner.workers.gpu.launching.launch import check  # noqa: E402

MMA = Tiling(tiles=(Tile(m=16, n=64, k=64), Tile(m=16, n=64, k=64)), num_stages=3, num_warps=4)
#: One or two CTAs per SM, so that a few SMs cannot hold its grid.
LARGE = Tiling(tiles=(Tile(m=16, n=64, k=128), Tile(m=16, n=64, k=128)), num_stages=4, num_warps=4)
NUM_BYTES = 1 << 20
#: Occupies the stream on which it is launched.
BUSY = r"""
extern "C" __global__ void busy(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
}
"""


def artifact_of(
    builder: Builder, gpu: Gpu, kind: PlanKind, tiling: Tiling = MMA, rows: int = 64
) -> tuple[Artifact, Operands, dict[str, Any], Any]:
    """An FFN's artifact, its operands, its bound buffers, and its output among those."""
    asked = on_card.workload(rows, gated=False)
    artifact, of = Artifact(kernel_on_card(builder, gpu, asked, on_card.candidate(tiling, kind)).files), operands(asked)
    y = of.output(rows)
    given = {"x": of.x, "up.w": of.weights.w1, "down.w": of.weights.w2, "down": y}
    cupy.cuda.Device().synchronize()
    return artifact, of, given, y


def test_a_non_blocking_stream_reads_fresh_memory_whatever_the_null_stream_does(gpu: Gpu) -> None:
    cuda_driver, busy = driver(), cupy.RawKernel(BUSY, "busy")
    busy((1,), (1,), (1,))
    stale = ctypes.c_uint64()
    cuda_driver.call("cuMemAlloc_v2", ctypes.byref(stale), ctypes.c_size_t(NUM_BYTES))
    cuda_driver.call("cuMemsetD8_v2", stale, ctypes.c_ubyte(0xFF), ctypes.c_size_t(NUM_BYTES))
    cupy.cuda.Device().synchronize()
    cuda_driver.call("cuMemFree_v2", stale)
    stream, seen, word = cupy.cuda.Stream(non_blocking=True), cupy.empty(NUM_BYTES, cupy.uint8), bytes(range(256)) * 16
    copied = cupy.empty(len(word), cupy.uint8)
    with cupy.cuda.Stream.null:
        busy((1,), (1,), (1_000_000_000,))  # half a second
    fresh, uploaded = cuda_driver.memory(NUM_BYTES), cuda_driver.uploaded(word)
    cupy.cuda.runtime.memcpyAsync(seen.data.ptr, fresh, NUM_BYTES, 3, stream.ptr)
    cupy.cuda.runtime.memcpyAsync(copied.data.ptr, uploaded, len(word), 3, stream.ptr)
    stream.synchronize()
    assert not bool(seen.any())
    assert bytes(copied.get()) == word
    cupy.cuda.Device().synchronize()


def test_an_artifact_runs_on_a_non_blocking_stream_right_behind_its_loading(builder: Builder, gpu: Gpu) -> None:
    stream, busy = cupy.cuda.Stream(non_blocking=True), cupy.RawKernel(BUSY, "busy")
    with cupy.cuda.Stream.null:
        busy((1,), (1,), (1_000_000_000,))
    artifact, of, given, y = artifact_of(builder, gpu, PlanKind.FUSED)
    with cupy.cuda.Stream.null:
        busy((1,), (1,), (1_000_000_000,))
    artifact.bind(given).enqueue(stream.ptr)
    stream.synchronize()
    assert error_over_tolerance(of, y) <= 1
    assert not artifact.aborted()


def error_over_tolerance(of: Operands, y: Any) -> float:
    """The error relative to the tolerance."""
    return of.rel_error(y, len(y)) / of.workload.dtype.row.max_rel_error


def test_a_pair_whose_second_launch_fails_is_right_again_after_the_reset(
    builder: Builder, gpu: Gpu, tmp_path: Path
) -> None:
    """This also holds in a graph capture, which can end because the side stream has joined."""
    cupy.cuda.Device().synchronize()
    mapped = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in mapped if "libcuda.so" in line)
    source = (HERE / "failing_libcuda.c",)
    failing = compile_c(tmp_path, "libfailing_cuda.so", source, "-shared", "-fPIC", "-Wl,--no-as-needed", library)
    kernel = kernel_on_card(builder, gpu, on_card.workload(48), on_card.candidate(MMA, PlanKind.TWO_STREAMS))
    path = pack_of(tmp_path, kernel)
    command = [sys.executable, "-m", "tests.support.failing_pair", str(path), str(failing)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    print(found)
    for first, then in found["sentences"][:-1]:
        assert "1 of 2 launches were enqueued: reset it" in first
        assert "reset it first" in then
    assert "1 of 2 launches were enqueued" in found["sentences"][-1][0]
    assert found["worst"] <= 1
    assert found["aborts"] == []


def test_an_artifacts_second_launch_that_fails_is_told_and_rows_are_right_after_the_reset(
    builder: Builder, gpu: Gpu
) -> None:
    artifact, of, given, y = artifact_of(builder, gpu, PlanKind.TWO_LAUNCHES)
    launches, stream = artifact.bind(given), cupy.cuda.Stream(non_blocking=True)
    config = launches._launches[1]._usual.config
    grid, config.grid[0] = config.grid[0], 0
    with pytest.raises(RuntimeFailure, match="1 of 2 launches were enqueued: reset the artifact"):
        launches.enqueue(stream.ptr)
    config.grid[0] = grid
    with pytest.raises(RuntimeFailure, match="reset the artifact first"):
        launches.enqueue(stream.ptr)
    artifact.reset()
    launches.enqueue(stream.ptr)
    stream.synchronize()
    assert error_over_tolerance(of, y) <= 1


def test_an_abort_is_over_after_the_reset(builder: Builder, gpu: Gpu) -> None:
    artifact, of, given, y = artifact_of(builder, gpu, PlanKind.FUSED)
    launches, stream = artifact.bind(given), cupy.cuda.Stream(non_blocking=True)
    assert artifact._products is not None
    drawn = (1_000_000).to_bytes(8, "little")  # as if more launches had run than have posted
    check(cuda.cuMemcpyHtoD(artifact._products._workspaces[0], drawn, len(drawn)))
    cupy.cuda.Device().synchronize()
    launches.enqueue(stream.ptr)
    assert artifact.aborted()
    artifact.reset()
    assert not artifact.aborted()
    for no_pdl in (False, True):
        y[...] = 0
        cupy.cuda.Device().synchronize()
        launches.enqueue(stream.ptr, no_pdl=no_pdl)
        stream.synchronize()
        assert error_over_tolerance(of, y) <= 1
    assert not artifact.aborted()


@pytest.fixture
def green() -> Iterator[tuple[int, int, Any]]:
    """A non-blocking stream of a green context with few SMs, the number of SMs, and the context."""
    cupy.cuda.Device().synchronize()
    device = check(cuda.cuDeviceGet(cupy.cuda.Device().id))
    try:
        whole = check(cuda.cuDeviceGetDevResource(device, cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    except RuntimeError:
        pytest.skip("the driver has no green contexts")
    groups, _, _ = check(cuda.cuDevSmResourceSplitByCount(1, whole, 0, 16))
    described = check(cuda.cuDevResourceGenerateDesc(groups, 1))
    flags = cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = check(cuda.cuGreenCtxCreate(described, device, flags))
    stream = check(cuda.cuGreenCtxStreamCreate(context, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
    yield int(stream), int(groups[0].sm.smCount), context
    cupy.cuda.Device().synchronize()
    check(cuda.cuStreamDestroy(stream))
    check(cuda.cuGreenCtxDestroy(context))


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_a_stream_of_a_green_context_of_few_sms_is_refused_by_name(
    builder: Builder, gpu: Gpu, tmp_path: Path, green: tuple[int, int, Any], kind: PlanKind
) -> None:
    stream, num_sms, _ = green
    sentence = f"CTAs resident at once, and the {num_sms} SMs of this stream's context hold"
    artifact, of, given, y = artifact_of(builder, gpu, kind, LARGE)
    launches = artifact.bind(given)
    with pytest.raises(RuntimeFailure, match=sentence):
        launches.enqueue(stream)
    elsewhere = cupy.cuda.Stream(non_blocking=True)
    launches.enqueue(elsewhere.ptr)
    elsewhere.synchronize()
    assert error_over_tolerance(of, y) <= 1
    with on_card.opened(builder, gpu, tmp_path, on_card.workload(64), on_card.candidate(LARGE, kind)) as (pack, its):
        ffn = pack.bind(its.weights)
        with pytest.raises(RuntimeFailure, match=sentence):
            ffn(its.x, out=its.output(64), stream=stream)
        y = its.output(64)
        cupy.cuda.Device().synchronize()
        ffn(its.x, out=y, stream=elsewhere.ptr)
        elsewhere.synchronize()
        assert error_over_tolerance(its, y) <= 1


def test_a_green_context_of_few_sms_loads_no_kernel_that_does_not_fit(
    builder: Builder, gpu: Gpu, tmp_path: Path, green: tuple[int, int, Any]
) -> None:
    _, num_sms, context = green
    asked = on_card.workload(64, gated=False)
    kernel = kernel_on_card(builder, gpu, asked, on_card.candidate(LARGE, PlanKind.FUSED))
    path = pack_of(tmp_path, kernel)
    before = check(cuda.cuCtxGetCurrent())
    check(cuda.cuCtxSetCurrent(check(cuda.cuCtxFromGreenCtx(context))))
    try:
        with pytest.raises(RuntimeFailure, match=f"the {num_sms} SMs of this stream's context hold"):
            Artifact(kernel.files)
        pack = load(path)
        with pytest.raises(RuntimeFailure, match=f"the {num_sms} SMs of this stream's context hold"):
            pack.check(0)
        pack.close()
    finally:
        check(cuda.cuCtxSetCurrent(before))
    pack = load(path)
    assert pack.check(0) == ""
    pack.close()
