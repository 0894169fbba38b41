"""What a pack and the runtime cost on a card: the guard, the host's time of a call, loading; each with its bar.

python -m benchmarks.runtime.take_home [--gpu auto] [--quick] [--out benchmarks/results/<gpu>/take_home.json]

About three minutes on an H200. It takes the programmatic winners of `tuner/winners/<gpu>.json` with up to 64 rows.
A winner is measured in rounds: its build as measured, guarded and safe take turns. Each is in a graph of many launches
over copies of its weights that no L2 holds. A simulated GPU has neither host time nor guard, so it is refused.
"""

from __future__ import annotations

import ctypes
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import check_row, failed_row, machine_of, results_file, write_report
from benchmarks.common.setting import read_options
from tests.support.packs_on_card import kernel_on_card, pack_of
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.stats import median
from tuner.packs.contents import Kernel
from tuner.runtime import Pack, native
from tuner.winners.shipped import ShippedWinners, found_in
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.host.cards import usable_gpus

#: Bars: of the guard's cost, of microseconds a call above the driver's own, of seconds to load 35 kernels.
GUARD_BAR, C_BAR_US, PYTHON_BAR_US, TORCH_BAR_US, LOAD_BAR_S = 1.005, 1.0, 6.0, 5.0, 0.5
NUM_KERNELS, NUM_WINNERS, NUM_QUICK_WINNERS = 35, 8, 2
MAX_ROWS = 64
NUM_ROUNDS, NUM_LAUNCHES, NUM_CALLS = 30, 40, 400
#: Of weights in a graph, bytes: more than twice any L2.
ROTATED_BYTES = 2**28

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A winner of the search."""

    name: str
    workload: Workload
    candidate: Candidate


def winners(target_id: str, count: int) -> list[Chosen]:
    """The best fused programmatic winner of some rows, spread over the suites; without options that need operands."""
    found: dict[str, Chosen] = {}
    rows = json.loads(ShippedWinners().path(target_id).read_text())
    for name, row in rows.items():
        for one in found_in(name, row):
            ops = one.workload.ops
            is_plain = one.workload.kind is WorkloadKind.FFN and not any(
                op.bias or op.residual or op.row_scale for op in ops
            )
            if one.candidate.plan_kind is PlanKind.FUSED_PDL and is_plain and ops[0].m <= MAX_ROWS:
                found.setdefault(name, Chosen(name=name, workload=one.workload, candidate=one.candidate))
    step = max(1, len(found) // count)
    return list(found.values())[::step][:count]


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


def guard_rows(pack: Pack, chosen: Chosen) -> list[Row]:
    """The guarded and the safe build against the measured one, in the same rounds."""
    import cupy

    from tests.support.arrays_on_card import operands

    first = operands(chosen.workload)
    one_bytes = first.weights.w1.nbytes + first.weights.w2.nbytes
    copies = [first, *(operands(chosen.workload, seed) for seed in range(1, -(-ROTATED_BYTES // one_bytes)))]
    stream, m = cupy.cuda.Stream(non_blocking=True), chosen.workload.ops[0].m
    y = first.output(m)
    ways = {"measured": {"as_measured": True}, "guarded": {}, "safe": {"safe_weights": True}}
    graphs = {}
    for name, options in ways.items():
        bound = [pack.bind(copy.weights, **options) for copy in copies]
        with stream:
            bound[0](first.x, out=y)
            stream.synchronize()
            stream.begin_capture()
            for i in range(NUM_LAUNCHES):
                bound[i % len(bound)](first.x, out=y)
            graphs[name] = stream.end_capture()
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
            times.append(getattr(c, name)(prepared.handle, m, ffn._reference, stream.ptr, NUM_CALLS))
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


def measure(builder: Builder, gpu: Gpu, asked: Sequence[Chosen], folder: Path) -> list[Row]:
    """Every row; a check that raises does not hold."""
    rows: list[Row] = []

    def attempt(name: str, take: Callable[[], list[Row]]) -> None:
        print(name, flush=True)
        try:
            rows.extend(take())
        except Exception as error:
            rows.append(failed_row(name, f"{type(error).__name__}: {error}"))
        print(rows[-1], flush=True)

    def with_pack(chosen: Chosen, take: Callable[[Pack, Chosen], list[Row]]) -> list[Row]:
        with loaded(folder, kernel_on_card(builder, gpu, chosen.workload, chosen.candidate)) as pack:
            return take(pack, chosen)

    for chosen in asked:
        attempt(f"guard: {chosen.name}", partial(with_pack, chosen, guard_rows))
    first = asked[0]
    attempt("host time", lambda: with_pack(first, lambda pack, chosen: host_rows(pack, chosen, folder)))
    attempt("host time of torch.ops.tuner.ffn", lambda: with_pack(first, torch_rows))
    attempt("loading", lambda: load_rows(folder, kernel_on_card(builder, gpu, first.workload, first.candidate)))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes."""
    options = read_options(__doc__, arguments)
    if options.gpu != "auto":
        raise SystemExit("only a card has a host's time and a guard's cost: give --gpu auto")
    from tuner.workers.host.supervisor import GpuSupervisor

    card = usable_gpus()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(GpuSupervisor(card, folder)) as supervisor:
            environment, target = supervisor.environment(), supervisor.target
        builder = Builder(folder, num_processes=4)
        with closing(builder):
            count = NUM_QUICK_WINNERS if options.quick else NUM_WINNERS
            asked = winners(target.id, count)
            rows = measure(builder, target.gpu, asked, folder)
    out = Path(options.out) if options.out else results_file(target.id, "take_home")
    write_report(out, rows, machine_of(environment))


if __name__ == "__main__":
    main()
