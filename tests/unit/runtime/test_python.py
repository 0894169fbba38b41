"""The Python package: arrays of any protocol, the caller's stream, and the library where the table selects it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.support.packs import ffn, ladder, make
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack
from tuner.runtime import NotAnArray, Pack, RuntimeFailure, Weights, load
from tuner.runtime.binding import native
from tuner.runtime.tensors.arrays import View, address_of, view


class Interfaced:
    """An array that only has `__cuda_array_interface__`."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.shape = values, values.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = dict(self.values.__array_interface__)
        return {key: found[key] for key in ("shape", "typestr", "data", "strides")} | {"version": 3}


class Exchanged:
    """An array that only supports DLPack."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.shape = values, values.shape

    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream == -1, "nothing waits"
        return self.values.__dlpack__()


def aligned(*shape: int, dtype: str = "float16") -> np.ndarray[Any, Any]:
    """Zeros at a multiple of 256 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 256, np.uint8)
    begin = -raw.ctypes.data % 256
    return raw[begin : begin + size].view(dtype).reshape(shape)


def room(num_bytes: int) -> Interfaced:
    return Interfaced(np.zeros(num_bytes, np.uint8).view(np.float16) if num_bytes % 2 == 0 else np.zeros(num_bytes))


@pytest.fixture
def pack(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pack]:
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    kernels = [make(PlanKind.FUSED_PDL).kernel, make(workload=ffn(48)).kernel]
    write_pack([ladder(*kernels), ladder(make(workload=ffn(16, full=True)).kernel)], tmp_path / "model.tunerpack")
    recorder.cuda.fake_parameter_bytes(kernels[0].manifest["parameter"]["size_bytes"])
    opened = load(tmp_path / "model.tunerpack")
    yield opened
    opened.close()


def plain(kind: type[Interfaced] | type[Exchanged] = Interfaced) -> Weights:
    return Weights(kind(aligned(256, 64)), kind(aligned(128, 256)), activation="silu", memory=room)


def address(parameter: bytes, offset: int) -> int:
    return int.from_bytes(parameter[offset : offset + 8], "little")


@pytest.mark.parametrize("kind", [Interfaced, Exchanged])
def test_an_ffn_of_arrays_of_any_protocol_is_launched_on_the_callers_stream(
    recorder: Recorder, pack: Pack, kind: type[Interfaced] | type[Exchanged]
) -> None:
    weights = plain(kind)
    bound = pack.bind(weights)
    x, y = kind(aligned(9, 64)), kind(aligned(9, 128))
    recorder.clear()
    assert bound(x, out=y, stream=0x4242) is y
    (call,) = recorder.calls("cuLaunchKernelEx")
    assert call.stream == 0x4242
    assert call.attribute == (6, 1)
    found = [address(call.parameter, 104 + offset) for offset in (0, 8, 64 + 8, 64 + 24)]
    assert found == [one.values.ctypes.data for one in (x, weights.w1, weights.w2, y)]
    assert int.from_bytes(call.parameter[104 + 48 : 104 + 52], "little") == 9
    assert len(recorder.calls("cuTensorMapEncodeTiled")) == 4
    recorder.clear()
    bound(x, out=y, stream=0x4242, no_pdl=True)
    assert {call.name for call in recorder.calls()} == {"cuLaunchKernelEx", "cuStreamGetId", "cuStreamIsCapturing"}
    assert recorder.calls("cuLaunchKernelEx")[-1].attribute != (6, 1)


def test_rows_choose_the_kernel_and_beyond_them_is_the_library(recorder: Recorder, pack: Pack) -> None:
    bound = pack.bind(plain())
    assert [bound.is_kernel(rows) for rows in (1, 16, 17, 48, 49, 4096, 5000)] == [True] * 4 + [False] * 3
    recorder.clear()
    for rows in (16, 17):
        bound(Interfaced(aligned(rows, 64)), out=Interfaced(aligned(rows, 128)))
    first, second = recorder.calls("cuLaunchKernelEx")
    assert first.values[0] != second.values[0]
    with pytest.raises(RuntimeFailure, match="the table chooses the library"):
        bound(Interfaced(aligned(49, 64)), out=Interfaced(aligned(49, 128)))


