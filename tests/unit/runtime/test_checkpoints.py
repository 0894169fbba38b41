"""Tensors of checkpoints are converted to the kernels' layout and back without loss; the files are from the formats'
own libraries."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.runtime.checkpoints_say import FOLDER
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.quantisation.methods import METHODS
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints import convert, restored
from tuner.runtime.checkpoints.converting import FORMATS

Array = np.ndarray[Any, Any]
FILES = {
    "compressed_int4_g128": WeightFormat.INT4_G128,
    "compressed_int4_g64": WeightFormat.INT4_G64,
    "compressed_fp8": WeightFormat.E4M3,
    "compressed_mxfp4": WeightFormat.MXFP4,
    "compressed_int4_zp": WeightFormat.INT4_G128_ZP,
    "gptq": WeightFormat.INT4_G128,
    "awq": WeightFormat.INT4_G128_ZP,
}
_NUMPY = {"U8": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "BF16": "<u2", "F8_E4M3": "u1"}
_OTHERS = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn"}


@dataclass(frozen=True)
class Held:
    """An array of a type that NumPy lacks, as other libraries provide it."""

    array: Array
    dtype: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and config of a safetensors file: the size of its header, the header, the data."""
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    config = json.loads(header.pop("__metadata__")["quantization_config"])
    found: dict[str, Any] = {}
    for name, one in header.items():
        begin, end = one["data_offsets"]
        array = np.frombuffer(data[begin:end], _NUMPY[one["dtype"]]).reshape(one["shape"])
        found[name] = Held(array, _OTHERS[one["dtype"]]) if one["dtype"] in _OTHERS else array
    return found, config


def bits(tensor: Any) -> Array:
    return np.asarray(tensor)


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_is_what_its_library_says(name: str) -> None:
    tensors, config = read(FOLDER / f"{name}.safetensors")
    found = convert(tensors, "mlp", config)
    assert found.stored is FILES[name]
    dtype = found.dtype or Dtype.BF16
    values = found.stored.row.known(np, found.weights, found.k, dtype.row)
    if found.channels is not None:
        values = values * found.channels[:, None]
    assert (values == bits(tensors["mlp.expected"])).all()


@pytest.mark.parametrize("name", FILES)
def test_it_comes_back_bit_by_bit(name: str) -> None:
    tensors, config = read(FOLDER / f"{name}.safetensors")
    (found,) = restored(convert(tensors, "mlp", config), config)
    for what, array in found.items():
        held = bits(tensors[f"mlp.{what}"])
        if what == "weight_scale" and held.dtype != array.dtype and array.dtype == np.float32:
            held = Dtype.BF16.row.from_bits(np, held)
        assert (held.view(array.dtype) == array).all(), what
    assert {f"mlp.{what}" for what in found} == set(tensors) - {"mlp.expected"}


def with_inputs(config: dict[str, Any]) -> dict[str, Any]:
    """The same config with inputs in fp8 by token; llm-compressor calls it W4AFP8 and writes the same tensors."""
    [group] = config["config_groups"].values()
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    return config | {"config_groups": {"group_0": group | {"input_activations": inputs}}}


@pytest.mark.parametrize("name", ["compressed_int4_g128", "compressed_int4_g64"])
def test_with_inputs_in_fp8_weights_are_the_same_in_another_layout(name: str) -> None:
    tensors, config = read(FOLDER / f"{name}.safetensors")
    found = convert(tensors, "mlp", with_inputs(config))
    assert (found.stored, found.dtype) == (WeightFormat(f"{FILES[name]}_a8"), Dtype.BF16)
    values = found.stored.row.known(np, found.weights, found.k, Dtype.FP8_E4M3.row)
    assert (values == bits(tensors["mlp.expected"])).all()
    (back,) = restored(found, with_inputs(config))
    for what, array in back.items():
        assert (bits(tensors[f"mlp.{what}"]).view(array.dtype) == array).all(), what


