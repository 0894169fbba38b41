"""Decode attention of a fetched artifact, with the projection behind it: on arrays of any library, on any stream.

Each `bind` has a workspace of its own, so its launches follow each other. What may run beside them is bound by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .arrays import Library, View, address_of, library_of, view
from .artifact import Artifact, Parameter, attention_parameter, product_parameter, read_artifact
from .driver import Driver, driver
from .native import RuntimeFailure

#: Sets of addresses whose parameters are kept: layers of a model.
NUM_CACHED = 256
_ALIGNMENT = 256
_BAD_ARGUMENT, _BAD_PACK, _MISMATCH = -1, -2, -5
_REFUSALS = {1: "length", 2: "page"}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


class AttentionArtifact:
    """An artifact of one attention, alone or with one plain product behind it."""

    def __init__(self, path: Path | str) -> None:
        """Reads it; every byte is checked.

        Raises:
            RuntimeFailure: it is no intact artifact, or not of such a workload.
        """
        self.artifact: Artifact = read_artifact(path)
        manifest = self.artifact.manifest
        if len(manifest.get("attentions", ())) != 1 or len(manifest["launches"]) > 1:
            raise RuntimeFailure(_BAD_PACK, "the artifact is not of one attention with at most one product behind it")
        (self.recipe,) = manifest["attentions"]
        (self.op,) = (op for op in manifest["workload"]["ops"] if op.get("op") == "attention")
        products = [op for op in manifest["workload"]["ops"] if op is not self.op]
        self.product: dict[str, Any] | None = products[0] if products else None
        if self.product is not None and (odd := _odd_options(self.product)):
            problem = f"{self.product['name']} has {', '.join(odd)}, for which there is no operand here"
            raise RuntimeFailure(_BAD_PACK, f"{problem}: examples/run_attention.py shows how to launch it")
        self.dtype = _DTYPES[manifest["workload"]["dtype"]]
        #: Shapes of the tensors that a call gives, by name.
        self.shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in manifest["tensors"]}

    @property
    def page_tokens(self) -> int:
        """Of a page of the cache; 0 where it is contiguous."""
        return int(self.op.get("page_tokens", 0))

    def bind(self, weight: Any = None, *, like: Any = None, memory: Callable[[int], Any] | None = None) -> Attention:
        """What is launched, with a workspace on the device; not inside a capture. `weight` is the projection's
        [d_out, columns]; without one, `like` is any array of the device. `memory`: a function of a number of bytes that
        gives a device array, for arrays of a library that is not known.

        Raises:
            RuntimeFailure: the weight is not the projection's, or the card does not hold a cluster.
        """
        if (weight is None) != (self.product is None):
            what = "no projection" if self.product is None else f"the projection {self.product['name']}"
            raise RuntimeFailure(_BAD_ARGUMENT, f"the artifact has {what}: give its weight where there is one")
        if weight is None and like is None:
            raise RuntimeFailure(_BAD_ARGUMENT, "without a projection give `like`: an array of the device")
        if weight is not None:
            self.check("weight", f"{self.product['name']}.w", weight)  # type: ignore[index]
        return Attention(self, weight, weight if like is None else like, memory)

    def check(self, what: str, tensor: str, given: Any) -> View:
        """An array that is to be the tensor of that name.

        Raises:
            RuntimeFailure: it has another shape or type.
        """
        seen, wanted = view(given), self.shapes[tensor]
        if self.page_tokens and what in ("keys", "values"):
            wanted = (seen.shape[0], *wanted[1:])  # a cache may have any number of pages
        dtype, alignment = ("int32", 4) if what in ("lengths", "pages") else (self.dtype, 16)
        if seen.shape != wanted or seen.dtype not in (dtype, "bits"):
            raise RuntimeFailure(_BAD_ARGUMENT, f"{what} is {seen.shape} of {seen.dtype}: give {wanted} of {dtype}")
        if seen.address % alignment:
            raise RuntimeFailure(_BAD_ARGUMENT, f"{what} does not lie at a multiple of {alignment} bytes")
        return seen


class Attention:
    """Launches of an artifact; it belongs to one stream at a time, since its workspace does."""

    def __init__(self, of: AttentionArtifact, weight: Any, like: Any, memory: Callable[[int], Any] | None) -> None:
        """As `AttentionArtifact.bind` says."""
        self.of, self.weight = of, weight
        self._like, self._library, self._memory = like, library_of(like), memory
        self._driver: Driver = driver()
        self._kept: list[Any] = []
        self._packed: dict[tuple[int, ...], list[Any]] = {}
        stream = self._stream()
        self._launches = [self._attention(stream)]
        if of.product is not None:
            self._launches.append(self._product(stream))
        self._driver.synchronize(stream)

    def __call__(
        self,
        q: Any,
        keys: Any,
        values: Any,
        lengths: Any,
        pages: Any = None,
        *,
        out: Any = None,
        stream: int | None = None,
    ) -> Any:
        """Attention of `q` [sequences * new tokens, heads * head_dim] over the caches, and its projection. Nothing is
        waited for, and it may be captured in a graph.

        Raises:
            RuntimeFailure: an operand is missing or has another shape, or the driver refuses.
        """
        of, name = self.of, self.of.op["name"]
        if (pages is None) != (of.page_tokens == 0):
            kind = f"has pages of {of.page_tokens} tokens" if of.page_tokens else "is contiguous"
            raise RuntimeFailure(_BAD_ARGUMENT, f"the artifact's cache {kind}: give `pages` where it has some")
        found = {
            of.op["source"]: of.check("q", of.op["source"], q),
            f"{name}.keys": of.check("keys", f"{name}.keys", keys),
            f"{name}.values": of.check("values", f"{name}.values", values),
            f"{name}.lengths": of.check("lengths", f"{name}.lengths", lengths),
        }
        if pages is not None:
            found[f"{name}.pages"] = of.check("pages", f"{name}.pages", pages)
        if found[f"{name}.keys"].shape != found[f"{name}.values"].shape:
            raise RuntimeFailure(_BAD_ARGUMENT, "keys and values have different numbers of pages")
        last = of.product["name"] if of.product else name
        y = self._empty(of.shapes[last], q) if out is None else out
        addresses = {tensor: seen.address for tensor, seen in found.items()}
        addresses[last] = of.check("out", last, y).address
        if of.product is not None:
            addresses |= {name: self._attended, f"{last}.w": address_of(self.weight)}
        self._launch(addresses, found[f"{name}.keys"].shape[0], self._stream() if stream is None else stream)
        return y

    def refused(self) -> str:
        """What a launch found wrong first since the last `reset`, as a sentence; empty where all was right. Waits for
        the device."""
        words = self._driver.read(self._workspace + self.of.recipe["workspace"]["refused"], 16)
        kind, sequence, value, end = (int.from_bytes(words[at : at + 4], "little", signed=True) for at in (0, 4, 8, 12))
        if kind == 0:
            return ""
        return f"sequence {sequence} has the {_REFUSALS[kind]} {value}: use 0 to {end - 1}"

    def reset(self, stream: int | None = None) -> None:
        """Forgets what was refused. No launch may be under way elsewhere."""
        on, workspace = self._stream() if stream is None else stream, self.of.recipe["workspace"]
        self._driver.zero(self._workspace + workspace["refused"], 16, on)
        self._driver.synchronize(on)

    def _launch(self, addresses: dict[str, int], num_pages: int, stream: int) -> None:
        key = (*addresses.values(), num_pages)
        if (packed := self._packed.get(key)) is None:
            if len(self._packed) >= NUM_CACHED:
                self._packed.clear()
            pages = {}
            if self.of.page_tokens:
                name, rows = self.of.op["name"], num_pages * self.of.recipe["pages"]["rows_per_page"]
                pages = {"num_pages": num_pages, f"{name}.keys": rows, f"{name}.values": rows}
            packed = [parameter.packed(self._driver, addresses, pages) for _, _, parameter in self._launches]
            self._packed[key] = packed
        for (function, launch, _), parameter in zip(self._launches, packed, strict=True):
            self._driver.launch(function, launch, parameter, stream)

    def _attention(self, stream: int) -> tuple[Any, dict[str, Any], Parameter]:
        recipe, files = self.of.recipe, self.of.artifact.files
        function = self._driver.load(
            files[recipe["kernel"]["cubin"]],
            recipe["kernel"]["name"],
            shared_bytes=recipe["dynamic_smem_bytes"],
            non_portable_cluster=recipe["allows_non_portable_cluster"],
        )
        if self._driver.num_resident(function, recipe) < recipe["cluster"][0]:
            raise RuntimeFailure(_MISMATCH, f"this device holds no cluster of {recipe['cluster'][0]} such CTAs")
        space = recipe["workspace"]
        self._workspace = self._room(space["bytes"])
        self._driver.zero(self._workspace, space["zero_bytes"], stream)
        own = {name: self._workspace + space[name] for name in ("arrivals", "refused", "partials")}
        own |= {name: self._copied(files[recipe[name]], stream) for name in ("tasks", "queues")}
        return function, recipe, attention_parameter(recipe, own)

    def _product(self, stream: int) -> tuple[Any, dict[str, Any], Parameter]:
        artifact = self.of.artifact
        (launch,), kernel = artifact.manifest["launches"], artifact.manifest["kernel"]
        function = self._driver.load(
            artifact.files[kernel["cubin"]],
            kernel["name"],
            shared_bytes=launch["dynamic_smem_bytes"],
            non_portable_cluster=False,
        )
        held = self._driver.num_resident(function, launch)
        if launch["needs_all_ctas"] and held < launch["grid"][0]:
            problem = (
                f"the projection needs its {launch['grid'][0]} CTAs resident at once, and this device holds {held}"
            )
            raise RuntimeFailure(_MISMATCH, problem)
        workspace = self._room(launch["workspace"]["bytes"])
        self._driver.zero(workspace, launch["workspace"]["zero_bytes"], stream)
        self._attended = self._room(2 * _size_of(self.of.shapes[self.of.op["name"]]))
        own = {"words": self._copied(artifact.files[launch["plan"]], stream), "workspace": workspace}
        return function, launch, product_parameter(artifact, 0, own)

    def _copied(self, data: bytes, stream: int) -> int:
        address = self._room(len(data))
        self._kept.append(data)
        self._driver.copy_to(address, data, stream)
        return address

    def _room(self, num_bytes: int) -> int:
        """Device memory, at a multiple of 256; it lives as long as this."""
        size = num_bytes + _ALIGNMENT
        if self._memory is not None:
            held = self._memory(size)
        elif self._library is not None:
            held = self._library.empty_bytes(size, self._like)
        else:
            problem = "arrays of this library need `memory`: a function that gives a device array"
            raise RuntimeFailure(_BAD_ARGUMENT, problem)
        self._kept.append(held)
        return -(-address_of(held) // _ALIGNMENT) * _ALIGNMENT

    def _stream(self) -> int:
        library: Library | None = self._library
        return 0 if library is None else library.current_stream(self._like)

    def _empty(self, shape: tuple[int, ...], like: Any) -> Any:
        if self._library is None:
            raise RuntimeFailure(_BAD_ARGUMENT, "arrays of this library need `out`: an array for the result")
        return self._library.empty(shape, like)


def load_attention(path: Path | str) -> AttentionArtifact:
    """Reads the zip, or the folder, of a fetched artifact."""
    return AttentionArtifact(path)


def _odd_options(product: dict[str, Any]) -> list[str]:
    odd = [name for name in ("bias", "gated", "residual", "row_scale", "norm") if product.get(name)]
    return odd + ([] if product["activation"] == "identity" else [product["activation"]])


def _size_of(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
