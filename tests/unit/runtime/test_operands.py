"""The table of operands: an operand that does not fit a launch is refused before its address is used."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.unit.runtime.test_artifact import OnDevice, attention_alone, block, chain, tensors_of
from tests.unit.runtime.test_python import Exchanged, aligned
from tuner.core.problem.activation import OF_TRANSFORMERS, of_transformers
from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import InvalidInput
from tuner.runtime import Artifact, NotAnArray, RuntimeFailure
from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.tensors.arrays import view
from tuner.runtime.tensors.operands import Operand, Table, of_manifest


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.cuda.fake_parameter_bytes(64)
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))


def artifact(workload: Any = None) -> Artifact:
    made, _ = chain(PlanKind.FUSED_PDL, workload or block(16))
    return Artifact(made.files)


def test_every_operand_of_an_artifact_is_checked_in_shape_type_address_and_order(recorder: Recorder) -> None:
    """Includes every operand, whatever its role: each wrong one is refused by name, and nothing is launched."""
    one = artifact()
    given = tensors_of(one)
    assert {tensor["role"] for name, tensor in one.tensors.items() if name in given} >= {"input", "weight", "output"}
    num_refused = 0
    for name, array in given.items():
        wrong = [
            replace(array, shape=(*array.shape, 1)),
            replace(array, shape=tuple(size - 1 for size in array.shape)),
            replace(array, typestr="<f4" if array.typestr != "<f4" else "<f2"),
            replace(array, address=array.address + 4),
        ]
        for array in wrong:
            with pytest.raises(WrongOperand, match=name):
                one.bind({**given, name: array})
            num_refused += 1
    assert num_refused == 4 * len(given)
    assert recorder.calls("cuLaunchKernelEx") == []


def test_what_is_written_overlaps_no_other_operand() -> None:
    one = artifact()
    given = tensors_of(one)
    written = [name for name, tensor in one.tensors.items() if tensor["role"] == "output"]
    assert len(written) > 1
    for name in written:
        for other in given.keys() - {name}:
            size = 4 if given[other].typestr == "<f4" else 2
            last = given[other].address + int(np.prod(given[other].shape)) * size
            same = {**given, name: replace(given[name], address=given[other].address)}
            if {name, other} == {"o", "o.residual"}:
                one.bind(same)
            else:
                with pytest.raises(WrongOperand, match="is written and overlaps"):
                    one.bind(same)
            with pytest.raises(WrongOperand, match="is written and overlaps"):
                one.bind({**given, name: replace(given[name], address=last // 16 * 16 - 16)})
            free = replace(given[name], address=-(-last // 256) * 256)
            one.bind({**given, name: free})


def test_two_that_are_read_may_be_one_and_a_residual_may_be_the_output() -> None:
    table = Table(
        [
            Operand(name="x", role="input", shape=("m", 64), dtype="fp16"),
            Operand(name="residual", role="residual", shape=("m", 64), dtype="fp16"),
            Operand(name="y", role="output", shape=("m", 64), dtype="fp16", is_written=True, may_be=("residual",)),
        ]
    )
    x, y = OnDevice(0x10000, (8, 64), "<f2"), OnDevice(0x20000, (8, 64), "<f2")
    table.checked({"x": x, "residual": x, "y": y})
    table.checked({"x": x, "residual": y, "y": y})
    with pytest.raises(WrongOperand, match="y may be residual itself, from its first element on"):
        table.checked({"x": x, "residual": replace(y, address=0x20080), "y": y})
    with pytest.raises(WrongOperand, match="y is written and overlaps x: pass separate memory"):
        table.checked({"x": x, "residual": y, "y": replace(x, address=0x10000 + 16 * 62)})
    with pytest.raises(WrongOperand, match=r"residual is \[7, 64\] of float16: pass \[8, 64\] of fp16, the residual"):
        table.checked({"x": x, "residual": replace(y, shape=(7, 64)), "y": y})


def test_a_cache_is_written_where_a_product_or_the_kernel_in_front_writes_it() -> None:
    made, _ = attention_alone()
    read, appended = (of_manifest(made.manifest, (), (), appends) for appends in (False, True))
    assert {one.name for one in read if one.is_written} == {"attention"}
    assert {one.name for one in appended if one.is_written} == {"attention", "q", "attention.keys", "attention.values"}
    one = Artifact(made.files)
    given = tensors_of(one)
    one.bind({**given, "attention.values": given["attention.keys"]})  # read alone
    both = tensors_of(one, "optional")
    with pytest.raises(WrongOperand, match=r"attention\.keys is written and overlaps attention\.values"):
        one.bind({**both, "attention.values": both["attention.keys"]})


def test_operands_of_several_devices_are_refused_as_far_as_their_libraries_tell() -> None:
    class OnCard(OnDevice):
        number = 0

        @property
        def device(self) -> Any:
            return SimpleNamespace(id=self.number)

    class OnSecond(OnCard):
        number = 1

    table = Table(Operand(name=name, role="input", shape=(8, 64), dtype="fp16") for name in ("x", "w", "y"))
    plain = OnDevice(0x10000, (8, 64), "<f2")
    first, second = (kind(0x20000, (8, 64), "<f2") for kind in (OnCard, OnSecond))
    table.checked({"x": plain, "w": second, "y": second})
    with pytest.raises(WrongOperand, match="y is on cuda:0 and w on cuda:1: pass all on one device"):
        table.checked({"x": plain, "w": second, "y": first})
    assert view(Exchanged(aligned(3, 8))).device == "cpu"


def test_an_artifact_takes_operands_of_its_own_device_that_have_memory(recorder: Recorder) -> None:
    class On(OnDevice):
        number = 0

        @property
        def device(self) -> Any:
            return SimpleNamespace(id=self.number)

    class OnSecond(On):
        number = 1

    one = artifact()
    given = tensors_of(one)

    def all_as(kind: type[On]) -> dict[str, Any]:
        return {name: kind(array.address, array.shape, array.typestr) for name, array in given.items()}

    one.bind(all_as(On))
    with pytest.raises(WrongOperand, match="is on cuda:1 and the kernels on cuda:0: pass all on one device"):
        one.bind(all_as(OnSecond))
    with pytest.raises(WrongOperand, match="is on cpu and the kernels on cuda:0: pass all on one device"):
        one.bind({**given, "x": Exchanged(aligned(16, 256))})
    for name, array in given.items():
        with pytest.raises(WrongOperand, match=f"{name} has no memory, like a tensor of the device meta"):
            one.bind({**given, name: replace(array, address=0)})
    assert recorder.calls("cuLaunchKernelEx") == []


def test_an_output_that_its_library_calls_read_only_is_refused() -> None:
    class ReadOnly:
        shape = (4, 64)
        __cuda_array_interface__: ClassVar = {"data": (0x1000, True), "shape": (4, 64), "typestr": "<f2", "version": 3}

    given: dict[str, Any] = {"name": "y", "role": "output", "shape": (4, 64), "dtype": "fp16"}
    assert Operand(**given).checked(ReadOnly(), {}).address == 0x1000
    with pytest.raises(WrongOperand, match="y is read-only, but the launch writes to it"):
        Operand(**given, is_written=True).checked(ReadOnly(), {})


def test_a_dimension_of_one_may_have_any_stride_and_no_other() -> None:
    row = aligned(4, 8)[:1, :]
    strided = np.lib.stride_tricks.as_strided(row, shape=(1, 8), strides=(999 * 2, 2))
    assert view(Exchanged(strided)).shape == (1, 8)
    with pytest.raises(NotAnArray, match="not contiguous"):
        view(Exchanged(aligned(4, 16)[:2, :8]))


def test_a_wrong_operand_is_both_of_what_callers_catch() -> None:
    assert issubclass(WrongOperand, RuntimeFailure)
    assert issubclass(WrongOperand, ValueError)


def test_an_op_that_is_no_product_and_that_no_launch_computes_is_refused() -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    manifest = json.loads(made.files["manifest.json"])
    odd = manifest["workload"]["ops"][1]
    odd["op"] = "mixture"
    for launch in manifest["launches"]:
        launch["ops"] = [name for name in launch["ops"] if name != odd["name"]]
    files = {**made.files, "manifest.json": json.dumps(manifest).encode()}
    with pytest.raises(RuntimeFailure, match="has an op 'mixture', but no launch of it"):
        Artifact(files)
    assert Workload.from_json(manifest["workload"]).unknown_kinds == ("mixture",)


@pytest.mark.parametrize("name", ["gelu", "invented", "quick_gelu", "gelu_10", "RELU", "", None, 7, ["silu"]])
def test_a_name_of_transformers_that_is_not_ours_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"hidden_act: is .*, which no kernel supports"):
        of_transformers(name)


def test_every_name_of_transformers_is_one_of_ours_by_its_function() -> None:
    functions = pytest.importorskip("transformers.activations").ACT2FN
    torch = pytest.importorskip("torch")
    z = torch.linspace(-12, 12, 1001, dtype=torch.float64)
    ours = {
        "identity": z,
        "relu": torch.relu(z),
        "gelu": torch.nn.functional.gelu(z, approximate="tanh"),
        "silu": torch.nn.functional.silu(z),
    }
    same = {
        name: next((one for one, wanted in ours.items() if (found - wanted).abs().max() < 1e-6), None)
        for name in functions
        if name not in ("prelu", "xielu") and (found := functions[name](z)) is not None
    }
    assert same["gelu"] is None
    assert {name: one for name, one in same.items() if one} == {name: str(one) for name, one in OF_TRANSFORMERS.items()}
