"""`pack.bin`: the index of a pack, which the C runtime reads; docs/runtime.md has the same tables in words.

All numbers are little-endian. A record is a multiple of 8 bytes, and the tables follow each other without a gap. Where
it says `file`, an offset counts from the first byte of the pack; text is an offset into the strings, which end with 0.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.dtype import MAP_TYPES

from .attention import AttentionEntry
from .attention_index import AttentionTables, tensor_number
from .contents import ACTIVATIONS, DTYPES, Entry, Kernel, Shape
from .layer import LayerEntry
from .programs import MapPatch, program_of

MAGIC = b"TUNRPACK"
#: It grows when a record changes. A pack without layers is of the second, and one without attentions of the first, and
#: their bytes are those of older versions.
VERSION, ATTENTIONS_VERSION, FIRST_VERSION = 3, 2, 1
NONE = 0xFFFFFFFF
PPM = 1_000_000

#: magic, version, bytes of the header and of the index, where the index lies in the file, flags, counts of shapes,
#: rungs, kernels, launches, ops and maps, bytes of strings; sha256 of the index with zeros in its place; counts of
#: attentions, their rungs and those of layers, programs, fills, parts, patches, layers and operands.
HEADER = struct.Struct("<8sIIQQIIIIIIII32s8I")
DIGEST_OFFSET = 64
#: dtype, activation, flags, d_in, d_hidden, d_out, first rung, number of rungs, its text, 0.
SHAPE = struct.Struct("<10I")
#: Least and most rows, choice, kernel, speed-up and interval in millionths (0: not measured), library's text, zeros.
RUNG = struct.Struct("<10I")
#: A part of the file: offset, bytes, sha256.
BLOB = struct.Struct("<QQ32s")
#: digest; spin limit; text, symbols of the kernel and of the start gate; major, minor, suffix; SMs, the driver's CUDA
#: version; threads, cluster, shared memory, parameter's bytes, where first tasks and maps lie in it; least and most
#: rows; first and number of launches, ops and maps; workspaces; flags; then a blob for each variant.
KERNEL = struct.Struct("<32sq24I")
#: grid, flags, CTAs that the start gate waits for, workspace; its bytes, those to zero; then the blobs of the plan's
#: words and of the first tasks.
LAUNCH = struct.Struct("<IIIIQQ")
#: n, k, rows of the weights, flags, activation, the op that it reads or NONE, text, 0.
OP = struct.Struct("<8I")
#: op, operand, rank, data type, the dimension that is rows or NONE, 0; dims; strides; box, 0. Of an attention's part:
#: tensor, where in the parameter, rank, data type, the dimension that is rows of pages or NONE, rows of a page; then
#: the same, but that the last number is where in the memory its tensor lies, in units of 256 bytes.
MAP = struct.Struct("<6I5Q4Q6I")

CHOICES = {"kernel": 1, "library": 2}
SHAPE_FLAGS = {"gated": 1, "bias": 2, "residual": 4, "row_scale": 8}
KERNEL_FLAGS = {"simulated": 1, "programmatic": 2, "paired": 4}
LAUNCH_FLAGS = {
    "needs_all_ctas": 1,
    "reads_weights_before_wait": 2,
    "is_second": 4,
    "side_stream": 8,
    "cooperative": 16,
    "programmatic": 32,
    "cooperative_when_plain": 64,
}
OPERANDS = ("a", "w", "c")
#: Builds of a kernel in the order of their blobs.
VARIANTS = ("measured", "guarded", "safe")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a file of the pack lies."""

    offset: int
    num_bytes: int
    digest: bytes


