"""What a pack and the runtime cost: the guard, the host's time of a call, loading."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.report import check_row, failed_row
from benchmarks.runtime.chosen import Chosen
from tests.support.packs_on_card import pack_of
from tuner.core.problem.workload import Workload
from tuner.core.trial.stats import median
from tuner.packs.contents import Kernel
from tuner.runtime import Pack, native

#: Bars: of the guard's cost, of microseconds a call above the driver's own, of seconds to load 35 kernels.
GUARD_BAR, C_BAR_US, PYTHON_BAR_US, TORCH_BAR_US, LOAD_BAR_S = 1.005, 1.0, 6.0, 5.0, 0.5
NUM_KERNELS = 35
NUM_ROUNDS, NUM_LAUNCHES, NUM_CALLS = 30, 40, 400
#: Of weights in a graph, bytes: more than twice any L2.
ROTATED_BYTES = 2**28

Row = dict[str, Any]


@contextmanager
def loaded(folder: Path, kernel: Kernel) -> Iterator[Pack]:
    """A pack of one kernel."""
    pack = Pack(pack_of(folder, kernel))
    with closing(pack):
        yield pack


def graph_us(stream: Any, graph: Any) -> float:
    """Microseconds of one launch in a graph of NUM_LAUNCHES."""
    import cupy

    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record(stream)
    graph.launch(stream)
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e3 / NUM_LAUNCHES


def copies_of(workload: Workload) -> list[Any]:
    """Operands over so many copies of the weights that no L2 holds them."""
    from tests.support.arrays_on_card import operands

    first = operands(workload)
    one_bytes = first.weights.w1.nbytes + first.weights.w2.nbytes
    return [first, *(operands(workload, seed) for seed in range(1, -(-ROTATED_BYTES // one_bytes)))]


def cold_graph(pack: Pack, copies: Sequence[Any], y: Any, stream: Any, **options: Any) -> Any:
    """A graph of NUM_LAUNCHES launches of as many rows as `y` has, each on the next copy of the weights.

    The caller keeps `y`: its memory would else be given to whoever asks next, and the graph writes there.
    """
    bound, x = [pack.bind(copy.weights, **options) for copy in copies], copies[0].x[: y.shape[0]]
    with stream:
        bound[0](x, out=y)
        stream.synchronize()
        stream.begin_capture()
        for i in range(NUM_LAUNCHES):
            bound[i % len(bound)](x, out=y)
        return stream.end_capture()


def guard_rows(pack: Pack, chosen: Chosen) -> list[Row]:
    """The guarded and the safe build against the measured one, in the same rounds."""
    import cupy

    copies, stream = copies_of(chosen.workload), cupy.cuda.Stream(non_blocking=True)
    y = copies[0].output(chosen.workload.ops[0].m)
    ways = {"measured": {"as_measured": True}, "guarded": {}, "safe": {"safe_weights": True}}
    graphs = {name: cold_graph(pack, copies, y, stream, **options) for name, options in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(NUM_ROUNDS + 3):
        for name, graph in graphs.items():
            us = graph_us(stream, graph)
            if turn >= 3:  # the first rounds warm up
                times[name].append(us)
    sentences = pack.aborts()
    middle = {name: median(values) for name, values in times.items()}
    ratio = median([a / b for a, b in zip(times["guarded"], times["measured"], strict=True)])
    safe = median([a / b for a, b in zip(times["safe"], times["measured"], strict=True)])
    raw = {"median_us": {name: round(us, 3) for name, us in middle.items()}, "safe_ratio": round(safe, 4)}
    if sentences:
        return [failed_row(f"guard: {chosen.name}", sentences[0])]
    return [check_row(f"guard: {chosen.name}", ratio, GUARD_BAR, **raw)]


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
    """Microseconds a call, the median of rounds; the stream is empty before each."""
    times = []
    for _ in range(NUM_ROUNDS):
        wait()
        begin_s = time.perf_counter()
        for _ in range(NUM_CALLS):
            call()
        times.append((time.perf_counter() - begin_s) / NUM_CALLS * 1e6)
    wait()
    return median(times)


def host_rows(pack: Pack, chosen: Chosen, folder: Path) -> list[Row]:
    """The host's time of a call in C and in Python, beside the driver's own."""
    import cupy

    from tests.support.arrays_on_card import operands

    of = operands(chosen.workload)
    m, stream = chosen.workload.ops[0].m, cupy.cuda.Stream(non_blocking=True)
    ffn, y = pack.bind(of.weights), of.output(chosen.workload.ops[0].m)
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


def torch_rows(pack: Pack, chosen: Chosen) -> list[Row]:
    """The operator of PyTorch beside an empty one."""
    name = "host time of torch.ops.tuner.ffn, us above an empty operator"
    try:
        import torch

        from tuner.runtime import Weights, torch_op
    except ImportError as error:
        return [failed_row(name, f"PyTorch is not installed: {error}")]
    up, down = chosen.workload.ops
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[str(chosen.workload.dtype)]
    w1, w2, x = (
        torch.randn(*shape, dtype=kind, device="cuda") * shape[-1] ** -0.5
        for shape in ((up.weight_rows, up.k), (down.n, down.k), (up.m, up.k))
    )
    number = torch_op.register(pack.bind(Weights(w1, w2, activation=str(up.activation), gated=up.gated)))
    library = torch.library.Library("tuner_bench", "FRAGMENT")
    library.define("empty(Tensor x, Tensor w1, Tensor w2) -> Tensor")
    library.impl("empty", lambda x, w1, w2: x.new_empty((x.shape[0], w2.shape[0])), "CUDA")
    rest = (None, None, None, None, str(up.activation), up.gated, number)
    wait = torch.cuda.synchronize
    with torch.inference_mode():
        ours_us = each_us(lambda: torch.ops.tuner.ffn(x, w1, w2, *rest), wait)
        empty_us = each_us(lambda: torch.ops.tuner_bench.empty(x, w1, w2), wait)
    return [check_row(name, ours_us - empty_us, TORCH_BAR_US, empty_us=round(empty_us, 3))]


def load_rows(folder: Path, kernel: Kernel) -> list[Row]:
    """Opening a pack of 35 kernels, and making each ready: the same kernel under 35 names."""
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
