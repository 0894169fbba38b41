"""What the C runtime needs to launch an attention: where its tensors, its tables and its workspace go, which of its
tensors are written, and which may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.packs.programs import NOWHERE, Layout, Part, Patch, no_map, offsets_of
from tuner.packs.recipes.parameters import pack_fields

Json = dict[str, Any]
#: The list in a manifest that contains the attentions.
SECTION = "attentions"
#: The tensors that the attention has in common with a call.
_TENSORS = ("keys", "values", "lengths", "pages")


def roles_of(recipe: Json, manifest: Json) -> dict[str, str]:
    """The seven tensors of a call, by name: queries, caches, lengths, pages, weights and the output."""
    name, product = recipe["op"], recipe["before"]
    found = {source_of(recipe, manifest): "q", **{f"{name}.{one}": one for one in _TENSORS}, product or name: "y"}
    return found | ({f"{product}.w": "w"} if product else {})


def paged_of(recipe: Json) -> tuple[str, ...]:
    """The attention's caches if they are paged: a call may pass any number of pages."""
    return tuple(f"{recipe['op']}.{name}" for name in ("keys", "values") if "pages" in recipe)


def source_of(recipe: Json, manifest: Json) -> str:
    """The tensor that the attention reads queries from."""
    return str(next(op["source"] for op in manifest["workload"]["ops"] if op["name"] == recipe["op"]))


def written_in_front(recipe: Json, manifest: Json) -> set[str]:
    """The tensors that the append kernel writes: caches, and rotated queries."""
    caches = {f"{recipe['op']}.{name}" for name in ("keys", "values")}
    return caches | ({source_of(recipe, manifest)} if "append" in recipe else set())


def tensors_in_front(recipe: Json) -> list[Json]:
    """The tensors of the append kernel, which a call may leave out."""
    return list(recipe.get("append", {}).get("tensors", ()))


def part_of(recipe: Json, workspace: int, layout: Layout) -> Part:
    """The attention's launch: queues and tasks are files, and the workspace starts at offset `workspace` in memory."""
    own = {name: workspace + recipe["workspace"][name] for name in ("arrivals", "partials", "refused")}
    abort = recipe["workspace"].get("abort_record")  # missing in artifacts from before waits were bounded
    own |= {"abort": workspace + abort["offset"]} if abort else {}
    own |= {name: layout.file(recipe[name]) for name in ("tasks", "queues")}
    first, pages = bytes.fromhex(recipe["first_tasks"]), recipe.get("pages")

    def pack(addresses: Mapping[str, int], there: Mapping[str, int]) -> bytes:
        given = {name: there[name] for name in own}
        return pack_fields(recipe["parameter"], addresses, {**given, "first_tasks": first}, no_map)

    fields = offsets_of(recipe["parameter"])
    maps = layout.maps(recipe["tensor_maps"], fields, pages["rows_per_page"] if pages else 0)
    patches = layout.patches(pack, own)
    if pages:
        patches += (Patch(offset=fields["num_pages"], tensor="num_pages"),)
    return Part(
        recipe=recipe,
        kernel=recipe["kernel"],
        parameter=pack(NOWHERE, NOWHERE),
        patches=patches,
        maps=maps,
        abort_offset=own.get("abort"),
    )
