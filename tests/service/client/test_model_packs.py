"""From configs of models with attentions or quantised weights to packs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.client.conftest import Run
from tests.service.client.test_packs import CONFIG, TARGET
from tuner.client import ExitCode
from tuner.packs.read import read_pack

pytestmark = pytest.mark.slow


# In CI, test_packs.py has a model's pack, tests/unit/client the MLPs of a quantised one and the refusal.
@pytest.mark.soak
def test_a_quantised_models_pack_says_how_its_weights_are_stored(run: Run, tmp_path: Path) -> None:
    output, config = tmp_path / "model.tunerpack", tmp_path / "config.json"
    how = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    sizes = {"hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 16}
    config.write_text(json.dumps({**CONFIG, **sizes, "quantization_config": how}))
    command = ["tune-model", str(config), "--m", "1,2", "--trials", "6", *TARGET, "-o", str(output)]
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    assert "silu gated, int4_g128_zp weights, 16-bit activations: 2 layers, 2 row counts" in done.stderr
    [entry] = read_pack(output.read_bytes()).section("chains")
    assert str(entry.shape) == "fp16 2048 -> up 4096 gated silu int4_g128_zp -> down 2048 int4_g128_zp"
    kernels = [rung.kernel for rung in entry.rungs if rung.kernel]
    assert kernels
    said = {(one["name"], one["stored"]["format"]) for k in kernels for one in k.manifest["tensors"] if "stored" in one}
    assert said == {("up.w", "int4_g128_zp"), ("down.w", "int4_g128_zp")}
    refused = run(*command, "--context", "64")
    assert (refused.exit_code, "quantised by awq" in refused.stderr) == (ExitCode.USAGE, True)


# In CI, test_packs.py has a pack of a model, and tests/unit/client/test_tune_model.py its attentions and refusals.
@pytest.mark.soak
def test_a_models_config_gives_its_attentions_too(run: Run, tmp_path: Path) -> None:
    output, path = tmp_path / "model.tunerpack", tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "num_attention_heads": 4, "num_key_value_heads": 2}))
    command = ["tune-model", str(path), "--m", "2,1", "--trials", "3", *TARGET, "-o", str(output)]
    done = run(*command, "--context", "300", "--page-tokens", "16")
    assert done.exit_code == 0, done.stderr
    assert "attention: 1 x 300 tokens, its projection" in done.stderr
    assert "trials; 4 of 4 jobs" in done.stderr
    pack = read_pack(output.read_bytes())
    [table_of] = pack.section("attentions")
    assert str(table_of.shape) == "fp16 attention, 4 heads of 64 over 2, pages of 16, projection to 256"
    assert [(rung.m_hi, rung.max_length) for rung in table_of.rungs] == [(1, 300), (2, 300)]
    one = [*command[:2], "--m", "1", "--trials", "3", *TARGET, "-o", str(output), "--context", "300"]
    served = ("--lengths", "uniform", "--timed-length", "100")
    whole = run(*one, "--layers", "--page-tokens", "16", "--tokens-first", *served)
    assert whole.exit_code == 0, whole.stderr
    assert "attention, o_proj, gate_up, down, qkv: 1 x 300 tokens" in whole.stderr
    shapes = [entry.shape for entry in read_pack(output.read_bytes()).entries]
    assert ([shape.section for shape in shapes], str(shapes[1])[-12:]) == (["shapes", "layers"], "tokens first")
    for more, words in (
        (["--blocks"], "--blocks covers all ops of a block: use it with --context"),
        (["--with-qkv"], "--with-qkv applies to attentions: add --context"),
        (["--page-tokens", "16"], "add --context"),
        (["--context", "300", "--batch-invariant"], "cannot be batch-invariant"),
        (["--layers"], "--layers covers whole layers: use it with --context, and without --with-qkv and --blocks"),
        (["--context", "300", "--tokens-first"], "--tokens-first applies to a paged cache: add --page-tokens"),
        (["--lengths", "uniform"], "--lengths needs contexts: add --context"),
        (["--timed-length", "9"], "--timed-length needs contexts: add --context, which must be at least as long"),
        (["--context", "300", "--timed-length", "301"], "add --context, which must be at least as long"),
    ):
        refused = run(*command, *more)
        assert (refused.exit_code, words in refused.stderr) == (ExitCode.USAGE, True), refused.stderr


@pytest.mark.soak
def test_a_models_config_gives_its_blocks_and_those_of_a_rank(run: Run, tmp_path: Path) -> None:
    """In CI, `tests/unit/client/test_model_attention.py` reads the shapes of blocks from configs, and the test above
    tunes layers, which are blocks in another order."""
    output, path = tmp_path / "model.tunerpack", tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "num_attention_heads": 4, "num_key_value_heads": 2}))
    command = ["tune-model", str(path), "--m", "1", "--trials", "4", *TARGET, "-o", str(output)]
    command += ["--context", "300", "--blocks"]
    blocks = run(*command)
    assert blocks.exit_code == 0, blocks.stderr
    assert "qkv, attention, o_proj, gate_up, down: 1 x 300 tokens" in blocks.stderr
    [block] = read_pack(output.read_bytes()).entries
    assert (block.shape.section, block.at(1, 300) is not None) == ("layers", True)
    runs = run(*command, "--tp", "2")
    assert runs.exit_code == 0, runs.stderr
    assert [entry.shape.section for entry in read_pack(output.read_bytes()).entries] == ["layers", "chains"]
