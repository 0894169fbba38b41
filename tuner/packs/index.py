"""Writes `pack.bin`, the index of a pack: tables of records, as in `records`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.dtype import ELEMENTS, MAP_TYPES
from tuner.packs import records as form
from tuner.packs.base_shape import DTYPES
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.launched_shape import LaunchedShape
from tuner.packs.programs import MapPatch, Part, Program, parameter_name, programs_of
from tuner.packs.shapes import ACTIVATIONS, Shape


@dataclass(frozen=True, kw_only=True)
class Place:
    """Position of a file in the pack."""

    offset: int
    num_bytes: int
    digest: bytes


class _Strings:
    """Texts without duplicates; the first is empty."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._offsets = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._offsets[text]


class _Tables:
    """The records, by table."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._strings = _Strings()
        self._shapes: list[bytes] = []
        self._rungs: list[bytes] = []
        self._kernels: list[bytes] = []
        self._launches: list[bytes] = []
        self._ops: list[bytes] = []
        self.maps: list[bytes] = []
        self._of_calls: list[bytes] = []
        self._program_rungs: list[bytes] = []
        self._programs: list[bytes] = []
        self._fills: list[bytes] = []
        self._parts: list[bytes] = []
        self._patches: list[bytes] = []
        self._layers: list[bytes] = []
        self._operands: list[bytes] = []
        self._weights: list[bytes] = []

    @property
    def of_kernels(self) -> tuple[list[bytes], ...]:
        """The tables of FFNs and their kernels, in the order of the index; every version has them."""
        return self._shapes, self._rungs, self._kernels, self._launches, self._ops, self.maps

    @property
    def of_programs(self) -> tuple[list[bytes], ...]:
        """The tables of programs, which follow those of kernels."""
        by_contexts = (self._of_calls, self._program_rungs, self._programs, self._fills, self._parts, self._patches)
        return (*by_contexts, self._layers, self._operands)

    @property
    def of_weights(self) -> tuple[list[bytes], ...]:
        """The tables after those of programs, if there are any."""
        return (self._weights,) if self._weights else ()

    @property
    def strings(self) -> bytes:
        """All texts."""
        return bytes(self._strings.data) + bytes(-len(self._strings.data) % 8)

    def add_entry(self, entry: Entry, numbers: Mapping[str, int]) -> None:
        """Adds a shape with its ladder; `numbers` are indices of kernels or programs by digest."""
        shape, text = entry.shape, self._strings.add
        if isinstance(shape, Shape):
            flags = sum(flag for name, flag in form.SHAPE_FLAGS.items() if getattr(shape, name))
            figures = (DTYPES[shape.dtype], ACTIVATIONS[shape.activation], flags)
            sizes = (shape.d_in, shape.d_hidden, shape.d_out)
            self._shapes.append(
                form.SHAPE.pack(*figures, *sizes, len(self._rungs), len(entry.rungs), text(str(shape)), 0)
            )
            self._rungs += [
                form.RUNG.pack(rung.m_lo, rung.m_hi, *self._answer(rung, numbers), 0, 0) for rung in entry.rungs
            ]
            return
        first, count = len(self._program_rungs), len(entry.rungs)
        for rung in entry.rungs:
            sizes_of_it = (rung.m_lo, rung.m_hi) if shape.by_rows else (rung.m_hi, rung.max_length)
            self._program_rungs.append(form.PROGRAM_RUNG.pack(*sizes_of_it, *self._answer(rung, numbers)))
        if isinstance(shape, LaunchedShape):
            self._of_calls.append(shape.RECORD.pack(*shape.figures(shape.d_out), first, count, text(str(shape))))
            return
        figures_of_it: tuple[Any, ...] = (DTYPES[shape.dtype], *[0] * 7, shape.d_out, 0.0, 0.0)
        if shape.launched is not None:
            figures_of_it = shape.launched.figures(shape.d_out)
        around = (shape.d_in, shape.num_in_front, shape.num_products)
        texts = (text(str(shape)), text(" ".join(shape.names)))
        self._layers.append(form.LAYER.pack(*figures_of_it, *around, first, count, *texts))

    def _answer(self, rung: Rung, numbers: Mapping[str, int]) -> tuple[int, ...]:
        """The fields of a rung: choice, kernel or program, figures, and the library's text."""
        choice = form.CHOICES["library" if rung.kernel is None else "kernel"]
        number = form.NONE if rung.kernel is None else numbers[rung.kernel.digest]
        figures = (rung.speedup or 0.0, *(rung.interval or (0.0, 0.0)))
        library = self._strings.add(", ".join(f"{key} {value}" for key, value in sorted(rung.library.items())))
        return choice, number, *(min(round(figure * form.PPM), form.NONE) for figure in figures), library

    def add_kernel(self, kernel: Kernel) -> int:
        """Adds a kernel; returns the index of its row, which its fallback's row follows."""
        number, first, lists = len(self._kernels), 0, kernel.launch_lists
        for launches in lists:
            self._add_launches(kernel, launches, first, has_fallback=launches is not lists[-1])
            first += len(launches)
        return number

    def _add_launches(self, kernel: Kernel, launches: list[dict[str, Any]], first: int, *, has_fallback: bool) -> None:
        """Adds a row; `first` is the index of its first launch among all launches of the kernel."""
        manifest, facts, parameter = kernel.manifest, kernel.manifest["kernel"], kernel.manifest["parameter"]
        offsets = {field["name"]: field["offset"] for field in parameter["fields"]}
        maps = [name for name in offsets if name.endswith("_map")]
        paired = any(launch["stream"] for launch in launches)
        programmatic = any(launch["programmatic_dependent_launch"] for launch in launches)
        flags = {"simulated": kernel.simulated, "programmatic": programmatic, "paired": paired}
        flags["has_fallback"] = has_fallback
        gate = next((launch["start_gate"]["kernel"] for launch in launches if launch["start_gate"]), "")
        numbers = (
            self._strings.add(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}"),
            self._strings.add(facts["name"]),
            self._strings.add(gate),
            *_target(facts),
            launches[0]["block"][0],
            launches[0]["cluster"][0],
            launches[0]["dynamic_smem_bytes"],
            parameter["size_bytes"],
            offsets.get("first_tasks", 0),
            offsets[maps[0]] if maps else 0,
            manifest["rows"]["min"],
            manifest["rows"]["max"],
            len(self._launches),
            len(launches),
            len(self._ops),
            len(manifest["workload"]["ops"]),
            len(self.maps),
            len(maps),
            1 + max(launch["workspace"]["index"] for launch in launches),
            sum(form.KERNEL_FLAGS[name] for name, is_on in flags.items() if is_on),
        )
        head = form.KERNEL.pack(bytes.fromhex(kernel.digest), parameter["spin_limit_cycles"], *numbers)
        cubins = {"measured": facts["cubin"]} | {one["name"]: one["cubin"] for one in facts["variants"]}
        blobs = (self._blob(kernel, cubins.get(name)) for name in form.VARIANTS)
        self._kernels.append(head + b"".join(blobs))
        for index, launch in enumerate(launches, first):
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
        head = form.LAUNCH.pack(
            launch["grid"][0],
            sum(form.LAUNCH_FLAGS[name] for name, is_on in flags.items() if is_on),
            launch["start_gate"]["num_ctas"] if launch["start_gate"] else 0,
            workspace["index"],
            workspace["bytes"],
            workspace["zero_bytes"],
        )
        first = first_tasks_name(index) if launch["first_tasks"] else None
        self._launches.append(head + self._blob(kernel, launch["plan"]) + self._blob(kernel, first))

    def _add_ops(self, ops: list[dict[str, Any]]) -> None:
        names = [op["name"] for op in ops]
        for op in ops:
            flags = sum(form.SHAPE_FLAGS[name] for name in form.SHAPE_FLAGS if op.get(name))
            source = names.index(op["source"]) if op["source"] in names else form.NONE
            rows = op["n"] * (2 if op.get("gated") else 1)
            activation = ACTIVATIONS[op["activation"]]
            self._ops.append(
                form.OP.pack(op["n"], op["k"], rows, flags, activation, source, self._strings.add(op["name"]), 0)
            )

    def _add_map(self, recipe: dict[str, Any], names: list[str]) -> None:
        op, _, operand = recipe["name"].removesuffix("_map").partition(".")
        rank = len(recipe["dims"])
        # The second dimension of an input or an output is rows; weights have none.
        rows = form.NONE if operand == "w" else 1
        self.maps.append(
            form.MAP.pack(
                names.index(op),
                form.OPERANDS.index(operand),
                rank,
                MAP_TYPES[recipe["data_type"]],
                rows,
                0,
                *_map_sizes(recipe),
                0,
            )
        )

    def add_programs(self, programs: Sequence[Program]) -> int:
        """Returns the index of the first row for an artifact's launches, which its fallback's row follows."""
        number, first = len(self._programs), 0
        for program in programs:
            self._add_program(program, first, has_fallback=program is not programs[-1])
            first += len(program.parts)
        return number

    def _add_program(self, program: Program, first: int, *, has_fallback: bool) -> None:
        """Adds a row; `first` is the index of its first part among all parts of the artifact."""
        kernel, manifest = program.kernel, program.kernel.manifest
        on = {"simulated": kernel.simulated, "has_fallback": has_fallback}
        head = form.PROGRAM.pack(
            bytes.fromhex(kernel.digest),
            self._strings.add(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}"),
            *_target(program.parts[0].kernel),
            sum(form.PROGRAM_FLAGS[name] for name, is_on in on.items() if is_on),
            len(self._fills),
            len(program.fills),
            len(self._parts),
            len(program.parts),
            program.most_rows,
            program.memory_bytes,
            program.refused_offset,
        )
        for operand in program.operands:
            flags = sum(flag for name, flag in form.OPERAND_FLAGS.items() if getattr(operand, name))
            texts = (self._strings.add(operand.name), self._strings.add(operand.role))
            dims = (*operand.shape, *[0] * (4 - len(operand.shape)))
            dtype = ELEMENTS[operand.dtype].number
            if operand.stored is not None:
                self._weights.append(self._stored(len(self._operands), operand.stored))
            self._operands.append(
                form.OPERAND.pack(len(self._programs), *texts, dtype, flags, len(operand.shape), *dims)
            )
        self._programs.append(head)
        for fill in program.fills:
            self._fills.append(form.FILL.pack(fill.offset, fill.num_zeros) + self._blob(kernel, fill.name or None))
        for number, part in enumerate(program.parts, first):
            self._add_part(kernel, number, part)

    def _stored(self, operand: int, stored: Mapping[str, Any]) -> bytes:
        texts = (self._strings.add(stored[name]) for name in ("format", "layout", "factors"))
        return form.WEIGHTS.pack(operand, *texts, *(int(stored[n]) for n in ("bits", "k", "group", "has_zeros")))

    def _add_part(self, kernel: Kernel, number: int, part: Part) -> None:
        recipe = part.recipe
        flags = {
            "needs_all_ctas": recipe["needs_all_ctas"],
            "non_portable_cluster": recipe.get("allows_non_portable_cluster", False),
            "cooperative": recipe["cooperative"],
            "programmatic": recipe["programmatic_dependent_launch"],
            "cooperative_when_plain": recipe.get("plain", recipe)["cooperative"],
            "tells_refused": part.tells_refused,
        }
        head = form.PART.pack(
            self._strings.add(part.kernel["name"]),
            recipe["grid"][0],
            recipe["block"][0],
            recipe["cluster"][0],
            recipe["dynamic_smem_bytes"],
            sum(form.PART_FLAGS[name] for name, is_on in flags.items() if is_on),
            form.NONE if part.dependent_offset is None else part.dependent_offset,
            len(part.parameter),
            len(self._patches),
            len(part.patches),
            len(self.maps),
            len(part.maps),
            form.NOWHERE if part.abort_offset is None else part.abort_offset,
        )
        cubin = part.kernel["cubin"]
        self._parts.append(head + self._blob(kernel, cubin) + self._blob(kernel, parameter_name(number)))
        for patch in part.patches:
            self._patches.append(form.PATCH.pack(patch.offset, form.tensor_number(patch.tensor), patch.addend))
        for one in part.maps:
            self._add_program_map(one)

    def _add_program_map(self, one: MapPatch) -> None:
        recipe = one.recipe
        rows = 1 if one.rows_per_page or one.has_rows else form.NONE
        self.maps.append(
            form.MAP.pack(
                form.tensor_number(one.tensor),
                one.offset,
                len(recipe["dims"]) | (form.IM2COL if "corners" in recipe else 0),
                MAP_TYPES[recipe["data_type"]],
                rows,
                one.rows_per_page,
                *_map_sizes(recipe),
                one.addend // 256,
            )
        )

    def _blob(self, kernel: Kernel, name: str | None) -> bytes:
        place = None if name is None else self._places[blob_path(kernel, name)]
        return (
            form.BLOB.pack(0, 0, bytes(32))
            if place is None
            else form.BLOB.pack(place.offset, place.num_bytes, place.digest)
        )


