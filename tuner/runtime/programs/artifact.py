"""Runs one downloaded artifact, whatever its ops: a chain, an attention, or both.

    layer = tuner.runtime.load_artifact("best.zip")
    launches = layer.bind({"attention": x, "o_proj.w": w, ...})   # once for each layer of a model
    launches.enqueue(stream)                                      # may be captured in a graph

Everything about a launch is read from the artifact's manifest. Data passed between the launches, and their counters,
belong to the artifact: everything bound to one artifact runs on one stream."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.core.problem.dtype import ELEMENTS
from tuner.errors import InvalidInput
from tuner.packs.base_shape import is_product
from tuner.packs.recipes.launches import check_launches
from tuner.packs.recipes.own_launches import OF_CACHES, OWN_SECTIONS, check_own_sections
from tuner.packs.recipes.parameters import has_rows, most_rows, of_each_op
from tuner.runtime.binding.native import RuntimeFailure, WrongOperand
from tuner.runtime.device.driver import MOST_CARVEOUT, PREFERRED_SHARED_MEMORY_CARVEOUT, Launch, driver
from tuner.runtime.device.kernels import CacheKernel, Loader, OwnLaunches, Products
from tuner.runtime.device.launch_list import Launches
from tuner.runtime.tensors.arrays import View, view
from tuner.runtime.tensors.operands import ROWS, of_manifest

#: The newest manifest format that it can read.
NEWEST_FORMAT = 6
#: Tensors that only the launches read and write: the artifact allocates them if the caller does not pass any.
_BETWEEN = ("intermediate", "squares")

Json = dict[str, Any]


class Artifact:
    """The kernels of one artifact, loaded into the current context."""

    def __init__(self, files: Mapping[str, bytes], name: str = "the artifact", *, shares_sms: bool = False) -> None:
        """`files` by name, as downloaded. `shares_sms`: SMs use as much shared memory as possible, so that CTAs of
        later launches fit next to its own.

        Raises:
            RuntimeFailure: something contradicts the manifest, or there is nothing to run.
        """
        self.manifest: Json = _checked_manifest(files, name)
        self._driver = driver()
        self._driver.check_context()
        self._device = self._driver.device_name()
        self._memory: dict[str, int] = {}
        attributes = {PREFERRED_SHARED_MEMORY_CARVEOUT: MOST_CARVEOUT} if shares_sms else {}
        loader = Loader(self.manifest, files, self._driver, attributes)
        self._list = loader.list
        self._products = Products(loader) if self.manifest["launches"] else None
        self._of_caches = [CacheKernel(loader, recipe) for recipe in self.manifest.get(OF_CACHES, ())]
        self._own = [OwnLaunches(loader, recipes) for recipes in of_each_op(self.manifest)]

    @property
    def tensors(self) -> dict[str, Json]:
        """The arguments of `bind`, by name: role, shape and element type. Those of an optional first kernel may be left
        out."""
        found = {tensor["name"]: tensor for tensor in self.manifest["tensors"]}
        for recipe in self.manifest.get(OF_CACHES, ()):
            for tensor in recipe.get("append", {}).get("tensors", ()):
                found[tensor["name"]] = {**tensor, "role": "optional"}
        return found

    def bind(self, tensors: Mapping[str, Any]) -> Launches:
        """The launches with these arrays, by the manifest's names. Biases, residuals and all other named tensors are
        required, except those that only the launches read and write.

        Raises:
            RuntimeFailure: a name is missing or unknown, an array has a different shape, element type or alignment than
            its operand, they are on several devices, or two overlap and one is written.
        """
        known, paged = self.tensors, self._paged
        appends = any(name in tensors for name, tensor in known.items() if tensor["role"] == "optional")
        table = of_manifest(self.manifest, paged, self._tables, appends)
        views = table.checked(tensors, device=self._device)
        rows = self._rows({views[one.name].shape[0] for one in table if one.name in views and one.shape[0] == ROWS})
        addresses = {name: self._address(tensor, views.get(name)) for name, tensor in known.items()}
        of_products = self._products.launches(addresses, views, rows) if self._products else ()
        packed: dict[str, list[tuple[Launch, ...]]] = {
            OF_CACHES: [(*one.launches(addresses, views),) for one in self._of_caches],
            "launches": [(launch,) for launch in of_products],
            "own_launches": [(launch,) for one in self._own for launch in one.launches(addresses)],
        }
        launches = [launch for one in self._order for launch in packed[one["list"]][one["index"]]]
        return Launches(launches, tensors, self._list)

    def _rows(self, given: set[int]) -> int:
        """Rows of a launch; 0 if they are fixed."""
        most = most_rows(self.manifest)
        for rows in given:
            if not 1 <= rows <= most:
                raise WrongOperand(f"there are {rows} rows, but the kernels support 1 to {most}: pass that many")
            return rows
        return 0

    def fits(self, forms: Mapping[str, tuple[tuple[int, ...], Any]], dtypes: Mapping[str, Any]) -> bool:
        """Whether these shapes and element types fit the artifact, and all required tensors except outputs are among
        them; `dtypes` by the manifest's names."""
        wanted = {name: one for name, one in self.tensors.items() if one["role"] not in (*_BETWEEN, "optional")}
        if {name for name, one in wanted.items() if one["role"] != "output"} != forms.keys():
            return False
        rows = {shape[0] for name, (shape, _) in forms.items() if has_rows(self.manifest, wanted[name])}
        most = most_rows(self.manifest)
        if len(rows) > 1 or not all(1 <= one <= most for one in rows):
            return False
        for name, (shape, dtype) in forms.items():
            is_free = name in self._paged or has_rows(self.manifest, wanted[name])
            given, right = shape, tuple(wanted[name]["shape"])
            if name in self._tables:
                given, right = given[:-1], right[:-1]
            if dtype != dtypes[wanted[name]["dtype"]] or given[is_free:] != right[is_free:] or len(given) != len(right):
                return False
        return True

    def shapes_beside(self, tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, for the number of rows that these have."""
        of_rows = [name for name, one in self.tensors.items() if has_rows(self.manifest, one)]
        rows = next((view(tensors[name]).shape[0] for name in of_rows if name in tensors), None)
        shapes = {name: tuple(one["shape"]) for name, one in self.tensors.items()}
        return shapes | ({} if rows is None else {name: (rows, *shapes[name][1:]) for name in of_rows})

    @property
    def _order(self) -> list[Json]:
        """The order of all launches: from the manifest; if it has none, those with caches first."""
        lists = (OF_CACHES, "launches")
        first = [{"list": name, "index": i} for name in lists for i in range(len(self.manifest.get(name, ())))]
        return list(self.manifest.get("launch_order", first))

    @property
    def _paged(self) -> set[str]:
        """Caches with pages: an array may have more or fewer pages than were tuned."""
        paged = [recipe["op"] for recipe in self.manifest.get(OF_CACHES, ()) if "pages" in recipe]
        written = (self.manifest["parameter"] or {}).get("pages", {"caches": []})
        return {f"{op}.{what}" for op in paged for what in ("keys", "values")} | set(written["caches"])

    @property
    def _tables(self) -> set[str]:
        """Tables of these pages; an array may have wider or narrower rows than were tuned."""
        sections = [*self.manifest.get(OF_CACHES, ()), self.manifest["parameter"] or {}]
        return {one["pages"]["tensor"] for one in sections if "pages" in one}

    def refused(self) -> str:
        """The first error that an attention's launches, or those that write to its cache, found in lengths and
        pages, as a sentence; empty if there was none. It waits for the device."""
        return next((found for one in self._kernels if (found := one.refused())), "")

    def forget_refused(self) -> None:
        """Resets `refused`. It waits for the device."""
        for one in self._kernels:
            one.forget_refused()

    @property
    def _kernels(self) -> list[CacheKernel | OwnLaunches | Products]:
        """All kernels; each may receive lengths and pages."""
        return [*self._of_caches, *self._own, *([self._products] if self._products else [])]

    def aborted(self) -> bool:
        """Whether a launch has given up waiting; results since then are wrong, until `reset`. It waits for the
        device."""
        return any(one.aborted() for one in self._kernels)

    def reset(self) -> None:
        """After an abort, or a call that was only partly enqueued: resets the launches' counters. It waits for the
        device."""
        for one in self._kernels:
            one.reset()
        self._list.needs_reset = False

    def _address(self, tensor: Json, found: View | None) -> int:
        """The address of the given array, or of memory for it; 0 if it is not needed."""
        name, role = tensor["name"], tensor["role"]
        if found is not None:
            return found.address
        if role in _BETWEEN:
            if name not in self._memory:
                self._memory[name] = self._driver.memory(_num_bytes(tensor))
            return self._memory[name]
        if role == "optional":
            return 0
        raise WrongOperand(f"{name} is missing: pass {tensor['shape']} of {tensor['dtype']}, the {role}")


def load_artifact(path: str | Path, *, shares_sms: bool = False) -> Artifact:
    """The artifact in a zip, or in the folder of its files; `shares_sms` as in `Artifact`.

    Raises:
        RuntimeFailure: it is not an artifact, something contradicts its manifest, or the driver refuses a kernel.
    """
    where = Path(path)
    if where.is_dir():
        files = {file.name: file.read_bytes() for file in where.iterdir() if file.is_file()}
    elif zipfile.is_zipfile(where):
        with zipfile.ZipFile(where) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    else:
        raise RuntimeFailure(-1, f"{where} is neither a folder nor a zip: pass what `tuner-client fetch best` wrote")
    return Artifact(files, str(where), shares_sms=shares_sms)


def _checked_manifest(files: Mapping[str, bytes], name: str) -> Json:
    if "manifest.json" not in files:
        raise RuntimeFailure(
            -1, f"{name} has no manifest.json: pass the zip of an artifact, or the folder of its files"
        )
    manifest: Json = json.loads(files["manifest.json"])
    if (found := manifest.get("format", 1)) > NEWEST_FORMAT:
        raise RuntimeFailure(-1, f"{name} is of format {found}, but this version reads formats up to {NEWEST_FORMAT}")
    launched = {one["op"] for section in OWN_SECTIONS for one in manifest.get(section, ())}
    launched |= {name for one in manifest.get("launches", ()) for name in one["ops"]}
    launched |= {name for names in manifest.get("joined", {}).values() for name in names}
    if odd := [op for op in manifest["workload"]["ops"] if not is_product(op) and op["name"] not in launched]:
        raise RuntimeFailure(-1, f"{name} has an op {odd[0]['op']!r}, but no launch of it: fetch it again")
    for file, facts in manifest["files"].items():
        if hashlib.sha256(files.get(file, b"")).hexdigest() != facts["sha256"]:
            raise RuntimeFailure(-1, f"{file} of {name} is not the file in the manifest: fetch it again")
    kernels = [manifest["kernel"], *(one["kernel"] for section in OWN_SECTIONS for one in manifest.get(section, ()))]
    if any(kernel and kernel["cubin"] is None for kernel in kernels):
        raise RuntimeFailure(-1, f"{name} has no cubin (it was simulated): there is nothing to run")
    try:
        check_launches(manifest, files)
        check_own_sections(manifest, files)
    except InvalidInput as error:
        raise RuntimeFailure(-1, f"{name}: {error}") from error
    return manifest


def _num_bytes(tensor: Json) -> int:
    size = ELEMENTS[tensor["dtype"]].size_bytes
    for extent in tensor["shape"]:
        size *= extent
    return size
