"""Which versions of kernels have identical machine code."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.builders import BEST
from tests.support.presets import decoder_layer
from tuner.core.trial.questions import Machine
from tuner.core.trial.reports.same_kernels import alike, lists_of, version_of_all, with_version
from tuner.dispatch.sources import kernel_version_for
from tuner.workers.source.render import pages_version


def test_versions_of_one_list_are_alike_and_so_are_those_of_workloads_with_launch_ops() -> None:
    for shared in lists_of("gemm"):
        for one, other in pairwise(shared):
            assert alike(one) == alike(other) == set(shared)
        for own in lists_of("attention"):
            combined = {version_of_all(a, [b]) for a in shared for b in own}
            assert all(alike(version) == combined for version in combined)
    assert alike("of nobody") == {"of nobody"}
    assert version_of_all("shared", []) == "shared"


def test_a_result_of_the_same_kernels_is_no_weaker_match() -> None:
    old, *_, new = next(one for one in lists_of("gemm") if len(one) > 1)
    environment = replace(BEST.environment, kernel_version=old)
    assert Machine(kernel_version=new).differences(environment) == []
    assert Machine(kernel_version="another").differences(environment) != []


def test_what_writes_to_pages_has_a_version_of_its_own() -> None:
    shared, environment = "of products", replace(BEST.environment, kernel_version="of products")
    contiguous, paged = (
        decoder_layer("llama3-8b", run="qkv", sequences=1, max_length=64, page_tokens=tokens) for tokens in (None, 16)
    )
    assert kernel_version_for(environment, contiguous) == shared
    assert kernel_version_for(environment, paged) == version_of_all(shared, [pages_version()]) != shared


@pytest.mark.parametrize(
    ("lists", "is_same", "expected"),
    [
        ([], True, [["a", "b"]]),
        ([], False, [["b"]]),
        ([["a"]], True, [["a", "b"]]),
        ([["a"]], False, [["a"], ["b"]]),
        ([["x"], ["a"]], True, [["x"], ["a", "b"]]),
        ([["a", "b"]], False, [["a", "b"]]),
    ],
)
def test_a_new_version_joins_the_list_of_the_one_before_where_the_code_is_the_same(
    lists: list[list[str]], is_same: bool, expected: list[list[str]]
) -> None:
    assert with_version(lists, "a", "b", is_same=is_same) == expected
