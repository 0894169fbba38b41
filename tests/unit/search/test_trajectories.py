"""Searches make the same choices as before: the recorded candidates of four searches, in order.

``python -m tests.unit.search.test_trajectories`` renews the record after an intended change of the search.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.between import between
from tests.support.cases import H200, decoder_block
from tests.support.lanes import soak_unless
from tests.support.presets import decoder_attention
from tests.support.spaces import any_space_of
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome, Stage
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.searcher import Searcher

KEPT = Path(__file__).with_name("trajectories.json")
NUM_TRIALS = 60
WORKLOADS: dict[str, Workload] = {
    "ffn": ffn_pair(m=16, d_in=1024, d_hidden=4096, d_out=1024, activation=Activation.RELU),
    "chain": decoder_block(16, 1024, 2816, 1536, heads=8),
    "attention": decoder_attention("llama3-8b", sequences=2, max_length=2048),
    "layer": between(hidden=1024, num_behind=3),
}


def judged(candidate: Candidate, number: int) -> Outcome:
    """Outcomes that depend on the digest only, so that only the search affects the result: some fail, and programmatic
    launches are faster."""
    drawn = int(candidate.schedule.digest, 16) if candidate.schedule else 1
    if drawn % 13 == 0:
        return Failed(stage=Stage.TIME, kind=FailureKind.HANG, reason="a wait never ended")
    time_us = (40 + drawn % 29 + number % 3) * (0.9 if candidate.plan_kind.is_programmatic else 1.0)
    return Measured(time_us=time_us, library_us=50, speedup=50 / time_us, spread=0, rounds=(), rel_error=0)


def chosen(workload: Workload) -> list[str]:
    """The plan kind and schedule digest of each trial of a search."""
    searcher, names = Searcher(any_space_of(workload, H200), seed=7, num_trials=NUM_TRIALS), list[str]()
    for number in range(NUM_TRIALS):
        candidate = searcher.ask()
        assert candidate is not None
        names.append(f"{candidate.plan_kind} {candidate.schedule.digest if candidate.schedule else ''}".strip())
        outcome = judged(candidate, number)
        searcher.tell(
            Trial(number=number, candidate=candidate, outcome=outcome, num_known=number, started_at=0, finished_at=1)
        )
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", soak_unless(lambda _, name: name == "attention", WORKLOADS))
def test_a_search_of_a_seed_chooses_what_it_chose_before(name: str) -> None:
    assert chosen(WORKLOADS[name]) == json.loads(KEPT.read_text())[name]


if __name__ == "__main__":
    found = {name: chosen(workload) for name, workload in WORKLOADS.items()}
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
