"""Published ways to divide decode attention, as schedules of our kernel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.attentions import PLAIN, attention, space_with
from tests.support.cases import H200
from tuner.ops.attention.plans import plan_of as attention_plan
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.search.policies import (
    ATTENTION_POLICIES,
    even_shares,
    flash_decoding,
    policies_of_attention,
    policy_schedules,
)
from tuner.search.guesses.seeds import first_guesses

KERNEL = AttentionSchedule(**{**PLAIN, "cluster": 2, "span_tokens": 128})


def plan_of(schedule: AttentionSchedule, **sizes: Any) -> AttentionPlan:
    (op,) = attention(**sizes).launch_ops
    return attention_plan(op, schedule, H200)


def tiles_of_queues(plan: AttentionPlan, tile: int) -> list[int]:
    """The tiles of each queue at the longest contexts."""
    found = []
    for begin, end in zip(plan.queues, plan.queues[1:], strict=False):
        spans = [int(words[1]) & 0xFFFFFF for words in plan.tasks[begin:end]]
        found.append(sum(len(plan.own_tiles(span, plan.op.max_length, tile, 0)) for span in spans))
    return found


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ({"sequences": 64, "max_length": 8192}, 1),
        ({"sequences": 1, "kv_heads": 8, "max_length": 8192}, 15),
        ({"sequences": 1, "kv_heads": 1, "max_length": 100}, 2),
        ({"sequences": 16, "kv_heads": 4, "max_length": 4096}, 2),
    ],
)
def test_flash_decoding_splits_contexts_until_the_sms_are_full(sizes: dict[str, Any], splits: int) -> None:
    (op,) = attention(**sizes).launch_ops
    schedule = flash_decoding(op, H200, KERNEL)
    plan = plan_of(schedule, **sizes)
    assert (schedule.cluster, schedule.contiguous, plan.num_spans) == (1, False, splits)


@pytest.mark.parametrize("sizes", [{"sequences": 5, "max_length": 8192}, {"sequences": 37, "max_length": 4096}])
def test_even_shares_give_every_cta_as_many_neighbouring_tiles(sizes: dict[str, Any]) -> None:
    (op,) = attention(**sizes).launch_ops
    schedule = even_shares(op, H200, KERNEL)
    plan = plan_of(schedule, **sizes)
    tiles = tiles_of_queues(plan, KERNEL.tile_tokens)
    assert schedule.contiguous
    assert len(tiles) == 132
    assert max(tiles) - min(tiles) <= schedule.span_tokens // KERNEL.tile_tokens
    slots = [(words[0], words[1] >> 24) for words in plan.tasks.tolist()]
    assert slots == sorted(slots)


def test_a_policys_schedule_is_known_by_its_name() -> None:
    workload = attention(sequences=5, max_length=8192)
    (op,) = workload.launch_ops
    found = dict(policy_schedules(workload, H200, op, KERNEL))
    assert found.keys() == ATTENTION_POLICIES.keys()
    for name, schedule in found.items():
        assert policies_of_attention(workload, H200, op, schedule) == [name]
    assert policies_of_attention(workload, H200, op, KERNEL) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"page_tokens": 16}])
def test_a_search_tries_both_early(form: dict[str, Any]) -> None:
    workload = attention(sequences=5, max_length=8192, form=form)
    (op,) = workload.launch_ops
    guesses = [schedule.launch_ops[0] for schedule in first_guesses(space_with(workload), 0)]
    named = {name for one in guesses for name in policies_of_attention(workload, H200, op, one)}
    assert named == {"flash_decoding", "even_shares"}
