"""Convolutions by themselves, in pairs and with products, and how many plans each has."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.asked import workload_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling

Json = dict[str, Any]


def conv(name: str, source: str = "x", /, **options: Any) -> Json:
    """A 3x3 convolution of images of 7 x 6 with 16 channels, output of the same size; options are fields of the op."""
    plain = {"images": 2, "height": 7, "width": 6, "channels": 16, "filters": 24, "kernel": 3, "padding": 1}
    return {"op": "conv", "name": name, "source": source, **plain, **options}


def pooling(name: str, source: str = "x", /, **options: Any) -> Json:
    """The maximum of 3x3 windows by 2 of the same images; options are fields of the op."""
    plain = {"images": 2, "height": 7, "width": 6, "channels": 16, "kernel": 3, "padding": 1}
    return {"op": "conv_pooling", "name": name, "source": source, **plain, **options}


def product(name: str, source: str, m: int, n: int, k: int, /, **options: Any) -> Json:
    """A product over rows of pixels."""
    plain = {"activation": "identity", "bias": False}
    return {"name": name, "source": source, "m": m, "n": n, "k": k, **plain, **options}


def workload(*ops: Json, dtype: str = "fp16") -> Workload:
    """A chain of `ops`."""
    return Workload.from_json({"kind": "chain", "ops": list(ops), "dtype": dtype})


def tiling(*tiles: tuple[int, int, int], parts: tuple[int, ...] = (), num_stages: int = 2) -> Tiling:
    """A tiling of engine `mma` with four warps."""
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    return Tiling(tiles=whole, num_stages=num_stages, num_warps=4, split_k=parts)


def warpgroups(*tiles: tuple[int, int, int], parts: tuple[int, ...] = (), **options: Any) -> Tiling:
    """A tiling of engine `wgmma`, by default with four warps."""
    plain = {"engine": Engine.WGMMA, "num_stages": 3, "input_stages": 3, "num_warps": 4}
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    return Tiling(tiles=whole, split_k=parts, **{**plain, **options})


def _image(name: str, source: str = "x", /, **options: Any) -> Json:
    """A convolution of one image of 6 x 8 with 16 channels: a tile of 16 pixels covers two of its rows."""
    return conv(name, source, **{"images": 1, "height": 6, "width": 8, "filters": 16, **options})


def _pair(first: Json, second: Json) -> Workload:
    """A pair of convolutions; options other than the sizes apply to the second."""
    one, sizes = _image("a", **first), ("images", "height", "width")
    return workload(one, _image("b", "a", **{name: one[name] for name in sizes}, channels=one["filters"], **second))


def bottleneck(images: int = 1) -> tuple[Workload, Tiling]:
    """A bottleneck of ResNet-50's third stage."""
    made = workload_of({"kind": "network-convs", "network": "resnet50", "stage": 3, "images": images})
    return made, tiling((64, 64, 64), (64, 64, 64), (64, 128, 64), parts=(2, 4, 1), num_stages=4)


#: Cases that run on the CPU and on a card.
SHORTCUT = (
    workload(
        conv("a", stride=2, height=13, width=11, bias=True, activation="relu"),
        conv("b", "a", channels=24, filters=40, residual_source="r", bias=True, activation="silu"),
    ),
    tiling((16, 32, 32), (32, 32, 64)),
)
CASES: dict[str, tuple[Workload, Tiling]] = {
    "a stride, a shortcut": SHORTCUT,
    "three channels, 7x7 and 5x5": (
        workload(
            conv("a", kernel=7, padding=3, stride=2, channels=3, filters=16, height=9, width=11),
            conv("b", "a", height=5, kernel=5, padding=2, filters=16, residual_source="a", activation="relu"),
            dtype="bf16",
        ),
        tiling((16, 32, 32), (16, 32, 64)),
    ),
    "three channels, then the maximum of few channels": (
        workload(
            conv("a", kernel=7, padding=3, stride=2, channels=3, filters=20, height=17, width=13, activation="relu"),
            pooling("b", "a", height=9, width=7, channels=20),
            conv("c", "b", height=5, width=4, channels=20, filters=16),
        ),
        tiling((16, 32, 32), (16, 32, 32), (16, 32, 32)),
    ),
    "the maximum behind a product": (
        workload(product("up", "x", 84, 32, 32), pooling("a", "up", channels=32, kernel=2, padding=0), dtype="bf16"),
        tiling((16, 32, 32), (16, 32, 32)),
    ),
    "between products, in parts": (
        workload(product("up", "x", 84, 16, 32), conv("a", "up"), product("down", "a", 84, 16, 24)),
        tiling((16, 32, 32), (16, 32, 32), (16, 32, 32), parts=(1, 3, 1)),
    ),
}


