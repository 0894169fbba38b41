"""Which problems fit on a GPU, by their sizes alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.attentions import attention
from tests.support.between import between
from tests.support.cases import H200
from tuner.core.problem.workload import Workload
from tuner.ops.attention.plans import fitting as sizes
from tuner.ops.conv.asked import ConvPair, Filters
from tuner.workers.gpu.tensors.fitting import (
    MAX_CHAIN,
    MIN_CHAIN,
    DoesNotFit,
    launches_of_chain,
    launches_that_evict,
    slots_that_fit,
)

#: About that of an H100.
FREE = 79 * 10**9
#: 8 KV heads of 128, so that a token takes 4 KiB of a cache.
SIZES: dict[str, Any] = {"kv_heads": 8, "head_dim": 128, "max_length": 2**14}


def cache_bytes(workload: Workload) -> int:
    return sizes.cache_bytes(workload.launch_ops[0])


def bytes_of_checks(workload: Workload) -> int:
    return sizes.bytes_of_checks(workload, workload.launch_ops[0])


def slots_of(workload: Workload) -> int:
    """The slots of a GPU's memory, including an ordered copy if the cache is paged."""
    paged = workload.launch_ops[0].form.paged is not None
    return slots_that_fit(FREE, (1 + paged) * cache_bytes(workload), bytes_of_checks(workload))


def test_the_caches_of_checks_are_counted_beside_the_slots() -> None:
    """Each check has its own cache if a product writes to it."""
    written, read = between(sequences=64, sizes=SIZES), between(sequences=64, sizes=SIZES, rotary=False)
    cache = 64 * 2**14 * 4096
    assert cache_bytes(written) == cache_bytes(read) == cache_bytes(attention(sequences=64, **SIZES)) == cache
    assert bytes_of_checks(written) == 5 * cache
    assert bytes_of_checks(read) == 2 * cache
    paged = between(sequences=64, sizes=SIZES, pages={"page_tokens": 16})
    assert bytes_of_checks(paged) == 7 * cache


@pytest.mark.parametrize(
    ("most", "options"),
    [
        (176, {}),
        (321, {"rotary": False}),
        (113, {"pages": {"page_tokens": 16}}),
        (160, {"rotary": False, "pages": {"page_tokens": 16}}),
    ],
)
def test_a_cache_that_does_not_fit_is_refused_and_the_largest_that_does_is_not(
    most: int, options: dict[str, Any]
) -> None:
    """`most` sequences of 64 MiB each. A tenth of the GPU's memory is left for references."""
    fits, too_large = (between(sequences=count, sizes=SIZES, **options) for count in (most, most + 1))
    copies = 1 + (options.get("pages") is not None)
    assert copies * cache_bytes(fits) + bytes_of_checks(fits) < 0.9 * FREE
    assert slots_of(fits) == 1
    with pytest.raises(DoesNotFit, match=r"one copy of the problem needs \d+\.\d GiB, the caches of its checks"):
        slots_of(too_large)


def test_a_problem_without_a_cache_says_nothing_of_one() -> None:
    with pytest.raises(
        DoesNotFit,
        match=(
            r"needs 2\.0 GiB, and its references need more, but only 3\.0 "
            r"GiB of the card are free"
        ),
    ):
        slots_that_fit(3 * 2**30, 2 * 2**30, 0)
    assert slots_that_fit(10 * 2**30, 2 * 2**30, 0) == 3


def test_a_chain_is_as_long_as_it_takes_to_evict_a_slot_within_bounds() -> None:
    """A slot of 10 MB is evicted from an L2 of 50 MB by 15 launches; no number evicts a slot of nothing."""
    mib = 2**20
    assert launches_of_chain(50 * mib, 10 * mib) == launches_that_evict(50 * mib, 10 * mib) == 15
    assert launches_of_chain(50 * mib, 11 * mib) == launches_that_evict(50 * mib, 11 * mib) == 14
    assert launches_of_chain(50 * mib, 100 * mib) == MIN_CHAIN > launches_that_evict(50 * mib, 100 * mib)
    assert launches_of_chain(50 * mib, mib) == MAX_CHAIN < launches_that_evict(50 * mib, mib)
    assert launches_of_chain(50 * mib, 0) == MAX_CHAIN


def test_images_evict_small_filters_so_a_chain_of_convolutions_is_short_and_needs_no_flush() -> None:
    """16 images of 56 x 56 with 64 channels are 6.4 MB, the filters 0.15 MB."""
    filters = Filters(filters=64, kernel=3, stride=1)
    pair = ConvPair(images=16, height=56, width=56, channels=64, first=filters, second=filters).to_workload()
    image = 16 * 56 * 56 * 64 * 2
    assert pair.rotated_bytes == 2 * 9 * 64 * 64 * 2
    assert pair.slot_bytes == 2 * image + pair.rotated_bytes + 2 * 64 * 2, "the image between them is no slot's own"
    l2_bytes = H200.l2_bytes
    assert launches_of_chain(l2_bytes, pair.slot_bytes) == launches_that_evict(l2_bytes, pair.slot_bytes) < 16
