"""The cost of a search, by counting calls, because times depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import ROOT

#: Function calls of a search with 24 trials, 18 of which are first guesses: about 4,443,000 with Python 3.11. The axis
#: `sum_kib` and CTAs that split K four ways added 2 %.
MOST_CALLS = 4_480_000

_CODE = """
import cProfile, pstats
from tests.unit.search.test_processes import ORDER, trial

profile = cProfile.Profile()
with profile:
    searcher = ORDER.begin()
    for number in range(ORDER.num_trials):
        searcher.tell(trial(number, searcher.ask()))
print(pstats.Stats(profile).total_calls)
"""


# In CI, test_trajectories.py has what a search chooses.
@pytest.mark.soak
def test_a_search_of_a_few_trials_makes_as_many_calls_as_it_did() -> None:
    command = [sys.executable, "-c", _CODE]
    counted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert int(counted.stdout) < MOST_CALLS
