"""Which variants are measured: schedules as their one line, and constants of the device code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.chains.rows import ROWS
from tuner.core.legal import wgmma
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, Raster, Schedule, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Tile, Tiling, Warpgroups
from tuner.workers.source.launch_args import workspace_layout

ROW_OF = {row.name: row for row in ROWS}
wgmma.STAGE_LINES = tuple(range(1, 9))  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One schedule with one set of constants."""

    row: str
    label: str
    candidate: Candidate
    constants: str
    traced: bool = False
    #: Warps that read words; 0 where signals say what is there.
    readers: int = 0
    #: Whether the first op's norm is summed from the stages.
    staged: bool = False


def schedule_of(line: str) -> Schedule:
    """Reads a schedule's one line; as much of it as the lists below say."""
    tiling, ordering = line.split(" | ")
    engine, tiles, *options = tiling.split()
    found: dict[str, object] = {}
    for word in options:
        if word == "swap-ab":
            found["swap_ab"] = True
        elif word == "ping-pong":
            found["warpgroups"] = Warpgroups.PING_PONG
        elif word.startswith("split"):
            found["split_k"] = tuple(map(int, word[5:].split("+")))
        elif word.startswith("cluster"):
            m, n, k = (*map(int, word[7:].split("x")), 1)[:3]
            found |= {"cluster_m": m, "cluster_n": n, "cluster_k": k}
        else:
            name, count = re.fullmatch(r"(window|s|i|w)(\d+)", word).groups()  # type: ignore[union-attr]
            found[{"s": "num_stages", "i": "input_stages", "w": "num_warps", "window": "window"}[name]] = int(count)
    shapes = tuple(Tile(m=m, n=n, k=k) for m, n, k in (map(int, t.split("x")) for t in tiles.split("+")))
    own = Tiling(engine=Engine(engine), tiles=shapes, **found)  # type: ignore[arg-type]
    sync = re.search(r"(row|tile|chunk|strided)(\d*)-sync", ordering)
    assert sync
    runs = re.search(r"runs([\d+]+)", ordering)
    less = re.search(r"less (\d) SMs", ordering)
    order = Ordering(
        rasters=(Raster(),) * len(shapes),
        granularity=Granularity(sync[1]),
        sync_width=int(sync[2] or 1),
        assignment=Assignment.FIRST_WAVE if "first_wave" in ordering else Assignment.STATIC,
        reserved_sms=int(less[1]) if less else 0,
        part_major="part-major" in ordering,
        wait_position=WaitPosition.SLICE if "by slice" in ordering else WaitPosition.TASK,
        run_starts=tuple(map(int, runs[1].split("+"))) if runs else (),
    )
    return Schedule(tiling=own, ordering=order)


def constants(
    *,
    pace: int = 0,
    ahead: int = 0,
    cycles: int = 1400,
    factors: int = 0,
    poll: bool = False,
    readers: int = 0,
    words: tuple[int, ...] = (),
    staged: bool = False,
) -> str:
    """Those of config.cuh, of which the defaults are what is kept today. `pace` in KB."""
    numbers = {"kPaceBytes": pace * 1024, "kAheadStages": ahead, "kAheadCycles": cycles, "kFactorLoads": factors}
    said = ", ".join(f"{name} = {value}" for name, value in numbers.items())
    words = words or (-1,) * 8
    sources = [-1, *(op if words[op] >= 0 else -1 for op in range(7))]
    return (
        f"#define TUNER_EXPERIMENT\nconstexpr int {said};\nconstexpr bool kPollAcquires = {str(poll).lower()};\n"
        f"constexpr int kReaderWarps = {readers};\nconstexpr bool kStagedNorm[8] = {{{str(staged).lower()}}};\n"
        f"constexpr int kWordSource[8] = {{{', '.join(map(str, sources))}}};\n"
        f"constexpr long long kWordsOffset[8] = {{{', '.join(map(str, words))}}};\n"
    )


