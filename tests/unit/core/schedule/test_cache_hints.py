from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, tiling, wgmma
from tests.support.spaces import space_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.schedule.cache_hints import hint_problem, hints_of
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Tiling
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

PAIR = ffn_pair(m=512, d_in=256, d_hidden=512, d_out=256)
APART = independent_pair((64, 512, 512), (64, 128, 512))
MMA = tiling((64, 64), (64, 64))
WGMMA = wgmma((64, 64, 64))


@pytest.mark.parametrize("chosen", [MMA, WGMMA], ids=lambda chosen: str(chosen.engine))
def test_each_legal_pair_of_hints_says_something_else(chosen: Tiling) -> None:
    asked = [
        replace(chosen, weight_hint=weights, intermediate_hint=intermediate)
        for weights in CacheHint
        for intermediate in CacheHint
    ]
    legal = [one for one in asked if tiling_problem(PAIR, H200, one) is None]
    assert len(legal) == (6 if chosen.engine is Engine.MMA else 9)
    assert len({hints_of(PAIR, one) for one in legal}) == len(legal)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (replace(MMA, weight_hint=CacheHint.NORMAL), "normal for mma anyway: use weight_hint default"),
        (replace(WGMMA, weight_hint=CacheHint.EVICT_FIRST), "evict_first for wgmma anyway: use weight_hint default"),
        (replace(MMA, intermediate_hint=CacheHint.NORMAL), "normal for mma anyway: use intermediate_hint default"),
        (replace(MMA, intermediate_hint=CacheHint.EVICT_FIRST), "use default, normal, evict_last"),
    ],
)
def test_a_hint_that_is_given_anyway_or_is_none_is_refused(chosen: Tiling, sentence: str) -> None:
    assert (tiling_problem(PAIR, H200, chosen) or "").endswith(sentence)


def test_ops_that_share_nothing_have_no_intermediate() -> None:
    problem = hint_problem(APART, replace(MMA, intermediate_hint=CacheHint.EVICT_LAST))
    assert problem == "no op reads another one's output: use intermediate_hint default"


def test_a_hint_for_intermediates_is_for_those_who_store_and_who_read_them() -> None:
    normal, last = CacheHint.NORMAL, CacheHint.EVICT_LAST
    of_mma = hints_of(PAIR, replace(MMA, intermediate_hint=last))
    assert (of_mma.weights, of_mma.inputs, of_mma.outputs) == (normal, (normal, last), (last, normal))
    of_wgmma = hints_of(PAIR, replace(WGMMA, intermediate_hint=normal))
    assert (of_wgmma.weights, of_wgmma.inputs) == (CacheHint.EVICT_FIRST, (last, normal))
    assert hints_of(PAIR, WGMMA).outputs == (normal, normal)


def test_hints_are_in_the_json_form_where_they_are_given() -> None:
    plain = Schedule.of(tiling=MMA, ordering=ordering())
    assert {"weight_hint", "intermediate_hint"} & plain.to_json()["tiling"].keys() == set()
    given = plain.but(tiling=replace(MMA, weight_hint=CacheHint.EVICT_FIRST))
    assert Schedule.from_json(json.loads(json.dumps(given.to_json()))) == given
    assert given.digest != plain.digest
    assert "weights-evict_first" in str(given)


# In CI, hints that engines offer stay in tests/unit/search/test_adapting.py.
@pytest.mark.soak
def test_the_space_offers_other_hints_around_a_schedule_alone() -> None:
    space = space_of(PAIR, H200)
    assert {one.weight_hint for one in space.tilings} == {CacheHint.DEFAULT}
    near = {one.tiling for one in space.neighbours(Schedule.of(tiling=MMA, ordering=ordering()))}
    assert {one.weight_hint for one in near} == set(CacheHint) - {CacheHint.NORMAL}
    assert {one.intermediate_hint for one in near} == {CacheHint.DEFAULT, CacheHint.EVICT_LAST}
