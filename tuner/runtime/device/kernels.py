"""The loaded kernels of an artifact: the one for all products, and those of launch ops, each with its memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.packs.recipes.launches import FALLBACK
from tuner.packs.recipes.parameters import of_launch, pack_fields, pack_product
from tuner.runtime.binding.native import RuntimeFailure, WrongOperand
from tuner.runtime.device.driver import (
    COOPERATIVE,
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    Driver,
    Launch,
)
from tuner.runtime.device.launch_list import LaunchList, Needed
from tuner.runtime.device.launch_values import REFUSED_BYTES, Pages, pages_of, refusal
from tuner.runtime.tensors.arrays import View

Json = dict[str, Any]


class Loader:
    """An artifact's files, and the current context, into which they are loaded."""

    def __init__(
        self, manifest: Json, files: Mapping[str, bytes], driver: Driver, attributes: Mapping[int, int]
    ) -> None:
        """`attributes`: set for every kernel, in addition to its own."""
        self.manifest, self.driver, self._files, self._attributes = manifest, driver, files, attributes
        #: The state of all launches.
        self.list = LaunchList(driver)

    def load(self, kernel: Json, attributes: Mapping[int, int]) -> ctypes.c_void_p:
        """A kernel by its entry in the manifest."""
        function = self.driver.function(self._files[kernel["cubin"]], kernel["name"])
        for attribute, value in {**attributes, **self._attributes}.items():
            self.driver.set_attribute(function, attribute, value)
        return function

    def uploaded(self, name: str) -> int:
        """A file copied to the device."""
        return self.driver.uploaded(self._files[name])

    def file(self, name: str) -> bytes:
        """The bytes of a file."""
        return self._files[name]


class Products:
    """The kernel for all products, with a plan and a workspace for each launch. If the manifest's launches do not
    fit in the current context, its fallback launches for cards with fewer clusters are used, if any."""

    def __init__(self, loader: Loader) -> None:
        self._loader, manifest = loader, loader.manifest
        recipes = manifest["launches"]
        if any(launch["stream"] for launch in recipes):
            raise RuntimeFailure(-1, "this artifact runs on two streams: fetch another kind of it, e.g. fused_pdl")
        smem = max(launch["dynamic_smem_bytes"] for launch in recipes)
        self._function = loader.load(manifest["kernel"], {MAX_DYNAMIC_SHARED_SIZE_BYTES: smem})
        if FALLBACK in manifest and not loader.list.holds(Needed.by(self._function, one) for one in recipes):
            recipes = manifest[FALLBACK]
        self._recipes: list[Json] = recipes
        self._words = [loader.uploaded(launch["plan"]) for launch in recipes]
        sizes = {launch["workspace"]["index"]: launch["workspace"]["bytes"] for launch in recipes}
        self._workspaces = {index: loader.driver.memory(size) for index, size in sizes.items()}
        for launch in recipes:
            loader.list.add(Needed.by(self._function, launch))

    def launches(self, addresses: Mapping[str, int], views: Mapping[str, View], rows: int = 0) -> Iterator[Launch]:
        """The packed launches, in order. `views` describes all given arrays. `rows` is 0 for the number of rows that
        the artifact was made for.

        Raises:
            RuntimeFailure: K and V have different page layouts, or the driver refuses.
        """
        loader, manifest = self._loader, self._loader.manifest
        of_cache: dict[str, int] = {}
        if written := manifest["parameter"].get("pages"):
            pages = pages_of(written["caches"], views, written["tensor"])
            of_cache = pages.of_writer(manifest["parameter"])
        for index, launch in enumerate(self._recipes):
            own = {"words": self._words[index], "workspace": self._workspaces[launch["workspace"]["index"]]} | of_cache
            header = loader.file(launch["plan"])
            parameter = pack_product(
                manifest,
                launch,
                addresses,
                own,
                header,
                lambda recipe: loader.driver.tensor_map(recipe, addresses[recipe["tensor"]]),
                rows,
            )
            yield _packed(loader.driver, self._function, parameter, launch, self._dependent_offset)

    def aborted(self) -> bool:
        """Whether a launch has raised its abort flag."""
        offsets = {one["workspace"]["index"]: one["workspace"]["abort_record"]["offset"]
                   for one in self._recipes}  # fmt: skip
        words = (self._loader.driver.word(self._workspaces[index] + at) for index, at in offsets.items())
        return any(words)

    def reset(self) -> None:
        """Resets the launches' counters, once all enqueued work has ended."""
        for space in (launch["workspace"] for launch in self._recipes):
            self._loader.driver.zero(self._workspaces[space["index"]], space.get("zero_bytes", space["bytes"]))

    @property
    def _dependent_offset(self) -> int:
        """The position in the parameter that tells whether the launch is programmatic."""
        fields = self._loader.manifest["parameter"]["fields"]
        return next(int(field["offset"]) for field in fields if field["name"] == "is_dependent")

    def refused(self) -> str:
        """The first error that a launch found in lengths and pages of new tokens, as a sentence."""
        return next((found for at in self._refused if (found := refusal(self._loader.driver, at))), "")

    def forget_refused(self) -> None:
        """Resets the error words, once all enqueued work has ended."""
        for at in self._refused:
            self._loader.driver.zero(at, REFUSED_BYTES)

    @property
    def _refused(self) -> list[int]:
        """The addresses at which launches store the words of refused input."""
        spaces = [launch["workspace"] for launch in self._recipes]
        return [self._workspaces[one["index"]] + one["refused"]["offset"] for one in spaces if "refused" in one]


