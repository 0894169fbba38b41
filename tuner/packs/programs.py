"""What the C runtime does for an artifact that is no FFN's: memory that it fills once, and launches.

A launch's parameter is a template. What depends on the caller's tensors, or on where the memory lies, is patched in.
The templates are packed by the same code that packs an artifact's launches in Python. A kind of op whose launches have
a list of their own in a manifest says itself what they are, in its file ``pack_program``.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tuner.core.problem.dtype import ELEMENTS

from .contents import Kernel
from .launched_shape import LaunchedShape
from .own_launches import parts_of
from .parameters import has_rows, is_of_weights, most_rows, of_each_op, of_launch, pack_fields, pack_product

ALIGNMENT = 256
#: Of the workspace of a launch that writes to a cache.
REFUSED_BEHIND_ABORT, REFUSED_BYTES = 32, 16
#: Roles of tensors that only the launches read and write.
_BETWEEN = ("intermediate", "squares")
_MAP_BYTES = 128
#: An address that no field holds by chance.
_MARK = 0x5A5A_0000_A5A5_0000

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A part of the memory, as it must be before the first launch."""

    offset: int
    #: A file of the artifact, or zeros.
    name: str = ""
    num_zeros: int = 0


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Eight bytes of a parameter: a tensor's address and an addend; the numbers of pages and of rows have four."""

    offset: int
    #: One of `TENSORS`, ``rows``, or a program's operand by its place.
    tensor: str | int
    addend: int = 0


@dataclass(frozen=True, kw_only=True)
class MapPatch:
    """An encoded tensor map in a parameter."""

    offset: int
    #: As a patch's.
    tensor: str | int
    addend: int
    recipe: Json
    #: Of a cache with pages; 0 for others, whose dimensions are those of the recipe.
    rows_per_page: int = 0
    #: Whether its second dimension is the rows of the launch.
    has_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor that a launch is given, as its manifest names it."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    #: Whether its first dimension may be any: of a cache with pages.
    is_paged: bool
    #: Whether its first dimension is the rows of the launch, and `shape` has the most.
    has_rows: bool


@dataclass(frozen=True, kw_only=True)
class Part:
    """One launch."""

    recipe: Json
    #: In the manifest.
    kernel: Json
    parameter: bytes
    patches: tuple[Patch, ...]
    maps: tuple[MapPatch, ...]
    #: Of the word that says whether the launch is programmatic; None where the kernel need not know.
    dependent_offset: int | None = None
    #: In the memory: words that an aborted launch leaves; None where it leaves none.
    abort_offset: int | None = None
    #: Whether the words of what it refused lie `REFUSED_BEHIND_ABORT` bytes behind those.
    tells_refused: bool = False


@dataclass(frozen=True, kw_only=True)
class Program:
    """The launches of one artifact, in order, and their memory."""

    kernel: Kernel
    memory_bytes: int
    fills: tuple[Fill, ...]
    parts: tuple[Part, ...]
    #: In the memory: the words of what was refused.
    refused_offset: int
    #: By name; where a call names them by role there are none.
    operands: tuple[Operand, ...] = ()
    #: Of a chain, which may be launched for fewer; 0 where the rows are fixed.
    most_rows: int = 0


def parameter_name(part: int) -> str:
    """The pack's file of a launch's template."""
    return f"parameter{part}.bin"


def programs_of(kernel: Kernel) -> tuple[Program, ...]:
    """That of an artifact, and behind it the one for cards that do not hold its launches, if the artifact has these."""
    return tuple(Builder(kernel, launches).program() for launches in kernel.launch_lists)


def program_of(kernel: Kernel) -> Program:
    """The first of these."""
    return programs_of(kernel)[0]


