from __future__ import annotations

import pytest

from tests.support.presets import MODELS, Run, decoder_block
from tuner.errors import InvalidInput


def test_a_block_is_four_products_with_two_norms_and_two_residuals() -> None:
    block = decoder_block("llama3-8b", m=16)
    assert [(op.n, op.k, op.gated) for op in block.tile_ops] == [
        (4096, 4096, False),
        (14336, 4096, True),
        (4096, 14336, False),
        (6144, 4096, False),
    ]
    assert [block.norm_producer_of(op) for op in range(4)] == [None, 0, None, 2]
    assert [block.residual_producer_of(op) for op in range(4)] == [None, None, 0, None]
    assert [block.leaves(op) for op in block.tile_ops] == [False, False, True, True]
    assert decoder_block("qwen2.5-7b", m=1).tile_ops[3].bias


@pytest.mark.parametrize("model", MODELS)
def test_the_runs_of_a_rank_have_a_share_of_the_weights(model: str) -> None:
    whole, tp = decoder_block(model, m=4), 4
    runs = [decoder_block(model, m=4, tp=tp, run=run) for run in (Run.O_PROJ, Run.MLP, Run.QKV)]
    assert sum(run.weight_bytes for run in runs) * tp == whole.weight_bytes
    assert [[op.name for op in run.tile_ops] for run in runs] == [["o_proj"], ["gate_up", "down"], ["qkv"]]
    assert not any(op.residual for run in runs for op in run.tile_ops)  # each rank would add it
    assert [bool(run.tile_ops[0].norm) for run in runs] == [False, True, True]


def test_a_block_with_a_reduce_in_it_is_refused_uncut_and_its_runs_are_offered() -> None:
    with pytest.raises(InvalidInput, match=r"run: at tp 8 there is an all-reduce after .*; use o_proj, "):
        decoder_block("llama3-70b", m=16, tp=8)
    assert len(decoder_block("llama3-70b", m=16, tp=8, has_reduce=False).tile_ops) == 4


def test_a_model_that_is_unknown_or_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InvalidInput, match="model: there is no model called 'gpt-2'; use one of llama3-8b"):
        decoder_block("gpt-2", m=1)
    with pytest.raises(InvalidInput, match="tp: 3 ranks cannot share the 8 key and value heads of llama3-8b; use 1, "):
        decoder_block("llama3-8b", m=1, tp=3)
