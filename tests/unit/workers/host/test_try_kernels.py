"""A fetched kernel is launched unchanged, with a plan that is proven for the GPU, or it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.attention_packs import make_attention
from tests.support.cases import H200
from tests.support.packs import IN_FOURS, LIVE, WIDE, make
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import PlanError
from tuner.workers.host.try_kernels import problem_of, work_of
from tuner.workers.source.launchable import LaunchRefused


def changed(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """The same files with changed kernel fields in the manifest."""
    manifest = json.loads(files["manifest.json"])
    manifest["kernel"] |= changes
    return {**files, "manifest.json": json.dumps(manifest).encode()}


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.TWO_LAUNCHES, PlanKind.FUSED_PDL])
def test_a_kernel_is_launched_with_its_own_cubin_and_the_plan_that_is_proven_here(kind: PlanKind) -> None:
    made = make(kind)
    work = work_of(dict(made.kernel.files), H200)
    assert work.shared is not None
    work.shared.check()
    assert work.shared.cubin == made.kernel.files["kernel.cubin"]
    assert (work.plan_kind, work.shared.workload) == (kind, made.workload)
    assert problem_of(made.kernel.manifest).workload == made.workload


@pytest.mark.parametrize("d_out", [None, 512])
def test_an_attention_is_launched_with_its_own_cubin_and_the_plan_that_is_proven_here(d_out: int | None) -> None:
    made = make_attention(d_out=d_out)
    files = dict(made.kernel.files)
    work = work_of(files, H200)
    [one] = work.own
    one.check()
    assert one.cubin == files["attention0.cubin"]
    assert (work.shared is None) == (d_out is None)
    assert [plan.digest for plan in work.plans] == [plan.digest for plan in made.plans]
    tasks = bytearray(files["attention0_tasks.bin"])
    tasks[-4] ^= 1
    with pytest.raises(LaunchRefused, match=r"attention0_tasks.bin is not the plan that is proven for"):
        work_of({**files, "attention0_tasks.bin": bytes(tasks)}, H200)
    with pytest.raises(LaunchRefused, match="has no cubin"):
        work_of(dict(make_attention(d_out=d_out, simulated=True).kernel.files), H200)


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.TWO_LAUNCHES])
@pytest.mark.parametrize(("held", "num_ctas"), [(30, 30), (28, 24), (24, 24)])
def test_a_card_of_fewer_clusters_is_given_what_it_holds(kind: PlanKind, held: int, num_ctas: int) -> None:
    made = make(kind, IN_FOURS, workload=WIDE, gpu=LIVE)
    work = work_of(dict(made.kernel.files), replace(H200, live_clusters=((4, held),)))
    assert work.shared is not None
    work.shared.check()
    in_waves = kind is PlanKind.TWO_LAUNCHES
    assert [one.plan.num_ctas for one in work.plans] == ([30, 30] if in_waves else [num_ctas])


def test_a_kernel_made_for_any_card_is_tried_on_one_that_holds_more() -> None:
    made = make(PlanKind.FUSED, IN_FOURS, workload=WIDE)
    assert [one.plan.num_ctas for one in work_of(dict(made.kernel.files), LIVE).plans] == [24]


def test_what_is_not_for_this_card_is_refused() -> None:
    files = dict(make().kernel.files)
    with pytest.raises(LaunchRefused, match="built for sm_80, but this card is sm_90a"):
        work_of(changed(files, arch="sm_80"), H200)
    with pytest.raises(LaunchRefused, match="has no cubin"):
        work_of(dict(make(simulated=True).kernel.files), H200)
    words = bytearray(files["plan0.bin"])
    words[-4] ^= 1
    with pytest.raises(LaunchRefused, match=r"plan0.bin is not the plan that is proven for .*: tune it there"):
        work_of({**files, "plan0.bin": bytes(words)}, H200)
    with pytest.raises((LaunchRefused, PlanError)):
        work_of(files, replace(H200, num_sms=2))
