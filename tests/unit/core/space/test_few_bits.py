"""Each measured pair with weights of few bits has first guesses that are legal and proven, at each number of rows."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.cases import H200
from tests.support.lanes import soak_unless
from tests.support.reports import report_of
from tuner.core.legal.legality import check_schedule, estimated_resources, tiling_problem
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.tiling import Engine
from tuner.core.space.space import Space
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme
from tuner.search.guesses.seeds import first_guesses
from tuner.workers.source.render import render

_PAIRS = ((4096, 14336), (8192, 3584), (3584, 18944))
_ROWS = (1, 16, 64, 128, 512)
#: In turn, so that each pair occurs with each scheme.
_PROBLEMS = [
    (scheme, m, _PAIRS[(place + turn) % len(_PAIRS)])
    for turn in range(len(_PAIRS))
    for place, (scheme, m) in enumerate(product(Scheme, _ROWS))
]
_FIRST = len(_PROBLEMS) // len(_PAIRS)
#: Problems with high tiles whose threads hold as many sums as their scales, or their fragments of weights, allow.
_HIGH = [
    (Scheme.BLOCK, 512, _PAIRS[0]),
    (Scheme.INT4, 512, _PAIRS[1]),
    (Scheme.W8A16_BLOCK, 512, _PAIRS[2]),
    (Scheme.MXFP4, 64, _PAIRS[2]),
    (Scheme.W4A8, 64, _PAIRS[0]),
]


def workload_of(scheme: Scheme, m: int, sizes: tuple[int, int]) -> Workload:
    """The pair in a scheme."""
    d, hidden = sizes
    return QuantisedFfn(m=m, d_in=d, d_hidden=hidden, d_out=d, scheme=scheme).to_workload()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "m", "sizes"), soak_unless(lambda place, one: place < _FIRST and one[1] == 16, _PROBLEMS)
)
def test_every_problem_has_legal_tilings_to_begin_with(scheme: Scheme, m: int, sizes: tuple[int, int]) -> None:
    workload = workload_of(scheme, m, sizes)
    guesses = Space(workload, H200).guesses
    assert len(guesses) >= 4
    assert [tiling_problem(workload, H200, one) for one in guesses] == [None] * len(guesses)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "m", "sizes"), soak_unless(lambda _, one: one in _HIGH, _PROBLEMS))
def test_the_first_guess_is_legal_and_its_plan_is_proven(scheme: Scheme, m: int, sizes: tuple[int, int]) -> None:
    workload = workload_of(scheme, m, sizes)
    schedule = next(first_guesses(Space(workload, H200), 0))
    check_schedule(workload, H200, schedule)
    graph = tile_graph(workload, schedule.tiling)
    plan = make_plan(graph, schedule.ordering, H200)
    verify(plan, graph, estimated_resources(workload, schedule.tiling), H200)


@pytest.mark.parametrize(("scheme", "m", "sizes"), soak_unless(lambda _, one: one in _HIGH, _PROBLEMS))
def test_the_compiler_spills_nothing_for_the_first_guess(scheme: Scheme, m: int, sizes: tuple[int, int]) -> None:
    workload = workload_of(scheme, m, sizes)
    tiling = Space(workload, H200).guesses[0]
    arch = "sm_90a" if tiling.engine is Engine.WGMMA else "sm_90"
    assert report_of(render(workload, tiling), arch).resources.spill_bytes == 0
