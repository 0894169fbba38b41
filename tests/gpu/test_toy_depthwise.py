"""A tile op of another package on a card: a job of a chain with it, whose numbers are checked before they are timed."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

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
            pair = {"kind": "chain", "m": m, "dtype": "bf16", "ops": ops}
            body = {"pair": pair, "budget": {"trials": 24, "seconds": 120}}
            job = httpx.post(f"{served.url}/jobs", json=body).json()["id"]
            served.client("watch", job)
            found = httpx.get(f"{served.url}/jobs/{job}").json()
            assert (found["state"], found["reason"]) == ("succeeded", "")
            trials = [json.loads(line) for line in served.client("trials", job, "--json").splitlines()]
            failed = [one["outcome"] for one in trials if one["outcome"]["kind"] != "measured"]
            assert failed == []
            kinds = {one["candidate"]["plan_kind"] for one in trials}
            assert {"library", "fused", "n_launches"} <= kinds
    finally:
        served.stop()