class CacheKernel:
    """The kernel of one op with a cache, and the optional one before it."""

    def __init__(self, loader: Loader, recipe: Json) -> None:
        self._loader, self._recipe = loader, recipe
        attributes = {MAX_DYNAMIC_SHARED_SIZE_BYTES: recipe["dynamic_smem_bytes"]}
        if recipe["allows_non_portable_cluster"]:
            attributes[NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        self._function = loader.load(recipe["kernel"], attributes)
        self._append: Json = recipe.get("append", {"tensors": [], "kernel": {"cubin": None}})
        kernel = self._append["kernel"]
        self._append_function = loader.load(kernel, {}) if kernel["cubin"] else None
        loader.list.add(Needed.by(self._function, recipe))
        self._workspace = workspace = loader.driver.memory(recipe["workspace"]["bytes"])
        record = recipe["workspace"].get("abort_record")  # missing if waits are not bounded
        self._abort = workspace + record["offset"] if record else 0
        self._refused = workspace + recipe["workspace"]["refused"]
        self._own: dict[str, int | bytes] = {
            **{name: workspace + recipe["workspace"][name] for name in ("arrivals", "partials", "refused")},
            **{name: loader.uploaded(recipe[name]) for name in ("tasks", "queues")},
            "abort": self._abort,
            "first_tasks": bytes.fromhex(recipe["first_tasks"]),
        }

    def launches(self, addresses: Mapping[str, int], views: Mapping[str, View]) -> Iterator[Launch]:
        """The packed launches, in order, including the kernel before it if its tensors are given. `views` describes all
        given arrays.

        Raises:
            RuntimeFailure: K and V have different page layouts, or the driver refuses.
        """
        pages, own = self._pages(views), dict[str, int | bytes](self._own)
        if any(addresses[tensor["name"]] for tensor in self._append["tensors"]):
            yield self._in_front(self._append, addresses, pages)
        maps = {one["name"]: one for one in self._recipe["tensor_maps"]}
        encode = self._loader.driver.tensor_map
        if pages is not None:
            of_pages, maps = pages.of_reader(self._recipe)
            own |= of_pages
        parameter = pack_fields(
            self._recipe["parameter"],
            addresses,
            own,
            lambda name: encode(maps[name], addresses[maps[name]["tensor"]]),
        )
        yield _packed(self._loader.driver, self._function, parameter, self._recipe)

    def _pages(self, views: Mapping[str, View]) -> Pages | None:
        """The pages of both caches; None if they have none."""
        if "pages" not in self._recipe:
            return None
        op = self._recipe["op"]
        return pages_of([f"{op}.keys", f"{op}.values"], views, self._recipe["pages"]["tensor"])

    def _in_front(self, append: Json, addresses: Mapping[str, int], pages: Pages | None) -> Launch:
        if missing := [one["name"] for one in append["tensors"] if not addresses[one["name"]]]:
            raise RuntimeFailure(-1, f"{missing[0]} is missing: pass all tensors of the append kernel, or none of them")
        if self._append_function is None:
            raise RuntimeFailure(-1, "this artifact has no cubin of the append kernel: fetch it again")
        if pages and not pages.is_dense:
            problem = f"the cache of {self._recipe['op']} has gaps, but the append kernel writes lines without gaps"
            raise WrongOperand(
                f"{problem}: rotate and write in your own code, and leave out {append['tensors'][0]['name']}"
            )
        of_pages = {"num_pages": pages.count, "max_pages": pages.width} if pages else {}
        parameter = pack_fields(append["parameter"], addresses, of_pages, lambda name: b"")
        return _packed(self._loader.driver, self._append_function, parameter, append)

    def aborted(self) -> bool:
        """Same as in `Products`."""
        return self._abort != 0 and self._loader.driver.word(self._abort) != 0

    def refused(self) -> str:
        """The first error that a launch found, as a sentence."""
        return refusal(self._loader.driver, self._refused)

    def forget_refused(self) -> None:
        """Resets the error words, once all enqueued work has ended."""
        self._loader.driver.zero(self._refused, REFUSED_BYTES)

    def reset(self) -> None:
        """Resets the launches' counters, once all enqueued work has ended."""
        self._loader.driver.zero(self._workspace, self._recipe["workspace"]["zero_bytes"])


class OwnLaunches:
    """The launches of one op from another package, which share one memory."""

    def __init__(self, loader: Loader, recipes: Sequence[Json]) -> None:
        self._loader, self._recipes = loader, recipes
        space = recipes[0]["workspace"]
        self._zero_bytes = space["zero_bytes"]
        self._workspace = loader.driver.memory(space["bytes"]) if space["bytes"] else 0
        files = functools.cache(loader.uploaded)
        self._own = [of_launch(recipe, self._workspace, files) for recipe in recipes]
        self._functions = []
        for recipe in recipes:
            attributes = {MAX_DYNAMIC_SHARED_SIZE_BYTES: recipe["dynamic_smem_bytes"]}
            if recipe["allows_non_portable_cluster"]:
                attributes[NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
            self._functions.append(loader.load(recipe["kernel"], attributes))
            loader.list.add(Needed.by(self._functions[-1], recipe))

    def launches(self, addresses: Mapping[str, int]) -> Iterator[Launch]:
        """The packed launches, in order.

        Raises:
            RuntimeFailure: the driver refuses a tensor map.
        """
        encode = self._loader.driver.tensor_map
        for recipe, function, own in zip(self._recipes, self._functions, self._own, strict=True):
            maps = {one["name"]: encode(one, addresses[one["tensor"]]) for one in recipe["tensor_maps"]}
            parameter = pack_fields(recipe["parameter"], addresses, own, maps.__getitem__)
            yield _packed(self._loader.driver, function, parameter, recipe)

    def aborted(self) -> bool:
        """Always false: manifests do not describe the counters of these kernels."""
        return False

    def refused(self) -> str:
        """Always empty: these kernels do not check their inputs."""
        return ""

    def forget_refused(self) -> None:
        """There is nothing to reset."""

    def reset(self) -> None:
        """Resets the launches' counters, once all enqueued work has ended."""
        if self._zero_bytes:
            self._loader.driver.zero(self._workspace, self._zero_bytes)


def _packed(
    cuda: Driver, function: ctypes.c_void_p, parameter: bytes, recipe: Json, dependent_offset: int | None = None
) -> Launch:
    """Packs a launch. `dependent_offset`: the position in the parameter that tells whether the launch is programmatic,
    if there is one."""
    plain = recipe.get("plain", {"cooperative": recipe.get("cooperative", False)})
    programmatic = {PROGRAMMATIC_STREAM_SERIALIZATION} if recipe["programmatic_dependent_launch"] else set[int]()
    return Launch(
        cuda,
        function,
        parameter,
        grid=recipe["grid"],
        block=recipe["block"],
        smem_bytes=recipe["dynamic_smem_bytes"],
        switches=programmatic or ({COOPERATIVE} if recipe.get("cooperative", False) else set()),
        plain_switches={COOPERATIVE} if plain["cooperative"] else set(),
        dependent_offset=dependent_offset,
    )