def words_layout(row: str, candidate: Candidate) -> tuple[tuple[int, ...], int]:
    """Where each op's words begin in the workspace, -1 for none, and its size then."""
    workload = ROW_OF[row].workload
    (plan,) = plans_for(workload, CATALOGUE["h200"], candidate)
    end, offsets = workspace_layout(plan)["bytes"], []
    for op in workload.ops[:-1]:
        offsets.append(end)
        end += 2 * (-(-2 * op.m * op.n // 256) * 256)
    return (*offsets, *(-1,) * (8 - len(offsets))), end


KINDS = {"fused": PlanKind.FUSED, "pdl": PlanKind.FUSED_PDL, "n": PlanKind.N_LAUNCHES_PDL, "runs": PlanKind.RUNS}


def experiment(
    row: str, label: str, line: str, kind: str = "pdl", *, traced: bool = False, **given: object
) -> Experiment:
    """`given` are constants."""
    candidate = Candidate(plan_kind=KINDS[kind], schedule=schedule_of(line))
    readers = given.get("readers", 0)
    if readers:
        given["words"] = words_layout(row, candidate)[0]
    text = constants(**given)  # type: ignore[arg-type]
    return Experiment(
        row=row,
        label=label,
        candidate=candidate,
        constants=text,
        traced=traced,
        readers=readers,  # type: ignore[arg-type]
        staged=bool(given.get("staged", False)),
    )


def _sweep(row: str, name: str, line: str, *, few: bool = False) -> list[Experiment]:
    """One schedule with each constant by itself, and together."""
    rows = [
        experiment(row, f"{name}", line, traced=True),
        experiment(row, f"{name}, pace 64", line, traced=True, pace=64),
        experiment(row, f"{name}, pace 96", line, pace=96),
        experiment(row, f"{name}, words", line, traced=True, readers=4),
        experiment(row, f"{name}, words, pace 64", line, traced=True, readers=4, pace=64),
    ]
    if few:
        return rows
    return [
        *rows,
        experiment(row, f"{name}, apart", line, pace=1024),
        experiment(row, f"{name}, factors", line, factors=32),
        experiment(row, f"{name}, pace 32", line, pace=32),
        experiment(row, f"{name}, pace 48", line, traced=True, pace=48),
        experiment(row, f"{name}, poll", line, poll=True),
        experiment(row, f"{name}, ahead 4", line, pace=64, ahead=4, cycles=1400),
        experiment(row, f"{name}, ahead 4 slowly", line, pace=64, ahead=4, cycles=2400),
        experiment(row, f"{name}, ahead 8", line, traced=True, pace=64, ahead=8, cycles=1400),
        experiment(row, f"{name}, words, pace 48", line, readers=4, pace=48),
        experiment(row, f"{name}, words, pace 96", line, readers=4, pace=96),
        experiment(row, f"{name}, words, pace 64, ahead 4", line, readers=4, pace=64, ahead=4),
        experiment(row, f"{name}, ahead 8, pace 1024", line, pace=1024, ahead=8, cycles=1400),
    ]


TP8, SMALL, RUN = "llama3-70b-tp8-synthetic", "llama3-8b", "llama3-70b-tp8-run"
STATIC = "| row+row+row+row producer_first row-sync static 1/SM"
SLICES = "| row+row+row+row producer_first chunk8-sync by slice static 1/SM less 4 SMs"
M1 = f"wgmma 16x64x128+16x56x128+16x64x128+16x40x256 s6 i6 w4 split1+2+1+4 {STATIC}"
M1_DEEP = f"wgmma 16x64x192+16x56x128+16x64x192+16x40x320 s6 i5 w4 split1+2+1+4 {STATIC}"
M1_SWAP = f"wgmma 8x64x256+8x64x128+8x64x256+8x32x512 s5 i5 w4 swap-ab split1+2+1+3 {STATIC}"
M1_SHARED = f"wgmma 16x128x64+16x56x128+16x128x64+16x32x256 s6 i6 w4 swap-ab cluster1x1x2 {SLICES}"
M16 = f"wgmma 16x128x64+16x56x128+16x128x64+16x32x256 s6 i6 w4 swap-ab cluster1x1x2 {SLICES}"
M16_DEEP = f"wgmma 16x128x128+16x56x128+16x128x128+16x32x256 s5 i5 w4 swap-ab cluster1x1x2 {SLICES}"
M16_EVEN = f"wgmma 16x128x64+16x56x64+16x128x64+16x32x256 s10 i6 w4 swap-ab cluster1x1x2 {SLICES}"
M16_SPLIT = f"wgmma 16x64x192+16x56x128+16x64x192+16x40x320 s6 i4 w4 split1+2+1+4 {STATIC}"
M64 = f"wgmma 64x64x128+64x32x128+64x64x128+64x40x256 s4 i4 w4 split1+1+1+4 {STATIC}"
M64_LIST = {
    "qkv 128": f"wgmma 64x64x128+64x32x128+64x64x128+64x40x128 s6 i6 w4 split1+1+1+4 {STATIC}",
    "swap": f"wgmma 64x64x64+64x64x64+64x64x64+64x32x64 s9 i8 w4 swap-ab split1+2+1+3 {STATIC}",
    "parts": f"wgmma 64x64x128+64x56x128+64x64x128+64x40x128 s5 i4 w4 split1+2+1+4 {STATIC}",
    "parts 64": f"wgmma 64x64x128+64x56x64+64x64x128+64x40x128 s8 i5 w4 split1+2+1+4 {STATIC}",
    "parts, all 64": f"wgmma 64x64x64+64x56x64+64x64x64+64x40x64 s10 i8 w4 split1+2+1+4 {STATIC}",
    "wide": f"wgmma 64x128x64+64x64x64+64x128x64+64x32x64 s9 i8 w4 swap-ab split2+2+2+3 {STATIC}",
    "shared": f"wgmma 64x128x64+64x56x64+64x128x64+64x32x64 s8 i8 w4 swap-ab cluster1x1x2 {SLICES}",
    "shared, 128": f"wgmma 64x128x64+64x56x128+64x128x64+64x32x128 s4 i4 w4 swap-ab cluster1x1x2 {SLICES}",
    "shared, slices": f"wgmma 64x128x64+64x56x64+64x128x64+64x32x128 s8 i4 w4 swap-ab cluster1x1x2 {SLICES}",
}
SMALL_M64 = (
    "wgmma 64x64x128+64x56x128+64x64x128+64x48x128 s5 i4 window3 w4 swap-ab split2+1+2+1"
    " | row+row+row+row producer_first part-major chunk2-sync by slice static 1/SM less 4 SMs"
)
SMALL_M16 = f"wgmma 16x32x256+16x56x128+16x32x256+16x48x256 s6 i6 w4 swap-ab {SLICES}"
RUN_LINE = (
    "wgmma 16x16x256+16x64x128 s5 i6 w4 swap-ab | row+row producer_first chunk8-sync by slice static 1/SM less 4 SMs"
)

EXPERIMENTS: list[Experiment] = [
    *_sweep(f"{TP8}/m1", "kept", M1),
    *_sweep(f"{TP8}/m1", "deep", M1_DEEP, few=True),
    *_sweep(f"{TP8}/m1", "deep, swapped", M1_SWAP, few=True),
    *_sweep(f"{TP8}/m1", "shared", M1_SHARED, few=True),
    experiment(f"{TP8}/m1", "kept, n", M1, "n"),
    experiment(f"{TP8}/m1", "deep, n", M1_DEEP, "n"),
    *_sweep(f"{TP8}/m16", "kept", M16),
    *_sweep(f"{TP8}/m16", "deep", M16_DEEP, few=True),
    *_sweep(f"{TP8}/m16", "even", M16_EVEN, few=True),
    *_sweep(f"{TP8}/m16", "parts", M16_SPLIT, few=True),
    experiment(f"{TP8}/m16", "parts, n", M16_SPLIT, "n"),
    *_sweep(f"{TP8}/m64", "kept", M64),
    *[
        experiment(f"{TP8}/m64", f"{name}{said}", line, traced=traced, **given)  # type: ignore[arg-type]
        for name, line in M64_LIST.items()
        for said, traced, given in (
            (", factors", True, {"factors": 32}),
            (", factors, pace 64", False, {"factors": 32, "pace": 64}),
        )
    ],
    *[experiment(f"{TP8}/m64", f"{name}, n", M64_LIST[name], "n", factors=32) for name in ("parts", "swap", "shared")],
    *_sweep(f"{SMALL}/m64", "kept", SMALL_M64.replace("window3 ", "")),
    experiment(f"{SMALL}/m64", "kept, window", SMALL_M64),
    experiment(f"{SMALL}/m64", "kept, window, factors", SMALL_M64, traced=True, factors=32),
    *_sweep(f"{SMALL}/m16", "kept", SMALL_M16, few=True),
    *_sweep(f"{RUN}/m16", "kept", RUN_LINE, few=True),
    experiment(f"{RUN}/m16", "kept, staged", RUN_LINE, traced=True, staged=True),
    experiment(f"{RUN}/m16", "kept, staged, pace 64", RUN_LINE, staged=True, pace=64),
    experiment(f"{RUN}/m16", "kept, staged, words", RUN_LINE, staged=True, readers=4),
    experiment(f"{RUN}/m16", "kept, staged, words, pace 64", RUN_LINE, staged=True, readers=4, pace=64),
]