def first_tasks_name(launch: int) -> str:
    """The pack's file with a launch's first tasks, which are text in a manifest."""
    return f"first_tasks{launch}.bin"


def blob_path(kernel: Kernel, name: str) -> str:
    """The path of a kernel's file in the pack."""
    return f"kernels/{kernel.digest}/{name}"


def index_bytes(
    entries: Sequence[Entry], kernels: Sequence[Kernel], places: Mapping[str, Place], index_offset: int
) -> bytes:
    """The index of a pack whose files are at `places`, and which is itself at `index_offset`; its size depends on
    neither."""
    tables = _Tables(places)
    of_ffns = [kernel for kernel in kernels if isinstance(kernel.shape, Shape)]
    of_programs = [kernel for kernel in kernels if not isinstance(kernel.shape, Shape)]
    numbers = {kernel.digest: tables.add_kernel(kernel) for kernel in of_ffns}
    numbers |= {kernel.digest: tables.add_programs(programs_of(kernel)) for kernel in of_programs}
    for entry in entries:
        tables.add_entry(entry, numbers)
    records = (*tables.of_kernels, *tables.of_programs, *tables.of_weights)
    body = b"".join(b"".join(table) for table in records) + tables.strings
    counts = (*(len(table) for table in tables.of_kernels), len(tables.strings))
    more = tuple(len(table) for table in tables.of_programs)
    behind = b"".join(form.MORE_COUNTS.pack(len(table), 0) for table in tables.of_weights)
    simulated, head_bytes = any(kernel.simulated for kernel in kernels), form.HEADER.size + len(behind)
    size = head_bytes + len(body)

    def header(digest: bytes) -> bytes:
        version = version_of(entries, kernels)
        facts = (form.MAGIC, version, head_bytes, size, index_offset, int(simulated))
        return form.HEADER.pack(*facts, *counts, digest, *more) + behind

    return header(hashlib.sha256(header(bytes(32)) + body).digest()) + body