class _Strings:
    """Texts, each once; the first is empty."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._offsets = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._offsets[text]


class _Tables:
    """The records, table by table."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self.strings = _Strings()
        self.shapes: list[bytes] = []
        self.rungs: list[bytes] = []
        self.kernels: list[bytes] = []
        self.launches: list[bytes] = []
        self.ops: list[bytes] = []
        self.maps: list[bytes] = []
        self.attention = AttentionTables(
            text=self.strings.add,
            blob=self._blob,
            add_map=self._add_attention_map,
            num_maps=lambda: len(self.maps),
            target=_target,
            choices=CHOICES,
            none=NONE,
        )

    def add_entry(self, entry: Entry, kernels: Mapping[str, int]) -> None:
        shape = entry.shape
        text = self.strings.add(str(shape))
        numbers = (DTYPES[shape.dtype], ACTIVATIONS[shape.activation], _flags_of(shape))
        sizes = (shape.d_in, shape.d_hidden, shape.d_out)
        self.shapes.append(SHAPE.pack(*numbers, *sizes, len(self.rungs), len(entry.rungs), text, 0))
        for rung in entry.rungs:
            choice = CHOICES["library" if rung.kernel is None else "kernel"]
            kernel = NONE if rung.kernel is None else kernels[rung.kernel.digest]
            figures = (rung.speedup or 0.0, *(rung.interval or (0.0, 0.0)))
            millionths = (min(round(figure * PPM), NONE) for figure in figures)
            library = self.strings.add(", ".join(f"{key} {value}" for key, value in sorted(rung.library.items())))
            self.rungs.append(RUNG.pack(rung.m_lo, rung.m_hi, choice, kernel, *millionths, library, 0, 0))

    def add_kernel(self, kernel: Kernel) -> None:
        manifest, facts = kernel.manifest, kernel.manifest["kernel"]
        launches, parameter = manifest["launches"], manifest["parameter"]
        offsets = {field["name"]: field["offset"] for field in parameter["fields"]}
        maps = [name for name in offsets if name.endswith("_map")]
        paired = any(launch["stream"] for launch in launches)
        programmatic = any(launch["programmatic_dependent_launch"] for launch in launches)
        flags = {"simulated": kernel.simulated, "programmatic": programmatic, "paired": paired}
        gate = next((launch["start_gate"]["kernel"] for launch in launches if launch["start_gate"]), "")
        numbers = (
            self.strings.add(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}"),
            self.strings.add(facts["name"]),
            self.strings.add(gate),
            *_target(facts),
            launches[0]["block"][0],
            launches[0]["cluster"][0],
            launches[0]["dynamic_smem_bytes"],
            parameter["size_bytes"],
            offsets.get("first_tasks", 0),
            offsets[maps[0]] if maps else 0,
            manifest["rows"]["min"],
            manifest["rows"]["max"],
            len(self.launches),
            len(launches),
            len(self.ops),
            len(manifest["workload"]["ops"]),
            len(self.maps),
            len(maps),
            1 + max(launch["workspace"]["index"] for launch in launches),
            sum(KERNEL_FLAGS[name] for name, is_on in flags.items() if is_on),
        )
        head = KERNEL.pack(bytes.fromhex(kernel.digest), parameter["spin_limit_cycles"], *numbers)
        cubins = {"measured": facts["cubin"]} | {one["name"]: one["cubin"] for one in facts["variants"]}
        blobs = (self._blob(kernel, cubins.get(name)) for name in VARIANTS)
        self.kernels.append(head + b"".join(blobs))
        for index, launch in enumerate(launches):
            self._add_launch(kernel, index, launch)
        self._add_ops(manifest["workload"]["ops"])
        for recipe in launches[0]["tensor_maps"]:
            self._add_map(recipe, [op["name"] for op in manifest["workload"]["ops"]])

    def _add_launch(self, kernel: Kernel, index: int, launch: dict[str, Any]) -> None:
        workspace = launch["workspace"]
        flags = {
            "needs_all_ctas": launch["needs_all_ctas"],
            "reads_weights_before_wait": launch["reads_weights_before_wait"],
            "is_second": workspace["is_second"],
            "side_stream": launch["stream"] != 0,
            "cooperative": launch["cooperative"],
            "programmatic": launch["programmatic_dependent_launch"],
            "cooperative_when_plain": launch["plain"]["cooperative"],
        }
        head = LAUNCH.pack(
            launch["grid"][0],
            sum(LAUNCH_FLAGS[name] for name, is_on in flags.items() if is_on),
            launch["start_gate"]["num_ctas"] if launch["start_gate"] else 0,
            workspace["index"],
            workspace["bytes"],
            workspace["zero_bytes"],
        )
        first = first_tasks_name(index) if launch["first_tasks"] else None
        self.launches.append(head + self._blob(kernel, launch["plan"]) + self._blob(kernel, first))

    def _add_ops(self, ops: list[dict[str, Any]]) -> None:
        names = [op["name"] for op in ops]
        for op in ops:
            flags = sum(SHAPE_FLAGS[name] for name in SHAPE_FLAGS if op.get(name))
            source = names.index(op["source"]) if op["source"] in names else NONE
            rows = op["n"] * (2 if op.get("gated") else 1)
            activation = ACTIVATIONS[op["activation"]]
            self.ops.append(OP.pack(op["n"], op["k"], rows, flags, activation, source, self.strings.add(op["name"]), 0))

    def _add_map(self, recipe: dict[str, Any], names: list[str]) -> None:
        op, _, operand = recipe["name"].removesuffix("_map").partition(".")
        rank = len(recipe["dims"])
        # An input's and an output's second dimension is rows; weights have none.
        rows = NONE if operand == "w" else 1
        self.maps.append(
            MAP.pack(
                names.index(op),
                OPERANDS.index(operand),
                rank,
                MAP_TYPES[recipe["data_type"]],
                rows,
                0,
                *_filled(recipe["dims"], 5),
                *_filled(recipe["strides_bytes"], 4),
                *_filled(recipe["box"], 6),
            )
        )

    def _add_attention_map(self, one: MapPatch) -> None:
        recipe = one.recipe
        pages = 1 if one.rows_per_page else NONE
        self.maps.append(
            MAP.pack(
                tensor_number(one.tensor),
                one.offset,
                len(recipe["dims"]),
                MAP_TYPES[recipe["data_type"]],
                pages,
                one.rows_per_page,
                *_filled(recipe["dims"], 5),
                *_filled(recipe["strides_bytes"], 4),
                *_filled(recipe["box"], 5),
                one.addend // 256,
            )
        )

    def _blob(self, kernel: Kernel, name: str | None) -> bytes:
        place = None if name is None else self._places[blob_path(kernel, name)]
        return BLOB.pack(0, 0, bytes(32)) if place is None else BLOB.pack(place.offset, place.num_bytes, place.digest)


