"""Main loops of a product of 304 rows: time, clock and energy of six ways to feed the tensor cores.

python -m benchmarks.waterfall.loops [--row shared/128x152] [--out FILE]

Writes benchmarks/results/<gpu>/loops.json, a row per way. The kernels (`loops.cu`, with predictions) are not part of
the product. All compute the same sums, which are checked, in whole waves of 132 SMs, in the same rounds as cuBLAS: in
bursts of eight launches, then each for a second, with the card's energy counter. About 30 seconds.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.common.called import called
from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, open_workbench
from tuner.core.problem.workload import Dtype
from tuner.core.trial.stats import median
from tuner.errors import BuildError
from tuner.workers.builder.nvrtc import compile_source
from tuner.workers.source.tensor_maps import TensorMap

Json = dict[str, Any]

SOURCE = Path(__file__).with_suffix(".cu")
DEVICE = Path(__file__).parents[2] / "workers" / "kernels" / "ptx"
#: Weights of [ROWS, K], and rows of the input: whole waves for all ways.
SMS, ROWS, K, INPUTS = 132, 132 * 384, 4096, 304
COLUMNS, RING_BYTES, LAUNCHES, ROUNDS, LOAD_S = 152, 225 * 1024, 8, 15, 1.0


def product_text(width: int) -> str:
    """The specialisation `Wgmma<width>`, with a last argument that is 0 if the sums are the products alone."""
    half = width // 2
    sums, of = ", ".join(f"%{i}" for i in range(half)), ", ".join(f'"+f"(d[{i}])' for i in range(half))
    operation = f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.f16.f16"
    return f"""template <>
struct Wgmma<{width}> {{
  __device__ static __forceinline__ void multiply(float* d, u64 a, u64 b, int adds) {{
    asm volatile("{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{half + 2}, 0;\\n"
        "{operation} {{{sums}}}, %{half}, %{half + 1}, adds, 1, 1, 0, 0;\\n}}"
        : {of} : "l"(a), "l"(b), "r"(adds));
  }}
}};
"""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How weights reach the tensor cores (`WAY` of the source), and the tile."""

    name: str
    way: int
    blocks: int = 1
    halves: int = 1

    @property
    def smem_bytes(self) -> int:
        """Bytes of the ring."""
        stage_bytes = ((0 if self.way == 2 else 128 * self.blocks) + self.halves * COLUMNS) * 128
        return RING_BYTES // stage_bytes * stage_bytes

    @property
    def source(self) -> str:
        """CUDA C++."""
        sizes = {"WAY": self.way, "BLOCKS": self.blocks, "HALVES": self.halves, "GROUPS": 2, "RING": self.smem_bytes}
        defined = "".join(f"#define {name} {value}\n" for name, value in (sizes | {"COLUMNS": COLUMNS}).items())
        count = COLUMNS // 2
        names = {"accumulators": [f"%{i}" for i in range(count)], "a": [f"%{count + i}" for i in range(4)]}
        names["operands"] = [f'"+f"(d[{i}])' for i in range(count)]
        fields = {name: ", ".join(words) for name, words in names.items()}
        fields |= {"columns": str(COLUMNS), "kind": "f16", "b": f"%{count + 4}", "adds": f"%{count + 5}"}
        of_registers = Template((DEVICE / "wgmma_of_registers.in").read_text()).substitute(fields)
        return f'{defined}#include "wgmma.cuh"\n{product_text(COLUMNS)}{of_registers}{SOURCE.read_text()}'


WAYS = (
    Way(name="shared/128x152", way=0),
    Way(name="shared/256x152", way=0, blocks=2),
    Way(name="shared/128x2x152", way=0, halves=2),
    Way(name="registers/128x2x152", way=1, halves=2),
    Way(name="fragments/128x152", way=2),
    Way(name="fragments/128x2x152", way=2, halves=2),
)


def built(way: Way) -> bytes:
    """The cubin.

    Raises:
        TunerError: the kernel does not compile, or spills registers, or its products are serialised.
    """
    options = ["--std=c++17", "--ptxas-options=-v", f"-I{DEVICE}", f"-I{DEVICE.parent / 'common'}"]
    cubin, log = compile_source(way.source, "sm_90a", options)
    if "spill" in log.replace("0 bytes spill", "") or "serialized" in log:
        raise BuildError(f"{way.name}: {log[:500]}")
    return cubin