def version_of(entries: Sequence[Entry], kernels: Sequence[Kernel]) -> int:
    """The format's version for a pack of these entries and kernels."""
    if any("stored" in tensor for kernel in kernels for tensor in kernel.manifest["tensors"]):
        return form.WEIGHTS_VERSION
    if any(len(kernel.launch_lists) > 1 for kernel in kernels):
        return form.FALLBACK_VERSION
    return max((form.VERSION_OF_SECTION[entry.shape.section] for entry in entries), default=form.FIRST_VERSION)


def split_index(index: bytes) -> tuple[bytes, list[bytes]]:
    """The records of an index, with zeros for its digest, and its texts."""
    num_strings = int.from_bytes(index[form.DIGEST_OFFSET - 4 : form.DIGEST_OFFSET], "little")
    end = len(index) - num_strings
    blank = index[: form.DIGEST_OFFSET] + bytes(32) + index[form.DIGEST_OFFSET + 32 : end]
    return blank, index[end:].split(b"\0")


def _target(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """For a kernel: architecture, SMs, and the CUDA version that the driver must support."""
    version = 1000 * int(facts["compiler"]["version"].partition(".")[0] or 0)
    return (*_arch(facts["arch"]), facts["num_sms"], version)


def _arch(arch: str) -> tuple[int, int, int]:
    """``sm_90a`` as 9, 0 and the letter."""
    digits = arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    suffix = arch.removeprefix("sm_")[len(digits) :]
    return int(digits[:-1]), int(digits[-1]), ord(suffix) if suffix else 0


def _map_sizes(recipe: dict[str, Any]) -> list[int]:
    """Dimensions, strides and box; in im2col mode, corners and stride, the same for rows and columns."""
    corners = [corner[0] & 0xFFFFFFFF for corner in recipe.get("corners", ())]
    box = [*recipe["box"], *corners, *(recipe["element_strides"][1:2] if corners else ())]
    return [*_filled(recipe["dims"], 5), *_filled(recipe["strides_bytes"], 4), *_filled(box, 5)]


def _filled(values: list[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]
