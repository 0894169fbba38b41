"""What packs and runtimes know of an attention's launches in a manifest: the memory that they work in, where tensors
lie, and which of these are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.packs.programs import Builder, Part, num_bytes

from .pack_launches import SECTION

__all__ = ["SECTION", "launches_of", "optional_tensors", "paged", "place_operands", "sources", "written"]

Json = Mapping[str, Any]

_CACHE = ("keys", "values", "lengths", "pages")


def place_operands(builder: Builder) -> None:
    """Of an attention alone, or with a plain product behind it: the seven tensors of its call."""
    (recipe,) = builder.manifest[SECTION]
    name, product = recipe["op"], recipe["before"]
    source = next(op["source"] for op in builder.manifest["workload"]["ops"] if op["name"] == name)
    builder.places |= {source: ("q", 0), **{f"{name}.{one}": (one, 0) for one in _CACHE}}
    builder.places[product or name] = ("y", 0)
    if product:
        attended = next(one for one in builder.manifest["tensors"] if one["name"] == name)
        builder.places |= {f"{product}.w": ("w", 0), name: ("memory", builder.room(num_bytes(attended)))}


def paged(manifest: Json) -> set[str]:
    """Of its caches those that may have any number of pages."""
    return {name for one in manifest[SECTION] if "pages" in one for name in _caches(one)}


def sources(manifest: Json) -> list[str]:
    """What they read queries from."""
    of_ops = {op["name"]: op.get("source", "") for op in manifest["workload"]["ops"]}
    return [of_ops[one["op"]] for one in manifest[SECTION]]


def written(manifest: Json) -> set[str]:
    """What kernels in front of them write: caches, and turned queries."""
    recipes = zip(manifest[SECTION], sources(manifest), strict=True)
    return {name for one, source in recipes for name in (*_caches(one), *([source] if "append" in one else []))}


def optional_tensors(manifest: Json) -> list[dict[str, Any]]:
    """Those of the kernels in front."""
    return [tensor for one in manifest[SECTION] for tensor in one.get("append", {}).get("tensors", ())]


def _caches(recipe: Json) -> tuple[str, str]:
    return f"{recipe['op']}.keys", f"{recipe['op']}.values"


def launches_of(builder: Builder) -> tuple[list[Part], int]:
    """Its launch, and where in the memory the words of what it refused lie. No program has two attentions."""
    (recipe,) = builder.manifest[SECTION]
    space, pages = recipe["workspace"], recipe.get("pages")
    workspace = builder.room(space["bytes"], zeros=space["zero_bytes"])
    own = {name: workspace + space[name] for name in ("arrivals", "partials", "refused")}
    abort = space.get("abort_record")  # not there in artifacts of before waits were bounded
    own |= {"abort": workspace + abort["offset"]} if abort else {}
    own |= {name: builder.file(recipe[name]) for name in ("tasks", "queues")}
    launch = builder.part_of(
        recipe,
        own,
        {"first_tasks": bytes.fromhex(recipe["first_tasks"])},
        rows_per_page=pages["rows_per_page"] if pages else 0,
        abort_offset=own.get("abort"),
    )
    return [launch], workspace + space["refused"]
