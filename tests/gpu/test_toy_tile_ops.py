"""Tile ops of other packages on a GPU: jobs of chains whose results are checked before they are timed."""

from __future__ import annotations

from pathlib import Path

from tests.support.toys import Toys
from tuner.workers.host.cards import Card

#: Chains for the `mma` engine and for `simt`; tiles do not divide the rows of sequences evenly.
CHAINS = ((160, 40, 512), (4, 2, 512))


def test_chains_with_it_are_right_on_a_card_fused_and_apart(card: Card, tmp_path: Path) -> None:
    served = Toys("depthwise", folder=tmp_path, gpu="auto")
    try:
        for m, length, n in CHAINS:
            ops = [
                {"name": "up", "source": "x", "n": n, "k": 256, "activation": "silu"},
                {"op": "depthwise", "name": "conv", "source": "up", "n": n, "length": length, "taps": 5},
                {"name": "down", "source": "conv", "n": 256, "k": n},
            ]
            trials = served.measured({"kind": "chain", "m": m, "dtype": "bf16", "ops": ops}, trials=24)
            assert {"library", "fused", "n_launches"} <= {one["candidate"]["plan_kind"] for one in trials}
    finally:
        served.stop()


def test_one_without_weights_is_right_on_a_card_in_front_between_and_behind(card: Card, tmp_path: Path) -> None:
    served = Toys("pairs", folder=tmp_path, gpu="auto")
    up = {"name": "up", "source": "x", "n": 512, "k": 256, "activation": "silu"}
    halves = {"op": "pairs", "name": "halves", "n": 256}
    down = {"name": "down", "source": "halves", "n": 256, "k": 256}
    try:
        for m, ops in (
            (64, [halves, down]),
            (64, [up, halves | {"source": "up"}, down]),
            (2, [up, halves | {"source": "up"}]),
        ):
            trials = served.measured({"kind": "chain", "m": m, "dtype": "fp16", "ops": ops}, trials=16)
            assert {"library", "fused"} <= {one["candidate"]["plan_kind"] for one in trials}
    finally:
        served.stop()
