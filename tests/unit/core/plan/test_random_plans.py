"""Plans of random products equal, word for word, those made before edges were computed from boxes."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.random_plans import random_plans

#: Seed -> sha256 of 50 plans' words, their edges, and which ops post and read, as of commit c1930c6b.
DIGESTS = {0: "a585350b5493322a", 1: "43b9703fdd7ece67", 2: "a5aff8590886455c", 3: "336f84c4cc1f99cf"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", DIGESTS)
def test_random_plans_are_word_for_word_what_they_were(seed: int) -> None:
    digest = hashlib.sha256()
    for graph, plan in random_plans(seed, 50):
        digest.update(plan.table)
        digest.update(repr((graph.num_edges(plan.tasks), sorted(graph.posting_ops), graph.readers)).encode())
    assert digest.hexdigest()[:16] == DIGESTS[seed]
