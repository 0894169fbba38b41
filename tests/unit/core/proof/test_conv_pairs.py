"""Proofs of pairs of convolutions in one CTA: regions with a halo, and planted faults in them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.conv_pairs import CASES, pair, workload
from tuner.core.plan.graph.boxes import BoxRead, Extent
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.own_plans import check_own_plan, proven_plan
from tuner.errors import CoverageError, InvalidInput
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair import plans
from tuner.ops.conv.pair.geometry import Geometry
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.plans import ConvPairPlan, plan_of
from tuner.ops.conv.pair.rules import refuse
from tuner.ops.conv.pair.schedule import SIDES, ConvPairSchedule

H200 = CATALOGUE["h200"]


def is_enough(op: ConvPairOp, schedule: ConvPairSchedule, geometry: Geometry) -> bool:
    """Whether each tile's regions contain all pixels that it needs: an oracle, pixel by pixel and along each axis."""
    first, second = op.first, op.second
    sides = (
        (schedule.rows, geometry.tile_rows, "rows", first.height, second.height, second.out_height),
        (schedule.columns, geometry.tile_columns, "columns", first.width, second.width, second.out_width),
    )
    for tile, count, name, size, between, out in sides:
        for number in range(count):
            wanted = set(range(number * tile, min((number + 1) * tile, out)))
            for conv, region, inside in ((second, geometry.middle, between), (first, geometry.patch, size)):
                begin = number * tile * region.scale + region.shift
                wanted = read_by(conv, wanted, inside)
                if not wanted <= set(range(begin, begin + getattr(region, name))):
                    return False
    return True


def read_by(conv: ConvOp, pixels: set[int], size: int) -> set[int]:
    """The pixels inside of an image that these pixels of the output read, along one axis."""
    places = (pixel * conv.stride - conv.padding + place for pixel in pixels for place in range(conv.kernel))
    return {place for place in places if 0 <= place < size}


def drawn(rng: random.Random) -> tuple[ConvPairOp, ConvPairSchedule] | None:
    """A random op with a schedule; None if it is not legal."""
    filters = [(kernel, rng.choice((1, 2)), rng.randint(0, kernel // 2)) for kernel in rng.choices((1, 3, 5), k=2)]
    options: dict[str, Any] = {"images": rng.randint(1, 3), "channels": rng.choice((16, 32, 64))}
    options |= {"height": rng.randint(1, 40), "width": rng.randint(1, 40)}
    for place, (kernel, stride, padding) in zip(("first", "second"), filters, strict=True):
        options |= {f"{place}_kernel": kernel, f"{place}_stride": stride, f"{place}_padding": padding}
    groups, together = rng.choice(((1, False), (2, False), (2, True)))
    schedule = ConvPairSchedule(rows=rng.choice(SIDES), columns=rng.choice(SIDES), warpgroups=groups, together=together)
    try:
        op = pair(**options)
    except InvalidInput:
        return None
    return None if refuse(workload(op), H200, op, schedule) else (op, schedule)


def altered(rng: random.Random, geometry: Geometry) -> Geometry:
    """A geometry with another size or position of one of its regions."""
    place, name = rng.choice(("patch", "middle")), rng.choice(("rows", "columns", "scale", "shift"))
    region = getattr(geometry, place)
    changed = replace(region, **{name: getattr(region, name) + rng.choice((-2, -1, 1))})
    return replace(geometry, **{place: changed})


def proof_says(op: ConvPairOp, schedule: ConvPairSchedule, plan: ConvPairPlan) -> bool:
    try:
        check_own_plan(workload(op), op, schedule, plan)
    except CoverageError:
        return False
    return True


def test_proof_and_oracle_agree_on_random_regions() -> None:
    rng, right, wrong = random.Random(0), 0, 0
    while min(right, wrong) < 60:
        if (made := drawn(rng)) is None:
            continue
        op, schedule = made
        plan = plan_of(op, schedule, H200)
        assert is_enough(op, schedule, plan.geometry)
        assert proof_says(op, schedule, plan)
        right += 1
        geometry = altered(rng, plan.geometry)
        if is_valid := is_enough(op, schedule, geometry):
            continue  # a smaller image may not need the last row
        assert proof_says(op, schedule, replace(plan, geometry=geometry)) is is_valid, geometry
        wrong += 1


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("middle", {"rows": -1}),
        ("middle", {"shift": 1}),
        ("patch", {"columns": -1}),
        ("patch", {"scale": -1}),
    ],
    ids=["a halo row forgotten", "a row too late", "a column too few", "a wrong stride"],
)
def test_a_planted_region_is_refused(place: str, change: dict[str, int]) -> None:
    op, schedule, _ = CASES["a stride first" if "scale" in change else "two images"]
    plan = proven_plan(workload(op), op, schedule, H200)
    region = getattr(plan.geometry, place)
    changed = replace(region, **{name: getattr(region, name) + by for name, by in change.items()})
    with pytest.raises(CoverageError, match="a task reads what no task writes"):
        check_own_plan(workload(op), op, schedule, replace(plan, geometry=replace(plan.geometry, **{place: changed})))


def test_padding_from_the_neighbouring_image_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op, schedule, _ = CASES["two images"]
    plan, spaces_of = plan_of(op, schedule, H200), plans.spaces_of

    def planted(*given: Any) -> tuple[Any, ...]:
        *before, last = spaces_of(*given)
        read, *filters = last.reads
        images = read.box.extents[3]
        wide = Extent(axes=images.axes, begin=images.begin, end=np.minimum(images.end + 1, op.images))
        box = replace(read.box, extents=(*read.box.extents[:3], wide, *read.box.extents[4:]))
        return (*before, replace(last, reads=(BoxRead(box=box), *filters)))

    monkeypatch.setattr(plans, "spaces_of", planted)
    with pytest.raises(CoverageError, match=r"both\.first\[0:1, 0:1, 0:1, 0:2"):
        check_own_plan(workload(op), op, schedule, plan)
