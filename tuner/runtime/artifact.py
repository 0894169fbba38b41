"""Runs one fetched artifact, whatever its ops: a chain, an attention, or both.

    layer = tuner.runtime.load_artifact("best.zip")
    launches = layer.bind({"attention": x, "o_proj.w": w, ...})   # once for each layer of a model
    launches.enqueue(stream)                                      # may be captured in a graph

Everything about a launch is read from the artifact's manifest. What the launches hand to each other, and what they
count in, belongs to the artifact: all that is bound to one artifact runs on one stream."""

from __future__ import annotations

import ctypes
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.packs.parameters import pack_fields, pack_product

from .arrays import NotAnArray, View, view
from .driver import (
    COOPERATIVE,
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    MOST_CARVEOUT,
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    PREFERRED_SHARED_MEMORY_CARVEOUT,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    Driver,
    Launch,
    driver,
)
from .launch_values import REFUSED_BYTES, pages_of, refusal
from .native import RuntimeFailure

#: The newest format of a manifest that it reads.
NEWEST_FORMAT = 5
_NAMES = {"fp16": ("float16", "bits"), "bf16": ("bfloat16", "bits"), "fp32": ("float32",), "int32": ("int32",)}
_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4}
#: Tensors that only the launches read and write: the artifact has room for them where the caller gives none.
_BETWEEN = ("intermediate", "squares")
_ALIGNMENT = {"int32": 4}

Json = dict[str, Any]


class Launches:
    """An artifact's launches over certain tensors."""

    def __init__(self, launches: list[Launch], kept: Mapping[str, Any]) -> None:
        """`kept` are the arrays, which must outlive this."""
        self._launches, self._kept = launches, dict(kept)

    def without_arrays(self) -> Launches:
        """The same, which keeps no array alive: for whoever sees to it."""
        return Launches(self._launches, {})

    def enqueue(self, stream: int) -> None:
        """All of them in order, on a stream by its address; nothing is waited for, and it may be captured.

        Raises:
            RuntimeFailure: the driver refuses.
        """
        for launch in self._launches:
            launch.enqueue(stream)


