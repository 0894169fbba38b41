"""Each folder of the product has one purpose, few files, and a position in the import order."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

#: Maximum files in a folder.
MOST = 15
PRODUCT = ("tuner", "workers", "runtime", "migrations")
#: Folders that are lists by nature: a file for each migration; C files that a program's own build compiles as
#: ``src/*.c``.
LISTS = {"migrations/versions", "runtime/src"}


def test_no_folder_of_the_product_has_many_files(repository_files: list[Path], root: Path) -> None:
    relative = [path.relative_to(root) for path in repository_files if not path.is_symlink()]
    sizes = Counter(str(path.parent) for path in relative if path.parts[0] in PRODUCT)
    assert {folder: count for folder, count in sizes.items() if count > MOST and folder not in LISTS} == {}


def test_every_room_of_the_product_and_the_benchmarks_has_its_place_in_a_contract(root: Path) -> None:
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [line for one in contracts if one["type"] == "layers" for line in one["layers"]]
    placed = {module.strip() for line in layers for module in line.split("|")}
    rooms = {
        ("tuner." if house == "workers" else "") + ".".join(init.parent.relative_to(root).parts)
        for house in ("tuner", "workers", "benchmarks")
        for init in (root / house).rglob("__init__.py")
        if "workers" not in init.parent.relative_to(root).parts[1:] and init.parent != root / house
    }
    kinds = {room for room in rooms if room.startswith("tuner.ops.") and room.count(".") == 2}
    assert sorted(rooms - placed - kinds) == []
