"""`tuner.runtime.patch` on a GPU: a pack's attentions and layers in a small model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner.runtime
from tests.support.attention_packs import schedule_of
from tests.support.attentions import attention
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.packs_on_card import attention_on_card
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.packs.contents import Entry, Rung
from tuner.packs.write import write_pack
from tuner.workers.builder.nvrtc import Builder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
#: Warnings of PyTorch's modules, which transformers imports.
pytestmark = pytest.mark.filterwarnings("ignore")

SEQUENCES, LENGTH, TOKENS = 4, 512, 12
#: Relative, of the logits: a few roundings to bf16.
LOGITS_BAND = 0.05
CONFIG = {
    "vocab_size": 97, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(params=["attentions", "layers"])
def pack(request: pytest.FixtureRequest, builder: Builder, gpu: Gpu, tmp_path: Path) -> tuple[str, Path]:
    """A part of a model, and a pack with kernels for it."""
    torch.zeros(1, device="cuda")  # a context
    if request.param == "layers":
        workload = between(sequences=SEQUENCES, dtype=Dtype.BF16, num_behind=3)
        candidate = candidate_of(workload, PlanKind.N_LAUNCHES_PDL)
    else:
        sizes: dict[str, Any] = {"sequences": SEQUENCES, "query_heads": 2, "max_length": LENGTH}
        workload = attention(d_out=256, kv_heads=2, head_dim=64, **sizes)
        schedule = schedule_of(workload, engine=Engine.SIMT)
        candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=schedule)
    kernel, path = attention_on_card(builder, gpu, workload, candidate), tmp_path / "model.tunerpack"
    rung = Rung(m_lo=SEQUENCES, m_hi=SEQUENCES, max_length=LENGTH, kernel=kernel)
    write_pack([Entry(shape=kernel.shape, rungs=(rung,))], path)
    return request.param, path


def model_of() -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**CONFIG)
    return transformers.LlamaForCausalLM(config).to(dtype=torch.bfloat16, device="cuda").eval()


def logits_of(model: Any) -> Any:
    """Of steps with given tokens, after a prefill of three tokens, over a static cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH)
    given = (torch.arange(SEQUENCES * (3 + TOKENS), device="cuda").view(SEQUENCES, -1) * 7) % 90 + 3
    with torch.inference_mode():
        model(given[:, :3], past_key_values=cache, use_cache=True)
        steps = [model(given[:, [3 + at]], past_key_values=cache, use_cache=True).logits for at in range(TOKENS)]
    return torch.stack(steps).float()


def test_decode_steps_run_the_packs_kernels(pack: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner.runtime import torch_attention, torch_layer

    part, path = pack
    before, model = logits_of(model_of()), model_of()
    patched = tuner.runtime.patch(model, path)
    assert f"2 of 2 {part} run them in steps of {SEQUENCES} x {LENGTH}" in str(patched)

    def never(*_: Any) -> Any:
        raise AssertionError("PyTorch's operators ran")

    for module in (torch_attention, torch_layer):
        monkeypatch.setattr(module, "by_torch", never)
    ours = logits_of(model)
    assert float((ours - before).norm() / before.norm()) < LOGITS_BAND
    assert not torch.equal(ours, before)


def test_sizes_that_the_pack_does_not_have_are_computed_by_transformers(pack: tuple[str, Path]) -> None:
    _, path = pack
    model, tokens = model_of(), torch.arange(6, device="cuda").view(2, 3) + 7
    how = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    before = model.generate(tokens, **how)
    tuner.runtime.patch(model, path)
    assert torch.equal(model.generate(tokens, **how)[:, :4], before[:, :4])
