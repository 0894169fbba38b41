"""A gated pair by two launches of `halves.cu`, in several ways, beside PyTorch's products: OUT.

python -m benchmarks.middle.halves OUT [--seconds 60] [--only compile]

All rows of the input in one CTA, in one or two halves, weights from registers or from shared memory, equal shares of k.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.common.report import write_report
from tuner.workers.builder.nvrtc import compile_source

HERE = Path(__file__).parent
DEVICE = HERE.parents[1] / "workers" / "kernels" / "ptx"
CACHE = Path(tempfile.gettempdir()) / "halves"
SMEM_BYTES, SMS = 227 * 1024, 132


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a product is divided."""

    columns: int
    halves: int
    #: Groups of four warps, of 64 rows of weights each.
    groups: int = 2
    ctas: int = 1
    #: A CTA for each tile.
    whole: bool = False
    from_registers: bool = True
    #: Lines of k that storing sums, adding those of another, and the epilogue take: nothing in even shares.
    stores: float = 0
    adds: float = 0
    ends: float = 0
    #: Whether the first sums are stored beside the next products.
    defer: bool = False
    #: Bits of LEFT_OUT.
    left_out: int = 0

    @property
    def rows(self) -> int:
        return self.columns * self.halves

    @property
    def stages(self) -> int:
        return min(8, (SMEM_BYTES - 2048) // ((64 * self.groups + self.rows) * 128))

    @property
    def name(self) -> str:
        """e.g. ``128 by 2x152 cluster2 shared``."""
        words = [f"{64 * self.groups} by {self.halves}x{self.columns}", f"cluster{self.ctas}"]
        words += ["registers" if self.from_registers else "shared"]
        words += ["whole"] * self.whole + ["deferred"] * self.defer
        words += [f"weighted {self.stores} {self.adds} {self.ends}"] if self.stores else []
        words += [f"without {self.left_out}"] if self.left_out else []
        return " ".join(words)


def _ways(columns: int, halves: int = 1) -> list[Way]:
    """Even shares and weighted ones, and, of one half, with sums that are stored beside products."""
    even = Way(columns=columns, halves=halves, ctas=2, from_registers=False, defer=halves == 1)
    return [replace(even, defer=False), even] if halves == 1 else [even, replace(even, stores=2.5, adds=2, ends=2.5)]


def _whole(columns: int) -> list[Way]:
    """No tile is shared: 64 rows of weights in each CTA, in clusters that share the input."""
    return [Way(columns=columns, halves=1, groups=1, ctas=c, whole=True, from_registers=False) for c in (1, 2, 4)]


#: (width, hidden, rows).
PAIRS = {
    (7168, 5120, 300): [*_ways(152, 2), Way(columns=152, halves=2, ctas=2)]
    + [Way(columns=152, halves=2, ctas=2, from_registers=False, left_out=left) for left in (1, 7)],
    (8192, 3584, 192): [*_whole(192), *_ways(192), replace(_ways(192)[0], left_out=1)],
    (7168, 5120, 200): [*_ways(200), replace(_ways(200)[0], left_out=1)],
    (8192, 3584, 128): [*_whole(128), *_ways(128)],
    (7168, 5120, 333): _ways(168, 2),
    (7168, 5120, 150): _ways(152),
    (5120, 6400, 300): _ways(152, 2),
    (8192, 2816, 192): _ways(192),
    (8192, 3584, 320): _ways(160, 2),
}


def _shares(lines: int, tiles: int, most: float, way: Way) -> list[int]:
    """Ends of shares, none of which takes longer than `most`."""
    ends, at, total = [0], 0, lines * tiles
    middle = most - way.ends - way.adds - way.stores
    while at < total and len(ends) < 400:
        rest = -at % lines  # of a tile that an earlier share has begun
        if rest > middle:
            at += max(1, int(middle))
        else:
            left = most - way.ends - rest - (way.stores if rest else 0)  # for the beginning of another one
            for helpers in (1, 2, 3):
                head = min(int(left - helpers * way.adds), lines)
                if lines - head <= (helpers - 1) * middle + min(middle, lines):
                    break
            at = min(total, at + rest + max(0, head))
            if rest + max(0, head) == 0:
                return [*ends, *range(400)]
        ends.append(at)
    return ends


def starts_of(lines: int, tiles: int, groups: int, way: Way) -> list[int]:
    """Where each group of CTAs begins: even shares, or those that should end at the same time."""
    if way.whole:
        return [tile * lines for tile in range(tiles + 1)]
    even = [group * lines * tiles // groups for group in range(groups + 1)]
    if not way.stores:
        return even
    low, high = 1.0, float(lines * tiles)
    while high - low > 0.25:
        most = (low + high) / 2
        low, high = (most, high) if len(_shares(lines, tiles, most, way)) > groups + 1 else (low, most)
    found = _shares(lines, tiles, high, way)
    return found + [lines * tiles] * (groups + 1 - len(found))


#: As `wgmma.in`; without `adds` the sums are the products alone.
_ADDING = """
template <>
struct Wgmma<$columns> {
  __device__ static __forceinline__ void multiply(float* d, u64 a, u64 b, bool adds) {
    asm volatile(
        "{\\n.reg .pred adds;\\nsetp.ne.b32 adds, $adds, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n${columns}k16.f32.$kind.$kind {$accumulators}, $a, $b, adds, 1, 1, 0, 0;\\n}"
        : $operands
        : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
  }
};
"""


def source_of(way: Way, *, gated: bool) -> str:
    """One translation unit."""
    count = way.columns // 2
    names, operands = ", ".join(f"%{i}" for i in range(count)), ", ".join(f'"+f"(d[{i}])' for i in range(count))
    figures = {"columns": way.columns, "kind": "f16", "accumulators": names, "operands": operands}
    if way.from_registers:
        places = ", ".join(f"%{count + i}" for i in range(4))
        figures |= {"a": places, "b": f"%{count + 4}", "adds": f"%{count + 5}"}
        text = (DEVICE / "wgmma_of_registers.in").read_text()
    else:
        figures |= {"a": f"%{count}", "b": f"%{count + 1}", "adds": f"%{count + 2}"}
        text = _ADDING
    defines = {
        "COLUMNS": way.columns,
        "HALVES": way.halves,
        "GROUPS": way.groups,
        "STAGES": way.stages,
        "CTAS": way.ctas,
        "GATED": int(gated),
        "FROM_REGISTERS": int(way.from_registers),
        "LEFT_OUT": way.left_out,
        "DEFER": int(way.defer),
    }
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    return "\n".join(
        [*lines, '#include "wgmma.cuh"', Template(text).substitute(figures), (HERE / "halves.cu").read_text()]
    )


def built(way: Way, *, gated: bool) -> tuple[bytes, str]:
    """The cubin, and what the compiler says of it."""
    options = ["--std=c++17", "--ptxas-options=-v", "--no-cache", f"-I{DEVICE}", f"-I{DEVICE.parent / 'common'}"]
    source = source_of(way, gated=gated)
    kept = CACHE / hashlib.sha256(source.encode()).hexdigest()[:16]
    if kept.exists():
        return kept.read_bytes(), ""
    cubin, log = compile_source(source, "sm_90a", options)
    CACHE.mkdir(exist_ok=True)
    kept.write_bytes(cubin)
    said = [line for line in log.splitlines() if re.search("registers|spill|warning|Potential|C75", line)]
    return cubin, " | ".join(line.split("info    :")[-1].strip() for line in said)


def main() -> None:
    """Times the pairs, or only compiles their kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", choices=("compile",))
    arguments = parser.parse_args()
    if arguments.only:
        with ThreadPoolExecutor(16) as pool:
            asked = [(way, gated) for ways in PAIRS.values() for way in ways for gated in (True, False)]
            for (way, gated), (_, said) in zip(
                asked, pool.map(lambda one: built(one[0], gated=one[1]), asked), strict=True
            ):
                print(way.name, gated, said, flush=True)
        return
    from benchmarks.attention.timing import machine
    from benchmarks.middle.on_card import time_pair

    begin, rows = time.monotonic(), list[dict[str, Any]]()
    for sizes, ways in PAIRS.items():
        name = "{}-{}/m{}".format(*sizes)
        if time.monotonic() - begin > arguments.seconds:
            print("the time is up before", name)
            break
        rows += [{"pair": name, "way": way} | figures for way, figures in time_pair(sizes, ways).items()]
        for row in rows:
            if row["pair"] == name:
                print(json.dumps(row), flush=True)
        write_report(arguments.out, rows, machine())


if __name__ == "__main__":
    main()
