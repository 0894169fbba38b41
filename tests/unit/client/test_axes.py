"""A candidate as named values, for files that other programs read."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.attentions import alone, attention, space_with
from tuner.client.documents.documents import Candidate
from tuner.client.exports.axes import axes_of
from tuner.core.schedule.schedule import Schedule
from tuner.search.guesses.seeds import first_guesses


def axes(schedule: Schedule) -> dict[str, Any]:
    return axes_of(cast(Candidate, {"plan_kind": "two_launches", "schedule": schedule.to_json()}))


def test_an_attention_alone_has_its_axes_and_no_product() -> None:
    found = axes(alone(cluster=4))
    assert found["plan_kind"] == "two_launches"
    assert found["attentions_0_cluster"] == 4
    assert all(name == "plan_kind" or name.startswith("attentions_0_") for name in found)


@pytest.mark.slow
def test_an_attention_with_its_product_has_the_axes_of_both() -> None:
    found = axes(next(iter(first_guesses(space_with(attention(d_out=512)), 0))))
    assert {"attentions_0_cluster", "num_stages", "tiles_0_m", "interleave_kind"} <= set(found)
