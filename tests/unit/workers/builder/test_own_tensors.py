"""What a manifest says of the tensors of an op with its own launches: who makes them, their ranges, what is changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cases import H200
from tuner.core.plan.op_launches import Field, OpLaunch, OpLaunches, pointer
from tuner.core.problem.ops.op import Role, Tensor
from tuner.workers.builder.own_artifact import OwnKernels


@pytest.mark.parametrize("is_read", [False, True])
def test_each_tensor_has_its_role_its_range_and_whether_it_is_written_in_place(is_read: bool) -> None:
    tensors = (
        Tensor(name="x", shape=(4, 64), dtype="fp16", role=Role.INPUT),
        Tensor(name="it.count", shape=(1,), dtype="int32", role=Role.INPUT, range=(0, 16)),
        Tensor(name="it.state", shape=(4, 64), dtype="fp32", role=Role.CACHE),
        Tensor(name="it", shape=(4, 64), dtype="fp16", role=Role.OUTPUT),
        Tensor(name="it.rest", shape=(4, 64), dtype="fp16", role=Role.OUTPUT),
        Tensor(name="before", shape=(4, 64), dtype="fp16", role=Role.INPUT),
    )
    workload: Any = SimpleNamespace(
        launch_ops=[SimpleNamespace(name="it", tensors=lambda dtype: tensors)],
        dtype="fp16",
        written={"it", "it.rest", "before"},
        leaves=lambda op: not is_read,
        is_read=lambda name: is_read,
    )
    own: Any = SimpleNamespace(workload=workload, index=0)
    found = {one["name"]: one for one in OwnKernels.tensors(own)}
    made = "intermediate" if is_read else "output"
    roles = {"x": "input", "it.count": "input", "it.state": "cache", "it": made, "it.rest": made}
    assert {name: one["role"] for name, one in found.items()} == roles, "another op's tensors are not its own"
    assert {name: one["range"] for name, one in found.items() if "range" in one} == {"it.count": [0, 16]}
    assert {name for name, one in found.items() if one.get("written")} == {"it.state"}
    assert (found["it.state"]["shape"], found["it.state"]["dtype"]) == ([4, 64], "fp32")


def test_each_launch_has_its_own_tables_and_fields_and_begins_early_only_if_it_waits() -> None:
    def launch(*, waits: bool, table: bytes) -> OpLaunch:
        rows = Field(name="rows", table=table)
        fields = (Field(name="half", type="float32", value=0.5), pointer("x", "x"), rows)
        return OpLaunch(kernel="k", num_ctas=4, num_threads=128, fields=fields, waits=waits)

    launches = OpLaunches(launches=(launch(waits=True, table=b"one"), launch(waits=False, table=b"two")))
    workload: Any = SimpleNamespace(launch_ops=[SimpleNamespace(name="it")], ops=())
    own = OwnKernels(
        workload=workload, gpu=H200, index=0, schedule=None, launches=launches, proof="", source="text"
    )  # fmt: skip
    assert own.files == {"op0.cu": b"text", "op0_0_rows.bin": b"one", "op0_1_rows.bin": b"two"}

    def recipes(*, programmatic: bool) -> list[dict[str, Any]]:
        return own.recipes(lambda file, kernel, build, size: {"name": kernel}, programmatic=programmatic)

    found = recipes(programmatic=True)
    assert [one["programmatic_dependent_launch"] for one in found] == [True, False]
    assert not any(one["programmatic_dependent_launch"] for one in recipes(programmatic=False))
    assert {one["workspace"]["index"] for one in found} == {0}, "they share it"
    for number, one in enumerate(found):
        assert one["parameter"]["size_bytes"] == 24
        half, x, rows = one["parameter"]["fields"]
        assert (half["offset"], half["value"], x["offset"], x["tensor"]) == (0, 0.5, 8, "x")
        assert (rows["offset"], rows["file"]) == (16, f"op0_{number}_rows.bin")
