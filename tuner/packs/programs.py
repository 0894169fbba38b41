"""What the C runtime does for an artifact that is not an FFN: memory that is filled once, and launches.

A launch's parameter is a template, into which values that depend on the caller's tensors or on the address of the
memory are patched. Templates are packed by the same code as the launches of an artifact in Python. A kind whose
launches have their own list in a manifest defines their layout in its module ``pack.program``.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from tuner.core.problem.dtype import ELEMENTS
from tuner.packs.contents import Kernel
from tuner.packs.launched_shape import LaunchedShape
from tuner.packs.recipes.own_launches import recipes_by_kind
from tuner.packs.recipes.parameters import (
    has_rows,
    is_of_weights,
    most_rows,
    of_each_op,
    of_launch,
    pack_fields,
    pack_product,
)

ALIGNMENT = 256
#: Bytes of the workspace of a launch that writes to a cache.
REFUSED_BEHIND_ABORT, REFUSED_BYTES = 32, 16
#: Roles of tensors that only the launches read and write.
_BETWEEN = ("intermediate", "squares")
_MAP_BYTES = 128
#: An address that does not occur in any field by chance.
_MARK = 0x5A5A_0000_A5A5_0000

Json = dict[str, Any]
#: Makes a parameter from the addresses of tensors and of locations in the memory.
Pack = Callable[[Mapping[str, int], Mapping[str, int]], bytes]


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A part of the memory with its contents before the first launch."""

    offset: int
    #: A file of the artifact, or zeros.
    name: str = ""
    num_zeros: int = 0


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Eight bytes of a parameter: a tensor's address plus an addend; the numbers of pages and of rows have four."""

    offset: int
    #: One of `TENSORS`, ``rows``, or a program's operand by its index.
    tensor: str | int
    addend: int = 0


@dataclass(frozen=True, kw_only=True)
class MapPatch:
    """An encoded tensor map in a parameter."""

    offset: int
    #: Same as in `Patch`.
    tensor: str | int
    addend: int
    recipe: Json
    #: Rows of a page in a paged cache; 0 for other tensors, whose dimensions are those of the recipe.
    rows_per_page: int = 0
    #: Whether its second dimension is the number of rows of the launch.
    has_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor argument of a launch, with its name in the manifest."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    #: Whether its first dimension may vary, as in a paged cache.
    is_paged: bool
    #: Whether its first dimension is the number of rows of the launch, and `shape` has the maximum.
    has_rows: bool
    #: For weights in fewer bits, the manifest's description of their bytes.
    stored: Json | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One launch."""

    recipe: Json
    #: The kernel's entry in the manifest.
    kernel: Json
    parameter: bytes
    patches: tuple[Patch, ...]
    maps: tuple[MapPatch, ...]
    #: Offset of the word that says whether the launch is programmatic; None if the kernel does not need it.
    dependent_offset: int | None = None
    #: Offset in the memory of the abort record; None if there is none.
    abort_offset: int | None = None
    #: Whether the record of refused input is `REFUSED_BEHIND_ABORT` bytes after the abort record.
    tells_refused: bool = False


@dataclass(frozen=True, kw_only=True)
class Program:
    """The launches of one artifact, in order, and their memory."""

    kernel: Kernel
    memory_bytes: int
    fills: tuple[Fill, ...]
    parts: tuple[Part, ...]
    #: Offset in the memory of the record of refused input.
    refused_offset: int
    #: By name; empty if tensors are passed by role.
    operands: tuple[Operand, ...] = ()
    #: Maximum rows of a chain that can be launched for fewer; 0 if the rows are fixed.
    most_rows: int = 0


class Layout(Protocol):
    """The positions of the parts of one program."""

    def file(self, name: str) -> int:
        """Space for a file of the artifact."""

    def patches(self, pack: Pack, own: Mapping[str, int]) -> tuple[Patch, ...]:
        """The positions of the addresses in the output of `pack`; `own` are locations in the memory."""

    def maps(self, recipes: list[Json], fields: Mapping[str, int], rows_per_page: int) -> tuple[MapPatch, ...]:
        """The positions of tensor maps; `fields` are the parameter's, by name."""


class KindOfList(Protocol):
    """The module ``pack.program`` of a kind."""

    #: The manifest's list of its launches.
    SECTION: str

    def roles_of(self, recipe: Json, manifest: Json) -> dict[str, str]:
        """The tensors of a call by name, each as one of `TENSORS`."""

    def paged_of(self, recipe: Json) -> tuple[str, ...]:
        """Its caches, with any number of pages."""

    def part_of(self, recipe: Json, workspace: int, layout: Layout) -> Part:
        """Its launch; `workspace` is its offset in the memory."""


