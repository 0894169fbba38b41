"""Proofs of packages' launch ops: impossible launches and planted plans are refused."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support import toys
from tuner.core.plan.graph.boxes import Bound, Box, RunTimeInput, TileSpace, along, whole
from tuner.core.plan.graph.lowering import limits_problem
from tuner.core.plan.op_launches import (
    Field,
    OpLaunch,
    OpLaunches,
    check_op_launches,
    inline,
    null,
    number,
    pointer,
    room,
    table,
    tensor_map,
)
from tuner.core.problem.ops.op import Tensor, cache, given, output, range_problem, weight
from tuner.core.proof.own_plans import check_tensors
from tuner.errors import PlanError, ResourceError, WordError

_PLANTED = """
from dataclasses import replace
import numpy as np
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.proof.own_plans import check_own_plan, own_digest, proven_plan
from tuner.core.schedule.levels import schedule_class
from tuner.errors import PlanError

def of(kind, **fields):
    op = {"op": kind, "name": "it", "m": 16, **fields}
    workload = Workload.from_json({"kind": "chain", "ops": [op], "dtype": "bf16"})
    schedule = schedule_class(kind)()
    return workload, workload.ops[0], schedule, proven_plan(workload, workload.ops[0], schedule, CATALOGUE["h200"])

def said(workload, op, schedule, plan):
    assert own_digest(workload, op, schedule, plan) != digests[op.KIND], "a changed plan has another digest"
    try:
        check_own_plan(workload, op, schedule, plan)
    except PlanError as error:
        return str(error)
    return "nothing"

digests = {}
for kind, fields, changes in CASES:
    workload, op, schedule, plan = of(kind, **fields)
    check_own_plan(workload, op, schedule, plan)
    digests[kind] = own_digest(workload, op, schedule, plan)
    for change in changes:
        print(kind, "|", said(workload, op, schedule, replace(plan, **change)))
