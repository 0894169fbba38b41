"""C converts a checkpoint's layout exactly as Python does, and writes nothing of what it refuses."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.support.native.recorder import Recorder
from tests.unit.runtime.test_checkpoints import FOLDER, Array, bits, in_blocks, read, with_inputs
from tuner.core.problem.dtype import Dtype
from tuner.runtime.binding import native
from tuner.runtime.checkpoints import convert
from tuner.runtime.checkpoints.lanes import HEADER, header

#: For each file: the producer of its tensors, and the names of codes, scales and zero points.
SOURCES = {
    "gptq": (1, "qweight", "scales", "qzeros"),
    "awq": (3, "qweight", "scales", "qzeros"),
    "compressed_int4_g128": (4, "weight_packed", "weight_scale", ""),
    "compressed_int4_g64": (4, "weight_packed", "weight_scale", ""),
    "compressed_int4_zp": (4, "weight_packed", "weight_scale", "weight_zero_point"),
    "compressed_fp8": (5, "weight", "", ""),
    "compressed_mxfp4": (6, "weight_packed", "weight_scale", ""),
}
FILLED = 0xA5


class Laid:
    """Two stacked copies of a file's product, converted by C and by Python."""

    def __init__(self, c: Any, name: str, **changed: Any) -> None:
        tensors, config = read(FOLDER / f"{name}.safetensors")
        both = tensors | {what.replace("mlp.", "up."): array for what, array in tensors.items()}
        self.c, self.wanted = c, convert(both, ("mlp", "up"), config)
        self.source, *named = SOURCES[name]
        arrays = {what: np.ascontiguousarray(bits(tensors[f"mlp.{what}"])).copy() for what in named if what}
        arrays |= {what: value for what, value in changed.items() if isinstance(value, np.ndarray)}
        self.kept = [arrays.get(what) for what in (*named, "order")]
        about = self.wanted.stored.row.about(self.wanted.k, str(self.wanted.dtype or ""))
        about |= {"rows": 64} | {what: value for what, value in changed.items() if not isinstance(value, np.ndarray)}
        texts = {what: str(about[what]).encode() for what in ("format", "layout", "factors")}
        numbers = {what: int(about[what]) for what in ("bits", "group", "has_zeros", "rows", "k")}
        self.weights = native.Weights(**texts, **numbers)
        codes, scales, zeros, order = (None if one is None else one.ctypes.data for one in self.kept)
        one = native.StoredProduct(codes=codes, scales=scales, zeros=zeros, order=order, rows=32)
        self.products = (native.StoredProduct * 2)(one, one)
        self.into = np.full(self.wanted.weights.size, FILLED, np.uint8)

    def lay(self, *, num_bytes: int | None = None, source: int | None = None) -> int:
        size, by = self.into.size if num_bytes is None else num_bytes, self.source if source is None else source
        products = ctypes.cast(self.products, ctypes.POINTER(native.StoredProduct))
        status = self.c.tuner_weights_lay(self.weights, by, products, 2, self.into.ctypes.data, size)
        assert status == 0 or (self.into == FILLED).all(), "nothing is written"
        return int(status)


@pytest.mark.parametrize("name", SOURCES)
def test_c_lays_out_what_python_does(recorder: Recorder, name: str) -> None:
    one = Laid(recorder.runtime, name)
    assert one.lay() == 0, recorder.runtime.tuner_error()
    assert (one.into == one.wanted.weights.reshape(-1)).all()


