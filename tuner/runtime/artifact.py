"""A fetched artifact: its files, each of which is what the manifest names, and its launches' parameters."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .driver import Driver
from .native import RuntimeFailure

#: The newest format of a manifest that is read here.
NEWEST_FORMAT = 3
_BAD_PACK = -2
_MAP_BYTES = 128
_PLAN_HEADER_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The files of a zip, or of a folder."""

    files: Mapping[str, bytes]
    manifest: dict[str, Any]


def read_artifact(path: Path | str) -> Artifact:
    """What lies there, checked.

    Raises:
        RuntimeFailure: it is no artifact, a file differs, a newer version made it, or no card ever ran it.
    """
    path = Path(path)
    try:
        if path.is_dir():
            files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
        else:
            with zipfile.ZipFile(path) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
        manifest: dict[str, Any] = json.loads(files["manifest.json"])
        named = {name: facts["sha256"] for name, facts in manifest["files"].items()}
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        remedy = "give the zip of an artifact, or the folder of its files"
        raise RuntimeFailure(_BAD_PACK, f"{path} is no artifact ({error!r}): {remedy}") from error
    if (found := manifest.get("format", 1)) > NEWEST_FORMAT:
        raise RuntimeFailure(
            _BAD_PACK, f"the manifest is of format {found}, and formats up to {NEWEST_FORMAT} are read"
        )
    for name, digest in named.items():
        if hashlib.sha256(files.get(name, b"")).hexdigest() != digest:
            raise RuntimeFailure(_BAD_PACK, f"{name} is not the file that the manifest names: fetch the artifact again")
    if manifest["simulated"]:
        raise RuntimeFailure(_BAD_PACK, "the artifact is simulated: there is nothing to run")
    return Artifact(files=files, manifest=manifest)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A launch's one by-value struct, but for what differs from call to call."""

    data: bytes
    #: Where addresses of tensors go.
    pointers: tuple[tuple[int, str], ...]
    #: Where tensor maps go.
    maps: tuple[tuple[int, dict[str, Any]], ...]
    #: Where the number of a cache's pages goes; none where it has no pages.
    num_pages: int | None = None

    def packed(self, driver: Driver, addresses: Mapping[str, int], pages: Mapping[str, int]) -> Any:
        """A buffer for `Driver.launch`. `pages`: of each tensor that has pages, how many, and rows of a page."""
        buffer = ctypes.create_string_buffer(self.data, len(self.data))
        for offset, tensor in self.pointers:
            struct.pack_into("<Q", buffer, offset, addresses[tensor])
        for offset, recipe in self.maps:
            dims = list(recipe["dims"])
            dims[1] = pages.get(recipe["tensor"], dims[1])
            encoded = driver.encode_map(recipe, addresses[recipe["tensor"]], dims)
            struct.pack_into(f"{_MAP_BYTES}s", buffer, offset, encoded)
        if self.num_pages is not None and "num_pages" in pages:
            struct.pack_into("<i", buffer, self.num_pages, pages["num_pages"])
        return buffer


class _Builder:
    """A parameter under way."""

    def __init__(self, size_bytes: int, recipes: list[dict[str, Any]]) -> None:
        self.data = bytearray(size_bytes)
        self.pointers: list[tuple[int, str]] = []
        self.maps: list[tuple[int, dict[str, Any]]] = []
        self._recipes = {recipe["name"]: recipe for recipe in recipes}

    def put(self, offset: int, value: bytes) -> None:
        self.data[offset : offset + len(value)] = value

    def put_map(self, offset: int, name: str) -> None:
        self.maps.append((offset, self._recipes[name]))

    def made(self, num_pages: int | None = None) -> Parameter:
        data, pointers, maps = bytes(self.data), tuple(self.pointers), tuple(self.maps)
        return Parameter(data=data, pointers=pointers, maps=maps, num_pages=num_pages)


def attention_parameter(recipe: dict[str, Any], own: Mapping[str, int]) -> Parameter:
    """Of an attention's launch. `own`: addresses of tasks, queues, arrivals, partials and refused words."""
    layout = recipe["parameter"]
    made, num_pages = _Builder(layout["size_bytes"], recipe["tensor_maps"]), None
    for field in layout["fields"]:
        name, offset, kind = field["name"], field["offset"], field["type"]
        if name.endswith("_map"):
            made.put_map(offset, name)
        elif name == "first_tasks":
            made.put(offset, bytes.fromhex(recipe["first_tasks"]))
        elif kind == "pointer" and field.get("tensor"):
            made.pointers.append((offset, field["tensor"]))
        elif kind == "pointer":
            made.put(offset, struct.pack("<Q", own.get(name, 0)))
        else:
            made.put(offset, struct.pack("<f" if kind == "float32" else "<i", field["value"]))
        if name == "num_pages" and "pages" in recipe:
            num_pages = offset
    return made.made(num_pages)


def product_parameter(artifact: Artifact, index: int, own: Mapping[str, int]) -> Parameter:
    """Of launch `index` of the products. `own`: addresses of the plan's words and of the workspace."""
    manifest, layout = artifact.manifest, artifact.manifest["parameter"]
    launch = manifest["launches"][index]
    ops = {op["name"]: op for op in manifest["workload"]["ops"]}
    made = _Builder(layout["size_bytes"], launch["tensor_maps"])
    fixed = {
        "words": struct.pack("<Q", own["words"]),
        "workspace": struct.pack("<Q", own["workspace"]),
        "spin_limit_cycles": struct.pack("<q", layout["spin_limit_cycles"]),
        "is_dependent": struct.pack("<i", launch["programmatic_dependent_launch"]),
        "is_second": struct.pack("<i", launch["workspace"]["is_second"]),
        "trace": bytes(8),
        "first_tasks": bytes.fromhex(launch["first_tasks"]),
        "plan_header": artifact.files[launch["plan"]][:_PLAN_HEADER_BYTES],
    }
    named = {tensor["name"] for tensor in manifest["tensors"]}
    for field in layout["fields"]:
        name, offset, kind = field["name"], field["offset"], field["type"]
        op, _, member = name.partition(".")
        if name in fixed:
            made.put(offset, fixed[name])
        elif member.endswith("_map"):
            made.put_map(offset, name)
        elif kind == "int32":
            size = ops[op][member] if op in ops and member in ops[op] else int(field["meaning"])
            made.put(offset, struct.pack("<i", size))
        elif kind == "float32":
            made.put(offset, struct.pack("<f", float(field["meaning"])))
        else:
            tensor = field.get("tensor") or {"a": ops[op]["source"], "c": op}.get(member, name)
            made.pointers += [(offset, tensor)] if tensor in named else []
    return made.made()