class Loops:
    """The operands on the visible card, and the launches."""

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        rng = cupy.random.default_rng(0)
        self.w = (rng.standard_normal((ROWS, K), dtype=cupy.float32) * K**-0.5).astype(cupy.float16)
        self.x = rng.standard_normal((INPUTS, K), dtype=cupy.float32).astype(cupy.float16)
        parts = self.w.reshape(ROWS // 64, 4, 2, 8, K // 16, 2, 4, 2)
        self.fragments = cupy.ascontiguousarray(parts.transpose(0, 4, 1, 3, 6, 5, 2, 7))
        self.factors = rng.standard_normal(INPUTS, dtype=cupy.float32)
        self.out = cupy.zeros((INPUTS // COLUMNS, ROWS), dtype=cupy.float32)
        self.clocks = cupy.zeros(4, dtype=cupy.uint64)
        scaled = (self.x.astype(cupy.float32) * self.factors[:, None]).reshape(-1, COLUMNS, K).sum(axis=1)
        self.expected = cupy.stack([self.w.astype(cupy.float32) @ one for one in scaled])
        #: Whatever must live as long as the launches.
        self._held: list[Any] = []

    def launcher(self, way: Way, cubin: bytes) -> Callable[[], Any]:
        """A function that enqueues one launch."""
        from cuda.bindings import driver

        from tuner.workers.gpu.launching.launch import check, launch_config
        from tuner.workers.gpu.launching.tensor_maps import encode

        function = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(cubin)), b"loops"))
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(function, most, way.smem_bytes))
        rows, row_tiles = 128 * way.blocks, INPUTS // COLUMNS // way.halves
        places: list[int] = []
        for array, box in ((self.w, rows), (self.x, COLUMNS)):
            sizes = TensorMap(op=0, operand="w", dims=array.shape[::-1], strides_bytes=(2 * K,), box=(64, box))
            encoded = encode(sizes, Dtype.FP16, array.data.ptr)
            self._held.append(held := ctypes.create_string_buffer(len(encoded) + 64))
            places.append(-(-ctypes.addressof(held) // 64) * 64)
            ctypes.memmove(places[-1], encoded, len(encoded))
        arrays = (self.fragments, self.factors, self.out, self.clocks)
        numbers: list[Any] = [ctypes.c_void_p(one.data.ptr) for one in arrays]
        numbers += [ctypes.c_int(one) for one in (K // 64, row_tiles, ROWS // rows * row_tiles, ROWS)]
        places += map(ctypes.addressof, numbers)
        pointers = (ctypes.c_void_p * len(places))(*places)
        config = launch_config(SMS, 384, way.smem_bytes, 0)
        self._held += [numbers, pointers]
        return lambda: check(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))

    def error(self, launch: Callable[[], Any]) -> float:
        """The greatest error of a launch, relative to the greatest sum."""
        self.out.fill(self.xp.nan)
        launch()
        return float(abs(self.out - self.expected).max() / abs(self.expected).max())

    def run(self, launch: Callable[[], Any], count: int) -> tuple[float, float]:
        """Microseconds of a launch among `count` of them, and the clock in the last one, MHz; 0 for cuBLAS."""
        self.clocks.fill(0)
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        first, first_ns, last, last_ns = map(int, self.clocks.get())
        return self.xp.cuda.get_elapsed_time(begin, end) * 1000 / count, 1000 * (last - first) / max(
            1, last_ns - first_ns
        )


def measured(loops: Loops, launches: dict[str, Callable[[], Any]], energy_mj: Callable[[], float]) -> list[Json]:
    """Microseconds and clocks of each launch, in bursts and under load; and the energy of a launch there, mJ."""
    bursts: dict[str, list[tuple[float, float]]] = {name: [] for name in launches}
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            time.sleep(0.01)
            bursts[name].append(loops.run(launch, LAUNCHES))
    rows = list[Json]()
    for name, launch in launches.items():
        us, mhz = (round(median(of), 2) for of in zip(*bursts[name], strict=True))
        before_mj, start_s, count = energy_mj(), time.monotonic(), 0
        while time.monotonic() - start_s < LOAD_S:
            load_us, load_mhz = loops.run(launch, 200)
            count += 200
        used_mj = (energy_mj() - before_mj) / count
        loaded = {"load_us": round(load_us, 2), "load_mhz": round(load_mhz, 2), "load_mj": round(used_mj, 2)}
        rows.append({"row": name, "us": us, "mhz": mhz} | loaded)
    return rows


def main() -> None:
    """Measures the ways of the command line."""
    options = parser_of(__doc__, "row", "out").parse_args()
    asked = called(WAYS, options.row)
    with ThreadPoolExecutor(len(WAYS)) as pool:
        cubins = list(pool.map(built, asked))
    with open_workbench("auto", BUILD_CACHE) as bench:
        card, environment = bench.evaluator.target, bench.evaluator.environment()
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    loops = Loops()
    launches = {way.name: loops.launcher(way, cubin) for way, cubin in zip(asked, cubins, strict=True)}
    errors = {name: loops.error(launch) for name, launch in launches.items()}
    launches |= {"cuBLAS": partial(loops.xp.matmul, loops.x, loops.w.T)}
    rows = measured(loops, launches, lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
    for row in rows:
        row |= {"rel_error": errors.get(row["row"])}
        print(row, flush=True)
    write_report(options.out or results_file(card.id, "loops"), rows, machine_of(environment))


if __name__ == "__main__":
    main()
