"""transformers' own model, compiled, with the attention that it has or a grouped one; its decode steps take turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.runtime.decode_step import example

#: Tokens of the cache, of which half is filled.
LENGTH = 1024
#: Of torch.compile.
MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def _grouped(query: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """The query heads that share a KV head as its rows, so that the cache is not expanded; any length by the mask."""
    import torch

    batch, heads, _, head_dim = query.shape
    shared = query.view(batch, keys.shape[1], heads // keys.shape[1], head_dim)
    found = torch.nn.functional.scaled_dot_product_attention(shared, keys, values, attn_mask=mask, scale=scaling)
    return found.view(batch, heads, 1, head_dim)


def _grouped_exact(query: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """PyTorch's own grouped attention over the tokens that are there, without a mask: a graph for this length alone."""
    import torch

    seen = (cache[:, :, : LENGTH // 2 + 1] for cache in (keys, values))
    return torch.nn.functional.scaled_dot_product_attention(query, *seen, scale=scaling, enable_gqa=True)


#: Attentions in place of transformers' own, by name; None for that.
ATTENTIONS = {"expanded": None, "grouped": _grouped, "grouped-exact": _grouped_exact}


def _use(model: Any, name: str) -> None:
    """Lets a model attend so; transformers makes the mask of any cache for it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    attend = ATTENTIONS[name]
    if attend is None:
        return

    def forward(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None

    AttentionInterface.register(f"tuner_{name}", forward)
    if name != "grouped-exact":
        AttentionMaskInterface.register(f"tuner_{name}", sdpa_mask)
    model.config._attn_implementation = f"tuner_{name}"


@dataclass
class Compiled:
    """transformers' model, compiled whole."""

    attention: str
    mode: str
    layers: int
    graphs: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def capture(self, batch: int) -> None:
        """The step of this many sequences."""
        import torch

        llama = example()
        if not self.kept:
            model = llama.build(llama.LLAMA_3_8B | {"num_hidden_layers": self.layers}, "cuda")
            _use(model, self.attention)
            self.kept = [model]
        model, decoder = self.kept[0], llama.Decoder.of(self.kept[0], batch, LENGTH)
        torch.compiler.reset()
        run = torch.compile(model, fullgraph=True, dynamic=False, mode=MODES[self.mode])
        graph, logits = llama.captured(lambda: decoder.step(run))
        graph.replay()
        self.graphs, self.kept = {"step": graph}, [model, decoder, run]
        self.about = {"step": {"logits": logits[:, 0].float().cpu().numpy()}}

    def before(self, name: str) -> None:
        """Nothing: a step leaves its cache as it was."""

    def kernels(self, name: str) -> list[dict[str, Any]]:
        """Kernels of one replay, summed up by name."""
        from benchmarks.runtime.graph_nodes import by_kernel, timeline

        return by_kernel(timeline(self.graphs[name]), self.layers)
