"""The costs of a pack and the runtime: the guard, the host's time per call, loading."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.report import check_row
from benchmarks.runtime.chosen import Chosen
from benchmarks.runtime.rounds import PackRunner, Rounds, times_us
from tests.support.packs_on_card import pack_of
from tuner.core.problem.workload import Dtype
from tuner.core.trial.stats import median, paired_ratios, ratio_ci95
from tuner.packs.contents import Kernel
from tuner.runtime import Pack
from tuner.runtime.binding import native

#: Targets: the cost of the guard, microseconds per call above the driver's own, and seconds to load 35 kernels.
GUARD_BAR, C_BAR_US, PYTHON_BAR_US, TORCH_BAR_US, LOAD_BAR_S = 1.005, 1.0, 6.0, 5.0, 0.5
NUM_KERNELS = 35
NUM_ROUNDS, NUM_GUARD_ROUNDS, NUM_CALLS = 30, 120, 400

Row = dict[str, Any]


@contextmanager
def loaded(folder: Path, kernel: Kernel) -> Iterator[Pack]:
    """Yields a pack of one kernel."""
    pack = Pack(pack_of(folder, kernel))
    with closing(pack):
        yield pack


def guard_rows(rounds: Rounds, pack: Pack, chosen: Chosen) -> list[Row]:
    """The guarded and the safe build compared with the measured one, in the same rounds."""
    m, name = chosen.workload.tile_ops[0].m, f"guard: {chosen.name}"
    flags = {"measured": native.AS_MEASURED, "guarded": 0, "safe": native.SAFE_WEIGHTS}
    with ExitStack() as stack:
        runners = [stack.enter_context(closing(PackRunner(pack, m, flag))) for flag in flags.values()]
        found = times_us(rounds.problem(chosen.workload), runners, NUM_GUARD_ROUNDS)
    measured_us, guarded_us, safe_us = found
    low, high = (round(end, 4) for end in ratio_ci95(paired_ratios(guarded_us, measured_us)))
    raw = {
        "ci95": [low, high],
        "median_us": {name: round(median(us), 3) for name, us in zip(flags, found, strict=True)},
        "safe_ratio": round(median(paired_ratios(safe_us, measured_us)), 4),
    }
    return [check_row(name, median(paired_ratios(guarded_us, measured_us)), GUARD_BAR, **raw)]


def host_library(folder: Path) -> ctypes.CDLL:
    """The runtime with the two timed loops."""
    path = folder / "libhost_time.so"
    flags = ("-D_POSIX_C_SOURCE=200809L", f"-I{native.FOLDER / 'src'}", str(Path(__file__).with_name("host_time.c")))
    native.build(folder, flags=flags).rename(path)
    library = native.bind(path)
    for name in ("host_time_of_runtime", "host_time_of_driver"):
        function = getattr(library, name)
        function.restype = ctypes.c_double
        function.argtypes = (*library.tuner_ffn_launch.argtypes[:4], ctypes.c_int)
    return library


def each_us(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds per call, the median of rounds; the stream is empty before each call."""
    times = []
    for _ in range(NUM_ROUNDS):
        wait()
        begin_s = time.perf_counter()
        for _ in range(NUM_CALLS):
            call()
        times.append((time.perf_counter() - begin_s) / NUM_CALLS * 1e6)
    wait()
    return median(times)


def host_rows(folder: Path, pack: Pack, chosen: Chosen) -> list[Row]:
    """The host's time per call in C and in Python, compared with the driver's own; `folder`: the folder in which the
    loops are built."""
    import cupy

    from tests.support.arrays_on_card import operands

    of = operands(chosen.workload)
    m, stream = chosen.workload.tile_ops[0].m, cupy.cuda.Stream(non_blocking=True)
    ffn, y = pack.bind(of.weights), of.output(chosen.workload.tile_ops[0].m)
    ffn(of.x, out=y, stream=stream.ptr)
    stream.synchronize()
    c, prepared = host_library(folder), ffn._by_rows[m]
    assert prepared is not None

    def in_c(name: str) -> float:
        times = []
        for _ in range(NUM_ROUNDS):
            stream.synchronize()
            times.append(getattr(c, name)(prepared.handle, m, ctypes.byref(ffn._tensors), stream.ptr, NUM_CALLS))
        return median(times)

    bare_us, runtime_us = in_c("host_time_of_driver"), in_c("host_time_of_runtime")
    python_us = each_us(lambda: ffn(of.x, out=y, stream=stream.ptr), stream.synchronize)
    raw = {"driver_us": round(bare_us, 3)}
    return [
        check_row("host time of the C runtime, us above the driver", runtime_us - bare_us, C_BAR_US, **raw),
        check_row("host time of tuner.runtime, us above the driver", python_us - bare_us, PYTHON_BAR_US, **raw),
    ]