class LaidForFp8(Laid):
    """Same as `Laid`, for inputs in fp8: the scales of groups are given as fp32."""

    def __init__(self, c: Any, **changed: Any) -> None:
        tensors, config = read(FOLDER / "compressed_int4_g128.safetensors")
        super().__init__(c, "compressed_int4_g128", **changed)
        both = tensors | {what.replace("mlp.", "up."): array for what, array in tensors.items()}
        self.wanted = convert(both, ("mlp", "up"), with_inputs(config))
        about = self.wanted.stored.row.about(self.wanted.k, "") | {"rows": 64} | changed
        texts = {what: str(about[what]).encode() for what in ("format", "layout", "factors")}
        numbers = {what: int(about[what]) for what in ("bits", "group", "has_zeros", "rows", "k")}
        self.weights = native.Weights(**texts, **numbers)
        self.wide = Dtype.BF16.row.from_bits(np, self.kept[1]).copy()
        one = native.StoredProduct(codes=self.kept[0].ctypes.data, scales=self.wide.ctypes.data, rows=32)
        self.products = (native.StoredProduct * 2)(one, one)
        self.into = np.full(self.wanted.weights.size, FILLED, np.uint8)


def test_c_lays_out_weights_for_inputs_in_fp8(recorder: Recorder) -> None:
    one = LaidForFp8(recorder.runtime)
    assert one.lay() == 0, recorder.runtime.tuner_error()
    assert (one.into == one.wanted.weights.reshape(-1)).all()


def test_c_refuses_factors_of_16_bits_for_inputs_in_fp8(recorder: Recorder) -> None:
    assert LaidForFp8(recorder.runtime, factors="bf16").lay() != 0
    assert b"factors are bf16: they must be fp32" in recorder.runtime.tuner_error()
    one = LaidForFp8(recorder.runtime)
    one.wide[3, 1] = np.inf
    assert one.lay() != 0
    assert b"the scale of product 0, row 3, group 1 is not a finite number above 0" in recorder.runtime.tuner_error()


class LaidInBlocks(Laid):
    """Same as `Laid`, for 200 rows of fp8 with scales per block; the last block has 72 rows."""

    def __init__(self, c: Any, **changed: Any) -> None:
        tensors, config, name = in_blocks("deepseek")
        both = tensors | {what.replace("mlp.", "up."): array for what, array in tensors.items()}
        self.c, self.source, self.wanted = c, 5, convert(both, ("mlp", "up"), config)
        self.kept = [bits(tensors["mlp.weight"]).copy(), changed.pop("scales", tensors[f"mlp.{name}"])]
        about = self.wanted.stored.row.about(512, "bf16") | {"rows": 400} | changed
        texts = {what: str(about[what]).encode() for what in ("format", "layout", "factors")}
        numbers = {what: int(about[what]) for what in ("bits", "group", "has_zeros", "rows", "k")}
        self.weights = native.Weights(**texts, **numbers)
        codes, scales = (None if one is None else one.ctypes.data for one in self.kept)
        self.products = (native.StoredProduct * 2)(*2 * [native.StoredProduct(codes=codes, scales=scales, rows=200)])
        self.into = np.full(self.wanted.weights.size, FILLED, np.uint8)


def test_c_lays_out_scales_of_blocks(recorder: Recorder) -> None:
    one = LaidInBlocks(recorder.runtime)
    assert one.lay() == 0, recorder.runtime.tuner_error()
    assert (one.into == one.wanted.weights.reshape(-1)).all()


@pytest.mark.parametrize(
    ("changed", "how", "says"),
    [
        (
            {"scales": np.array([[1, 2, 3, 4], [1, np.inf, 3, 4]], np.float32)},
            {},
            "row 128, group 1 is not a finite number above 0",
        ),
        ({"scales": np.zeros((2, 4), np.float32)}, {}, "product 0, row 0, group 0 is not a finite number above 0"),
        ({"scales": None}, {}, "product 0 has no codes, no scales"),
        ({"factors": "bf16"}, {}, "factors are bf16: they must be fp32"),
        ({"k": 384}, {}, "k is 384: it must be a multiple of 256"),
        ({}, {"source": 1}, "the weights are e4m3_g128: give TUNER_FROM_E4M3"),
    ],
)
def test_c_refuses_blocks_that_do_not_meet(
    recorder: Recorder, changed: dict[str, Any], how: dict[str, Any], says: str
) -> None:
    assert LaidInBlocks(recorder.runtime, **changed).lay(**how) != 0
    assert says in recorder.runtime.tuner_error().decode()


