"""Gates, residuals and row scales: fused, in two launches, and by the library."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.support.conformance.case import Case, Claim, cross
from tests.support.conformance.schedules import portable
from tests.support.conformance.workloads import EVERY_OPTION, GATED, RESIDUAL, by_dtype, by_options
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Workload, WorkloadKind
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair

OPTIONS = (GATED, RESIDUAL, {"row_scale": True}, {"gated": True, "bias": True}, EVERY_OPTION)
#: Rows of k elements aligned to 2, 4, 8 and 16 bytes; columns that leave half a pair, and half a fragment.
SHAPES = ((1, 1, 1, 1), (16, 512, 1024, 256), (17, 100, 203, 77), (37, 129, 31, 257), (200, 264, 380, 324))
SMALL = {"m": 50, "d_in": 136, "d_hidden": 264, "d_out": 72}
LOW = portable(((16, 32, 64), (16, 64, 64)))
TALL = portable(((64, 32, 64), (64, 64, 64)))
PREFETCHED = ffn_pair(m=16, d_in=512, d_hidden=1000, d_out=256, activation=Activation.SILU, gated=True)
DRAWN = ffn_pair(m=300, d_in=512, d_hidden=640, d_out=384, activation=Activation.SILU, gated=True, residual=True)
DRAWN_TILES = (
    ((128, 32, 64), (128, 96, 64)),
    ((32, 32, 64), (32, 64, 64)),
    ((16, 32, 32), (16, 192, 32)),
    ((64, 64, 32), (64, 96, 32)),
    ((128, 64, 32), (128, 128, 32)),
    ((64, 32, 64), (64, 128, 64)),
)
#: Two cases that occur in no pair: the library's residual after an activation, and a gated op that reads an op.
ANYWHERE = Workload(
    kind=WorkloadKind.CHAIN,
    ops=(
        GemmOp(name="a", m=100, n=256, k=128, activation=Activation.RELU, residual=True, bias=True),
        GemmOp(name="b", m=100, n=192, k=256, source="a", gated=True, row_scale=True, residual=True),
        GemmOp(name="c", m=100, n=320, k=192, source="b", activation=Activation.SILU, residual=True, row_scale=True),
    ),
)


def by_the_library(group: str, workloads: dict[str, Workload]) -> list[Case]:
    library = Candidate(plan_kind=PlanKind.LIBRARY)
    return [
        Case(id=f"options-{group}-{name}-library", workload=workload, candidate=library, claim=Claim.NUMBERS)
        for name, workload in workloads.items()
    ]


def optioned() -> dict[str, Workload]:
    """A gate with the activations that models use; the others with ReLU."""
    return {
        f"{name}, {activation}, {dtype}": workload
        for options in OPTIONS
        for activation in ((Activation.SILU, Activation.GELU) if "gated" in options else (Activation.RELU,))
        for name, pair in by_options(options, activation=activation, **SMALL).items()
        for dtype, workload in by_dtype(pair).items()
    }


def shapes() -> list[Case]:
    cases: list[Case] = []
    for m, d_in, d_hidden, d_out in SHAPES:
        pair = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, activation=Activation.SILU, **EVERY_OPTION)
        on, chosen = {f"{m}x{d_in}x{d_hidden}x{d_out}": pair}, {"low": LOW} if m <= 16 else {"tall": TALL}
        cases += by_the_library("shapes", on)
        cases += cross("options", "shapes", chosen, on, kinds=(PlanKind.FUSED, PlanKind.TWO_LAUNCHES))
    return cases


def drawn() -> dict[str, Schedule]:
    """Orderings drawn for tilings of every engine that has gates: listing the whole space would take seconds."""
    space, rng = space_of(DRAWN, CATALOGUE["h200"]), random.Random(3)
    tilings = [*space.guesses[::3], *(portable(tiles).tiling for tiles in DRAWN_TILES)]
    ordered = ((tiling, space.orderings(tiling)) for tiling in tilings)
    return {str(one): one for one in (space.made(tiling, found[found.draw(rng)]) for tiling, found in ordered)}


def found_out() -> list[Case]:
    """Kernels built without an option that their workload has; the check must reject them."""
    pair = ffn_pair(m=64, d_in=128, d_hidden=256, d_out=128, activation=Activation.SILU, **EVERY_OPTION)
    return [
        replace(case, built_for=replace(pair, ops=tuple(replace(op, **{forgotten: False}) for op in pair.tile_ops)))
        for forgotten in ("gated", "residual", "row_scale")
        for case in cross(
            "options",
            "forgotten",
            {forgotten: portable(((32, 64, 32),) * 2)},
            {"every option": pair},
            claim=Claim.FOUND_OUT,
        )
    ]


CASES = [
    *by_the_library("every", optioned()),
    *cross("options", "every", {"tall": TALL}, optioned()),
    *shapes(),
    *cross(
        "options",
        "both halves prefetched",
        {"low": LOW},
        {"16 rows": PREFETCHED},
        kinds=(PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL),
    ),
    *cross("options", "drawn", drawn(), {"300 rows": DRAWN}),
    *by_the_library("anywhere", {"three ops": ANYWHERE}),
    *cross(
        "options",
        "anywhere",
        {"32 and 64 rows": portable(((32, 64, 64), (64, 32, 64), (32, 64, 64)))},
        {"three ops": ANYWHERE},
    ),
    *found_out(),
    *cross(
        "options",
        "zip",
        {"32 rows": portable(((32, 64, 32), (32, 64, 32)))},
        by_options(EVERY_OPTION, activation=Activation.SILU, **SMALL),
        claim=Claim.ARTIFACT,
    ),
]
