"""Where the compiler's second goes, and what its options change: kernels of kept winners, through NVRTC, without a GPU.

python -m benchmarks.cpu.compile_seconds [--gpu h200] [--repeats 3] [--out FILE]

A kernel is the fastest kept one of a row from decode to prefill. Seconds are those of one core, not of the wall, so
that a busy machine changes little. A row of the file for each way to compile: `core_s` is the median over the kernels,
each the least of its repeats, and `over_default` compares it with the service's own options. `same_code` says of how
many kernels the machine code stays the same. The first row has the shares of the compiler's phases, as it tells them
itself, and an empty kernel's seconds.
"""

from __future__ import annotations

import argparse
import resource
import struct
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common.report import NO_GPU, write_report
from benchmarks.common.rows import Row, choose_rows
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.trial.stats import median
from tuner.winners import ShippedWinners
from tuner.workers.builder.nvrtc import compile_options, compile_source, nvrtc_version
from tuner.workers.source.render import render

ROWS = (
    "decode-plain/llama3-70b/m1",
    "decode-plain/llama3-8b/m16",
    "decode-swiglu/llama3-8b/m32",
    "decode-swiglu/llama65b-tp8/m64",
    "middle/llama3-8b-swiglu/m128",
    "middle/gpt3-tp8/m192",
    "prefill-swiglu/llama3-70b-tp8/m512",
    "prefill-plain/llama3-8b/m2048",
)
EMPTY = 'extern "C" __global__ void k(float* x) { x[0] = 0.0f; }'
#: Beside the service's own options.
WAYS = {
    "service's options": (),
    "minimal": ("--minimal",),
    "no initializer lists": ("--builtin-initializer-list=false", "--builtin-move-forward=false"),
    "split compile": ("--split-compile=0",),
    "ptxas -O2": ("--ptxas-options=-O2",),
    "ptxas -O1": ("--ptxas-options=-O1",),
    "Ofast-compile=min": ("--Ofast-compile=min",),
    "Ofast-compile=mid": ("--Ofast-compile=mid",),
    "Ofast-compile=max": ("--Ofast-compile=max",),
}

Json = dict[str, Any]


def kernels_of(rows: Sequence[Row], gpu_id: str) -> list[str]:
    """A source for each row that has kept winners."""
    kept, found = ShippedWinners().of(gpu_id), list[str]()
    for row in rows:
        own = [one for one in kept if one.source == f"shipped {row.name}" and one.candidate.schedule]
        if schedule := min(own, key=lambda one: one.time_us).candidate.schedule if own else None:
            found.append(render(row.workload, schedule.tiling))
    return found


def compiled(source: str, arch: str, options: Sequence[str], num_repeats: int) -> tuple[float, bytes]:
    """Seconds of a core, the least of the repeats; and the cubin."""
    took_s, cubin = list[float](), b""
    for _ in range(num_repeats):
        before_s = _core_s()
        cubin, _ = compile_source(source, arch, options)
        took_s.append(_core_s() - before_s)
    return min(took_s), cubin


def machine_code(cubin: bytes) -> dict[str, bytes]:
    """The instructions of a cubin by section; a cubin also names the options, so other bytes need not be other code.
    The layout is that of 64-bit ELF."""
    headers, size, num, names = (*struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58))
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, headers + size * i) for i in range(num)]
    found = dict[str, bytes]()
    for name, _, _, _, begin, length, *_ in sections:
        at = sections[names][4] + name
        if (word := cubin[at : cubin.index(b"\0", at)].decode()).startswith(".text"):
            found[word] = cubin[begin : begin + length]
    return found


def _core_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def phases_of(sources: Sequence[str], arch: str, options: Sequence[str]) -> dict[str, float]:
    """Share of each of the compiler's phases in their sum."""
    sums = defaultdict[str, float](float)
    with tempfile.TemporaryDirectory() as folder:
        for i, source in enumerate(sources):
            path = Path(folder) / f"{i}.csv"
            compile_source(source, arch, (*options, f"--time={path}"))
            for line in path.read_text().splitlines()[1:]:
                _, phase, value, _ = (part.strip() for part in line.split(","))
                sums[phase] += float(value)
    total = sum(sums.values())
    return {phase: round(value / total, 3) for phase, value in sums.items()}


def measure(sources: Sequence[str], arch: str, num_repeats: int) -> list[Json]:
    """The rows; in a process whose compiler has run once already."""
    own, rows = compile_options(nvrtc_version()), list[Json]()
    compile_source(sources[0], arch, own)
    codes: list[dict[str, bytes]] = []
    for name, extra in WAYS.items():
        found = [compiled(source, arch, (*own, *extra), num_repeats) for source in sources]
        own_codes = [machine_code(cubin) for _, cubin in found]
        codes = codes or own_codes
        seconds = median([took_s for took_s, _ in found])
        same = sum(one == code for one, code in zip(own_codes, codes, strict=True))
        rows.append({"way": name, "core_s": round(seconds, 4), "same_code": same, "kernels": len(sources)})
        rows[-1]["over_default"] = round(seconds / rows[0]["core_s"], 3)
        print(rows[-1], flush=True)
    rows[0]["phases"] = phases_of(sources, arch, own)
    rows[0]["empty_kernel_s"] = round(compiled(EMPTY, arch, own, num_repeats)[0], 4)
    rows[0]["lines"] = round(median([source.count("\n") for source in sources]))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles, and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200", choices=sorted(CATALOGUE))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/compile_seconds.json"))
    options = parser.parse_args(arguments)
    arch = CATALOGUE[options.gpu].arch
    sources = kernels_of(choose_rows(names=ROWS), options.gpu)
    with get_context("spawn").Pool(1) as pool:
        rows = pool.apply(measure, (sources, arch, options.repeats))
    write_report(options.out, rows, {**NO_GPU, "arch": arch, "nvrtc": nvrtc_version()})
    print(rows[0])


if __name__ == "__main__":
    main()
