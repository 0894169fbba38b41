"""Element types of another package on a GPU: jobs of pairs whose results are checked before they are timed."""

from __future__ import annotations

from pathlib import Path

from tests.support.toys import Toys
from tuner.workers.host.cards import Card

#: Cases without an activation that the library supports, and with such an activation, biases and a residual.
PAIRS = ({"activation": "toy_relu2"}, {"activation": "relu", "bias": True, "residual": True})


def test_pairs_of_one_byte_and_of_four_are_right_on_a_card(card: Card, tmp_path: Path) -> None:
    """No library multiplies the first type."""
    served = Toys("rows", folder=tmp_path, gpu="auto")
    try:
        for dtype in ("e5m2", "single"):
            for more in PAIRS:
                pair = {"kind": "ffn", "m": 2, "d_in": 512, "d_hidden": 1024, "d_out": 512, "dtype": dtype, **more}
                trials = served.measured(pair, trials=12)
                assert {"library", "fused", "two_launches"} <= {one["candidate"]["plan_kind"] for one in trials}
    finally:
        served.stop()
