"""A pack's kernels in vLLM: the MLPs of dense models, through vLLM's public plugin interface.

Put this file into a package of yours, and name its function in that package's pyproject.toml:

    [project.entry-points."vllm.general_plugins"]
    tuner = "vllm_plugin:register"

Then, with the pack of `tuner-client tune-model config.json --tp TP --m vllm -o llama.tunerpack`:

    TUNER_PACK=llama.tunerpack vllm serve meta-llama/Meta-Llama-3-8B --load-format tuner --tensor-parallel-size TP

`register` gives vLLM a load format of its own. Its loader loads the weights as vLLM would: by `auto`, or by the format
that `--model-loader-extra-config '{"load_format": "dummy"}'` names. Behind that it replaces the MLPs of `FAMILIES`, in
multimodal models and draft models too. One line says how many run the pack's kernels, and each reason why others do
not. Without TUNER_PACK nothing is replaced. On several ranks each has the kernels of its shard, and the outputs are
summed behind them.

The graph of a layer names no kernel: the operator finds it by the weights. So equal layers are compiled once. vLLM's
compile cache knows the pack by its bytes. Weights that are loaded again in place keep their kernels; where they lie
elsewhere afterwards, vLLM's own products compute them.

It was run inside vLLM 0.26 on a CPU by `tests/vllm`, which compares tokens with vLLM's own. There the operator computes
by PyTorch's products.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

#: The MLPs whose whole computation is down(activation(gate) * up), by module and class of vLLM.
FAMILIES = {
    ("gemma", "GemmaMLP"),
    ("gemma2", "Gemma2MLP"),
    ("gemma3", "Gemma3MLP"),
    ("llama", "LlamaMLP"),  # Phi-3 as well
    ("mistral", "MistralMLP"),
    ("qwen2", "Qwen2MLP"),  # Qwen 3 as well
}
#: Of the loader's extra config: the format by which the weights are loaded.
INNER_FORMAT = "load_format"

#: The number of `torch.ops.tuner.ffn` for weights, by `_key_of`.
_numbers: dict[tuple[Any, ...], int] = {}
#: How often a kernel of the pack was launched or captured.
launches: Counter[str] = Counter()


def register() -> None:
    """Called by vLLM in each process, perhaps more than once."""
    from vllm.model_executor.model_loader import get_model_loader, register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    _define_operator()

    class PackedLoader(BaseModelLoader):
        """The loader of the inner format; then the MLPs are replaced."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            extra = dict(load_config.model_loader_extra_config)
            inner_format = extra.pop(INNER_FORMAT, "auto")
            if inner_format == load_config.load_format:
                raise ValueError(f"{INNER_FORMAT}: {inner_format!r} is this plugin's own: name one of vLLM's, or none")
            inner = replace(load_config, load_format=inner_format, model_loader_extra_config=extra)
            self.inner = get_model_loader(inner)
            #: By the MLP's name, before vLLM lays weights out anew: its two weights, or why it stays vLLM's own.
            self.mlps: dict[str, tuple[Any, Any] | str] = {}

        def download_model(self, model_config: Any) -> None:
            self.inner.download_model(model_config)

        def load_weights(self, model: Any, model_config: Any) -> None:
            self.inner.load_weights(model, model_config)
            for name, mlp in _mlps(model):
                self.mlps[name] = _reason_against(mlp) or (mlp.gate_up_proj.weight, mlp.down_proj.weight)

        def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
            if not os.environ.get("TUNER_PACK"):
                return self.inner.load_model(vllm_config, model_config, prefix)
            if reason := self._reason_against_all(vllm_config, model_config):
                print(f"tuner: the MLPs stay vLLM's own: {reason}", flush=True)
                return self.inner.load_model(vllm_config, model_config, prefix)
            # Compiled code that calls our operator must not be taken for code of the model without it.
            vllm_config.additional_config["tuner_pack"] = _digest()
            model = super().load_model(vllm_config, model_config, prefix)
            _replace_mlps(model, self.mlps)
            return model

        def _reason_against_all(self, vllm_config: Any, model_config: Any) -> str:
            if vllm_config.lora_config is not None:
                return "adapters change each product alone"
            if getattr(model_config, "enable_sleep_mode", False):
                return "sleep mode may discard the kernels' workspaces"
            if type(self.inner).load_model is not BaseModelLoader.load_model:
                return f"load format {self.inner.load_config.load_format!r} makes the model by itself"
            return ""

    register_model_loader("tuner")(PackedLoader)


@cache
def _pack() -> Any:
    import tuner.runtime

    pack = tuner.runtime.load(os.environ["TUNER_PACK"])
    if note := pack.check():
        print(f"tuner: {note}", flush=True)
    return pack


@cache
def _digest() -> str:
    return hashlib.sha256(Path(os.environ["TUNER_PACK"]).read_bytes()).hexdigest()[:16]