class Artifact:
    """The kernels of one artifact, loaded into the current context."""

    def __init__(self, files: Mapping[str, bytes], name: str = "the artifact", *, shares_sms: bool = False) -> None:
        """`files` by name, as they are fetched. `shares_sms`: SMs give all they can to shared memory, so that CTAs of
        the launches behind find room beside its own.

        Raises:
            RuntimeFailure: something is not as the manifest says, or there is nothing to run.
        """
        self.manifest: Json = _checked_manifest(files, name)
        self._files, self._driver = files, driver()
        self._driver.check_context()
        self._memory: dict[str, int] = {}
        self._attributes = {PREFERRED_SHARED_MEMORY_CARVEOUT: MOST_CARVEOUT} if shares_sms else {}
        self._products = _Products(self) if self.manifest["launches"] else None
        self._attentions = [_Attention(self, recipe) for recipe in self.manifest.get("attentions", ())]

    @property
    def tensors(self) -> dict[str, Json]:
        """What `bind` takes, by name: role, shape and element type. Those of a kernel in front are optional."""
        found = {tensor["name"]: tensor for tensor in self.manifest["tensors"]}
        for recipe in self.manifest.get("attentions", ()):
            for tensor in recipe.get("append", {}).get("tensors", ()):
                found[tensor["name"]] = {**tensor, "role": "optional"}
        return found

    def bind(self, tensors: Mapping[str, Any]) -> Launches:
        """The launches over these arrays, by the manifest's names. Biases, residuals and all others that it names
        must be
        there, but for what only the launches read and write.

        Raises:
            RuntimeFailure: a name is missing or unknown, or an array has another shape or element type.
        """
        known, paged = self.tensors, self._paged
        if unknown := sorted(set(tensors) - set(known)):
            raise RuntimeFailure(-1, f"there is no tensor {unknown[0]}: give {', '.join(sorted(known))}")
        addresses = {name: self._address(tensor, tensors.get(name), paged) for name, tensor in known.items()}
        num_pages = {name: view(tensors[name]).shape[0] for name in paged}
        of_products = self._products.launches(addresses, num_pages) if self._products else ()
        packed: dict[str, list[tuple[Launch, ...]]] = {
            "attentions": [(*one.launches(addresses, num_pages),) for one in self._attentions],
            "launches": [(launch,) for launch in of_products],
        }
        launches = [launch for one in self._order for launch in packed[one["list"]][one["index"]]]
        return Launches(launches, tensors)

    @property
    def _order(self) -> list[Json]:
        """Of all launches: what the manifest says; where it says nothing, attentions first."""
        lists = ("attentions", "launches")
        first = [{"list": name, "index": i} for name in lists for i in range(len(self.manifest.get(name, ())))]
        return list(self.manifest.get("launch_order", first))

    @property
    def _paged(self) -> set[str]:
        """Caches with pages: of each, an array may have more or fewer than were tuned."""
        paged = [recipe["op"] for recipe in self.manifest.get("attentions", ()) if "pages" in recipe]
        written = (self.manifest["parameter"] or {}).get("pages", {"caches": []})
        return {f"{op}.{what}" for op in paged for what in ("keys", "values")} | set(written["caches"])

    def refused(self) -> str:
        """What an attention's launches, or those that write to its cache, found wrong first among lengths and pages, as
        a sentence; empty where nothing was. It waits for the device."""
        return next((found for one in self._given_lengths if (found := one.refused())), "")

    def forget_refused(self) -> None:
        """So that `refused` tells of what comes. It waits for the device."""
        for one in self._given_lengths:
            one.forget_refused()

    @property
    def _given_lengths(self) -> list[_Attention | _Products]:
        """Whose launches are given lengths and pages."""
        return [*self._attentions, *([self._products] if self._products else [])]

    def aborted(self) -> bool:
        """Whether a launch has given up waiting; results since then are not right. It waits for the device."""
        return any(one.aborted() for one in self._given_lengths)

    def _address(self, tensor: Json, array: Any, paged: set[str]) -> int:
        """Of an array, or of room for it; 0 where it is not needed."""
        name, role = tensor["name"], tensor["role"]
        if array is not None:
            return _checked_view(tensor, array, any_first=name in paged).address
        if role in _BETWEEN:
            if name not in self._memory:
                self._memory[name] = self._driver.memory(_num_bytes(tensor))
            return self._memory[name]
        if role == "optional":
            return 0
        raise RuntimeFailure(-1, f"{name} is missing: give {tensor['shape']} of {tensor['dtype']}, the {role}")

    def load(self, kernel: Json, attributes: Mapping[int, int]) -> ctypes.c_void_p:
        """A kernel by its entry in the manifest."""
        function = self._driver.function(self._files[kernel["cubin"]], kernel["name"])
        for attribute, value in {**attributes, **self._attributes}.items():
            self._driver.set_attribute(function, attribute, value)
        return function

    def uploaded(self, name: str) -> int:
        """A file on the device."""
        return self._driver.uploaded(self._files[name])

    def file(self, name: str) -> bytes:
        """As it was fetched."""
        return self._files[name]

    @property
    def driver(self) -> Driver:
        """Where it is loaded."""
        return self._driver