"""


def lines(package: str, cases: str, site: Path) -> list[str]:
    return toys.run(_PLANTED.replace("CASES", cases), toys.install(package, site)).splitlines()


def test_a_gather_that_forgets_or_repeats_rows_is_refused(tmp_path: Path) -> None:
    cases = """[("gather", {"n": 64, "table_rows": 32}, [{"num_ctas": 15}, {"num_ctas": 17}, {"rows_per_cta": 2}])]"""
    forgets, beyond, twice = lines("gather", cases, tmp_path)
    assert "a task reads what no task writes: the caller tile 0,0's box it[0:16, 0:64]" in forgets
    assert "CTAs" not in beyond
    assert "nothing" not in beyond
    assert "nothing" not in twice


def test_launches_that_follow_each_other_and_what_is_changed_in_place_are_proven(tmp_path: Path) -> None:
    cases = """[
        ("absmax", {"n": 64}, [{"rows": 15}, {"rows": 17}]),
        ("tally", {"k": 64}, [{"rows": (0,) * 16}, {"rows": tuple(range(15))}, {"rows": tuple(range(1, 17))}]),
    ]"""
    found = lines("strangers", cases, tmp_path)
    assert len(found) == 5
    assert not [line for line in found if line.endswith("| nothing")], found
    assert "an element is written twice" in found[2]
    assert "a box lies outside its tensor" in found[4]


IT = output("it", (4, 8), "fp16")
COUNT = given("it.count", (1,), "int32", range=(0, 4))


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (given("it.count", (1,), "int32"), "has no range"),
        (weight("it.table", (4,), "int32"), "has no range"),
        (given("it.count", (1,), "int32", range=(5, 2)), "which contains no int32"),
        (given("it.count", (1,), "int32", range=(0, 2**31)), "beyond int32"),
        (given("it.count", (1,), "int32", range=(-(2**31) - 1, 0)), "beyond int32"),
        (given("it.count", (1,), "int32", range=(0, 2.5)), "not two integers"),  # type: ignore[arg-type]
        (given("it.count", (1,), "int32", range=(False, True)), "not two integers"),
        (given("it.count", (1,), "int32", range=(0, 1, 2)), "not two integers"),  # type: ignore[arg-type]
        (given("x", (4, 8), "fp16", range=(0, 4)), "but elements of fp16"),
        (cache("it.state", (4,), "int32"), ""),
        (COUNT, ""),
    ],
)
def test_a_range_that_no_trial_can_draw_from_is_refused(tensor: Tensor, says: str) -> None:
    problem = range_problem(tensor, is_written=False)
    assert says in problem
    assert bool(says) == bool(problem)
    assert not range_problem(given("tokens", (4,), "int32"), is_written=True)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (RunTimeInput(name="it.count", count=1, least=0, most=4), ""),
        (RunTimeInput(name="it.count", count=1, least=1, most=4), "by 1 of 1 to 4, but it.count has 1 in the range"),
        (RunTimeInput(name="it.count", count=1, least=0, most=3), "by 1 of 0 to 3"),
        (RunTimeInput(name="it.count", count=2, least=0, most=4), "by 2 of 0 to 4"),
        (RunTimeInput(name="count", count=1, least=0, most=4), "count, which is none of its tensors"),
    ],
)
def test_what_a_plan_is_proven_for_is_what_a_launch_is_given(limit: RunTimeInput, says: str) -> None:
    box = Box(tensor="it", extents=(along(0, 4, 1), whole(8)))
    bound = Bound(tensor="it", dimension=0, limit=limit)
    space = TileSpace(name="it", grid=(4, 1), num_steps=1, writes=(box,), reads=(), bounds=(bound,))
    problem = limits_problem(space, (IT, COUNT))
    assert says in problem
    assert bool(says) == bool(problem)


#: Properties of all launches of an op.
ROOMS = ("workspace_bytes", "zero_bytes", "status_words", "status_at")


def launches(*fields: Field, **facts: object) -> OpLaunches:
    usual = {"kernel": "run", "num_ctas": 4, "num_threads": 128, "fields": (pointer("out", "it"), *fields)}
    of_op = {name: facts.pop(name) for name in ROOMS if name in facts}
    return OpLaunches(launches=(OpLaunch(**{**usual, **facts}),), **of_op)  # type: ignore[arg-type]


def checked(found: OpLaunches) -> None:
    check_op_launches(found, "it", {"it", "x"}, ["it"])


def test_a_struct_is_laid_out_as_c_does_it() -> None:
    found = launches(
        number("a", 1), pointer("x", "x"), number("b", 2), number("c", 0.5, "float32"), number("d", 3, "int64"),
        tensor_map("m", "x", (64, 16), (128,), (64, 8)), inline("e", bytes(12)), null("none"),
    )  # fmt: skip
    checked(found)
    assert found.launches[0].offsets == (0, 8, 16, 24, 28, 32, 64, 192, 208)
    assert found.launches[0].parameter_bytes == 256, "whole multiples of the map's alignment"
    packed = found.launches[0].parameter(lambda field: b"map" if field.map else field.value or 7)
    assert packed[:40] == struct.pack("<QixxxxQifq", 7, 1, 7, 2, 0.5, 3)
    assert packed[64:67] == b"map"
    assert packed[192:] == bytes(16) + struct.pack("<Q", 7) + bytes(40)


WRONG = {
    "no name": (launches(kernel="run me"), WordError, "a kernel has no name"),
    "too many threads": (launches(num_threads=2048), ResourceError, "num_threads is 2048, use 1 to 1024"),
    "sets only some of warps": (launches(num_threads=100), WordError, "100 threads"),
    "parts of clusters": (launches(cluster=3), WordError, "clusters of 3"),
    "a huge grid": (launches(num_ctas=2**21), ResourceError, "num_ctas is 2097152, use 1 to 1048576"),
    "two names": (launches(number("out", 1)), WordError, "two fields have one name"),
    "an unknown tensor": (launches(pointer("y", "y")), WordError, "there is no tensor 'y', use it, x"),
    "a number too large": (launches(number("a", 2**31)), WordError, "2147483648 is not a int32"),
    "a fraction": (launches(number("a", 0.5)), WordError, "0.5 is not a int32"),
    "no type": (launches(number("a", 1, "int8")), WordError, "its type is int8"),
    "no workspace": (launches(room("parts")), WordError, "byte 0 lies outside of a workspace of 0"),
    "behind the workspace": (launches(room("p", 64), workspace_bytes=64), WordError, "byte 64 lies outside"),
    "more zeros than room": (
        launches(workspace_bytes=4, zero_bytes=8),
        ResourceError,
        ("is smaller than the part that is zeroed"),
    ),
    "a report behind the zeros": (
        launches(workspace_bytes=64, zero_bytes=16, status_words=3, status_at=8),
        ResourceError,
        "3 words from byte 8, of 16",
    ),
    "a report between words": (
        launches(workspace_bytes=64, zero_bytes=64, status_words=1, status_at=6),
        ResourceError,
        "1 words from byte 6",
    ),
    "an empty table": (launches(table("t", b"")), WordError, "it is empty"),
    "a map of one dimension": (launches(tensor_map("m", "x", (64,), (), (8,))), WordError, "2 to 5 dimensions"),
    "a map's odd stride": (launches(tensor_map("m", "x", (64, 4), (130,), (8, 4))), WordError, "multiple of 16"),
    "both ways to wait": (launches(needs_all_ctas=True, waits=True), WordError, "needs all CTAs at once cannot wait"),
    "an output that no task writes": (
        OpLaunches(launches=(OpLaunch(kernel="run", num_ctas=1, num_threads=32, fields=(pointer("x", "x"),)),)),
        WordError,
        "it writes it: add a field that points to it",
    ),
    "no launch": (OpLaunches(launches=()), WordError, "it has 0 launches, use 1 to 8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_launches_that_cannot_be_made_are_refused_with_what_would_be_right(what: str) -> None:
    found, error, says = WRONG[what]
    with pytest.raises(error, match=says):
        checked(found)


def test_a_digest_is_of_all_that_a_launch_is_told() -> None:
    words = np.arange(4, dtype="<i4").tobytes()
    first = launches(table("t", words), number("a", 1))
    for other in (
        launches(table("t", words[:-4]), number("a", 1)),
        launches(table("t", words), number("a", 2)),
        launches(table("t", words), number("a", 1), num_ctas=8),
        launches(table("t", words), number("a", 1), workspace_bytes=256),
    ):
        assert other.digest != first.digest
    assert launches(table("t", words), number("a", 1, meaning="a word")).digest == first.digest
    assert issubclass(WordError, PlanError)


@dataclass(frozen=True)
class Shaped:
    """An op given by its name and tensors."""

    name: str = "it"


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ((given("x", (4, 8), "fp16"),), "no tensor of it is an output with its name"),
        ((IT, given("it", (4, 8), "fp16")), "two tensors have the same name: it: it"),
        ((given("x", (4, 8), "fp64"), IT), "x is 'fp64', use fp16, bf16"),
        ((given("x", (1, 1, 1, 4, 8), "fp16"), IT), "use 1 to 4 dimensions"),
        ((given("x", (), "fp16"), IT), "use 1 to 4 dimensions"),
        ((given("x", (4, 0), "fp16"), IT), "none of them empty"),
    ],
)
def test_tensors_that_no_artifact_can_name_are_refused(tensors: tuple[Tensor, ...], says: str) -> None:
    check_tensors(Shaped(), (IT,))  # type: ignore[arg-type]
    with pytest.raises(WordError, match=says):
        check_tensors(Shaped(), tensors)  # type: ignore[arg-type]