def _key_of(w1: Any, w2: Any) -> tuple[Any, ...]:
    return w1.data_ptr(), w2.data_ptr(), w1.shape, w2.shape, w1.stride(), w2.stride(), w1.dtype, w1.device


@cache
def _define_operator() -> None:
    """`torch.ops.tuner_vllm.mlp`: the operator of packs, which finds its number by the weights."""
    import torch

    from tuner.runtime import torch_op

    assert torch_op.by_torch
    library = torch.library.Library("tuner_vllm", "DEF")
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    library.define("mlp(Tensor x, Tensor w1, Tensor w2, str activation) -> Tensor", tags=tags)

    def run(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
        number = _numbers.get(_key_of(w1, w2), 0)
        launches["with a kernel's number" if number else "without"] += 1
        found: torch.Tensor = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, activation, True, number)
        return found

    def fake(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> torch.Tensor:
        return x.new_empty((x.shape[0], w2.shape[0]))

    library.impl("mlp", run, "CPU")
    library.impl("mlp", run, "CUDA")
    torch.library.register_fake("tuner_vllm::mlp", fake, lib=library)
    _kept.append(library)


#: What must live as long as the process.
_kept: list[Any] = []


def _mlps(model: Any) -> list[tuple[str, Any]]:
    """The MLPs of a model by name: what has the three parts of one, whatever model it is."""
    parts = ("gate_up_proj", "act_fn", "down_proj")
    return [(name, one) for name, one in model.named_modules() if all(hasattr(one, part) for part in parts)]


def activation_of(mlp: Any) -> str | None:
    """The operator's word for an MLP's activation; None where it has none."""
    act = type(mlp.act_fn).__name__
    if act == "GeluAndMul":
        return "gelu" if mlp.act_fn.approximate == "tanh" else None
    return {"SiluAndMul": "silu"}.get(act)


def _reason_against(mlp: Any) -> str:
    """Why an MLP stays vLLM's own; empty where the operator can take its place."""
    import torch

    kind = type(mlp)
    if (kind.__module__.rpartition(".")[2], kind.__name__) not in FAMILIES:
        return f"{kind.__name__} is none of {', '.join(sorted(name for _, name in FAMILIES))}"
    if activation_of(mlp) is None:
        return f"its activation {mlp.act_fn} is neither SiLU nor the tanh form of GELU"
    for layer in (mlp.gate_up_proj, mlp.down_proj):
        weight = getattr(layer, "weight", None)
        if weight is None or weight.dtype not in (torch.float16, torch.bfloat16):
            return "its weights are quantised, or of another type than fp16 and bf16"
        if getattr(layer, "bias", None) is not None:
            return "it has biases"
    return ""


def _bind(w1: Any, w2: Any, activation: str) -> str:
    """Prepares the kernels for weights where they lie. Returns why there are none; weights of a CPU need none."""
    from tuner.runtime import Weights, torch_op
    from tuner.runtime.native import RuntimeFailure

    if not w1.is_cuda:
        return ""
    try:
        ffn = _pack().bind(Weights(w1, w2, activation=activation, gated=True))
    except RuntimeFailure as failure:
        return str(failure)
    _numbers[_key_of(w1, w2)] = torch_op.register(ffn)
    return ""


def packed_mlp(mlp: Any, activation: str) -> Any:
    """vLLM's MLP with the same parameters, by the operator."""
    import torch
    from vllm.distributed import tensor_model_parallel_all_reduce

    class PackedMlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # vLLM's own layers, under their names: weights are loaded into them as ever.
            self.gate_up_proj, self.down_proj = mlp.gate_up_proj, mlp.down_proj
            # As the layer itself would: where it is not split over ranks, or whoever made it sums later, nothing is.
            self.is_summed = mlp.down_proj.reduce_results and mlp.down_proj.tp_size > 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])
            y = torch.ops.tuner_vllm.mlp(rows, self.gate_up_proj.weight, self.down_proj.weight, activation)
            y = y.view(*x.shape[:-1], y.shape[-1])
            return tensor_model_parallel_all_reduce(y) if self.is_summed else y

    return PackedMlp()


def _replace_mlps(model: Any, mlps: dict[str, tuple[Any, Any] | str]) -> None:
    """`mlps` as the loader found them. On a CPU vLLM keeps the weights in a form of its own, and drops them."""
    reasons = Counter[str]()
    for name, found in mlps.items():
        mlp = model.get_submodule(name)
        activation = str(activation_of(mlp))
        reason = found if isinstance(found, str) else _bind(found[0].data, found[1].data, activation)
        if reason or isinstance(found, str):
            reasons[reason] += 1
            continue
        mlp.gate_up_proj.weight, mlp.down_proj.weight = found
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, packed_mlp(mlp, activation))
    number = len(mlps) - reasons.total()
    print(f"tuner: {number} of {len(mlps)} MLPs run the kernels of {os.environ['TUNER_PACK']}", flush=True)
    for reason, count in reasons.items():
        print(f"tuner: {count} stay vLLM's own: {reason}", flush=True)
