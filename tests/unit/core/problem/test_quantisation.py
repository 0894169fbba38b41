"""`quantization_config` of public models: each has a format, or is refused with the field."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.core.problem.quantisation import Activations, Stored, quantisation_of, stored_as
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput

Config = dict[str, Any]
MODULE = "model.layers.3.mlp.down_proj"

#: As AutoGPTQ, AutoAWQ, vLLM, transformers, ModelOpt and llm-compressor write them.
GPTQ: Config = {
    "bits": 4,
    "damp_percent": 0.01,
    "dataset": None,
    "desc_act": False,
    "group_size": 128,
    "modules_in_block_to_quantize": None,
    "quant_method": "gptq",
    "sym": True,
    "true_sequential": True,
}
AWQ: Config = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
FP8: Config = {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"}
DEEPSEEK: Config = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
FBGEMM: Config = {
    "activation_scale_ub": 1200.0,
    "modules_to_not_convert": ["model.layers.0.mlp.down_proj", "model.layers.3.mlp.gate_proj"],
    "quant_method": "fbgemm_fp8",
}
MODELOPT: Config = {
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quant_algo": "FP8",
    "quant_method": "modelopt",
}
MODELOPT_FILE: Config = {
    "producer": {"name": "modelopt", "version": "0.23.0"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}
GPT_OSS: Config = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}
INT4: Config = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": 128,
    "num_bits": 4,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "group",
    "symmetric": True,
    "type": "int",
}
CHANNELS: Config = {**INT4, "num_bits": 8, "group_size": None, "strategy": "channel", "type": "float"}
TOKENS: Config = {**CHANNELS, "dynamic": True, "observer": None, "strategy": "token"}
STATIC: Config = {**CHANNELS, "strategy": "tensor"}
BLOCKS: Config = {**CHANNELS, "strategy": "block", "block_structure": [128, 128]}
ZEROS: Config = {**INT4, "symmetric": False}
MXFP4: Config = {**INT4, "type": "float", "group_size": 32}
IN_GROUPS: Config = {**TOKENS, "strategy": "group", "group_size": 128}


def compressed(weights: Config, inputs: Config | None = None, **more: Any) -> Config:
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": "pack-quantized" if weights["type"] == "int" else "float-quantized",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        **more,
    }


def two_groups(*targets: str) -> Config:
    """A config with two groups: the first int4, the second fp8."""
    one, other = compressed(INT4), compressed(CHANNELS, TOKENS)
    groups = {"group_0": one["config_groups"]["group_0"], "group_1": other["config_groups"]["group_0"]}
    return one | {
        "config_groups": {name: {**groups[name], "targets": [t]} for name, t in zip(groups, targets, strict=True)}
    }


def with_outputs(outputs: Config) -> Config:
    one = compressed(CHANNELS, TOKENS)
    return one | {"config_groups": {"group_0": one["config_groups"]["group_0"] | {"output_activations": outputs}}}


E4M3, G128, G128_ZP = WeightFormat.E4M3, WeightFormat.INT4_G128, WeightFormat.INT4_G128_ZP
E4M3_G128 = WeightFormat.E4M3_G128
TOKEN, TENSOR, SIXTEEN = Activations.TOKEN, Activations.TENSOR, Activations.SIXTEEN


@pytest.mark.parametrize(
    ("config", "weights", "activations"),
    [
        (GPTQ, G128, SIXTEEN),
        (GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, G128_ZP, SIXTEEN),
        (GPTQ | {"group_size": 64}, WeightFormat.INT4_G64, SIXTEEN),
        (GPTQ | {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.down_proj"]]}, G128, SIXTEEN),
        (GPTQ | {"dynamic": {r"+:.*\.2\..*": {"bits": 8}, r".*\.3\..*": {"group_size": 64}}}, "int4_g64", SIXTEEN),
        (AWQ, G128_ZP, SIXTEEN),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}, "int4_g64_zp", SIXTEEN),
        (FP8, E4M3, TENSOR),
        (FP8 | {"activation_scheme": "dynamic"}, E4M3, TOKEN),
        (FBGEMM, E4M3, TOKEN),
        (MODELOPT, E4M3, TENSOR),
        (MODELOPT_FILE, E4M3, TENSOR),
        (MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, E4M3, TOKEN),
        (compressed(INT4), G128, SIXTEEN),
        (compressed({**ZEROS, "actorder": "static"}), G128_ZP, SIXTEEN),
        (compressed(CHANNELS, TOKENS), E4M3, TOKEN),
        (compressed(INT4, TOKENS), WeightFormat.INT4_G128_A8, TOKEN),
        (compressed({**INT4, "group_size": 64}, TOKENS), WeightFormat.INT4_G64_A8, TOKEN),
        (compressed(STATIC, STATIC), E4M3, TENSOR),
        (compressed(CHANNELS), E4M3, SIXTEEN),
        (DEEPSEEK, E4M3_G128, Activations.BLOCK),
        ({name: value for name, value in DEEPSEEK.items() if name != "activation_scheme"}, E4M3_G128, SIXTEEN),
        (compressed(BLOCKS, IN_GROUPS), E4M3_G128, Activations.BLOCK),
        (compressed(BLOCKS | {"block_structure": "128x128"}), E4M3_G128, SIXTEEN),
        (MODELOPT | {"quant_algo": "FP8_PB_WO"}, E4M3_G128, SIXTEEN),
        (two_groups("re:.*mlp.*", "re:.*self_attn.*"), G128, SIXTEEN),
        (two_groups("re:.*self_attn.*", "re:.*mlp.*"), E4M3, TOKEN),
    ],
)
def test_a_public_config_has_a_format(config: Config, weights: str, activations: Activations) -> None:
    assert stored_as(config, MODULE) == Stored(weights=WeightFormat(weights), activations=activations)


@pytest.mark.parametrize(
    "config",
    [
        AWQ | {"modules_to_not_convert": ["down_proj"]},
        FP8 | {"ignored_layers": ["model.layers.3.mlp.down_proj"]},
        FBGEMM | {"modules_to_not_convert": ["model.layers.3"]},
        MODELOPT | {"ignore": ["model.layers.3*"]},
        compressed(INT4, ignore=["re:.*down_proj"]),
        compressed(INT4, ignore=["language_model.model.layers.3.mlp.down_proj"]),
        two_groups("re:.*self_attn.*", "re:.*gate_proj"),
        GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"]]},
        GPTQ | {"dynamic": {r"-:.*down_proj": {}}},
        GPT_OSS | {"modules_to_not_convert": ["model.layers.*.mlp*"]},
    ],
)
def test_a_module_may_be_left_as_it_was(config: Config) -> None:
    assert stored_as(config, MODULE) is None


@pytest.mark.parametrize("other", ["model.layers.3.mlp.gate_proj", "model.layers.30.mlp.down_proj"])
def test_another_module_is_not(other: str) -> None:
    assert stored_as(FBGEMM | {"modules_to_not_convert": ["model.layers.3.mlp.down_proj"]}, other) is not None


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        (GPTQ | {"desc_act": True}, "desc_act", r"is true: its groups are in activation order \(act order\)"),
        (GPTQ | {"bits": 8}, "bits", "is 8; give a checkpoint with 4-bit integers"),
        (GPTQ | {"bits": "4"}, "bits", "is '4'; give"),
        (GPTQ | {"bits": None}, "bits", "is None; give"),
        (GPTQ | {"group_size": -1}, "group_size", r"is -1; use one of \d+.*, which kernels support"),
        (GPTQ | {"group_size": 1024}, "group_size", "is 1024"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format", "is marlin, a layout of one library's kernels"),
        (GPTQ | {"dynamic": {r"+:.*down.*": {"bits": 8}}}, "dynamic.+:.*down.*.bits", "is 8"),
        (GPTQ | {"dynamic": {".*": {"desc_act": True}}}, "dynamic..*.desc_act", "is true: its groups are"),
        (GPTQ | {"dynamic": {".*": {"group_size": 16}}, "bits": 4}, "dynamic..*.group_size", "is 16; use one of"),
        (GPTQ | {"dynamic": {".*": {"sym": 1}}}, "dynamic..*.sym", "is 1, neither true nor false"),
        (GPTQ | {"sym": "false"}, "sym", "is 'false', neither true nor false"),
        (GPTQ | {"desc_act": "false"}, "desc_act", "is 'false', neither true nor false; give the config as"),
        (AWQ | {"zero_point": "false"}, "zero_point", "is 'false', neither true nor false"),
        (compressed({**INT4, "symmetric": "false"}), "group_0.weights.symmetric", "is 'false', neither true nor false"),
        (compressed(CHANNELS, {**STATIC, "dynamic": "false"}), "input_activations.dynamic", "is 'false', neither"),
        (compressed(CHANNELS, TOKENS, ignore=["lm_head", 3]), "ignore", "has 3, which is no name of a module"),
        (FP8 | {"ignored_layers": [["lm_head"]]}, "ignored_layers", r"has \['lm_head'\], which is no name"),
        (AWQ | {"version": "gemv"}, "version", "is gemv; use a checkpoint in AWQ's usual layout"),
        (AWQ | {"zero_point": False}, "zero_point", "is false"),
        (DEEPSEEK | {"weight_block_size": [1, 128]}, "weight_block_size", r"is \[1, 128\]; use \[128, 128\]"),
        (DEEPSEEK | {"weight_block_size": 128}, "weight_block_size", r"is 128; use \[128, 128\]"),
        (FP8 | {"fmt": "e5m2"}, "fmt", "is e5m2; give a checkpoint of e4m3"),
        (FP8 | {"activation_scheme": "group"}, "activation_scheme", "is 'group'; give one of static, dynamic"),
        (MODELOPT | {"quant_algo": "NVFP4"}, "quant_algo", "is NVFP4: groups of 16 with fp8 scales"),
        (MODELOPT | {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "quant_algo", "is NVFP4"),
        (MODELOPT | {"quant_algo": "MIXED_PRECISION"}, "quant_algo", "its layers have different bit widths"),
        (MODELOPT | {"quant_algo": "FP8_BLOCK"}, "quant_algo", "is FP8_BLOCK; give a checkpoint of one of FP8"),
        (
            MODELOPT | {"quant_algo": None},
            "quant_algo",
            "is missing; give a checkpoint of one of FP8, FP8_PER",
        ),
        (compressed({**INT4, "actorder": "group"}), "weights.actorder", r"is group: its groups are.*\(act order\)"),
        (compressed({**INT4, "group_size": 256}), "weights.group_size", "is 256; use one of"),
        (compressed({**INT4, "group_size": 32}, TOKENS), "weights.group_size", "is 32; use one of 64, 128, which"),
        (compressed({**INT4, "strategy": "channel"}), "weights", "are int4 by channel, which no kernel supports"),
        (compressed({**CHANNELS, "type": "int"}, {**TOKENS, "type": "int"}), "input_activations", "are int8, dynamic"),
        (compressed({**CHANNELS, "type": "int"}), "weights", "are int8 by channel"),
        (compressed(INT4, STATIC), "input_activations", "4-bit weights with fp8 activations are not supported"),
        (compressed(ZEROS, TOKENS), "input_activations", "4-bit weights and zero points with fp8 activations are not"),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo", "W4A8_AWQ: the layout of its tensors is not supported"),
        (compressed(BLOCKS | {"block_structure": [64, 64]}), "block_structure", r"is \[64, 64\]; use \[128, 128\]"),
        (compressed(CHANNELS, IN_GROUPS), "input_activations", "are fp8, dynamic by group, which no kernel supports"),
        (compressed({**INT4, "type": "float", "strategy": "tensor_group", "group_size": 16}), "weights", "are fp4 by"),
        (compressed(INT4, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format", "is sparse-24"),
        (compressed(BLOCKS, STATIC), "group_0.input_activations", "weights in blocks with fp8 activations"),
        (compressed(MXFP4, TOKENS, format="mxfp4-pack-quantized"), "input_activations", "4-bit weights with fp8"),
        (compressed(CHANNELS | {"symmetric": False}), "weights.symmetric", "is false; give fp8 weights without zero"),
        (compressed(INT4, format="int-quantized"), "format", "is int-quantized: such tensors are not read; use pack-q"),
        (compressed(INT4, format="marlin-24"), "format", "is marlin-24: such tensors are not read"),
        (
            compressed(CHANNELS, format="dense"),
            "format",
            "is dense: such tensors are not read; use pack-quantized or float",
        ),
        (compressed(INT4, transform_config={"config_groups": {"R4": {}}}), "transform_config", "rotates activations"),
        (with_outputs(TOKENS), "group_0.output_activations", "are fp8, but kernels store 16-bit outputs"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format", "is true, a layout of one library's kernels"),
        (GPTQ | {"pack_dtype": "int8"}, "pack_dtype", "is int8; give a checkpoint with codes in int32"),
        (AWQ | {"backend": "llm-awq"}, "backend", "is llm-awq; give a checkpoint of autoawq"),
        (compressed(INT4, ignore=["re:*mlp("]), "ignore", r"has '\*mlp\(', which is no regular expression: "),
        (compressed(INT4, ignore=5), "ignore", "is 5, not a list of modules"),
        (compressed(INT4, ignore="lm_head"), "ignore", "is 'lm_head', not a list of modules"),
        (compressed(INT4, sparsity_config="2:4"), "sparsity_config", "is '2:4', not an object"),
        (compressed(INT4, "fp8"), "config_groups.group_0.input_activations", "is 'fp8', not an object"),  # type: ignore[arg-type]
        (GPTQ | {"dynamic": ["a"]}, "dynamic", r"is \['a'\], not an object of patterns"),
        (GPTQ | {"dynamic": {"-:*(": {}}}, "dynamic", r"has '\*\(', which is no regular expression: "),
        (two_groups("Linear", "re:.*mlp.*"), "config_groups", "have mixed formats for model.layers.3.mlp.down_proj"),
        (compressed(INT4, config_groups={}), "config_groups", "is not an object of groups of layers"),
        (compressed(INT4, config_groups={"group_0": "W4A16"}), "config_groups", "is not an object of groups of layers"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method", "its codes come from its own table"),
        (
            {"quant_method": "aqlm"},
            "quant_method",
            "is aqlm: its codes are indices into codebooks; give one of gptq, awq",
        ),
        ({"quant_method": "auto-round", "bits": 4}, "quant_method", "different bit widths"),
        ({"quant_method": "exl3"}, "quant_method", "is exl3; give one of gptq"),
        ({"load_in_8bit": True}, "quant_method", "is missing; give one of"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_its_field(config: Config, field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        stored_as(config, MODULE)
    assert refused.value.field.startswith("quantization_config.")
    assert refused.value.field.endswith(field)
    assert refused.value.remedy


def test_gpt_oss_has_a_format_or_the_reason_why_not() -> None:
    module = "model.layers.3.mlp.experts"
    if any(one.startswith("mxfp4") for one in WeightFormat):
        assert stored_as(GPT_OSS, module) is not None
    else:
        with pytest.raises(InvalidInput, match="quant_method: is mxfp4: no kernel supports e2m1 codes"):
            stored_as(GPT_OSS, module)


def test_where_a_models_config_says_it() -> None:
    assert quantisation_of({"hidden_size": 64}) is None
    assert quantisation_of({"quantization_config": GPTQ}) is GPTQ
    assert quantisation_of({"compression_config": AWQ, "quantization_config": None}) is AWQ
    with pytest.raises(InvalidInput, match=r"quantization_config: is \[4\], not an object"):
        quantisation_of({"quantization_config": [4]})