#: The same with `wgmma`: whole lines of channels.
_LINES = {"images": 2, "height": 7, "width": 5, "channels": 64, "filters": 64, "bias": True}
_IMAGE = {"height": 7, "width": 7, "kernel": 7, "stride": 7, "padding": 0}
BY_WARPGROUPS: dict[str, tuple[Workload, Tiling]] = {
    "a stride, a shortcut": (
        workload(
            conv("a", **{**_LINES, "height": 13, "width": 9, "channels": 128}, stride=2, activation="relu"),
            conv("b", "a", **_LINES, residual_source="r", activation="silu"),
        ),
        warpgroups((64, 32, 64), (64, 64, 128)),
    ),
    "swapped, 5x5, parts": (
        workload(conv("a", **_LINES, kernel=5, padding=2), conv("b", "a", **_LINES, residual_source="a")),
        warpgroups((24, 64, 64), (40, 64, 128), parts=(3, 2), swap_ab=True),
    ),
    "a cluster, stored by TMA, a product": (
        workload(
            conv("a", **{**_LINES, "filters": 128}, padding=0, activation="relu"),
            product("b", "a", 30, 128, 128),
            dtype="bf16",
        ),
        warpgroups((32, 128, 128), (64, 128, 64), cluster_n=2, epilogue=Epilogue.TMA),
    ),
    "swapped, the average of an image, then a classifier": (
        workload(
            pooling("a", function="average", **{**_IMAGE, "channels": 64}),
            conv("b", "a", images=2, height=1, width=1, channels=64, filters=72, kernel=1, padding=0, bias=True),
        ),
        warpgroups((8, 64, 64), (8, 64, 64), swap_ab=True),
    ),
    "swapped, pixels loaded together": (
        workload(
            conv("a", **{**_LINES, "filters": 128}, activation="relu"),
            conv("b", "a", **{**_LINES, "channels": 128, "filters": 192}, residual_source="r"),
        ),
        warpgroups((48, 128, 64), (32, 128, 128), cluster_n=2, swap_ab=True),
    ),
    "swapped, filters loaded together, parts": (
        workload(conv("a", **_LINES, activation="relu"), conv("b", "a", **{**_LINES, "filters": 128})),
        warpgroups((48, 64, 64), (32, 128, 64), parts=(1, 2), cluster_m=2, swap_ab=True),
    ),
}


#: At most nine tasks each, so that every state can be visited: tiles of two rows of an image, tiles of two images, a
#: stride, a product after one and before one, an added image, parts.
SMALL: tuple[tuple[Workload, Tiling], ...] = (
    (_pair({}, {}), tiling((16, 32, 32), (16, 32, 32))),
    (_pair({"images": 3, "height": 4, "width": 4}, {}), tiling((16, 32, 32), (16, 32, 32))),
    (_pair({"images": 2, "height": 3}, {"kernel": 5, "padding": 2}), tiling((16, 32, 32), (32, 32, 32))),
    (_pair({"height": 8}, {"stride": 2}), tiling((16, 32, 32), (16, 32, 32))),
    (_pair({"height": 8}, {"stride": 2, "kernel": 1, "padding": 0}), tiling((32, 32, 32), (16, 32, 32))),
    (_pair({"filters": 64}, {"kernel": 1, "padding": 0}), tiling((16, 32, 32), (16, 32, 32))),
    (_pair({"height": 4}, {"residual_source": "x"}), tiling((16, 32, 32), (16, 32, 32))),
    (_pair({"height": 4}, {}), tiling((16, 32, 32), (16, 32, 32), parts=(1, 2))),
    (_pair({"images": 2, "height": 2}, {}), tiling((16, 32, 64), (16, 32, 64), parts=(2, 2))),
    (workload(_image("a"), pooling("b", "a", images=1, height=6, width=8)), tiling((16, 32, 32), (16, 32, 32))),
    (
        workload(pooling("a", images=3, height=4, width=4), _image("b", "a", images=3, height=2, width=2)),
        tiling((16, 32, 32), (16, 32, 32)),
    ),
    (workload(_image("a"), product("b", "a", 48, 32, 16)), tiling((16, 32, 32), (16, 32, 32))),
    (workload(product("a", "x", 48, 16, 16), _image("b", "a")), tiling((16, 32, 32), (16, 32, 32))),
    (
        workload(_image("a", height=4), _image("b", "a", height=4), _image("c", "b", height=4, residual_source="a")),
        tiling((16, 32, 32), (16, 32, 32), (16, 32, 32)),
    ),
)