def first_tasks_name(launch: int) -> str:
    """The pack's file of a launch's first tasks, which a manifest holds as text."""
    return f"first_tasks{launch}.bin"


def blob_path(kernel: Kernel, name: str) -> str:
    """Where a kernel's file lies in the pack."""
    return f"kernels/{kernel.digest}/{name}"


def index_bytes(
    entries: tuple[Entry, ...],
    kernels: tuple[Kernel, ...],
    places: Mapping[str, Place],
    index_offset: int,
    attentions: tuple[AttentionEntry, ...] = (),
    layers: tuple[LayerEntry, ...] = (),
) -> bytes:
    """The index of a pack whose files lie at `places`, and which itself lies at `index_offset`; its size depends on
    neither."""
    tables = _Tables(places)
    of_ffns = tuple(kernel for kernel in kernels if not kernel.has_attention)
    of_attentions = tuple(kernel for kernel in kernels if kernel.has_attention)
    for kernel in of_ffns:
        tables.add_kernel(kernel)
    for kernel in of_attentions:
        tables.attention.add_program(program_of(kernel))
    for entry in entries:
        tables.add_entry(entry, {kernel.digest: number for number, kernel in enumerate(of_ffns)})
    programs = {kernel.digest: number for number, kernel in enumerate(of_attentions)}
    for one in attentions:
        tables.attention.add_entry(one, programs)
    for layer in layers:
        tables.attention.add_layer(layer, programs)
    strings = bytes(tables.strings.data) + bytes(-len(tables.strings.data) % 8)
    records = (tables.shapes, tables.rungs, tables.kernels, tables.launches, tables.ops, tables.maps)
    body = b"".join(b"".join(table) for table in (*records, *tables.attention.tables)) + strings
    more = tuple(len(table) for table in tables.attention.tables)
    counts = (*(len(table) for table in records), len(strings))
    size, simulated = HEADER.size + len(body), any(kernel.simulated for kernel in kernels)

    def header(digest: bytes) -> bytes:
        version = version_of(attentions, layers)
        return HEADER.pack(MAGIC, version, HEADER.size, size, index_offset, int(simulated), *counts, digest, *more)

    return header(hashlib.sha256(header(bytes(32)) + body).digest()) + body


def split_index(index: bytes) -> tuple[bytes, list[bytes]]:
    """The records of an index, with zeros for its digest, and its texts."""
    num_strings = int.from_bytes(index[DIGEST_OFFSET - 4 : DIGEST_OFFSET], "little")
    end = len(index) - num_strings
    blank = index[:DIGEST_OFFSET] + bytes(32) + index[DIGEST_OFFSET + 32 : end]
    return blank, index[end:].split(b"\0")


def version_of(attentions: tuple[AttentionEntry, ...], layers: tuple[LayerEntry, ...]) -> int:
    """Of the format of a pack with these attentions and layers."""
    return VERSION if layers else ATTENTIONS_VERSION if attentions else FIRST_VERSION


def _target(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """Of a kernel: the architecture, SMs, and the CUDA version that the driver must have."""
    version = 1000 * int(facts["compiler"]["version"].partition(".")[0] or 0)
    return (*_arch(facts["arch"]), facts["num_sms"], version)


def _flags_of(shape: Shape) -> int:
    return sum(flag for name, flag in SHAPE_FLAGS.items() if getattr(shape, name))


def _arch(arch: str) -> tuple[int, int, int]:
    """``sm_90a`` as 9, 0 and the letter."""
    digits = arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    suffix = arch.removeprefix("sm_")[len(digits) :]
    return int(digits[:-1]), int(digits[-1]), ord(suffix) if suffix else 0


def _filled(values: list[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]
