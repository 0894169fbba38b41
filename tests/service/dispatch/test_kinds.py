"""A worker of a cluster reports its op kinds; candidates that need another kind are not built there."""

from __future__ import annotations

import pytest

from tests.support.attentions import alone, attention
from tests.support.builders import schedule, spec
from tests.support.members import member, prepare
from tuner.core.problem.op_kinds import kind_versions, usable_kinds
from tuner.core.schedule.candidate import Candidate, apart_kind, fused
from tuner.dispatch.cluster import messages


def test_what_needs_a_kind_is_built_by_workers_that_have_it_in_the_servers_version() -> None:
    of_attention = prepare(attention(), Candidate(plan_kind=apart_kind(2), schedule=alone()))
    of_products = prepare(spec(16).workload, fused(schedule()))
    own = kind_versions()
    older = own | {"attention": own["attention"] - 1}
    without = {name: version for name, version in own.items() if name != "attention"}
    for kinds, may in ((own, True), (own | {"conv": 3}, True), (older, False), (without, False), ({}, False)):
        assert member(kinds).can_build_for(of_attention, "") == may, kinds
        assert member(kinds).can_build_for(of_products, ""), "all workers may get products"
    assert "attention" in usable_kinds(own)
    assert "attention" not in usable_kinds(older)


def test_a_worker_that_says_nothing_of_its_kinds_is_of_another_protocol() -> None:
    text = member({}).text.replace('"kinds":{},', "")
    with pytest.raises(messages.NotUnderstood, match="kinds"):
        messages.decode_announcement(text)