def test_gate_and_up_lie_above_each_other() -> None:
    tensors, config = read(FOLDER / "gptq.safetensors")
    tensors |= {name.replace("mlp.", "up."): array for name, array in tensors.items()}
    found = convert(tensors, ("mlp", "up"), config)
    assert found.rows == (32, 32)
    assert found.weights.shape == (64, found.stored.row.row_bytes(256))
    both = restored(found, config)
    assert all((both[0][what] == both[1][what]).all() for what in both[0])


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"quant_method": "mxfp4"}, ("mlp_blocks", "mlp_scales")),
        ({"quant_method": "MXFP4"}, ("mlp_blocks", "mlp_scales")),
        ({"quant_method": "modelopt", "quant_algo": "MXFP4"}, ("mlp.weight", "mlp.weight_scale")),
        ({"quant_method": "modelopt_fp4", "quant_algo": "MXFP4"}, ("mlp.weight", "mlp.weight_scale")),
        ({"quantization": {"quant_algo": "MXFP4"}}, ("mlp.weight", "mlp.weight_scale")),  # hf_quant_config.json
    ],
)
def test_codes_of_fp4_have_other_names_elsewhere(config: dict[str, Any], names: tuple[str, str]) -> None:
    tensors, ours = read(FOLDER / "compressed_mxfp4.safetensors")
    codes, scales = tensors["mlp.weight_packed"], tensors["mlp.weight_scale"]
    given = {names[0]: codes.reshape(32, 8, 16) if names[0] == "mlp_blocks" else codes, names[1]: scales}
    found = convert(given, "mlp", config)
    assert (found.weights == convert(tensors, "mlp", ours).weights).all()
    back = {f"mlp{what}" if what[0] == "_" else f"mlp.{what}": one for what, one in restored(found, config)[0].items()}
    assert all((back[name] == one).all() for name, one in given.items())


def test_each_method_whose_config_is_understood_has_a_reader_of_tensors() -> None:
    assert {*FORMATS} == {*METHODS}


@pytest.mark.parametrize(("power", "size"), [(129, r"2\^2"), (255, "NaN")])
def test_powers_of_two_that_no_kernel_takes_are_refused(power: int, size: str) -> None:
    tensors, config = read(FOLDER / "compressed_mxfp4.safetensors")
    with pytest.raises(InvalidInput, match=rf"mlp\.weight_scale: is {size} at \[3, 1\], of 1 that are above 2"):
        convert(changed(tensors, "mlp.weight_scale", (3, 1), power), "mlp", config)
    shorter = tensors | {"mlp.weight_packed": tensors["mlp.weight_packed"][:, :-1]}
    with pytest.raises(InvalidInput, match=r"mlp\.weight_packed: is \[32, 127\], and weight_scale \[32, 8\]"):
        convert(shorter, "mlp", config)


def changed(tensors: dict[str, Any], name: str, place: Any, value: Any) -> dict[str, Any]:
    held = tensors[name]
    array = bits(held).copy()
    array[place] = value
    return tensors | {name: replace(held, array=array) if isinstance(held, Held) else array}


_BF16 = {"0": 0, "nan": 0x7FC0, "inf": 0x7F80, "-1": 0xBF80}


@pytest.mark.parametrize("value", _BF16)
def test_a_scale_that_is_no_number_above_0_is_refused(value: str) -> None:
    tensors, config = read(FOLDER / "compressed_int4_g128.safetensors")
    given = changed(tensors, "mlp.weight_scale", (3, 1), _BF16[value])
    with pytest.raises(InvalidInput, match=rf"mlp\.weight_scale: is {value} at \[3, 1\], of 1 that are not finite"):
        convert(given, "mlp", config)


