"""A misspelt or missing field of a model's config is named before anything is tuned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.client.test_models import CONFIGS, EXPECTED, config
from tests.unit.core.problem import test_quantisation
from tuner.client.cli import main
from tuner.client.models.fields import check_fields
from tuner.core.problem import quantisation
from tuner.core.problem.quantisation.said import NAMES
from tuner.errors import InvalidInput

LLAMA = config("llama_3_8b", attention_bias=False, rope_scaling={"rope_type": "linear", "factor": 2.0})
QUANTISED = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": True}}},
}


def renamed(given: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in given.items()}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("intermediate_size", "intermediat_size"),
        ("hidden_size", "hiden_size"),
        ("num_hidden_layers", "num_hidden_layer"),
        ("num_attention_heads", "Num_Attention_Heads"),
        ("num_key_value_heads", "num-key-value-heads"),
        ("hidden_act", "hidden_atc"),
        ("rms_norm_eps", "rms_norm_epsilon"),
        ("attention_bias", "atention_bias"),
        ("rope_scaling", "rope_scalling"),
        ("model_type", "modle_type"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_one_that_it_is_near_to(right: str, wrong: str) -> None:
    with pytest.raises(InvalidInput, match=f"did you mean {right}") as refused:
        check_fields(renamed({**LLAMA, "rms_norm_eps": 1e-5}, right, wrong), with_context=False)
    assert refused.value.field == wrong


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rope_scaling": {"rope_typ": "yarn"}}, "rope_scaling.rope_typ"),
        ({"rope_parameters": {"full_attention": {"rop_type": "yarn"}}}, "rope_parameters.full_attention.rop_type"),
        ({"quantization_config": renamed(QUANTISED, "desc_act", "desc_akt")}, "quantization_config.desc_akt"),
        ({"quantisation_config": QUANTISED}, "quantisation_config"),
        (
            {"quantization_config": json.loads(json.dumps(COMPRESSED).replace("symmetric", "symetric"))},
            "quantization_config.config_groups.group_0.weights.symetric",
        ),
    ],
)
def test_so_is_one_inside_an_object(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_fields({**LLAMA, **changes}, with_context=True)
    assert refused.value.field == field


def test_a_wrapped_configs_field_is_named_with_its_place() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "rope_scaling": None}
    with pytest.raises(InvalidInput) as refused:
        check_fields(
            {"model_type": "gemma3", "text_config": renamed(text, "hidden_size", "hidden_siz")}, with_context=True
        )
    assert refused.value.field == "text_config.hidden_siz"
    # Google's own configs omit the heads.
    assert "num_attention_heads 8" in check_fields({"model_type": "gemma3", "text_config": text}, with_context=True)


def test_another_size_with_one_more_word_is_no_misspelling() -> None:
    """DeepSeek's v_head_dim, without a head_dim."""
    given = {"model_type": "deepseek_v2", "v_head_dim": 128, "qk_rope_head_dim": 64, "n_routed_experts": 64}
    assert check_fields(given, with_context=True) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_a_public_config_is_not_refused_and_what_it_leaves_out_is_said(name: str) -> None:
    given = config(name)
    assert not {said.split()[0] for said in check_fields(given, with_context=True)} & given.keys()
    assert check_fields(given, with_context=False) == []


@pytest.mark.parametrize("name", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_size_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is missing") as refused:
        check_fields({key: value for key, value in LLAMA.items() if key != name}, with_context=True)
    assert refused.value.field == name


@pytest.mark.parametrize("command", ["tune-model FILE -o x", "estimate FILE --m 1"])
def test_both_commands_say_so_and_ask_nothing(command: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(renamed(LLAMA, "intermediate_size", "intermediate_sise")))
    result = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", *command.replace("FILE", str(file)).split()])
    assert result.exit_code == 2
    assert f"{file}: intermediate_sise: is unknown, and there is no intermediate_size; did you mean" in result.stderr
    file.write_text((CONFIGS / "llama_3_8b.json").read_text().replace("hidden_act", "act"))
    result = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", "tune-model", str(file), "-o", "x", "--tp", "3"])
    assert f"{file}: llama's defaults are used: hidden_act silu\n" in result.stderr


@pytest.mark.parametrize(
    ("given", "field"), [({"blocks": []}, "kind"), ({"kind": "conv", "bloks": []}, "bloks"), ({"kind": 3}, "kind")]
)
def test_a_description_of_layers_without_one_of_its_fields_is_still_one(
    given: dict[str, Any], field: str, tmp_path: Path
) -> None:
    file = tmp_path / "net.json"
    file.write_text(json.dumps(given))
    result = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", "tune-model", str(file), "-o", "x", "--m", "1"])
    assert f"{file}: {field}: " in result.stderr


@pytest.mark.parametrize("name", ["GPTQ", "AWQ", "FP8", "DEEPSEEK", "FBGEMM", "MODELOPT", "MODELOPT_FILE", "GPT_OSS"])
def test_a_public_quantisation_is_not_refused(name: str) -> None:
    check_fields({**LLAMA, "quantization_config": getattr(test_quantisation, name)}, with_context=False)
    of_groups = {"config_groups": {"group_0": {"weights": test_quantisation.TOKENS, "output_activations": None}}}
    check_fields({**LLAMA, "quantization_config": of_groups}, with_context=False)


def test_every_field_of_a_quantisation_that_is_read_is_known() -> None:
    folder = Path(quantisation.__path__[0])
    read = {name for path in folder.glob("*.py") for name in re.findall(r'\.get\("(\w+)"', path.read_text())}
    assert read <= NAMES
    assert {"desc_act", "input_activations", "q_group_size"} <= read
