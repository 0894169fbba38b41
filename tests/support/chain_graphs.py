"""Tile graphs of three or four ops with residuals and norms, each op with at most nine tasks."""

from __future__ import annotations

from dataclasses import replace

from tests.support.cases import adds, decoder_block, gemms, tiling
from tuner.core.plan.graph.tile_graph import tile_graph

_PLAIN_AND_NORMED = (("a", "x", 64, 32, {}), ("b", "a", 32, 64, {"norm": "a"}))

#: Whole tiles and parts, with fan-out. In some graphs, the waits for A imply the others; in others they do not.
CHAIN_GRAPHS = (
    tile_graph(decoder_block(16, 64, 32, 32), tiling(*[(16, 32)] * 4)),
    tile_graph(decoder_block(16, 64, 32, 32), tiling(*[(16, 32)] * 4, split=(1, 2, 1, 2))),
    tile_graph(decoder_block(32, 32, 32, 32), tiling((16, 32), (32, 32), (16, 32), (32, 32))),
    tile_graph(
        gemms(32, ("a", "x", 32, 32, {}), ("b", "x", 32, 32, adds("a")), ("c", "b", 32, 32, {"norm": "b"})),
        tiling((16, 32), (32, 32), (16, 32)),
    ),
    tile_graph(
        gemms(16, ("a", "x", 96, 32, {}), ("b", "x", 96, 32, adds("a")), ("c", "b", 32, 96, adds("z"))),
        tiling((16, 32), (16, 48), (16, 32)),
    ),
    tile_graph(
        gemms(16, ("a", "x", 64, 32, {}), ("b", "y", 64, 64, {"norm": "a"}), ("c", "b", 64, 64, adds("a"))),
        tiling((16, 32), (16, 32), (16, 64)),
    ),
    tile_graph(
        gemms(16, *_PLAIN_AND_NORMED, ("c", "a", 32, 64, adds("b")), ("d", "c", 32, 32, {})),
        tiling(*[(16, 32)] * 4, split=(1, 2, 1, 1)),
    ),
    tile_graph(
        gemms(16, ("a", "x", 64, 32, {}), ("b", "a", 64, 64, adds("a")), ("c", "b", 32, 64, {"norm": "a"})),
        tiling((16, 32), (16, 64), (16, 32), split=(1, 2, 2)),
    ),
    tile_graph(
        gemms(16, ("a", "x", 32, 64, {}), ("b", "x", 32, 64, adds("a")), ("c", "b", 32, 32, adds("a"))),
        tiling(*[(16, 32)] * 3, split=(2, 2, 1)),
    ),
    tile_graph(
        gemms(32, ("a", "x", 32, 32, {}), ("b", "x", 64, 32, {}), ("c", "b", 32, 64, {"norm": "b", **adds("a")})),
        tiling((16, 32), (32, 32), (32, 32), split=(1, 1, 2)),
    ),
    tile_graph(decoder_block(16, 64, 32, 32), replace(tiling(*[(16, 32)] * 4), in_band=True)),
    tile_graph(
        gemms(16, ("a", "x", 64, 32, {}), ("b", "a", 64, 64, adds("a")), ("c", "b", 32, 64, {"norm": "a"})),
        replace(tiling((16, 32), (16, 64), (16, 32), split=(1, 2, 2)), in_band=True),
    ),
)
