from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, simt
from tuner.core.legal.legality import check_schedule, engine_problem, estimated_registers, tiling_problem
from tuner.core.legal.simt import smem_bytes, stage_bytes
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Epilogue, Tiling
from tuner.ops.gemm.pairs import ffn_pair

PAIR = ffn_pair(m=4, d_in=512, d_hidden=1024, d_out=512)
GATED = ffn_pair(m=4, d_in=512, d_hidden=1024, d_out=512, gated=True)


def test_it_runs_on_every_gpu_of_ours_where_rows_are_whole_chunks() -> None:
    odd = ffn_pair(m=1, d_in=36, d_hidden=64, d_out=64)
    for gpu in CATALOGUE.values():
        assert engine_problem(PAIR, gpu, Engine.SIMT) is None
    assert "up has k 36: the simt engine reads chunks of 8" in (engine_problem(odd, H200, Engine.SIMT) or "")


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (simt((3, 32, 256)), "m must be one of 1, 2, 4"),
        (simt((16, 32, 256)), "m must be one of 1, 2, 4"),
        (simt((1, 36, 256)), "n must be a multiple of the 8 warps"),
        (simt((1, 32, 128)), "k must be one of 256, 512, 1024"),
        (simt((4, 72, 256)), "36 sums per warp: use at most 32"),
        (simt((1, 128, 1024)), "68 chunks per thread and stage: use at most 48"),
        (simt((1, 32, 256), num_warps=2), "2 warps: use 4 or 8"),
        (simt((1, 32, 256), num_stages=17), "17 stages: use 2 to 16"),
        (simt((1, 32, 256), input_stages=2), "the simt engine has one ring, use 0 and 0"),
        (simt((1, 32, 256), epilogue=Epilogue.TMA), "the threads of the simt engine store their own sums; use direct"),
        (simt((1, 32, 256), cluster_n=2), "clusters of 1 x 2 CTAs: not supported by the simt engine"),
    ],
)
def test_a_tiling_that_cannot_be_built_is_refused(chosen: Tiling, sentence: str) -> None:
    assert sentence in (tiling_problem(PAIR, H200, chosen) or "")


def test_a_gated_op_takes_twice_the_weights_and_sums() -> None:
    chosen = simt((4, 32, 256))
    assert tiling_problem(GATED, H200, chosen) is None
    assert stage_bytes(GATED, chosen) == (64 + 8 * 4) * 256 * 2
    assert smem_bytes(GATED, chosen) == 3 * stage_bytes(GATED, chosen) + 4 * 64 * 4
    assert "64 sums per warp" in (tiling_problem(GATED, H200, simt((4, 64, 256), num_warps=8)) or "")


def test_two_capped_ctas_fit_an_sm_and_more_registers_are_not_promised() -> None:
    capped = simt((4, 32, 256), num_stages=2, resident_ctas=2)
    assert estimated_registers(PAIR, capped) <= 128 < estimated_registers(PAIR, replace(capped, resident_ctas=1))
    check_schedule(PAIR, replace(H200, num_sms=16), Schedule.of(tiling=capped, ordering=ordering(ctas_per_sm=2)))