@pytest.mark.parametrize(
    ("name", "tensor", "place", "value", "problem"),
    [
        ("gptq", "mlp.qzeros", (1, 2), 0x77777776, r"mlp\.qzeros: has a zero point of 7, but the config says sym"),
        ("gptq", "mlp.g_idx", 0, 1, r"mlp\.g_idx: is in activation order \(act order\)"),
        ("compressed_fp8", "mlp.weight", (4, 9), 0xFF, r"mlp\.weight: is NaN at \[4, 9\]"),
        ("compressed_int4_g64", "mlp.weight_shape", 1, 512, r"mlp\.weight_shape: is \[32, 512\].*use \[32, 256\]"),
    ],
)
def test_tensors_that_no_kernel_takes_are_refused(name: str, tensor: str, place: Any, value: int, problem: str) -> None:
    tensors, config = read(FOLDER / f"{name}.safetensors")
    with pytest.raises(InvalidInput, match=problem):
        convert(changed(tensors, tensor, place, value), "mlp", config)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"quant_method": "awq", "bits": 4, "version": "gemv"},
            "version: is gemv; use a checkpoint in AWQ's usual layout",
        ),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 16}, "group_size: is 16; use one of 32, 64, 128"),
        ({"quant_method": "mxfp4"}, "mlp_blocks: is missing"),
        ({}, "quant_method: is missing"),
        ({"quant_method": "gptq", "bits": 8}, "bits: is 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, r"desc_act: is true.*act order"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "group_size: is -1.*use one of 32, 64, 128"),
        (
            {"quant_method": "fp8", "weight_block_size": [64, 128]},
            r"weight_block_size: is \[64, 128\]; use \[128, 128\]",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo: is NVFP4"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups: is not an object of groups"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"type": "int", "num_bits": 4, "strategy": "channel"}}},
            },
            r"config_groups\.a\.weights: are int4 by channel",
        ),
    ],
)
def test_configs_that_no_kernel_takes_are_refused(config: dict[str, Any], problem: str) -> None:
    tensors, _ = read(FOLDER / "gptq.safetensors")
    with pytest.raises(InvalidInput, match=problem):
        convert(tensors | {"mlp.weight": np.zeros((32, 256), np.uint8)}, "mlp", config)


@pytest.mark.parametrize(
    ("name", "tensor", "value", "problem"),
    [
        (
            "gptq",
            "mlp.qweight",
            np.zeros((50, 32), np.int32),
            "has 400 columns, which is not a multiple of the group size 128",
        ),
        ("gptq", "mlp.qweight", np.zeros((32, 32), np.float32), r"mlp\.qweight: has 2 dimensions of float32"),
        ("awq", "mlp.scales", np.zeros((1, 32), np.float16), r"mlp\.scales: is \[1, 32\]; use \[2, 32\]"),
        ("awq", "mlp.qzeros", np.zeros((2, 8), np.int32), r"mlp\.qzeros: is \[2, 8\]; use \[2, 4\]"),
        (
            "compressed_fp8",
            "mlp.weight_scale",
            np.zeros((), np.float32),
            r"weight_scale: is 0 at \[0\], of 1 that are no",
        ),
        ("compressed_fp8", "mlp.input_scale", np.full(1, np.inf, np.float32), r"input_scale: is inf at \[0\]"),
    ],
)
def test_tensors_that_do_not_meet_are_refused(name: str, tensor: str, value: Array, problem: str) -> None:
    tensors, config = read(FOLDER / f"{name}.safetensors")
    with pytest.raises(InvalidInput, match=problem):
        convert(tensors | {tensor: value}, "mlp", config)


def test_a_product_that_the_config_leaves_out_is_refused() -> None:
    tensors, config = read(FOLDER / "awq.safetensors")
    with pytest.raises(InvalidInput, match="mlp: is not quantised by the quantization_config"):
        convert(tensors, "mlp", config | {"modules_to_not_convert": ["mlp"]})


def test_products_of_several_formats_do_not_lie_above_each_other() -> None:
    tensors, config = read(FOLDER / "gptq.safetensors")
    others = {name.replace("mlp.", "up."): array for name, array in tensors.items()}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"dynamic": {"up": {"sym": False}}}, "int4_g128_zp in 256 columns.*but mlp has int4_g128 in 256 columns"),
        ({"dynamic": {"-:up": {}}}, "up: is not quantised"),
        ({"dynamic": {"+:up": {"bits": 8}}}, "bits: is 8"),
    ]
    for change, problem in changes:
        with pytest.raises(InvalidInput, match=problem):
            convert(tensors | others, ("mlp", "up"), config | change)


