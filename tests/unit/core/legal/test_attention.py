"""Which schedules of an attention are refused, and the messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.attentions import alone, attention
from tests.support.between import between
from tests.support.cases import H200
from tuner.core.legal.legality import check_kind, check_schedule, kind_problem, runs_problem
from tuner.core.model.runs import ways_to_launch
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.ordering_values import near_run_starts, run_starts_of
from tuner.errors import IllegalSchedule
from tuner.ops.attention.schedule import AttentionEngine


def refusal(workload: Any, schedule: Any, gpu: Any = H200) -> str:
    with pytest.raises(IllegalSchedule) as error:
        check_schedule(workload, gpu, schedule)
    return str(error.value)


def test_a_plain_schedule_is_legal() -> None:
    check_schedule(attention(), H200, alone())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tile_tokens": 48}, "tile_tokens 48: use one of 16, 32, 64, 128"),
        ({"math_warps": 3}, "math_warps 3: use one of"),
        ({"math_warps": 2}, "into teams of 4"),
        ({"num_stages": 5}, "must be a multiple of the number of teams (2)"),
        ({"num_stages": 19}, "use 1 to 18"),
        ({"cluster": 3}, "cluster 3: use one of 1, 2, 4, 8, 16"),
        ({"finish_warps": 5}, "finish_warps 5"),
        ({"parts_at_once": 8}, "a context of one span needs no addition of parts: use parts_at_once 16"),
        ({"span_tokens": 100}, "use a multiple of 64"),
        ({"span_tokens": 768}, "longer than any context: use 704"),
        ({"cluster": 2, "span_tokens": 704}, "use a multiple of 128"),
        ({"contiguous": True}, "each of 8 tasks has its own queue"),
        ({"by_length": True}, "each of 8 tasks has its own queue, so lengths do not matter: use by_length false"),
        ({"next_percent": 100}, "no launch after attention reads weights: use next_percent 0"),
        ({"next_percent": 10}, "next_percent 10: use one of"),
        ({"next_early": True}, "no weights are prefetched: use next_early false"),
    ],
)
def test_a_schedule_outside_of_the_space_is_refused_with_what_would_be_right(fields: dict[str, Any], says: str) -> None:
    assert says in refusal(attention(), alone(**fields))


@pytest.mark.parametrize(("form", "what"), [({"page_tokens": 16}, "pages"), ({"window": 64}, "a window")])
def test_nothing_is_requested_before_a_length_that_says_what(form: dict[str, Any], what: str) -> None:
    workload = attention(form=form)
    check_schedule(workload, H200, alone())
    assert f"with {what} nothing can be requested before" in refusal(workload, alone(speculative=True))
    check_schedule(attention(form={"soft_cap": 5.0}), H200, alone(speculative=True))


def test_what_a_launch_assigns_is_known_to_nobody_before() -> None:
    many = attention(sequences=100, max_length=9000)
    check_schedule(many, H200, alone(by_length=True))
    assert "does not know them before the lengths: use speculative false" in refusal(
        many, alone(by_length=True, speculative=True)
    )
    assert ("cannot place neighbours in one cluster: use contiguous false") in refusal(
        many, alone(by_length=True, contiguous=True)
    )


def test_a_ring_that_does_not_fit_is_refused() -> None:
    assert "bytes of shared memory" in refusal(attention(head_dim=128), alone(tile_tokens=128, num_stages=18))


@pytest.mark.parametrize(
    ("sizes", "fields", "says"),
    [
        (
            {},
            {"parts_at_once": 32, "span_tokens": 128},
            "32 loads at once take 192 registers",
        ),
        ({"head_dim": 128}, {"finish_warps": 0, "span_tokens": 128}, "16 loads at once take 180 registers"),
        ({"head_dim": 128, "query_heads": 16}, {"num_stages": 2}, "16 queries of 128 take 176 registers"),
        ({"head_dim": 128, "query_heads": 16}, {"num_stages": 2, "finish_warps": 0}, "288 threads leave it 168"),
    ],
)
def test_what_would_spill_is_refused(sizes: dict[str, Any], fields: dict[str, Any], says: str) -> None:
    assert says in refusal(attention(**sizes), alone(**fields))


def test_fewer_warps_or_one_team_have_the_registers() -> None:
    wide = attention(head_dim=128, query_heads=16)
    check_schedule(wide, H200, alone(num_stages=2, math_warps=4, finish_warps=4))
    check_schedule(wide, H200, alone(num_stages=4, tile_tokens=16, math_warps=4, finish_warps=3))
    check_schedule(attention(), H200, alone(math_warps=4, finish_warps=3, parts_at_once=32, span_tokens=128))


def test_schedules_are_as_many_as_attentions_and_tiles_as_products() -> None:
    assert "0 attention schedules for 1 attentions" in refusal(attention(), alone().but(launch_ops=()))
    pair = attention(d_out=512)
    assert "0 tiles for 1 ops" in refusal(pair, alone())


def test_a_gpu_without_its_instructions_is_refused() -> None:
    turing = replace(CATALOGUE["a100"], compute_capability=(7, 5))
    assert "the kernels need 8.0 (cp.async, bf16)" in refusal(attention(), alone(), turing)


@pytest.mark.parametrize("gpu", ["a100", "a40", "rtx4090", "b200"])
def test_the_tma_engine_is_for_sm_90_alone(gpu: str) -> None:
    says = refusal(attention(), alone(num_stages=2), CATALOGUE[gpu])
    assert "the tma engine of attentions needs 9.0, use mma" in says


@pytest.mark.parametrize("gpu", ["a100", "a40", "rtx4090", "h100", "h200", "b200"])
@pytest.mark.parametrize("workload", [attention(), attention(form={"page_tokens": 16})], ids=["contiguous", "pages"])
def test_the_mma_engine_is_for_sm_80_and_up_without_clusters(workload: Workload, gpu: str) -> None:
    one = {"engine": AttentionEngine.MMA, "num_stages": 2}
    check_schedule(workload, CATALOGUE[gpu], alone(**one))
    says = refusal(workload, alone(**one, cluster=2, span_tokens=768), CATALOGUE[gpu])
    assert "the mma engine of attentions has no clusters, use cluster 1" in says


@pytest.mark.parametrize("workload", [attention(), attention(d_out=512)], ids=["alone", "pair"])
def test_an_attention_has_launches_of_its_own_and_nothing_else(workload: Any) -> None:
    offered = {kind for kind in PlanKind if kind_problem(workload, H200, kind) is None}
    assert offered == {PlanKind.LIBRARY, PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL}
    with pytest.raises(IllegalSchedule, match=r"fused: an attention has its own launch.*use two_launches"):
        check_kind(workload, H200, PlanKind.FUSED, alone())


def _kinds(workload: Workload) -> set[PlanKind]:
    return {kind for kind in PlanKind if kind_problem(workload, H200, kind) is None} - {PlanKind.LIBRARY}


def test_no_launch_spans_an_attention_between_products() -> None:
    pair, layer = between(), between(num_behind=3)
    assert _kinds(pair) == {PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL}
    assert _kinds(layer) == {PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL, PlanKind.RUNS}
    assert _kinds(between(num_behind=0)) == {PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL}
    stands = "an attention has its own launch between qkv and o_proj"
    for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.TWO_STREAMS):
        assert kind_problem(pair, H200, kind) == f"{stands}: use n_launches or n_launches_pdl"
        of_layer = kind_problem(layer, H200, kind)
        assert of_layer == f"{stands}, and no launch can span it: use runs, with one that begins at o_proj"
    assert kind_problem(pair, H200, PlanKind.RUNS) == f"{stands}: use n_launches or n_launches_pdl"


def test_a_run_begins_behind_an_attention() -> None:
    assert runs_problem(4, PlanKind.RUNS, (1,), (1,)) is None
    assert runs_problem(4, PlanKind.RUNS, (1, 2), (1,)) is None
    for starts in ((2,), (2, 3)):
        problem = runs_problem(4, PlanKind.RUNS, starts, (1,)) or ""
        assert "another op comes before op 1; start a run with it" in problem
    assert "runs that begin at op 0 alone" in (runs_problem(4, PlanKind.RUNS, (), (1,)) or "")
    assert "use n_launches_pdl" in (runs_problem(4, PlanKind.RUNS, (1, 2, 3), (1,)) or "")
    assert run_starts_of(4, (1, 3)) == ((1, 3),)
    assert run_starts_of(4, (2,)) == ((2,), (1, 2), (2, 3))
    assert set(near_run_starts(4, (2,), (2,))) == {(1, 2), (2, 3)}
    assert [starts for _, starts in ways_to_launch(4, (2,))] == [(2,), (1, 2), (2, 3), ()]