class _Products:
    """The kernel of all products, with a plan and a workspace for each launch."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact, manifest = artifact, artifact.manifest
        recipes = manifest["launches"]
        if any(launch["stream"] for launch in recipes):
            raise RuntimeFailure(-1, "this artifact runs on two streams: fetch another kind of it, e.g. fused_pdl")
        smem = max(launch["dynamic_smem_bytes"] for launch in recipes)
        self._function = artifact.load(manifest["kernel"], {MAX_DYNAMIC_SHARED_SIZE_BYTES: smem})
        self._words = [artifact.uploaded(launch["plan"]) for launch in recipes]
        sizes = {launch["workspace"]["index"]: launch["workspace"]["bytes"] for launch in recipes}
        self._workspaces = {index: artifact.driver.memory(size) for index, size in sizes.items()}
        for launch in recipes:
            self._check_fits(launch)

    def _check_fits(self, launch: Json) -> None:
        """Where all CTAs must be resident at once and the launch is not cooperative, the driver is asked before."""
        if not launch["needs_all_ctas"] or launch["cooperative"] or launch["cluster"][0] > 1:
            return
        threads, smem = launch["block"][0], launch["dynamic_smem_bytes"]
        if (held := self._artifact.driver.resident_ctas(self._function, threads, smem)) < launch["grid"][0]:
            needed = launch["grid"][0]
            raise RuntimeFailure(
                -1, f"the kernel needs its {needed} CTAs resident at once, and this device holds {held}"
            )

    def launches(self, addresses: Mapping[str, int], num_pages: Mapping[str, int]) -> Iterator[Launch]:
        """Packed, in order. `num_pages`: of each cache that has pages.

        Raises:
            RuntimeFailure: keys have other pages than values, or the driver refuses.
        """
        artifact, manifest = self._artifact, self._artifact.manifest
        of_cache: dict[str, int] = {}
        if written := manifest["parameter"].get("pages"):
            of_cache[written["num_pages_field"]] = pages_of(written["caches"], num_pages)
        for index, launch in enumerate(manifest["launches"]):
            own = {"words": self._words[index], "workspace": self._workspaces[launch["workspace"]["index"]]} | of_cache
            header = artifact.file(launch["plan"])
            parameter = pack_product(
                manifest,
                launch,
                addresses,
                own,
                header,
                lambda recipe: artifact.driver.tensor_map(recipe, addresses[recipe["tensor"]]),
            )
            yield _packed(artifact.driver, self._function, parameter, launch)

    def aborted(self) -> bool:
        """Whether a launch has raised its flag."""
        offsets = {one["workspace"]["index"]: one["workspace"]["abort_record"]["offset"]
                   for one in self._artifact.manifest["launches"]}  # fmt: skip
        words = (self._artifact.driver.word(self._workspaces[index] + at) for index, at in offsets.items())
        return any(words)

    def refused(self) -> str:
        """What a launch found wrong first among lengths and pages of new tokens, as a sentence."""
        return next((found for at in self._refused if (found := refusal(self._artifact.driver, at))), "")

    def forget_refused(self) -> None:
        """Makes the words as new, once all that was enqueued has ended."""
        for at in self._refused:
            self._artifact.driver.zero(at, REFUSED_BYTES)

    @property
    def _refused(self) -> list[int]:
        """Where launches leave these words."""
        spaces = [launch["workspace"] for launch in self._artifact.manifest["launches"]]
        return [self._workspaces[one["index"]] + one["refused"]["offset"] for one in spaces if "refused" in one]


class _Attention:
    """One attention's kernel, and the one that may go in front of it."""

    def __init__(self, artifact: Artifact, recipe: Json) -> None:
        self._artifact, self._recipe = artifact, recipe
        attributes = {MAX_DYNAMIC_SHARED_SIZE_BYTES: recipe["dynamic_smem_bytes"]}
        if recipe["allows_non_portable_cluster"]:
            attributes[NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        self._function = artifact.load(recipe["kernel"], attributes)
        self._append: Json = recipe.get("append", {"tensors": [], "kernel": {"cubin": None}})
        kernel = self._append["kernel"]
        self._append_function = artifact.load(kernel, {}) if kernel["cubin"] else None
        workspace = artifact.driver.memory(recipe["workspace"]["bytes"])
        record = recipe["workspace"].get("abort_record")  # not there where waits are not bounded
        self._abort = workspace + record["offset"] if record else 0
        self._refused = workspace + recipe["workspace"]["refused"]
        self._own: dict[str, int | bytes] = {
            **{name: workspace + recipe["workspace"][name] for name in ("arrivals", "partials", "refused")},
            **{name: artifact.uploaded(recipe[name]) for name in ("tasks", "queues")},
            "abort": self._abort,
            "first_tasks": bytes.fromhex(recipe["first_tasks"]),
        }

    def launches(self, addresses: Mapping[str, int], num_pages: Mapping[str, int]) -> Iterator[Launch]:
        """Packed, in order; the one in front where its tensors are given. `num_pages`: of each cache that has pages.

        Raises:
            RuntimeFailure: keys have other pages than values, or the driver refuses.
        """
        pages, own = self._pages(num_pages), dict[str, int | bytes](self._own)
        if any(addresses[tensor["name"]] for tensor in self._append["tensors"]):
            yield self._in_front(self._append, addresses, pages or 0)
        maps, encode = {one["name"]: one for one in self._recipe["tensor_maps"]}, self._artifact.driver.tensor_map
        if pages is not None:
            own["num_pages"] = pages
            rows = pages * self._recipe["pages"]["rows_per_page"]
            maps = {name: {**one, "dims": [one["dims"][0], rows, *one["dims"][2:]]} for name, one in maps.items()}
        parameter = pack_fields(
            self._recipe["parameter"],
            addresses,
            own,
            lambda name: encode(maps[name], addresses[maps[name]["tensor"]]),
        )
        yield _packed(self._artifact.driver, self._function, parameter, self._recipe)

    def _pages(self, num_pages: Mapping[str, int]) -> int | None:
        """That both caches have; None where they have none."""
        if "pages" not in self._recipe:
            return None
        op = self._recipe["op"]
        return pages_of([f"{op}.keys", f"{op}.values"], num_pages)

    def _in_front(self, append: Json, addresses: Mapping[str, int], num_pages: int) -> Launch:
        if missing := [one["name"] for one in append["tensors"] if not addresses[one["name"]]]:
            raise RuntimeFailure(
                -1, f"{missing[0]} is missing: give all tensors of the kernel in front, or none of them"
            )
        if self._append_function is None:
            raise RuntimeFailure(-1, "this artifact has no cubin of the kernel in front: fetch it again")
        parameter = pack_fields(append["parameter"], addresses, {"num_pages": num_pages}, lambda name: b"")
        return _packed(self._artifact.driver, self._append_function, parameter, append)

    def aborted(self) -> bool:
        """As of products."""
        return self._abort != 0 and self._artifact.driver.word(self._abort) != 0

    def refused(self) -> str:
        """What a launch found wrong first, as a sentence."""
        return refusal(self._artifact.driver, self._refused)

    def forget_refused(self) -> None:
        self._artifact.driver.zero(self._refused, REFUSED_BYTES)  # once all that was enqueued has ended


def _packed(cuda: Driver, function: ctypes.c_void_p, parameter: bytes, recipe: Json) -> Launch:
    switches = {
        COOPERATIVE: recipe.get("cooperative", False),
        PROGRAMMATIC_STREAM_SERIALIZATION: recipe["programmatic_dependent_launch"],
    }
    smem = recipe["dynamic_smem_bytes"]
    return Launch(
        cuda, function, parameter, grid=recipe["grid"], block=recipe["block"], smem_bytes=smem, switches=switches
    )


def load_artifact(path: str | Path, *, shares_sms: bool = False) -> Artifact:
    """The artifact of a zip, or of the folder of its files; `shares_sms` as `Artifact` has it.

    Raises:
        RuntimeFailure: it is none, something in it is not as its manifest says, or the driver refuses a kernel.
    """
    where = Path(path)
    if where.is_dir():
        files = {file.name: file.read_bytes() for file in where.iterdir() if file.is_file()}
    elif zipfile.is_zipfile(where):
        with zipfile.ZipFile(where) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    else:
        raise RuntimeFailure(-1, f"{where} is neither a folder nor a zip: give what `tuner-client fetch best` wrote")
    return Artifact(files, str(where), shares_sms=shares_sms)


def _checked_manifest(files: Mapping[str, bytes], name: str) -> Json:
    if "manifest.json" not in files:
        raise RuntimeFailure(
            -1, f"{name} has no manifest.json: give the zip of an artifact, or the folder of its files"
        )
    manifest: Json = json.loads(files["manifest.json"])
    if (found := manifest.get("format", 1)) > NEWEST_FORMAT:
        raise RuntimeFailure(-1, f"{name} is of format {found}, and this reads formats up to {NEWEST_FORMAT}")
    for file, facts in manifest["files"].items():
        if hashlib.sha256(files.get(file, b"")).hexdigest() != facts["sha256"]:
            raise RuntimeFailure(-1, f"{file} of {name} is not the file that the manifest names: fetch it again")
    kernels = [manifest["kernel"], *(recipe["kernel"] for recipe in manifest.get("attentions", ()))]
    if any(kernel and kernel["cubin"] is None for kernel in kernels):
        raise RuntimeFailure(-1, f"{name} has no cubin (it was simulated): there is nothing to run")
    return manifest


def _num_bytes(tensor: Json) -> int:
    size = _BYTES[tensor["dtype"]]
    for extent in tensor["shape"]:
        size *= extent
    return size


def _checked_view(tensor: Json, array: Any, *, any_first: bool = False) -> View:
    """`any_first`: whether its first dimension may be any."""
    shape = list(tensor["shape"])
    name, wanted = tensor["name"], f"{shape} of {tensor['dtype']}"
    try:
        found = view(array)
    except NotAnArray as error:
        raise RuntimeFailure(-1, f"{name}: {error}") from error
    if any_first and found.shape:
        shape[0] = found.shape[0]
    if list(found.shape) != shape or found.dtype not in _NAMES[tensor["dtype"]]:
        raise RuntimeFailure(-1, f"{name} is {list(found.shape)} of {found.dtype}: give {wanted}")
    alignment = _ALIGNMENT.get(tensor["dtype"], 16)
    if found.address % alignment:
        raise RuntimeFailure(
            -1, f"{name} lies at {found.address:#x}: give an address that is a multiple of {alignment}"
        )
    return found