def _listed(manifest: Json) -> tuple[KindOfList, Json] | None:
    """The only launch in a list of its kind."""
    if not (found := list(recipes_by_kind(manifest))):
        return None
    ((part, recipe),) = found
    return cast(KindOfList, part), recipe


def parameter_name(part: int) -> str:
    """The pack's file with a launch's template."""
    return f"parameter{part}.bin"


def programs_of(kernel: Kernel) -> tuple[Program, ...]:
    """The program of an artifact with at most one launch in the lists of kinds, and any products around it; then the
    program for cards on which its launches do not fit, if the artifact has one."""
    return tuple(_Builder(kernel, launches).program() for launches in kernel.launch_lists)


def program_of(kernel: Kernel) -> Program:
    """The first program of an artifact; see `programs_of`."""
    return programs_of(kernel)[0]


class _Builder:
    """Lays out the memory and packs the launches."""

    def __init__(self, kernel: Kernel, launches: list[Json]) -> None:
        self._kernel, self._manifest, self._launches = kernel, kernel.manifest, launches
        self._bytes = 0
        self._fills: list[Fill] = []
        self._listed = _listed(self._manifest)
        self._most_rows = most_rows(self._manifest)
        #: The locations of the manifest's tensors: a tensor of the caller, or one in the memory.
        self._places: dict[str, tuple[str | int, int]] = {}
        self._operands: tuple[Operand, ...] = ()
        if isinstance(kernel.shape, LaunchedShape):
            self._place_by_role()
        else:
            self._place_by_name()

    def program(self) -> Program:
        lists: dict[str, list[Part]] = {}
        if self._listed:
            kind, recipe = self._listed
            workspace = recipe["workspace"]
            at = self._room(workspace["bytes"], zeros=workspace["zero_bytes"])
            lists[kind.SECTION], refused = [kind.part_of(recipe, at, self)], at + workspace["refused"]
        else:
            refused = self._room(REFUSED_BYTES, zeros=REFUSED_BYTES)
        of_own = [part for recipes in of_each_op(self._manifest) for part in self._of_own(recipes)]
        lists |= {"own_launches": of_own, "launches": self._of_products()}
        first = [{"list": name, "index": index} for name, parts in lists.items() for index in range(len(parts))]
        order = self._manifest.get("launch_order", first)
        return Program(
            kernel=self._kernel,
            memory_bytes=self._bytes,
            fills=tuple(self._fills),
            parts=tuple(lists[one["list"]][one["index"]] for one in order),
            refused_offset=refused,
            operands=self._operands,
            most_rows=self._most_rows,
        )

    def _place_by_role(self) -> None:
        """The tensors of a call that passes them by role."""
        assert self._listed is not None
        kind, recipe = self._listed
        self._places |= {name: (role, 0) for name, role in kind.roles_of(recipe, self._manifest).items()}
        self._place_between()

    def _place_by_name(self) -> None:
        """Assigns a location to each tensor of the manifest; intermediates get one in the program's memory block."""
        given = [one for one in self._manifest["tensors"] if one["role"] not in _BETWEEN]
        paged = set(self._listed[0].paged_of(self._listed[1])) if self._listed else set()
        paged |= set((self._manifest["parameter"] or {}).get("pages", {}).get("caches", ()))
        self._places |= {one["name"]: (place, 0) for place, one in enumerate(given)}
        self._place_between()
        self._operands = tuple(
            Operand(
                name=one["name"],
                role=one["role"],
                dtype=one["dtype"],
                shape=tuple(one["shape"]),
                is_paged=one["name"] in paged,
                has_rows=has_rows(self._manifest, one),
                stored=one.get("stored"),
            )
            for one in given
        )

    def _place_between(self) -> None:
        for one in self._manifest["tensors"]:
            if one["role"] in _BETWEEN and one["name"] not in self._places:
                self._places[one["name"]] = ("memory", self._room(_num_bytes(one)))

    def _room(self, num_bytes: int, *, zeros: int = 0, name: str = "") -> int:
        at = self._bytes
        self._bytes += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if zeros or name:
            self._fills.append(Fill(offset=at, num_zeros=zeros, name=name))
        return at

    def file(self, name: str) -> int:
        """Space for a file of the artifact."""
        return self._room(len(self._kernel.files[name]), name=name)

    def _of_own(self, recipes: list[Json]) -> list[Part]:
        """The launches of an op from another package, which share a memory block."""
        space, files = recipes[0]["workspace"], dict[str, int]()
        workspace = self._room(space["bytes"], zeros=space["zero_bytes"])

        def file_at(name: str) -> int:
            if name not in files:
                files[name] = self.file(name)
            return files[name]

        found = []
        for recipe in recipes:
            of_it = of_launch(recipe, workspace, file_at)
            own = {name: place for name, place in of_it.items() if isinstance(place, int)}
            constants = {name: data for name, data in of_it.items() if isinstance(data, bytes)}

            def pack(addresses: Mapping[str, int], there: Mapping[str, int], of: Json = recipe, own: Any = own,
                     constants: Any = constants) -> bytes:  # fmt: skip
                return pack_fields(of["parameter"], addresses, {**constants, **{n: there[n] for n in own}}, no_map)

            part = Part(
                recipe=recipe,
                kernel=recipe["kernel"],
                parameter=pack(NOWHERE, NOWHERE),
                patches=self.patches(pack, own),
                maps=self.maps(recipe["tensor_maps"], offsets_of(recipe["parameter"]), 0),
            )
            found.append(part)
        return found

    def _of_products(self) -> list[Part]:
        spaces: dict[int, int] = {}
        for launch in self._launches:
            space = launch["workspace"]
            if space["index"] not in spaces:
                spaces[space["index"]] = self._room(space["bytes"], zeros=space["zero_bytes"])
        return [self._of_product(launch, spaces[launch["workspace"]["index"]]) for launch in self._launches]

    def _of_product(self, launch: Json, workspace: int) -> Part:
        own = {"words": self.file(launch["plan"]), "workspace": workspace}
        header = self._kernel.files[launch["plan"]]

        def pack(addresses: Mapping[str, int], there: Mapping[str, int]) -> bytes:
            given = {name: there[name] for name in own}
            return pack_product(self._manifest, launch, addresses, given, header, no_map)

        fields = offsets_of(self._manifest["parameter"])
        abort, refused = launch["workspace"]["abort_record"]["offset"], launch["workspace"].get("refused")
        assert refused is None or refused["offset"] == abort + REFUSED_BEHIND_ABORT, (
            "the C runtime reads them from there"
        )
        counts = (offset for name, offset in fields.items() if name.endswith(".num_pages"))
        numbers = [Patch(offset=offset, tensor="num_pages") for offset in counts]
        if self._most_rows:
            numbers += [Patch(offset=offset, tensor="rows") for name, offset in fields.items() if name.endswith(".m")]
        return Part(
            recipe=launch,
            kernel=self._manifest["kernel"],
            parameter=pack(NOWHERE, NOWHERE),
            patches=(*self.patches(pack, own), *numbers),
            maps=self.maps(launch["tensor_maps"], fields, 0),
            dependent_offset=fields["is_dependent"],
            abort_offset=workspace + abort,
            tells_refused=refused is not None,
        )

    def patches(self, pack: Pack, own: Mapping[str, int]) -> tuple[Patch, ...]:
        """The positions of addresses: the bytes that change with a marked address."""
        found = []
        for tensor, (place, addend) in self._places.items():
            for at in _marked(pack(defaultdict(int, {tensor: _MARK}), NOWHERE)):
                found.append(Patch(offset=at, tensor=place, addend=addend))
        for name, addend in own.items():
            for at in _marked(pack(NOWHERE, defaultdict(int, {name: _MARK}))):
                found.append(Patch(offset=at, tensor="memory", addend=addend))
        return tuple(sorted(found, key=lambda patch: patch.offset))

    def maps(self, recipes: list[Json], fields: Mapping[str, int], rows_per_page: int) -> tuple[MapPatch, ...]:
        """Maps of a part; `fields` are its parameter's, by name."""
        make = partial(MapPatch, rows_per_page=rows_per_page)
        found = []
        for recipe in recipes:
            place, addend = self._places[recipe["tensor"]]
            takes_rows = self._most_rows > 0 and not is_of_weights(recipe)
            found.append(
                make(offset=fields[recipe["name"]], tensor=place, addend=addend, recipe=recipe, has_rows=takes_rows)
            )
        return tuple(found)


#: Addresses that are not known yet.
NOWHERE: Mapping[str, int] = defaultdict(int)


def no_map(_: Any) -> bytes:
    """Replaces a tensor map."""
    return bytes(_MAP_BYTES)


def _marked(parameter: bytes) -> list[int]:
    return [at for at in range(0, len(parameter) - 7, 8) if struct.unpack_from("<Q", parameter, at)[0] == _MARK]


def offsets_of(parameter: Json) -> dict[str, int]:
    """Offsets of a parameter's fields, by name."""
    return {field["name"]: field["offset"] for field in parameter["fields"]}


def _num_bytes(tensor: Json) -> int:
    return math.prod(tensor["shape"]) * ELEMENTS[tensor["dtype"]].size_bytes