def test_tables_are_those_of_the_formats() -> None:
    assert HEADER.read_text() == header(), "write them: python -m tuner.runtime.checkpoints.lanes"


def scales(place: tuple[int, int], value: int) -> Array:
    tensors, _ = read(FOLDER / "gptq.safetensors")
    found = bits(tensors["mlp.scales"]).copy()
    found.view(np.uint16)[place] = value
    return found


def zero_of_7() -> Array:
    tensors, _ = read(FOLDER / "gptq.safetensors")
    found = bits(tensors["mlp.qzeros"]).copy()
    found[1, 2] = 0x77777776
    return found


def powers() -> Array:
    tensors, _ = read(FOLDER / "compressed_mxfp4.safetensors")
    found = bits(tensors["mlp.weight_scale"]).copy()
    found[4, 1] = 255
    return found


def nan_codes() -> Array:
    tensors, _ = read(FOLDER / "compressed_fp8.safetensors")
    found = bits(tensors["mlp.weight"]).copy()
    found[4, 9] = 0xFF
    return found


@pytest.mark.parametrize(
    ("name", "changed", "how", "says"),
    [
        (
            "gptq",
            {"scales": scales((1, 3), 0)},
            {},
            "scale of product 0, row 3, group 1 is not a finite number above 0",
        ),
        ("gptq", {"scales": scales((0, 5), 0x7C00)}, {}, "row 5, group 0 is not a finite number above 0"),
        ("gptq", {"scales": scales((0, 5), 0xBC00)}, {}, "row 5, group 0 is not a finite number above 0"),
        (
            "gptq",
            {"qzeros": zero_of_7()},
            {},
            "row 16, group 1 is 7, but the kernel supports only 8",
        ),
        ("gptq", {"order": np.zeros(256, np.int32)}, {}, "groups in activation order (desc_act)"),
        ("gptq", {"k": 300}, {}, "k is 300: it must be a multiple of"),
        ("gptq", {"rows": 72}, {}, "there are 64 rows, and an output of"),
        (
            "gptq",
            {"format": "int5_g128"},
            {},
            "this runtime cannot lay out weights of format int5_g128 in layout turned",
        ),
        ("gptq", {"layout": "rows"}, {}, "cannot lay out weights of format int4_g128 in layout rows"),
        ("gptq", {"factors": "fp32"}, {}, "factors are fp32: they must be fp16 or bf16"),
        ("gptq", {}, {"num_bytes": 12}, "there are 64 rows, and an output of 12 bytes: the kernel needs 64 and 8448"),
        ("gptq", {}, {"source": 5}, "source is 5, but the weights are int4_g128: give a source of 4-bit integers"),
        ("compressed_mxfp4", {}, {"source": 4}, "source is 4, but the weights are mxfp4: give TUNER_FROM_E2M1"),
        ("compressed_mxfp4", {"factors": "bf16"}, {}, "factors are bf16: they must be e8m0"),
        (
            "compressed_mxfp4",
            {"weight_scale": powers()},
            {},
            "the scale of product 0, row 4, group 1 is above 2 or NaN",
        ),
        ("compressed_fp8", {}, {"source": 1}, "source is 1, but the weights are e4m3: give TUNER_FROM_E4M3"),
        ("compressed_fp8", {"weight": nan_codes()}, {}, "codes of product 0 are NaN at [4, 9]"),
    ],
)
def test_what_no_kernel_reads_is_refused_and_nothing_is_written(
    recorder: Recorder, name: str, changed: dict[str, Any], how: dict[str, Any], says: str
) -> None:
    assert Laid(recorder.runtime, name, **changed).lay(**how) == -1
    assert says in recorder.runtime.tuner_error().decode()


def test_a_product_without_its_tensors_is_refused(recorder: Recorder) -> None:
    one = Laid(recorder.runtime, "awq")
    one.products[1].zeros = None
    assert one.lay() == -1
    assert b"product 1 has no codes, no scales or no zero points" in recorder.runtime.tuner_error()
