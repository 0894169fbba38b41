from __future__ import annotations

import re

import pytest

from tests.support.cases import H200, decoder_block, ordering, tiling, wgmma
from tuner.core.insight.explain import differences, explain
from tuner.core.insight.explain_chain import launches_in_words
from tuner.core.model.simulate import simulate
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, Raster, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.policy_orders import policy_schedules
from tuner.ops.gemm.pairs import ffn_pair

PAIR = ffn_pair(m=512, d_in=1024, d_hidden=4096, d_out=1024)
SCHEDULE = Schedule.of(tiling=tiling((64, 128), (64, 128), num_stages=4, k=64), ordering=ordering(bands=2))


def test_an_explanation_names_bound_waves_traffic_waits_and_what_binds() -> None:
    words = explain(PAIR, H200, SCHEDULE)
    starts = [sentence.split(":")[0] for sentence in words[1:]]
    assert starts == ["Forecasts", "Bounds", "Waves", "Waves", "Traffic", "Waits", "Forecast", "Policy", "Next best"]
    assert "so the tensor cores are the limit" in words[2]
    assert (
        "up has 8 x 32 tiles, 2 waves of 132 CTAs, with 124 tiles in the last: on its own it would keep 97% of them"
    ) in words[3]
    (plan,) = plans_for(PAIR, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=SCHEDULE))
    assert f"Forecast: {simulate(plan).makespan_us:.1f} us" in words[7]
    assert "Bottleneck: " in words[7]


def test_a_chain_is_told_by_its_ops_boundaries_and_cuts() -> None:
    block = decoder_block(16, 512, 512, 512, heads=512)
    chosen = Schedule.of(tiling=wgmma(*[(16, 64, 64)] * 4), ordering=Ordering(rasters=(Raster(),) * 4))
    words = explain(block, H200, chosen)
    text = [sentence for sentence in words if sentence.startswith("Op: ")]
    assert text[0] == "Op: o reads inputs alone."
    assert text[2].startswith("Op: down reads up, adds o; its tasks wait ")
    assert "starts " in text[3]
    (all_starts,) = (sentence for sentence in words if sentence.startswith("Cuts: "))
    assert "of 8 ways" in all_starts
    assert "[o" in all_starts


def test_launches_are_told_by_their_ops() -> None:
    block = decoder_block(16, 512, 512, 512, heads=512)
    starts = Ordering(rasters=(Raster(),) * 4, run_starts=(1, 3))
    chosen = Schedule.of(tiling=wgmma(*[(16, 64, 64)] * 4), ordering=starts)
    kinds = {PlanKind.RUNS: "[o] [up down] [qkv]", PlanKind.N_LAUNCHES: "[o] [up] [down] [qkv]"}
    for kind, text in {**kinds, PlanKind.FUSED: "[o up down qkv]"}.items():
        assert launches_in_words(block, Candidate(plan_kind=kind, schedule=chosen)) == text


def test_the_edges_are_those_of_the_tasks_that_run() -> None:
    """Each of 64 whole tiles of down reads the 32 tiles in its row, and each part reads 16. All of up's 256 tiles are
    whole."""
    parted = tiling((64, 128), (64, 128), num_stages=4, k=64, split=(2, 2))
    words = explain(PAIR, H200, Schedule.of(tiling=parted, ordering=ordering(split_tiles=SplitTiles.TAIL)))
    assert "down has 8 x 8 tiles, 56 of them in 2 parts" in words[4]
    assert words[6].endswith("cover 2,048 edges.")


# In CI, tests/unit/core/space/test_policy_orders.py tells a rule's orders.
@pytest.mark.soak
def test_a_schedule_in_the_order_of_a_policy_is_told_to_be_that() -> None:
    assert explain(PAIR, H200, SCHEDULE)[-2] == "Policy: the order matches no known policy."
    named = policy_schedules(PAIR, H200, SCHEDULE)
    assert len(named) == 3
    for name, schedule in named.items():
        sentence = explain(PAIR, H200, schedule)[-2]
        assert sentence == f"Policy: the order is the same as that of {name.replace('_', ' ')}."


def test_the_next_best_differs_in_one_named_axis_and_has_a_shorter_forecast() -> None:
    words = explain(PAIR, H200, SCHEDULE)
    found = re.fullmatch(r"Next best: (\w+) .* -> .*: forecast ([\d.]+) us, ([\d.]+)% less\.", words[-1])
    assert found
    forecast = re.search(r"Forecast: ([\d.]+) us", words[-3])
    assert forecast
    assert float(found[2]) < float(forecast[1])


def test_differences_are_named_field_by_field() -> None:
    other = Schedule.of(
        tiling=SCHEDULE.tiling,
        ordering=ordering(bands=4, assignment=Assignment.STATIC, granularity=Granularity.CHUNK, sync_width=2),
    )
    assert differences(SCHEDULE, other) == [
        "interleave bands2 -> bands4",
        "granularity row -> chunk",
        "assignment ticket -> static",
        "sync_width 1 -> 2",
    ]
