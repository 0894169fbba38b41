"""A pack's kernels in vLLM: the MLPs of Llama models, through vLLM's public plugin interface.

Put this file into a package of yours, and name its function in that package's pyproject.toml:

    [project.entry-points."vllm.general_plugins"]
    tuner = "vllm_plugin:register"

Then, with the pack of `tuner-client tune-model config.json --tp TP --m vllm -o llama.tunerpack`:

    TUNER_PACK=llama.tunerpack vllm serve meta-llama/Meta-Llama-3-8B --tensor-parallel-size TP

vLLM calls `register` in each of its processes. It names a class that is vLLM's own Llama, whose MLPs call
`torch.ops.tuner.ffn`. vLLM merges gate and up weights as a pack wants them, and captures its graphs at the rows that
`--m vllm` tunes. On several ranks each has the kernels of its shard, and the outputs are summed behind them.

What was run and what was not: the replacing, the sum over ranks and the numbers run in the tests over a stub of the
interface, whose signatures are those that vLLM documents. It was not run inside vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

#: The architecture whose class is replaced.
ARCHITECTURE = "LlamaForCausalLM"


def register() -> None:
    """Called by vLLM in each process, perhaps more than once. vLLM imports the class when it needs it."""
    if os.environ.get("TUNER_PACK"):
        from vllm import ModelRegistry

        ModelRegistry.register_model(ARCHITECTURE, f"{__name__}:PackedLlama")


@cache
def _pack() -> Any:
    import tuner.runtime

    pack = tuner.runtime.load(os.environ["TUNER_PACK"])
    if note := pack.check():
        print(f"tuner: {note}")
    return pack


def _number_of(w1: Any, w2: Any) -> int:
    """The operator's number for these weights. Weights of the CPU have none: PyTorch's products compute them."""
    from tuner.runtime import Weights, torch_op

    if not w1.is_cuda:
        return 0
    return torch_op.register(_pack().bind(Weights(w1, w2, activation="silu", gated=True)))


def reason_against(mlp: Any) -> str:
    """Why an MLP stays vLLM's own; empty where the operator can take its place."""
    import torch

    for layer in (mlp.gate_up_proj, mlp.down_proj):
        weight = getattr(layer, "weight", None)
        if weight is None or weight.dtype not in (torch.float16, torch.bfloat16):
            return "its weights are quantised, or of another type than fp16 and bf16"
        if getattr(layer, "bias", None) is not None:
            return "it has biases"
    return ""


def packed_mlp(mlp: Any) -> Any:
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
            self.number, self.bound = 0, (0, 0)

        def bind(self) -> None:
            """Prepares the kernels for the weights where they lie now. Not in a graph capture."""
            w1, w2 = self.gate_up_proj.weight.data, self.down_proj.weight.data
            if self.bound != (w1.data_ptr(), w2.data_ptr()):
                self.number, self.bound = _number_of(w1, w2), (w1.data_ptr(), w2.data_ptr())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            w1, w2 = self.gate_up_proj.weight, self.down_proj.weight
            y = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, "silu", True, self.number)
            return tensor_model_parallel_all_reduce(y) if self.is_summed else y

    return PackedMlp()


@cache
def _packed_llama() -> type:
    from vllm.model_executor.models.llama import LlamaForCausalLM

    class PackedLlama(LlamaForCausalLM):  # type: ignore[misc,valid-type]
        """vLLM's Llama. Its MLPs are replaced when it is made, and bound when its weights are there."""

        def __init__(self, *, vllm_config: Any, prefix: str = "", **others: Any) -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix, **others)
            self.packed = []
            if vllm_config.lora_config is not None:
                print("tuner: adapters change each product alone, so the MLPs stay vLLM's own")
                return
            for layer in self.model.layers:
                if not hasattr(layer, "mlp"):  # a layer of another rank of the pipeline
                    continue
                if reason := reason_against(layer.mlp):
                    print(f"tuner: the MLPs stay vLLM's own: {reason}")
                    return
                layer.mlp = packed_mlp(layer.mlp)
                layer.mlp.bind()  # with weights that are drawn, nothing is loaded
                self.packed.append(layer.mlp)

        def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
            """Loads them as ever; a loader may have put them elsewhere."""
            loaded: set[str] = super().load_weights(weights)
            for mlp in self.packed:
                mlp.bind()
            return loaded

    return PackedLlama


def __getattr__(name: str) -> Any:
    """`PackedLlama`, made when vLLM asks for it: its base class is vLLM's."""
    if name == "PackedLlama":
        return _packed_llama()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