def test_static_factors_of_inputs_are_kept() -> None:
    tensors, config = read(FOLDER / "compressed_fp8.safetensors")
    both = tensors | {name.replace("mlp.", "up."): array for name, array in tensors.items()}
    both |= {"mlp.input_scale": np.float32([0.5]), "up.input_scale": np.array(0.25, np.float32)}
    found = convert(both, ("mlp", "up"), config)
    assert (found.input_factor, found.input_factors) == (0.5, (0.5, 0.25))
    assert [one["input_scale"].tolist() for one in restored(found, config)] == [[0.5], [0.25]]


def test_what_is_missing_is_named() -> None:
    tensors, config = read(FOLDER / "gptq.safetensors")
    del tensors["mlp.scales"]
    with pytest.raises(InvalidInput, match=r"mlp\.scales: is missing"):
        convert(tensors, "mlp", config)


#: Configs of fp8 in blocks, the name of the scales, and their shape for 200 rows of 512.
BLOCKS: dict[str, tuple[dict[str, Any], str, tuple[int, ...]]] = {
    "deepseek": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_scale_inv", (2, 4)),
    "compressed": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
                    "input_activations": {"type": "float", "num_bits": 8, "strategy": "group", "dynamic": True},
                }
            },
        },
        "weight_scale",
        (2, 4),
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "weight_scale", (2, 1, 4, 1)),
}


def in_blocks(of: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Tensors with 200 rows, of which the last block has 72; their config, and the name of the scales."""
    random, (config, name, shape) = np.random.default_rng(0), BLOCKS[of]
    codes = (
        random.integers(0, 0x7F, (200, 512)).astype(np.uint8) | random.integers(0, 2, (200, 512)).astype(np.uint8) << 7
    )
    scales = random.uniform(1e-4, 1e-2, shape).astype(np.float32)
    return {"mlp.weight": Held(codes, "float8_e4m3fn"), f"mlp.{name}": scales}, config, name


@pytest.mark.parametrize("of", BLOCKS)
def test_each_block_has_its_own_scale(of: str) -> None:
    tensors, config, name = in_blocks(of)
    found = convert(tensors, "mlp", config)
    assert (found.stored, found.dtype, found.channels) == (WeightFormat.E4M3_G128, None, None)
    values = found.stored.row.known(np, found.weights, 512, Dtype.FP16.row)
    codes, scales = bits(tensors["mlp.weight"]), tensors[f"mlp.{name}"].reshape(2, 4)
    for row, column in ((0, 0), (127, 128), (128, 127), (199, 511)):
        one = float(Dtype.FP8_E4M3.row.from_bits(np, codes[row, column]))
        assert values[row, column] == one * float(scales[row // 128, column // 128])
    (back,) = restored(found, config)
    assert (back["weight"] == codes).all()
    assert (back[name] == scales).all()


@pytest.mark.parametrize("of", BLOCKS)
def test_scales_of_blocks_that_do_not_meet_are_refused(of: str) -> None:
    tensors, config, name = in_blocks(of)
    for value, problem in (
        (
            tensors[f"mlp.{name}"].reshape(2, 4)[:, :3],
            rf"mlp\.{name}: is \[2, 3\], for a weight of \[200, 512\]; use \[2, 4\]",
        ),
        (np.zeros((2, 4), np.float32), rf"mlp\.{name}: is 0 at \[0, 0\], of 8 that are not finite"),
        (np.full((2, 4), np.nan, np.float32), rf"mlp\.{name}: is nan at \[0, 0\]"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            convert(tensors | {f"mlp.{name}": value}, "mlp", config)
    powers = Held(np.full((2, 4), 120, np.uint8), "float8_e8m0fnu")
    with pytest.raises(InvalidInput, match=rf"mlp\.{name}: has elements of uint8; give float32"):
        convert(tensors | {f"mlp.{name}": powers}, "mlp", config)
    with pytest.raises(InvalidInput, match=rf"mlp\.{name}: is missing"):
        convert({"mlp.weight": tensors["mlp.weight"]}, "mlp", config)
    odd = Held(np.zeros((200, 384), np.uint8), "float8_e4m3fn")
    with pytest.raises(InvalidInput, match="has 384 columns; use a multiple of 256, the unit of e4m3_g128"):
        convert({"mlp.weight": odd, f"mlp.{name}": np.ones((2, 3), np.float32)}, "mlp", config)
