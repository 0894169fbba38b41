"""Checks launches of ops that are not products against their manifest: a recipe's grid, parameter and workspace. Only
the kind knows how the kernel uses them; a kind whose launches have their own list in a manifest defines ``check`` in
its module ``pack.launches``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner.core.plan.op_launches import FIELD_BYTES, MAP_BYTES, MOST_CTAS, MOST_PARAMETER_BYTES, MOST_THREADS
from tuner.core.problem.op_kinds import op_kinds, part_of
from tuner.errors import InvalidInput

Json = Mapping[str, Any]
#: The lists of a manifest with launches of ops that are not products: those over caches, which have their kind's own
#: list, and all others.
OF_CACHES, _ANY_KIND = "attentions", "own_launches"
OWN_SECTIONS = (OF_CACHES, _ANY_KIND)


def recipes_by_kind(manifest: Json) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The launches of a manifest that are in a list of their kind, each with the module ``pack.program`` of its
    kind."""
    parts = (part_of(kind, "pack.program") for kind in op_kinds())
    return ((part, recipe) for part in parts if part for recipe in manifest.get(part.SECTION, ()))


def check_own_sections(manifest: Json, files: Mapping[str, bytes]) -> None:
    """Checks all launches of ops that are not products; `files` contains their tables.

    Raises:
        InvalidInput: the message names the launch's field, and what is expected; or a list belongs to an unknown kind.
    """
    for check in own_checks(manifest):
        check(manifest, files)


def own_checks(manifest: Json) -> list[Callable[[Json, Mapping[str, bytes]], None]]:
    """The check of each list of such launches.

    Raises:
        InvalidInput: a list belongs to an unknown kind.
    """
    parts = (part_of(kind, "pack.launches") for kind in op_kinds())
    checks = {_ANY_KIND: check_own_launches} | {part.SECTION: part.check for part in parts if part}
    sections = [one for one in OWN_SECTIONS if manifest.get(one)]
    if unknown := next((one for one in sections if one not in checks), None):
        raise InvalidInput(unknown, "are of an unknown kind of op", "install the package that provides it")
    return [checks[one] for one in sections]


def check_own_launches(manifest: Json, files: Mapping[str, bytes]) -> None:
    """Checks all of them; `files` contains their tables.

    Raises:
        InvalidInput: the message names the launch's field, and what is expected.
    """
    tensors = {tensor["name"] for tensor in manifest["tensors"]}
    for index, recipe in enumerate(manifest.get("own_launches", ())):
        where = f"own_launches[{index}]"
        _check_grid(where, recipe)
        space = recipe["workspace"]
        if not 0 <= space["zero_bytes"] <= space["bytes"]:
            raise _wrong(f"{where}.workspace.zero_bytes", space["zero_bytes"], f"0 to {space['bytes']}")
        size = recipe["parameter"]["size_bytes"]
        if not 1 <= size <= MOST_PARAMETER_BYTES:
            raise _wrong(f"{where}.parameter.size_bytes", size, f"1 to {MOST_PARAMETER_BYTES}")
        for number, field in enumerate(recipe["parameter"]["fields"]):
            _check_field(f"{where}.parameter.fields[{number}]", field, size, space["bytes"], files, tensors)
        for number, one in enumerate(recipe["tensor_maps"]):
            if one["tensor"] not in tensors:
                raise _wrong(f"{where}.tensor_maps[{number}].tensor", one["tensor"], "one of the manifest's tensors")


def _check_grid(where: str, recipe: Json) -> None:
    (num_ctas, *others), (num_threads, *rest), cluster = recipe["grid"], recipe["block"], recipe["cluster"][0]
    if others != [1, 1] or not 1 <= num_ctas <= MOST_CTAS or cluster < 1 or num_ctas % cluster:
        raise _wrong(f"{where}.grid", recipe["grid"], f"1 to {MOST_CTAS} CTAs in clusters of {cluster}, along x")
    if rest != [1, 1] or not 1 <= num_threads <= MOST_THREADS:
        raise _wrong(f"{where}.block", recipe["block"], f"1 to {MOST_THREADS} threads along x")
    if recipe["cooperative"] and recipe["programmatic_dependent_launch"]:
        raise _wrong(f"{where}.cooperative", True, "false: a launch cannot be both cooperative and programmatic")
    if recipe["needs_all_ctas"] and not recipe["cooperative"]:
        raise _wrong(f"{where}.cooperative", False, "true: its CTAs wait for each other")


def _check_field(
    where: str, field: Json, size: int, workspace: int, files: Mapping[str, bytes], tensors: set[str]
) -> None:
    kind = field["type"]
    if kind in FIELD_BYTES:
        num_bytes = FIELD_BYTES[kind]
    elif "value" in field:
        num_bytes = len(field["value"]) // 2
    else:
        num_bytes = MAP_BYTES
    if not 0 <= field["offset"] <= size - num_bytes:
        raise _wrong(f"{where}.offset", field["offset"], f"0 to {size - num_bytes}")
    if "room" in field and not 0 <= field["room"] < workspace:
        raise _wrong(f"{where}.room", field["room"], f"less than {workspace}")
    if "file" in field and field["file"] not in files:
        raise _wrong(f"{where}.file", field["file"], "a file of the artifact")
    if field.get("tensor") and field["tensor"] not in tensors:
        raise _wrong(f"{where}.tensor", field["tensor"], "one of the manifest's tensors")


def _wrong(field: str, found: Any, right: str) -> InvalidInput:
    return InvalidInput(field, f"is {found}", f"it must be {right}: fetch or build it again")
