"""Humming's products with weights of few bits, if Humming is installed: with its heuristic, launched programmatically,
and tuned. Written for humming-kernels 0.1.20.

Tuned: for each product, the fastest among schedules near the heuristic's, with one field changed at a time, and the
heuristic's schedules for more rows.
"""

from __future__ import annotations

import json
import os
from functools import cached_property, partial
from typing import Any

import torch

from benchmarks.attention.timing import captured, samples_us
from tuner.core.trial.stats import median

from . import activations
from .peer import Inputs, Makers, Peer

Config = dict[str, Any]

#: Humming's names for each scheme's weights.
_WEIGHTS: dict[str, Config] = {
    "w8a16": {"dtype": "float8e4m3"},
    "int4": {"dtype": "int4", "group_size": 128},
    "mxfp4": {"dtype": "float4e2m1", "scale_dtype": "float8e8m0", "group_size": 32},
}
#: The text that selects Humming's own activation kernel.
_SILU_AND_PRODUCT = "a / (1.0f + __expf(-a)) * b"
#: Fields that are changed, one at a time.
_CHANGES: list[Config] = [
    *({"num_stages": stages} for stages in (3, 4, 5, 6, 8)),
    *({"num_ctas_per_sm": ctas} for ctas in (1, 2, 3)),
    {"use_stream_k": False},
    {"use_warp_spec": True, "use_tma": True},
    {"use_warp_spec": False, "use_tma": False},
    {"evict_weights_first": True},
]
#: Numbers of rows whose heuristic schedules are also tried.
_OTHER_ROWS = (8, 32, 128)
#: Rounds that time schedules, and the maximum schedules per product; TUNER_PEERS_TRIED overrides it.
_ROUNDS = 5
_TRIED = int(os.environ.get("TUNER_PEERS_TRIED", "16"))


def humming_peers(inputs: Inputs) -> Makers:
    """The variants: with our activation kernel, which does not support programmatic launches; with its own, which does;
    and tuned."""
    pair = _Layers(inputs)
    found: Makers = {"humming": pair.peer, "humming pdl": partial(pair.peer, own_activation=True)}
    return found | {"humming tuned": pair.tuned} if _TRIED else found


class _Layers:
    """Both products of each set of weights."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    @cached_property
    def _layers(self) -> list[tuple[Any, Any]]:
        return [(self._layer(w.up), self._layer(w.down)) for w in self._inputs.weights]

    def _layer(self, weights: torch.Tensor) -> Any:
        from humming.layer import HummingLayer

        config = dict(_WEIGHTS[self._inputs.row.scheme.name])
        n, k = weights.shape
        layer = HummingLayer(shape_n=n, shape_k=k, weight_config=config, torch_dtype=torch.bfloat16).cuda()
        layer.load_from_unquantized(weights)
        layer.transform()
        return layer

    def _heuristic(self, layer: Any, m: int) -> Config:
        from humming.tune import get_heuristics_config

        return dict(get_heuristics_config(layer.humming_config, shape_m=m))

    def peer(self, *, own_activation: bool = False, chosen: tuple[Config, Config] | None = None) -> Peer:
        """The pair with two schedules; the heuristic's by default."""
        from humming import ops

        inputs, m = self._inputs, self._inputs.m
        up_config, down_config = chosen or tuple(self._heuristic(one, m) for one in self._layers[0])
        hidden = torch.empty(m, inputs.row.pair.hidden, device="cuda", dtype=torch.bfloat16)
        out = inputs.empty(inputs.row.pair.d)

        def launch(number: int) -> None:
            up, down = self._layers[number]
            up(inputs.x, outputs=inputs.sums, tuning_config=up_config)
            if own_activation:
                options = {"activation_type": "binary_split", "activation_impl": _SILU_AND_PRODUCT, "use_pdl": True}
                ops.process_input(inputs.sums, outputs=hidden, **options)
            else:
                activations.plain(inputs.sums, hidden)
            down(hidden, outputs=out, tuning_config=down_config)

        text = json.dumps([up_config, down_config], default=str) if chosen else "its heuristic"
        launches = [partial(launch, i) for i in range(len(self._layers))]
        return Peer(launches=launches, result=lambda: out, chosen=text)

    def tuned(self) -> Peer:
        """The pair with the best schedule of each product, and Humming's own activation kernel."""
        inputs = self._inputs
        hidden = torch.randn(inputs.m, inputs.row.pair.hidden, device="cuda", dtype=torch.bfloat16)
        out = inputs.empty(inputs.row.pair.d)
        up = self._fastest([one[0] for one in self._layers], inputs.x, inputs.sums)
        down = self._fastest([one[1] for one in self._layers], hidden, out)
        return self.peer(own_activation=True, chosen=(up, down))

    def _fastest(self, layers: list[Any], x: torch.Tensor, y: torch.Tensor) -> Config:
        """The fastest schedule near the heuristic's that Humming can build and that computes the same results."""
        base = self._heuristic(layers[0], self._inputs.m)
        tried = [base, *(base | change for change in _CHANGES)]
        tried += [self._heuristic(layers[0], rows) for rows in _OTHER_ROWS if rows >= self._inputs.m]
        distinct = list({json.dumps(one, sort_keys=True, default=str): one for one in tried}.values())[:_TRIED]
        layers[0](x, outputs=y, tuning_config=base)
        expected = y.clone()
        graphs = dict[str, torch.cuda.CUDAGraph]()
        for number, config in enumerate(distinct):
            launches = [partial(layer, x, outputs=y, tuning_config=config) for layer in layers]
            try:
                launches[0]()
                torch.cuda.synchronize()
            except Exception:  # a schedule that Humming cannot build
                continue
            if float((y - expected).float().norm()) <= 0.02 * float(expected.float().norm()):
                graphs[str(number)] = captured(launches)
        samples = samples_us(graphs, len(layers), _ROUNDS)
        return distinct[int(min(samples, key=lambda one: median(samples[one])))]
