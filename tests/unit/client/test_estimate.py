"""`tuner-client estimate` reports the expected gain and its source, without asking a service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import TypeAdapter

from tuner.client import ExitCode
from tuner.client.cli import main
from tuner.client.commands import estimate as command
from tuner.client.terminal import render
from tuner.core.problem.workload import Activation, Dtype
from tuner.estimate import Basis, Estimator, estimator_of
from tuner.ops.gemm.pairs import ffn_pair
from tuner.winners.shipped import ShippedWinners
from tuner.wire.requests.pairs import Asked as AskedPair
from tuner.wire.requests.pairs import workload_of

CONFIGS = Path(__file__).with_name("configs")
#: One rank's MLP of Llama-3-8B, which has built-in finals.
KNOWN = {"d_in": 4096, "d_hidden": 14336, "d_out": 4096, "activation": Activation.SILU, "gated": True}


def asked(*command: str) -> Result:
    return CliRunner().invoke(main, ["--url", "http://127.0.0.1:9", "estimate", *command])


def write(path: Path, **config: Any) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path / "config.json")


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports of the estimating program take seconds, so only the tests marked with `usefixtures("program")` start
    it."""
    if "program" not in request.fixturenames:
        monkeypatch.setattr(command, "_run", answered)


@pytest.fixture
def program() -> None:
    """For tests that start the estimating program."""