def operators(folder: Path) -> Any:
    """Builds our operator in C++ if it is missing, and returns an empty one with the same schema."""
    import torch
    from torch.utils import cpp_extension

    from tuner.runtime import torch_compiled

    torch_compiled.build()
    source, builds = str(Path(__file__).with_name("empty_op.cpp")), folder / "empty_op"
    builds.mkdir()
    cpp_extension.load(
        name="tuner_bench_op", sources=[source], build_directory=str(builds), with_cuda=False, is_python_module=False
    )
    return torch.ops.tuner_bench.empty


def torch_rows(pack: Pack, chosen: Chosen, empty: Any) -> list[Row]:
    """PyTorch's operator compared with an empty one with the same schema, both in C++."""
    import torch

    from tuner.runtime import Weights, torch_op

    up, down = chosen.workload.tile_ops
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[str(chosen.workload.dtype)]
    w1, w2, x = (
        torch.randn(*shape, dtype=kind, device="cuda") * shape[-1] ** -0.5
        for shape in ((up.weight_rows, up.k), (down.n, down.k), (up.m, up.k))
    )
    number = torch_op.register(pack.bind(Weights(w1, w2, activation=str(up.activation), gated=up.gated)))
    rest = (None, None, None, None, str(up.activation), up.gated, number)
    name = "host time of torch.ops.tuner.ffn, us above an empty operator"
    with torch.inference_mode():
        numbers = torch_numbers(
            lambda: torch.ops.tuner.ffn(x, w1, w2, *rest), (x, w1, w2, *rest), chosen.workload.dtype
        )
        ours_us = each_us(lambda: torch.ops.tuner.ffn(x, w1, w2, *rest), torch.cuda.synchronize)
        empty_us = each_us(lambda: empty(x, w1, w2, *rest), torch.cuda.synchronize)
    torch_op.forget(number)
    raw = {"empty_us": round(empty_us, 3), "is_cpp": torch_op.compiled is not None}
    return [*numbers, check_row(name, ours_us - empty_us, TORCH_BAR_US, **raw)]


def torch_numbers(call: Callable[[], Any], given: tuple[Any, ...], dtype: Dtype) -> list[Row]:
    """Compares the operator with its formula in float64, and its graph with plain calls."""
    import torch

    from tuner.runtime import torch_op

    wanted, found = torch_op.by_torch(*(one.double() for one in given[:3]), *given[3:]), call()
    error = float((found.double() - wanted).norm() / wanted.norm()) / dtype.row.max_rel_error
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = call()
    replayed.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return [
        check_row("torch.ops.tuner.ffn: error over the tolerance", error, 1.0),
        check_row("torch.ops.tuner.ffn in a graph: elements with other bits", int((replayed != found).sum()), 0),
    ]


def load_rows(folder: Path, kernel: Kernel) -> list[Row]:
    """Times opening a pack of 35 kernels, and preparing each: the same kernel under 35 names."""
    import cupy

    rungs = []
    for i in range(NUM_KERNELS):
        manifest = json.loads(kernel.files["manifest.json"]) | {"name": i, "rows": {"min": 1, "max": 8 * (i + 1)}}
        rungs.append(Kernel(files={**kernel.files, "manifest.json": json.dumps(manifest).encode()}))
    path = pack_of(folder, *rungs)
    c = native.library()
    cupy.cuda.Device().synchronize()
    begin_s = time.perf_counter()
    pack, shape, choice = Pack(path), native.Shape(), native.Choice()
    with closing(pack):
        native.checked(c, c.tuner_pack_shape(pack.handle, 0, ctypes.byref(shape), None))
        held = []
        for i in range(NUM_KERNELS):
            native.checked(c, c.tuner_ffn_find(pack.handle, shape, 8 * (i + 1), ctypes.byref(choice)))
            memory, handle = cupy.empty(choice.memory_bytes + 256, cupy.uint8), ctypes.c_void_p()
            address = -(-memory.data.ptr // 256) * 256
            native.checked(c, c.tuner_ffn_prepare(pack.handle, choice, address, 0, 0, 0, ctypes.byref(handle)))
            held.append((memory, handle))
        elapsed_s = time.perf_counter() - begin_s
        for _, handle in held:
            c.tuner_ffn_release(handle)
    return [check_row(f"loading {NUM_KERNELS} kernels, s", elapsed_s, LOAD_BAR_S, pack_bytes=path.stat().st_size)]
