"""From a quantised model's config to a pack whose kernels say how its weights are stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.client.conftest import Run
from tests.service.client.test_packs import CONFIG
from tuner.client import ExitCode
from tuner.packs.read import read_pack

pytestmark = pytest.mark.slow


def test_a_quantised_models_pack_says_how_its_weights_are_stored(run: Run, tmp_path: Path) -> None:
    output, config = tmp_path / "model.tunerpack", tmp_path / "config.json"
    how = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    sizes = {"hidden_size": 2048, "intermediate_size": 4096}
    config.write_text(json.dumps({**CONFIG, **sizes, "quantization_config": how}))
    command = ["tune-model", str(config), "--m", "1,2", "--trials", "6", "-o", str(output)]
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