def test_ffns_of_one_lane_share_kernels_and_another_lane_has_its_own(recorder: Recorder, pack: Pack) -> None:
    pack.bind(plain())
    assert len(recorder.calls("cuModuleLoadData")) == 2
    recorder.clear()
    pack.bind(plain())
    assert recorder.calls("cuModuleLoadData") == recorder.calls("cuMemHostAlloc") == []
    pack.bind(plain(), strand=1)
    assert recorder.calls("cuModuleLoadData") == []
    assert len(recorder.calls("cuMemHostAlloc")) == 2


def test_wrong_operands_are_refused_with_what_would_be_right(pack: Pack) -> None:
    bound = pack.bind(plain())
    y = Interfaced(aligned(4, 128))
    for x, out, sentence in (
        (Interfaced(aligned(4, 60)), y, r"x is \[4, 60\] of float16: pass \[m, 64\] of float16"),
        (Interfaced(aligned(4, 64)), Interfaced(aligned(3, 128)), r"out is \[3, 128\] of float16: pass \[4, 128\]"),
        (Interfaced(aligned(4, 64)), None, "arrays of this library need `out`"),
        (Interfaced(aligned(5, 64).reshape(-1)[4:260].reshape(4, 64)), y, "multiple of 16 bytes"),
    ):
        with pytest.raises(RuntimeFailure, match=sentence):
            bound(x, out=out)
    with pytest.raises(NotAnArray, match="not contiguous"):
        bound(Interfaced(aligned(64, 4).T), out=y)
    with pytest.raises(NotAnArray, match="no __cuda_array_interface__ and no __dlpack__"):
        Weights([1], [2])
    with pytest.raises(RuntimeFailure, match=r"w1 of a gated FFN has 512"):
        Weights(Interfaced(aligned(256, 64)), Interfaced(aligned(128, 256)), gated=True)
    with pytest.raises(RuntimeFailure, match="does not have this shape"):
        pack.bind(Weights(Interfaced(aligned(32, 64)), Interfaced(aligned(16, 32)), activation="silu", memory=room))


@pytest.mark.parametrize("array", [None, [1.0], 1.0, "x"])
def test_what_is_no_array_is_refused_as_such(pack: Pack, array: Any) -> None:
    weights = plain()
    ffn, y = pack.bind(weights), Interfaced(aligned(4, 128))
    for given in ({"x": array}, {"x": array, "out": y}):
        with pytest.raises(NotAnArray, match="has no __cuda_array_interface__ and no __dlpack__"):
            ffn(**given, stream=1)


def test_after_its_pack_was_closed_an_ffn_is_refused(recorder: Recorder, pack: Pack) -> None:
    weights = plain()
    ffn, x, y = pack.bind(weights), Interfaced(aligned(4, 64)), Interfaced(aligned(4, 128))
    ffn(x, out=y, stream=1)
    recorder.clear_calls()
    pack.close()
    pack.close()
    sizes = {"sequences": 1, "length": 1}
    for use in (
        lambda: ffn(x, out=y, stream=1),
        lambda: pack.bind(weights),
        lambda: pack.find(weights.shape, 4),
        pack.check,
        lambda: pack.layers,
        lambda: pack.layer(**sizes),
        lambda: pack.attention(**sizes, heads=1, kv_heads=1, head_dim=64, dtype="float16"),
    ):
        with pytest.raises(RuntimeFailure, match=r"model\.tunerpack was closed with all its kernels: load it again"):
            use()
    assert (recorder.calls("cuLaunchKernelEx"), pack.aborts()) == ([], [])


