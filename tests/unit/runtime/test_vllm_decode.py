"""A decode step with a pack's layers: which steps they compute, and the arguments of their launches, over a recorder of
driver calls. Requires PyTorch."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.attention_packs import made_of
from tests.support.attentions import space_with
from tests.support.native.recorder import Recorder
from tests.support.packs import TILINGS, make
from tests.support.presets import LayerRun, decoder_layer
from tests.support.repository import ROOT
from tests.unit.runtime.test_python import Interfaced
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.packs.contents import Kernel
from tuner.runtime import load_layer
from tuner.runtime.binding import native
from tuner.search.guesses.seeds import first_guesses

torch = pytest.importorskip("torch")

BATCH, BLOCKS, TOKENS, NUM_LAYERS, MAX_LENGTH = 4, 6, 16, 3, 96
#: Our modules that import vLLM.
OF_STUB = ("tuner.vllm.decode", "tuner.vllm.runs")
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER = 32, 8, 128, 4096, 14336


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> Iterator[Any]:
    """The module, over the stub that is named vLLM."""
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "vllm"}
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "support" / "vllm_stub"))
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    recorder.cuda.fake_parameter_bytes(64)
    for name in OF_STUB:  # they have imported the stub's classes
        sys.modules.pop(name, None)
    module = importlib.import_module("tuner.vllm.decode")
    module.calls.clear()
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm" or name in OF_STUB]:
        del sys.modules[name]
    sys.modules.update(own)


def empty(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    """Memory that is never written takes no physical memory."""
    return torch.empty(shape, dtype=dtype)


class Norm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = torch.ones(HIDDEN, dtype=torch.bfloat16), 1e-5


class Written:
    """vLLM's attention, with a cache that has tokens before heads, and keys next to values."""

    def __init__(self, place: int) -> None:
        memory = torch.zeros(BLOCKS, TOKENS, KV_HEADS, 2 * HEAD_DIM, dtype=torch.bfloat16)
        self.kv_cache, self.layer_name, self.impl, self.written = memory.transpose(1, 2), f"layers.{place}", self, 0

    def do_kv_cache_update(self, layer: Any, keys: Any, values: Any, cache: Any, slots: Any) -> None:
        assert keys.shape == values.shape == (BATCH, KV_HEADS, HEAD_DIM)
        self.written += 1


