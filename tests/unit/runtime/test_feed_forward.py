"""A checkpoint's block is converted to the layout of a kernel of its format, or refused with the mismatching tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.converted import TILINGS
from tests.support.packs import make
from tests.support.quantised import BLOCK_TILINGS
from tests.support.quantised import TILINGS as TILINGS_OF_8
from tests.unit.runtime.test_checkpoints import FOLDER, Array, Held, read, with_inputs
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme
from tuner.runtime.checkpoints import convert, feed_forward

K, HIDDEN = 256, 512
NAMES: dict[str, Any] = {"up": ("gate", "up"), "down": "down"}
FP8 = {"quant_method": "fp8", "activation_scheme": "static"}


def kernel(scheme: Scheme, dtype: Dtype | None = None) -> dict[str, Any]:
    """The tensors of a kernel, by name."""
    out = dtype or Dtype.BF16
    asked = QuantisedFfn(m=4, d_in=K, d_hidden=HIDDEN, d_out=K, scheme=scheme, dtype=dtype, out_dtype=out)
    tiling = TILINGS["int4"][1] if scheme.row.weights else TILINGS_OF_8["swapped"]
    tiling = TILINGS["e4m3"][1] if scheme is Scheme.W8A16 else tiling
    tiling = BLOCK_TILINGS["plain"] if scheme in (Scheme.BLOCK, Scheme.TOKEN_GROUPS) else tiling
    return {one["name"]: one for one in make(tiling=tiling, workload=asked.to_workload()).kernel.manifest["tensors"]}


def widened(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's 32 rows of 256, repeated: gate and up [512, 256], down [256, 512]."""
    tensors, config = read(FOLDER / f"{name}.safetensors")
    found: dict[str, Any] = {}
    if name == "compressed_fp8":
        for module, rows, k in (("gate", HIDDEN, K), ("up", HIDDEN, K), ("down", K, HIDDEN)):
            weight, scale = tensors["mlp.weight"], tensors["mlp.weight_scale"]
            found[f"{module}.weight"] = Held(np.tile(weight.array, (rows // 32, k // 256)), weight.dtype)
            found[f"{module}.weight_scale"] = Held(np.tile(scale.array, (rows // 32, 1)), scale.dtype)
        return found, config
    for module, rows, k in (("gate", HIDDEN, K), ("up", HIDDEN, K), ("down", K, HIDDEN)):
        for what in ("qweight", "scales", "qzeros"):
            found[f"{module}.{what}"] = np.tile(tensors[f"mlp.{what}"], (k // 256, rows // 32))
    return found, config


def product(tensors: dict[str, Any], config: dict[str, Any], names: Any) -> Array:
    """The product computed from the checkpoint's own words."""
    one = convert(tensors, names, config)
    dtype = one.dtype or Dtype.BF16
    values = one.stored.row.known(np, one.weights, one.k, dtype.row)
    return np.asarray(values if one.channels is None else values * one.channels[:, None])


@pytest.mark.parametrize(("name", "scheme"), [("gptq", Scheme.INT4), ("compressed_fp8", Scheme.W8A16)])
def test_a_block_is_laid_out_by_the_names_of_the_kernel(name: str, scheme: Scheme) -> None:
    tensors, config = widened(name)
    if scheme is Scheme.W8A16:
        config = {"quant_method": "compressed-tensors", "config_groups": config["config_groups"]}
        for group in config["config_groups"].values():
            group["input_activations"] = None
    wanted = kernel(scheme, Dtype.FP16 if scheme is Scheme.INT4 else None)
    found = feed_forward(tensors, config, wanted, **NAMES)
    assert set(found) == {
        name for name, one in wanted.items() if one["role"] not in ("input", "intermediate", "output")
    }
    for tensor, array in found.items():
        assert list(array.shape) == wanted[tensor]["shape"]
    row = scheme.row.weights
    assert row is not None
    values = row.row.known(np, found["up.w"], K, (Dtype.FP16 if row.row.group else Dtype.BF16).row)
    values = values if row.row.group else values * found["up.channel_scale_factors"][:, None]
    assert (values == product(tensors, config, ("gate", "up"))).all()


def test_static_factors_of_inputs_are_in_those_of_channels() -> None:
    tensors, _ = widened("compressed_fp8")
    tensors |= {f"{one}.input_scale": np.float32([size]) for one, size in (("gate", 0.5), ("up", 0.25), ("down", 2.0))}
    found = feed_forward(tensors, FP8, kernel(Scheme.TENSOR), **NAMES)
    known = convert(tensors, NAMES["up"], FP8)
    assert known.channels is not None
    assert (found["up.channel_scale_factors"] == known.channels * np.float32(0.5)).all()
    assert found["up.output_scale_factor"].tolist() == [2.0]
    assert (found["down.channel_scale_factors"] == 2 * convert(tensors, "down", FP8).channels).all()  # type: ignore[operator]
    assert (found["up.w"] == np.concatenate([tensors["gate.weight"].array, tensors["up.weight"].array])).all()


def test_blocks_have_the_scales_of_the_checkpoint() -> None:
    """With activations in groups, weights are elements, and a scale belongs to 128 x 128 of them."""
    rng = np.random.default_rng(1)
    shapes = {"gate": (HIDDEN, K), "up": (HIDDEN, K), "down": (K, HIDDEN)}
    tensors: dict[str, Any] = {}
    for name, (rows, k) in shapes.items():
        tensors[f"{name}.weight"] = Held(rng.integers(0, 0x7F, (rows, k), dtype=np.uint8), "float8_e4m3fn")
        tensors[f"{name}.weight_scale_inv"] = rng.uniform(0.5, 2, (rows // 128, k // 128)).astype(np.float32)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    found = feed_forward(tensors, config, kernel(Scheme.BLOCK), **NAMES)
    assert set(found) == {f"{op}.{what}" for op in ("up", "down") for what in ("w", "block_scale_weights")}
    scales = [tensors[f"{name}.weight_scale_inv"] for name in ("gate", "up")]
    assert (found["up.block_scale_weights"] == np.concatenate(scales)).all()
    assert (found["down.block_scale_weights"] == tensors["down.weight_scale_inv"]).all()
    assert (found["down.w"] == tensors["down.weight"].array).all()
    with pytest.raises(InvalidInput, match=r"up\.w: is fp8_e4m3 in the kernel, but e4m3_g128 in the checkpoint"):
        feed_forward(tensors, config, kernel(Scheme.TENSOR), **NAMES)


def test_a_dynamic_checkpoint_needs_the_factor_of_the_intermediate() -> None:
    tensors, _ = widened("compressed_fp8")
    dynamic, wanted = FP8 | {"activation_scheme": "dynamic"}, kernel(Scheme.TOKEN)
    with pytest.raises(
        InvalidInput, match="hidden_factor: is missing: with 8-bit activations, kernels need a static factor"
    ):
        feed_forward(tensors, dynamic, wanted, **NAMES)
    for wrong in (0.0, float("nan"), -1.0):
        with pytest.raises(InvalidInput, match=r"hidden_factor: is .*give a number above 0"):
            feed_forward(tensors, dynamic, wanted, **NAMES, hidden_factor=wrong)
    found = feed_forward(tensors, dynamic, wanted, **NAMES, hidden_factor=0.125)
    assert found["up.output_scale_factor"].tolist() == [0.125]
    assert (found["up.channel_scale_factors"] == convert(tensors, NAMES["up"], dynamic).channels).all()


def test_four_bits_with_inputs_in_fp8_have_float_factors_and_that_of_the_intermediate() -> None:
    tensors, config = read(FOLDER / "compressed_int4_g128.safetensors")
    shapes = {"gate": (HIDDEN, K), "up": (HIDDEN, K), "down": (K, HIDDEN)}
    given: dict[str, Any] = {}
    for module, (rows, k) in shapes.items():
        for what in ("weight_packed", "weight_scale"):
            held = tensors[f"mlp.{what}"]
            times = (rows // 32, k // 256)
            repeated = np.tile(np.asarray(held), times)
            given[f"{module}.{what}"] = Held(repeated, held.dtype) if isinstance(held, Held) else repeated
        given[f"{module}.weight_shape"] = np.array([rows, k])
    eight = with_inputs(config)
    found = feed_forward(given, eight, kernel(Scheme.W4A8), **NAMES, hidden_factor=0.125)
    assert set(found) == {"up.w", "down.w", "up.output_scale_factor", "down.channel_scale_factors"}
    assert found["up.output_scale_factor"].tolist() == [0.125]
    assert (found["down.channel_scale_factors"] == np.full(K, 0.125, np.float32)).all()
    row = WeightFormat.INT4_G128_A8.row
    assert (row.known(np, found["up.w"], K, Dtype.FP8_E4M3.row) == product(given, config, ("gate", "up"))).all()
    with pytest.raises(InvalidInput, match="format 'int4_g128', but the kernel reads 'int4_g128_a8'"):
        feed_forward(given, config, kernel(Scheme.W4A8), **NAMES, hidden_factor=0.125)


def test_a_dynamic_checkpoint_needs_no_factor_if_the_kernel_computes_them() -> None:
    tensors, _ = widened("compressed_fp8")
    dynamic = FP8 | {"activation_scheme": "dynamic"}
    found = feed_forward(tensors, dynamic, kernel(Scheme.TOKEN_GROUPS), **NAMES)
    assert set(found) == {f"{op}.{what}" for op in ("up", "down") for what in ("w", "channel_scale_factors")}
    for op, names in NAMES.items():
        assert (found[f"{op}.channel_scale_factors"] == convert(tensors, names, dynamic).channels).all()


@pytest.mark.parametrize(
    ("scheme", "dtype", "words"),
    [
        (Scheme.INT4, Dtype.BF16, "up.w: has factors 'fp16', but the kernel reads 'bf16'"),
        (Scheme.INT4_ZP, Dtype.FP16, "format 'int4_g128', but the kernel reads 'int4_g128_zp'"),
        (Scheme.W8A16, Dtype.FP16, "format 'int4_g128', but the kernel reads 'e4m3'"),
        (Scheme.TENSOR, None, "up.w: is fp8_e4m3 in the kernel, but int4_g128 in the checkpoint"),
    ],
)
def test_a_kernel_of_another_format_is_refused(scheme: Scheme, dtype: Dtype | None, words: str) -> None:
    tensors, config = widened("gptq")
    before = {name: array.copy() for name, array in tensors.items()}
    with pytest.raises(InvalidInput, match=words):
        feed_forward(tensors, config, kernel(scheme, dtype), **NAMES)
    assert all((tensors[name] == array).all() for name, array in before.items())


def test_other_sizes_and_another_layout_are_refused() -> None:
    tensors, config = widened("gptq")
    wanted = kernel(Scheme.INT4, Dtype.FP16)
    for name, changed, words in (
        ("down.w", {"k": 1024}, r"down\.w: has .*k 512, but the kernel reads 1024"),
        ("up.w", {"layout": "rows"}, r"up\.w: has layout '.*', but the kernel reads 'rows'"),
    ):
        other = {**wanted[name], "stored": {**wanted[name]["stored"], **changed}}
        with pytest.raises(InvalidInput, match=words):
            feed_forward(tensors, config, {**wanted, name: other}, **NAMES)
    with pytest.raises(InvalidInput, match="kernel: has weights of down"):
        feed_forward(tensors, config, {"down.w": wanted["down.w"]}, **NAMES)