def answered(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The output of the estimating program for a known card."""
    estimator, read = estimator_of(asked["target"]), TypeAdapter(AskedPair).validate_python
    return [estimator.of(workload_of(read(pair))).to_json() for pair in asked["pairs"]]


@pytest.fixture(scope="module")
def h200() -> Estimator:
    return estimator_of("h200")


def test_finals_of_the_very_problem_are_taken_as_they_are(h200: Estimator) -> None:
    found = h200.of(ffn_pair(m=16, **KNOWN))
    [finals] = [one for name, one in ShippedWinners().finals("h200").items() if name == f"{found.words}"]
    assert found.basis is Basis.MEASURED
    assert (found.library_us, found.ours_us) == (finals.library_us, finals.ours_us)


def test_of_a_problem_like_one_the_gain_is_the_same_and_times_go_with_the_bytes(h200: Estimator) -> None:
    known, near = h200.of(ffn_pair(m=16, **KNOWN)), h200.of(ffn_pair(m=16, **{**KNOWN, "d_hidden": 12288}))
    assert near.basis is Basis.NEAR
    assert None not in (known.library_us, known.ours_us, near.library_us, near.ours_us)
    assert near.library_us / near.ours_us == pytest.approx(known.library_us / known.ours_us)  # type: ignore[operator]
    assert near.library_us / known.library_us == pytest.approx(12288 / 14336, rel=0.01)  # type: ignore[operator]
    other = h200.of(ffn_pair(m=16, **KNOWN, dtype=Dtype.BF16))
    assert (other.basis, other.library_us) == (Basis.NEAR, known.library_us)


def test_of_another_problem_the_simulator_answers_for_the_library_too(h200: Estimator) -> None:
    found = h200.of(ffn_pair(m=16, d_in=1024, d_hidden=2816, d_out=1024, activation=Activation.SILU, gated=True))
    assert found.basis is Basis.SIMULATED
    assert found.library_us is not None
    assert found.ours_us is not None
    assert 0.5 < found.library_us / found.ours_us < 2
    assert "the simulator" in found.words


# In CI, the MLPs of a quantised model are estimated.
@pytest.mark.soak
def test_of_a_card_without_winners_first_guesses_are_forecast(h200: Estimator) -> None:
    found = Estimator(h200._gpu, (), {}).of(ffn_pair(m=16, **KNOWN))
    assert found.basis is Basis.SIMULATED
    assert "a first candidate of a search" in found.words
    assert found.ours_us is not None
    assert 60 < found.ours_us < 200


def test_what_no_kernel_computes_has_no_estimate(h200: Estimator) -> None:
    found = h200.of(ffn_pair(m=16, d_in=1027, d_hidden=1027, d_out=1027, dtype=Dtype.FP8_E4M3))
    assert (found.basis, found.library_us) == (Basis.NONE, None)
    assert found.words


# In CI, the MLPs of a quantised model are estimated.
@pytest.mark.soak
@pytest.mark.usefixtures("program")
def test_attentions_are_estimated_with_their_layers() -> None:
    config = str(CONFIGS / "llama_3_8b.json")
    found = asked(config, "--m", "2", "--context", "1024", "--page-tokens", "16", "--json")
    assert found.exit_code == 0, found.output
    ffn, attention = map(json.loads, found.stdout.splitlines())
    assert ffn["shape"].startswith("bf16 4096")
    assert (attention["shape"], attention["layers"]) == ("attention: 2 x 1024 tokens, its projection", 32)
    assert attention["basis"] == "simulated"


def test_where_the_library_won_nothing_is_saved() -> None:
    found = asked(str(CONFIGS / "llama_3_8b.json"), "--dtype", "fp16", "--m", "1,16", "--json", "--min-gain", "9")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["saved_us"] for line in lines] == [0.0, 0.0]
    assert all(line["speedup"] > 1 for line in lines)


def test_a_models_gain_is_that_of_all_its_layers_and_each_line_says_from_where() -> None:
    found = asked(str(CONFIGS / "llama_3_8b.json"), "--dtype", "fp16", "--m", "1,16", "--json")
    assert found.exit_code == 0, found.output
    for line in map(json.loads, found.stdout.splitlines()):
        assert line["basis"] == "measured"
        assert line["saved_us"] == pytest.approx(32 * (line["library_us"] - line["ours_us"]))
    table = asked(str(CONFIGS / "llama_3_8b.json"), "--mix", "1:1,16:3").stdout
    assert "nothing was measured for this model" in table
    assert "near: shipped decode-swiglu/llama3-8b/m16" in table
    assert "a step of the mix saves" in table
    assert "from other shapes, or from the simulator: 2 of 2 figures" in table


def test_the_shares_of_a_mix_weigh_what_its_steps_save(monkeypatch: pytest.MonkeyPatch) -> None:
    def saving_10_us_a_row(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        known = {"basis": "measured", "words": "", "library_us": 1000.0}
        return [known | {"ours_us": 1000.0 - 10.0 * pair["m"]} for pair in asked["pairs"]]

    monkeypatch.setattr(command, "_run", saving_10_us_a_row)
    for mix, saved in (("1:5", 10.0), ("64:1", 640.0), ("1:1,64:3", (10.0 + 3 * 640.0) / 4)):
        found = asked(str(CONFIGS / "llama_3_8b.json"), "--min-gain", "0", "--mix", mix)
        said = f"a step of the mix saves {render.microseconds(32 * saved)}, and so does each token of a sequence"
        assert found.stdout.splitlines()[-1] == said


# In CI, the test above has shares.
@pytest.mark.soak
def test_a_mix_weighs_the_steps() -> None:
    def saved(mix: str) -> float:
        line = asked(str(CONFIGS / "llama_3_8b.json"), "--mix", mix).stdout.splitlines()[-2]
        return float(line.split("saves ")[1].split(" ")[0].replace(",", ""))

    one, many = saved("1:5"), saved("64:1")
    assert saved("1:1,64:3") == pytest.approx((one + 3 * many) / 4, abs=0.2)


@pytest.mark.parametrize("mix", ["", "1", "1:0", "1:-1", "0:1", "1:1,1:2", "1:x", "1:inf", "x:1", "1:nan"])
def test_what_is_no_mix_is_refused_with_an_example(mix: str) -> None:
    found = asked(str(CONFIGS / "llama_3_8b.json"), "--mix", mix)
    assert found.exit_code == ExitCode.USAGE
    assert "is not a mix: write each number of rows once" in found.stderr


MIXTURE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


def test_of_a_mixture_of_experts_shared_experts_and_attention_remain(tmp_path: Path) -> None:
    found = asked(write(tmp_path, **MIXTURE), "--m", "16", "--json")
    assert found.exit_code == 0, found.output
    [line] = map(json.loads, found.stdout.splitlines())
    assert (line["shape"], line["layers"]) == ("bf16 2048 -> 5632 -> 2048 silu gated", 24)
    assert "num_experts: is 60: qwen2_moe is a mixture of experts" in found.stderr
    assert "the attention, and o_proj after it, and qkv before it, in 24 layers" in found.stderr
    assert "the shared experts: bf16 2048 -> 5632 -> 2048 silu gated, in 24 of 24 layers" in found.stderr


# In CI, the MLPs of a quantised model are estimated.
@pytest.mark.soak
def test_dense_layers_of_one_are_counted_and_its_latent_attention_is_none(tmp_path: Path) -> None:
    deep = {**MIXTURE, "model_type": "deepseek_v3", "first_k_dense_replace": 3, "n_shared_experts": 1}
    deep |= {"kv_lora_rank": 512, "shared_expert_intermediate_size": None}
    found = asked(write(tmp_path, **deep), "--m", "16", "--json")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(line["shape"].split(" silu")[0], line["layers"]) for line in lines] == [
        ("bf16 2048 -> 5632 -> 2048", 3),
        ("bf16 2048 -> 1408 -> 2048", 21),
    ]
    assert "no attention: no kernel supports latent attention (kv_lora_rank)" in found.stderr


@pytest.mark.slow
def test_the_mlps_of_a_quantised_model_are_estimated_as_tune_model_tunes_them(tmp_path: Path) -> None:
    llama = json.loads((CONFIGS / "llama_3_8b.json").read_text())
    how = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    found = asked(write(tmp_path, **llama, quantization_config=how), "--m", "16", "--json")
    assert found.exit_code == 0, found.output
    [line] = map(json.loads, found.stdout.splitlines())
    assert (line["shape"], line["layers"]) == (
        "bf16 4096 -> 14336 -> 4096 silu gated, int4_g128 weights, 16-bit activations",
        32,
    )
    assert line["ours_us"] > 0


def test_of_a_model_quantised_in_an_unknown_way_the_attention_remains(tmp_path: Path) -> None:
    llama = json.loads((CONFIGS / "llama_3_8b.json").read_text())
    found = asked(write(tmp_path, **llama, quantization_config={"quant_method": "bitsandbytes"}), "--m", "16")
    assert found.exit_code == ExitCode.NO_RESULT
    assert "quantization_config.quant_method: is bitsandbytes" in found.stderr
    assert "the attention, whose keys and values are not quantised, in 32 layers" in found.stderr
    assert "no product: its weights are quantised" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, "attention: 2 x 256 tokens, its projection"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "attention: 2 x 256 tokens, no projection, since o_proj has a bias or is quantised",
        ),
    ],
)
def test_with_a_context_the_attention_that_remains_is_estimated(
    tmp_path: Path, changes: dict[str, Any], shape: str
) -> None:
    config = write(tmp_path, **{**MIXTURE, "shared_expert_intermediate_size": None, **changes})
    found = asked(config, "--m", "2", "--context", "256", "--json")
    assert found.exit_code == 0, found.output
    [line] = map(json.loads, found.stdout.splitlines())
    assert (line["shape"], line["layers"], line["basis"]) == (shape, 24, "simulated")
    assert line["ours_us"] > 0
    assert "contexts are estimated without windows" in found.stderr


def test_with_a_context_a_latent_attention_is_said_to_have_no_kernel(tmp_path: Path) -> None:
    found = asked(write(tmp_path, **{**MIXTURE, "kv_lora_rank": 512}), "--m", "2", "--context", "256", "--json")
    assert "kv_lora_rank: the model has latent attention, which no kernel supports" in found.stderr
    assert "ops with a context are not estimated" in found.stderr


def test_an_unknown_family_is_refused_as_it_was(tmp_path: Path) -> None:
    found = asked(write(tmp_path, model_type="rwkv", hidden_size=64), "--m", "16")
    assert found.exit_code == ExitCode.USAGE
    assert "model_type: is 'rwkv', whose feed-forward block is not supported" in found.stderr


def test_a_shared_expert_that_the_ranks_do_not_divide_is_said(tmp_path: Path) -> None:
    found = asked(write(tmp_path, **{**MIXTURE, "shared_expert_intermediate_size": 1001}), "--m", "16", "--tp", "2")
    assert "the shared experts: 1001 columns are not a multiple of tp 2" in found.stderr
    assert found.exit_code == ExitCode.NO_RESULT


def test_two_cards_have_estimates_of_their_own() -> None:
    problem = ffn_pair(m=64, **KNOWN)
    assert estimator_of("h100").of(problem).library_us != estimator_of("h200").of(problem).library_us


def test_a_described_network_is_estimated_by_its_images(tmp_path: Path) -> None:
    """Its first layer has three channels, which only engines without calculated first guesses support."""
    stem = {"name": "conv", "out_channels": 32, "kernel_size": 7, "stride": 2, "activation": "relu"}
    block = {"name": "stem", "height": 32, "width": 32, "in_channels": 3, "layers": [stem]}
    network = write(tmp_path, kind="conv", blocks=[block])
    found = asked(network, "--mix", "2:1", "--json")
    assert found.exit_code == 0, found.output
    (gain,) = map(json.loads, found.stdout.splitlines())
    assert (gain["shape"], gain["m"], gain["basis"]) == ("stem", 2, "simulated")
    assert 1 < gain["ours_us"] < 100
    unsaid = asked(network)
    assert (unsaid.exit_code, "pass --m, the number of images" in unsaid.stderr) == (ExitCode.USAGE, True)
    wrong = asked(write(tmp_path, kind="conv", blocks=[block | {"in_channels": 0}]), "--m", "1")
    assert "blocks[0].in_channels: is 0; use 1 to 32768" in wrong.stderr