def model_of() -> Any:
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    rotary = SimpleNamespace(
        _compute_inv_freq=lambda base: torch.ones(HEAD_DIM // 2), base=1e4, forward_native=lambda at, q, k: (q, k)
    )
    product = lambda *sizes: SimpleNamespace(weight=empty(*sizes), bias=None)  # noqa: E731
    layers = []
    for place in range(NUM_LAYERS):
        attention = SimpleNamespace(
            qkv_proj=product(width, HIDDEN), o_proj=product(HIDDEN, HEADS * HEAD_DIM), rotary_emb=rotary,
            head_dim=HEAD_DIM, q_size=HEADS * HEAD_DIM, kv_size=KV_HEADS * HEAD_DIM, attn=Written(place),
        )  # fmt: skip
        mlp = SimpleNamespace(gate_up_proj=product(2 * INNER, HIDDEN), down_proj=product(HIDDEN, INNER))
        layers.append(SimpleNamespace(self_attn=attention, mlp=mlp, input_layernorm=Norm()))
    qkv = layers[0].self_attn.qkv_proj
    layers[0].self_attn.qkv_proj = lambda x: (torch.zeros(len(x), width, dtype=x.dtype), None)
    layers[0].self_attn.qkv_proj.weight, layers[0].self_attn.qkv_proj.bias = qkv.weight, None  # type: ignore[attr-defined]
    inner = SimpleNamespace(
        layers=layers, norm=Norm(), embed_input_ids=lambda ids: torch.zeros(len(ids), HIDDEN, dtype=torch.bfloat16)
    )
    return SimpleNamespace(
        model=inner, forward=lambda *given, **others: "vLLM's own", load_weights=lambda weights: None
    )


def step(decoder: Any, **changes: Any) -> Any:
    """The context of a decode step, as vLLM sets it."""
    import vllm.forward_context
    from vllm.config import CUDAGraphMode

    metadata = SimpleNamespace(
        max_query_len=changes.get("max_query_len", 1),
        seq_lens=torch.ones(changes.get("sequences", BATCH), dtype=torch.int32),
        block_table=torch.zeros(BATCH, 7, dtype=torch.int32),
        use_cascade=changes.get("use_cascade", False),
    )
    names = [one.layer_name for one in decoder.model.attentions]
    of_layers = dict.fromkeys(names, metadata) if changes.get("has_metadata", True) else None
    vllm.forward_context.current = SimpleNamespace(
        cudagraph_runtime_mode=CUDAGraphMode[changes.get("mode", "FULL")],
        attn_metadata=of_layers,
        slot_mapping={name: torch.zeros(BATCH, dtype=torch.int64) for name in names},
    )
    return metadata


def asked(run: LayerRun) -> Workload:
    sizes = {"sequences": BATCH, "max_length": MAX_LENGTH, "page_tokens": TOKENS, "heads_first": False}
    return decoder_layer("llama3-8b", dtype=Dtype.BF16, run=run, **sizes)


def kernel_of(run: LayerRun) -> Kernel:
    workload = asked(run)
    if run is LayerRun.MLP:
        return make(PlanKind.FUSED_PDL, TILINGS[Engine.SIMT], workload=workload).kernel
    schedule = next(iter(first_guesses(space_with(workload), 0)))
    return made_of(workload, Candidate(plan_kind=PlanKind.N_LAUNCHES_PDL, schedule=schedule)).kernel


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[LayerRun, Path]:
    """Artifacts of a whole layer, and of its two runs."""
    folder, found = tmp_path_factory.mktemp("artifacts"), {}
    for run in (LayerRun.LAYER, LayerRun.QKV_ATTENTION, LayerRun.MLP):
        found[run] = folder / f"{run}.zip"
        with zipfile.ZipFile(found[run], "w") as archive:
            for name, data in kernel_of(run).files.items():
                archive.writestr(name, data)
    return found


@pytest.fixture
def artifact(artifacts: dict[LayerRun, Path]) -> Path:
    return artifacts[LayerRun.LAYER]


class OnTheRecorder:
    """A program whose tensors appear to be on a GPU."""

    def __init__(self, path: Path) -> None:
        self._program = load_layer(path)
        self.shape = self._program.shape
        self.given: list[dict[str, Any]] = []

    def bind(self, tensors: Any) -> Any:
        self.given.append(dict(tensors))
        bits = {name: one.view(torch.uint16) if one.dtype is torch.bfloat16 else one for name, one in tensors.items()}
        return self._program.bind({name: Interfaced(one.numpy()) for name, one in bits.items()})


def test_a_step_is_the_launches_of_all_layers_and_others_stay_vllms(
    decode: Any, recorder: Recorder, artifact: Path
) -> None:
    program, model = OnTheRecorder(artifact), model_of()
    given = program.given
    decode.install(model, {BATCH: (program,)})
    decoder = model.forward.__self__
    metadata, ids, positions = step(decoder), torch.zeros(BATCH, dtype=torch.int64), torch.arange(BATCH)
    recorder.clear()
    with torch.inference_mode():
        assert model.forward(ids, positions).shape == (BATCH, HIDDEN)
        launched = len(recorder.calls("cuLaunchKernelEx"))
        assert launched == 5 * NUM_LAYERS
        model.forward(ids, positions)
    assert len(given) == NUM_LAYERS, "launches over the same tensors are kept"
    assert decode.calls["layers"] == 2 * NUM_LAYERS
    attentions = [layer.self_attn.attn for layer in model.model.layers]
    assert [one.written for one in attentions] == [2, 0, 0], "a layer's qkv writes to the next one's cache"
    for place, tensors in enumerate(given):
        assert tensors["attention.lengths"] is metadata.seq_lens
        assert tensors["attention.keys"].data_ptr() == attentions[place].kv_cache.data_ptr()
        assert tensors["attention.values"].data_ptr() == attentions[place].kv_cache.data_ptr() + 2 * HEAD_DIM
        assert tensors["residual"].data_ptr() == given[place - 1]["down"].data_ptr() or place == 0
    *before, last = given
    for place, tensors in enumerate(before):
        assert tensors["qkv.keys"].data_ptr() == attentions[place + 1].kv_cache.data_ptr()
        assert tensors["qkv.lengths"] is metadata.seq_lens
    assert not last["qkv.lengths"].any(), "behind the last layer nothing is written"
    for changes in (
        {"mode": "PIECEWISE"},
        {"max_query_len": 2},
        {"use_cascade": True},
        {"has_metadata": False},
        {"sequences": BATCH - 1},
    ):
        step(decoder, **changes)
        assert model.forward(ids, positions) == "vLLM's own", changes
    step(decoder)
    assert model.forward(ids[:2], positions[:2]) == "vLLM's own"
    assert model.forward(ids, positions, object()) == "vLLM's own"
    with pytest.raises(NotImplementedError, match="norms are folded into the weights of this model"):
        model.load_weights(())


def test_between_all_reduces_a_step_is_two_runs_a_layer(
    decode: Any, recorder: Recorder, artifacts: dict[LayerRun, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tuner.vllm.runs

    reduced: list[Any] = []
    monkeypatch.setattr(
        tuner.vllm.runs, "tensor_model_parallel_all_reduce", lambda rows: reduced.append(rows) or torch.ones_like(rows)
    )
    attention, mlp = (OnTheRecorder(artifacts[run]) for run in (LayerRun.QKV_ATTENTION, LayerRun.MLP))
    model = model_of()
    first = model.model.layers[0].self_attn.qkv_proj
    decode.install(model, {BATCH: (attention, mlp)})
    decoder = model.forward.__self__
    metadata = step(decoder)
    recorder.clear()
    with torch.inference_mode():
        rows = model.forward(torch.zeros(BATCH, dtype=torch.int64), torch.arange(BATCH))
    assert len(recorder.calls("cuLaunchKernelEx")) == (3 + 1) * NUM_LAYERS
    assert [one.data_ptr() for one in reduced] == NUM_LAYERS * [
        attention.given[0]["o_proj"].data_ptr(), mlp.given[0]["down"].data_ptr()
    ]  # fmt: skip
    for place, tensors in enumerate(attention.given):
        cache = model.model.layers[place].self_attn.attn.kv_cache
        assert tensors["attention.keys"].data_ptr() == cache.data_ptr()
        assert tensors["attention.lengths"] is metadata.seq_lens
        assert tensors["residual"] is mlp.given[place]["residual"]
    assert attention.given[0]["qkv.w"].shape == first.weight.shape, "the first layer's qkv is the program's too"
    # Each of six sums of ones was added to a stream of zeros.
    assert torch.equal(attention.given[0]["residual"], torch.full((BATCH, HIDDEN), 6.0, dtype=torch.bfloat16))
    assert torch.equal(attention.given[0]["residual.squares"][:BATCH], torch.full((BATCH,), 36.0 * HIDDEN))
    assert torch.allclose(rows.float(), torch.ones(BATCH, HIDDEN), atol=2**-7)
    assert [layer.self_attn.attn.written for layer in model.model.layers] == [0, 0, 0], "each qkv writes by itself"


def test_a_program_that_does_not_fit_leaves_its_steps_to_vllm(
    decode: Any, artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of()
    decode.install(model, {BATCH: (load_layer(artifact),)})  # for a card, while the tensors are on the CPU
    step(model.forward.__self__)
    ids = torch.zeros(BATCH, dtype=torch.int64)
    with torch.inference_mode():
        assert model.forward(ids, torch.arange(BATCH)) == "vLLM's own"
        assert model.forward(ids, torch.arange(BATCH)) == "vLLM's own"
    assert caplog.text.count(f"layers of {BATCH} sequences keep vLLM's implementation: ") == 1
