"""A tile op of another package on a card: a job of a chain with it, whose numbers are checked before they are timed."""

from __future__ import annotations

from pathlib import Path

from tests.support.toys import Toys
from tuner.workers.host.cards import Card

#: By the `mma` engine, and by `simt`; rows of sequences that tiles do not divide.
CHAINS = ((160, 40, 512), (4, 2, 512))


def test_chains_with_it_are_right_on_a_card_fused_and_apart(card: Card, tmp_path: Path) -> None:
    served = Toys("depthwise", tmp_path, gpu="auto")
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