class Builder:
    """Lays the memory out and packs the launches."""

    def __init__(self, kernel: Kernel, launches: list[Json]) -> None:
        self.manifest, self._kernel, self._launches = kernel.manifest, kernel, launches
        self._bytes = 0
        self._fills: list[Fill] = []
        self._most_rows = most_rows(self.manifest)
        self._kinds = parts_of(self.manifest)
        #: The manifest's names of tensors, as places: a tensor of the caller's, or one in the memory.
        self.places: dict[str, tuple[str | int, int]] = {}
        self._operands: tuple[Operand, ...] = ()
        if isinstance(kernel.shape, LaunchedShape):
            (kind,) = self._kinds
            kind.place_operands(self)
        else:
            self._place_by_name()

    def program(self) -> Program:
        """All of it."""
        lists: dict[str, list[Part]] = {}
        refused = 0 if self._kinds else self.room(REFUSED_BYTES, zeros=REFUSED_BYTES)
        for kind in self._kinds:
            lists[kind.SECTION], refused = kind.launches_of(self)
        lists["own_launches"] = [part for recipes in of_each_op(self.manifest) for part in self._of_own(recipes)]
        lists["launches"] = self._of_products()
        first = [{"list": name, "index": index} for name, parts in lists.items() for index in range(len(parts))]
        order = self.manifest.get("launch_order", first)
        return Program(
            kernel=self._kernel,
            memory_bytes=self._bytes,
            fills=tuple(self._fills),
            parts=tuple(lists[one["list"]][one["index"]] for one in order),
            refused_offset=refused,
            operands=self._operands,
            most_rows=self._most_rows,
        )

    def _place_by_name(self) -> None:
        """Whatever the manifest names; what only the launches read and write lies in the memory."""
        given = [one for one in self.manifest["tensors"] if one["role"] not in _BETWEEN]
        paged = set[str]().union(*(kind.paged(self.manifest) for kind in self._kinds))
        paged |= set((self.manifest["parameter"] or {}).get("pages", {}).get("caches", ()))
        self.places |= {one["name"]: (place, 0) for place, one in enumerate(given)}
        for one in self.manifest["tensors"]:
            if one["role"] in _BETWEEN:
                self.places[one["name"]] = ("memory", self.room(num_bytes(one)))
        self._operands = tuple(
            Operand(
                name=one["name"],
                role=one["role"],
                dtype=one["dtype"],
                shape=tuple(one["shape"]),
                is_paged=one["name"] in paged,
                has_rows=has_rows(self.manifest, one),
            )
            for one in given
        )

    def room(self, num_bytes: int, *, zeros: int = 0, name: str = "") -> int:
        """Where so many bytes lie from now on, of which some are zeros before the first launch, or a file."""
        at = self._bytes
        self._bytes += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if zeros or name:
            self._fills.append(Fill(offset=at, num_zeros=zeros, name=name))
        return at

    def file(self, name: str) -> int:
        """Where a file of the artifact lies."""
        return self.room(len(self._kernel.files[name]), name=name)

    def part_of(
        self,
        recipe: Json,
        own: Mapping[str, int],
        constants: Mapping[str, bytes],
        *,
        rows_per_page: int = 0,
        abort_offset: int | None = None,
    ) -> Part:
        """A launch of an op that is no product. `own`: the parameter's fields that name places of the memory;
        `constants`: those that the manifest has. `rows_per_page`: of its maps; a cache's pages are counted then."""

        def pack(addresses: Mapping[str, int], there: Mapping[str, int]) -> bytes:
            given: dict[str, int | bytes] = {**constants, **{name: there[name] for name in own}}
            return pack_fields(recipe["parameter"], addresses, given, _no_map)

        fields = _offsets(recipe["parameter"])
        patches = self._patches(pack, own)
        if rows_per_page:
            patches += (Patch(offset=fields["num_pages"], tensor="num_pages"),)
        return Part(
            recipe=recipe,
            kernel=recipe["kernel"],
            parameter=pack(_NOWHERE, _NOWHERE),
            patches=patches,
            maps=self._maps(recipe["tensor_maps"], fields, rows_per_page),
            abort_offset=abort_offset,
        )

    def _of_own(self, recipes: list[Json]) -> list[Part]:
        """The launches of an op that another package brings, which work in one memory."""
        space, files = recipes[0]["workspace"], dict[str, int]()
        workspace = self.room(space["bytes"], zeros=space["zero_bytes"])

        def file_at(name: str) -> int:
            if name not in files:
                files[name] = self.file(name)
            return files[name]

        found = []
        for recipe in recipes:
            of_it = of_launch(recipe, workspace, file_at)
            own = {name: place for name, place in of_it.items() if isinstance(place, int)}
            found.append(self.part_of(recipe, own, {n: data for n, data in of_it.items() if isinstance(data, bytes)}))
        return found

    def _of_products(self) -> list[Part]:
        spaces: dict[int, int] = {}
        for launch in self._launches:
            space = launch["workspace"]
            if space["index"] not in spaces:
                spaces[space["index"]] = self.room(space["bytes"], zeros=space["zero_bytes"])
        return [self._of_product(launch, spaces[launch["workspace"]["index"]]) for launch in self._launches]

    def _of_product(self, launch: Json, workspace: int) -> Part:
        own = {"words": self.file(launch["plan"]), "workspace": workspace}
        header = self._kernel.files[launch["plan"]]

        def pack(addresses: Mapping[str, int], there: Mapping[str, int]) -> bytes:
            given = {name: there[name] for name in own}
            return pack_product(self.manifest, launch, addresses, given, header, _no_map)

        fields = _offsets(self.manifest["parameter"])
        abort, refused = launch["workspace"]["abort_record"]["offset"], launch["workspace"].get("refused")
        assert refused is None or refused["offset"] == abort + REFUSED_BEHIND_ABORT, "the C runtime reads them there"
        counts = (offset for name, offset in fields.items() if name.endswith(".num_pages"))
        numbers = [Patch(offset=offset, tensor="num_pages") for offset in counts]
        if self._most_rows:
            numbers += [Patch(offset=offset, tensor="rows") for name, offset in fields.items() if name.endswith(".m")]
        return Part(
            recipe=launch,
            kernel=self.manifest["kernel"],
            parameter=pack(_NOWHERE, _NOWHERE),
            patches=(*self._patches(pack, own), *numbers),
            maps=self._maps(launch["tensor_maps"], fields, 0),
            dependent_offset=fields["is_dependent"],
            abort_offset=workspace + abort,
            tells_refused=refused is not None,
        )

    def _patches(
        self, pack: Callable[[Mapping[str, int], Mapping[str, int]], bytes], own: Mapping[str, int]
    ) -> tuple[Patch, ...]:
        """Where each address goes: there the bytes are a mark's once it has the mark."""
        found = []
        for tensor, (place, addend) in self.places.items():
            for at in _marked(pack(defaultdict(int, {tensor: _MARK}), _NOWHERE)):
                found.append(Patch(offset=at, tensor=place, addend=addend))
        for name, addend in own.items():
            for at in _marked(pack(_NOWHERE, defaultdict(int, {name: _MARK}))):
                found.append(Patch(offset=at, tensor="memory", addend=addend))
        return tuple(sorted(found, key=lambda patch: patch.offset))

    def _maps(self, recipes: list[Json], fields: Mapping[str, int], rows_per_page: int) -> tuple[MapPatch, ...]:
        make = partial(MapPatch, rows_per_page=rows_per_page)
        found = []
        for recipe in recipes:
            place, addend = self.places[recipe["tensor"]]
            takes_rows = self._most_rows > 0 and not is_of_weights(recipe)
            found.append(
                make(offset=fields[recipe["name"]], tensor=place, addend=addend, recipe=recipe, has_rows=takes_rows)
            )
        return tuple(found)


_NOWHERE: Mapping[str, int] = defaultdict(int)


def _no_map(_: Any) -> bytes:
    return bytes(_MAP_BYTES)


def _marked(parameter: bytes) -> list[int]:
    return [at for at in range(0, len(parameter) - 7, 8) if struct.unpack_from("<Q", parameter, at)[0] == _MARK]


def _offsets(parameter: Json) -> dict[str, int]:
    return {field["name"]: field["offset"] for field in parameter["fields"]}


def num_bytes(tensor: Json) -> int:
    """Of a tensor of a manifest."""
    return math.prod(tensor["shape"]) * ELEMENTS[tensor["dtype"]].size_bytes