def test_every_option_reaches_the_kernel(recorder: Recorder, pack: Pack) -> None:
    arrays = [Interfaced(aligned(*shape)) for shape in ((512, 64), (128, 256), (512,), (128,))]
    weights = Weights(*arrays, activation="silu", gated=True, residual=True, row_scale=True, memory=room)
    bound = pack.bind(weights)
    residual, scale = Interfaced(aligned(4, 128)), Interfaced(aligned(4, dtype="float32"))
    recorder.clear()
    y = bound(Interfaced(aligned(4, 64)), out=Interfaced(aligned(4, 128)), residual=residual, row_scale=scale)
    (call,) = recorder.calls("cuLaunchKernelEx")
    found = [address(call.parameter, 104 + offset) for offset in (16, 40, 64 + 16, 64 + 24, 64 + 32)]
    assert found == [one.values.ctypes.data for one in (arrays[2], scale, arrays[3], y, residual)]
    recorder.clear()
    for changed, says in (
        ({"row_scale": None}, "row_scale is missing, but the weights were bound with row_scale=True"),
        ({"residual": None}, "residual is missing, but the weights were bound with residual=True"),
        ({"residual": Interfaced(aligned(4, 128, dtype="float32"))}, r"residual is \[4, 128\] of float32"),
        ({"residual": Interfaced(aligned(1, 128))}, r"residual is \[1, 128\] of float16: pass \[4, 128\]"),
        ({"residual": Interfaced(aligned(4, 64))}, r"residual is \[4, 64\] of float16: pass \[4, 128\]"),
        ({"row_scale": Interfaced(aligned(1, dtype="float32"))}, r"row_scale is \[1\] of float32: pass \[4\]"),
        ({"row_scale": Interfaced(aligned(4))}, r"row_scale is \[4\] of float16: pass \[4\] of float32"),
        ({"out": Interfaced(aligned(4, 128, dtype="float32"))}, r"out is \[4, 128\] of float32"),
        ({"out": Interfaced(residual.values.reshape(-1)[8:].view()[: 3 * 128].reshape(3, 128))}, "out is"),
        ({"out": arrays[1]}, r"out is \[128, 256\]"),
        ({"out": Interfaced(arrays[1].values.reshape(-1)[:512].reshape(4, 128))}, "out is written and overlaps w2"),
    ):
        given = {"residual": residual, "row_scale": scale, "out": Interfaced(aligned(4, 128))} | changed
        with pytest.raises(RuntimeFailure, match=says):
            bound(Interfaced(aligned(4, 64)), **given)
    assert recorder.calls("cuLaunchKernelEx") == []
    bound(Interfaced(aligned(4, 64)), out=residual, residual=residual, row_scale=scale)


def test_an_operand_that_the_weights_were_bound_without_is_refused(pack: Pack) -> None:
    bound = pack.bind(plain())
    more = {"residual": Interfaced(aligned(4, 128)), "row_scale": Interfaced(aligned(4, dtype="float32"))}
    for name, array in more.items():
        with pytest.raises(RuntimeFailure, match=f"{name} was given, but the weights were bound with {name}=False"):
            bound(Interfaced(aligned(4, 64)), out=Interfaced(aligned(4, 128)), **{name: array})


def test_weights_are_checked_one_by_one_when_they_are_bound() -> None:
    right = {"w1": (256, 64), "w2": (128, 256), "b1": (256,), "b2": (128,)}
    made = {name: Interfaced(aligned(*shape)) for name, shape in right.items()}
    Weights(**made)
    flat = aligned(512 * 256).reshape(-1)
    for name, shape in right.items():
        size = int(np.prod(shape))
        for wrong in (
            Interfaced(aligned(*shape, dtype="float32")),
            Interfaced(aligned(*shape, 1)),
            Interfaced(flat[4 : 4 + size].reshape(shape)),
            Interfaced(aligned(*(2 * extent for extent in shape))[tuple(slice(None, None, 2) for _ in shape)]),
        ):
            with pytest.raises(RuntimeFailure):
                Weights(**{**made, name: wrong})
    with pytest.raises(RuntimeFailure, match=r"b1 is \[128\] of float16: pass \[256\]"):
        Weights(**{**made, "b1": made["b2"]})
    with pytest.raises(RuntimeFailure, match="elements of float32, and dtype is 'float16'"):
        Weights(
            **{name: Interfaced(aligned(*shape, dtype="float32")) for name, shape in right.items()}, dtype="float16"
        )


