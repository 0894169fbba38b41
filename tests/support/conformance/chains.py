"""Chains with norms and residuals of earlier ops: every engine, every way to store sums of squares, every plan kind."""

from __future__ import annotations

from dataclasses import replace

from tests.support.chains import block, run_of_block, side_by_side
from tests.support.conformance.case import Case, Claim, cross, named
from tests.support.conformance.schedules import TICKET, by_copies, dots, in_turns, portable, swapped, wide
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Granularity
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule

BLOCK = block(50)
#: Ragged rows, a slot whose last rows are unused, and columns of which the last tile has few.
RAGGED = block(77, heads=136, width=320, hidden=200, qkv=104, dtype=Dtype.BF16)
FEW = block(3)

FOUR = ((64, 64, 64), (64, 48, 64), (64, 32, 64), (64, 80, 64))
LOW = ((16, 64, 64), (16, 56, 64), (16, 32, 128), (16, 48, 64))

#: In each case, sums of squares are written, or factors are read, in a different way.
SHAPES = {
    "wgmma": wide(FOUR),
    "wgmma, 16 rows, tickets": wide(LOW, assignment=TICKET),
    "wgmma, 128 rows": wide(((128, 64, 64), (128, 48, 64)) * 2),
    "wgmma, parts": wide(FOUR, split_k=(2, 1, 3, 2)),
    "wgmma, parts, tickets": wide(LOW, split_k=(2, 2, 2, 2), assignment=TICKET),
    "wgmma, shared k": wide(FOUR, cluster=(1, 1, 2)),
    "wgmma, clusters": wide(((128, 64, 64), (128, 112, 64)) * 2, cluster=(2, 1)),
    "wgmma, clusters of columns": wide(((64, 144, 64), (64, 96, 64)) * 2, cluster=(1, 2)),
    "in turns": in_turns(FOUR),
    "swapped": swapped(((72, 48, 64), (72, 24, 64), (72, 48, 64), (72, 32, 64))),
    "swapped, parts": swapped(((40, 64, 64), (40, 32, 64)) * 2, split_k=(2, 1, 2, 1)),
    "swapped, shared k": swapped(((64, 64, 64), (64, 32, 64)) * 2, cluster=(1, 1, 2)),
    "copied": by_copies(((64, 128, 64), (64, 72, 64)) * 2),
    "mma": portable(((16, 64, 64), (32, 64, 64)) * 2),
    "mma, parts": portable(((16, 64, 64),) * 4, split=(1, 1, 3, 1)),
}
DOTS = {"simt": dots(*((4, 16, 256), (4, 8, 256)) * 2)}


def kinds_of(workload: Workload) -> tuple[PlanKind, ...]:
    """Our kernel in every plan kind that accepts any schedule; kinds with runs of ops need the runs in the schedule."""
    return tuple(
        kind
        for kind in PlanKind
        if kind.is_ours and kind.is_for(len(workload.tile_ops)) and not kind.is_side_by_side and not kind.is_in_runs
    )


def in_runs(schedules: dict[str, Schedule], *starts: tuple[int, ...]) -> dict[str, Schedule]:
    """The same schedules, launched in runs that begin at the ops `starts`."""
    return {
        f"{name}, from {'+'.join(map(str, one))}": chosen.but(ordering=replace(chosen.ordering, run_starts=one))
        for name, chosen in schedules.items()
        for one in starts
    }


def unequal(schedules: dict[str, Schedule]) -> dict[str, Schedule]:
    """The same schedules, with one signal per tile."""
    return {
        name: one.but(ordering=replace(one.ordering, granularity=Granularity.TILE)) for name, one in schedules.items()
    }


KINDS = kinds_of(BLOCK)
APART = tuple(kind for kind in KINDS if kind.is_apart)

CASES = [
    *cross("chains", "block", SHAPES, {"block": BLOCK, "ragged": RAGGED}, kinds=KINDS),
    *cross("chains", "few rows", DOTS, {"block": FEW}, kinds=KINDS),
    *cross("chains", "one row", named(SHAPES, "wgmma", "mma"), {"one row": block(1)}, kinds=APART),
    *cross("chains", "tiles", unequal(named(SHAPES, "wgmma", "mma, parts")), {"block": BLOCK}, kinds=KINDS),
    *cross(
        "chains",
        "runs",
        in_runs(named(SHAPES, "wgmma, parts", "mma"), (2,), (1, 3)),
        {"block": BLOCK},
        kinds=(PlanKind.RUNS,),
    ),
    *cross(
        "chains",
        "norm of an input",
        {"wgmma": wide(FOUR[:2]), "mma": portable(((16, 64, 64),) * 2)},
        {"run": run_of_block(50)},
        kinds=kinds_of(run_of_block(50)),
    ),
    *cross(
        "chains", "fan-out", {"wgmma": wide(FOUR), "mma": SHAPES["mma"]}, {"q, k, v": side_by_side(50)}, kinds=KINDS
    ),
    *cross(
        "chains",
        "zip",
        named(SHAPES, "wgmma, parts", "mma"),
        {"block": BLOCK},
        kinds=(PlanKind.FUSED, *APART[-1:]),
        claim=Claim.ARTIFACT,
    ),
    *cross(
        "chains",
        "again",
        SHAPES,
        {"block": BLOCK},
        kinds=(PlanKind.FUSED, *APART[-1:]),
        claim=Claim.RELAUNCHES,
        num_launches=30,
    ),
]


LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)
CASES += [
    Case(id=f"chains-library-{name}", workload=workload, candidate=LIBRARY, claim=Claim.NUMBERS)
    for name, workload in (
        ("block", BLOCK),
        ("ragged", RAGGED),
        ("few rows", FEW),
        ("run", run_of_block(50)),
        ("fan-out", side_by_side(50)),
    )
]