@pytest.mark.parametrize(
    ("name", "ours"),
    [("swish", "silu"), ("gelu_pytorch_tanh", "gelu"), ("gelu_new", "gelu"), ("linear", "identity"), ("gelu", "gelu")],
)
def test_names_of_one_function_are_one_activation(name: str, ours: str) -> None:
    made = Interfaced(aligned(256, 64)), Interfaced(aligned(128, 256))
    assert Weights(*made, activation=name).activation == ours
    assert Weights(*made, activation=name).shape.activation == native.ACTIVATIONS[ours]


@pytest.mark.parametrize("name", ["invented", "RELU", "", " silu", "gelu_python", "quick_gelu", "tanh", None, 3])
def test_an_activation_that_no_kernel_has_is_refused_by_name(name: Any) -> None:
    made = Interfaced(aligned(256, 64)), Interfaced(aligned(128, 256))
    with pytest.raises(RuntimeFailure, match=r"activation: is .*which no kernel supports; use one of gelu, "):
        Weights(*made, activation=name)


def test_an_abort_is_told_in_words_and_reset(recorder: Recorder, pack: Pack) -> None:
    pack.bind(plain())
    record = recorder.calls("cuMemHostAlloc")[0].values[0]
    assert pack.aborts() == []
    fields = np.frombuffer((ctypes.c_int32 * 6).from_address(record), np.int32)
    fields[:] = [1, -2, -1, 140, 132, 3]
    assert pack.aborts() == [
        "two launches ran at the same time on one workspace: CTA 3 saw 140 active CTAs, but its launch had 132; "
        "use a separate strand for each stream"
    ]
    fields[:] = [1, 7, 3, 11, 12, 5]
    assert pack.aborts() == ["CTA 5, task 7 waited for signal 3: 11 posts seen, 12 expected"]
    fields[:] = [1, 7, -1, 0, 0, 5]
    assert pack.aborts() == ["CTA 5, task 7 polled an intermediate whose elements never arrived"]
    pack.reset()
    assert pack.aborts() == []


def test_a_view_is_what_the_array_is() -> None:
    values = aligned(3, 8)
    for array in (Interfaced(values), Exchanged(values)):
        assert view(array) == View(address=values.ctypes.data, shape=(3, 8), dtype="float16")
        assert address_of(array) == values.ctypes.data
    for array in (Interfaced(values.T), Exchanged(values.T)):
        with pytest.raises(NotAnArray, match="not contiguous"):
            view(array)
    with pytest.raises(NotAnArray, match="elements of <f8 are not among"):
        view(Interfaced(aligned(2, dtype="float64")))


def test_the_runtime_is_compiled_once_and_kept(tmp_path: Path, recorder: Recorder) -> None:
    del recorder  # it has compiled one; nothing is compiled twice here
    first = tmp_path / "bin"
    first.mkdir()
    compiler = first / "cc"
    compiler.write_text(
        '#!/bin/sh\necho run >> "$(dirname "$0")/runs"\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n'
    )
    compiler.chmod(0o755)
    one = native.build(tmp_path / "cache", compiler=str(compiler))
    assert native.build(tmp_path / "cache", compiler=str(compiler)) == one
    assert (first / "runs").read_text() == "run\n"
    compiler.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    with pytest.raises(RuntimeFailure, match="rejected the runtime:\nno such option"):
        native.build(tmp_path / "other", compiler=str(compiler))
    assert list((tmp_path / "other").iterdir()) == []
