"""The launches of a launch op: its kernels, their grids and arguments.

A kernel takes one struct by value. Its fields are listed in order and laid out as in C, so that no code computes
offsets by hand. The launcher of a card, an artifact, a pack and the C runtime need nothing else of a launch.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import ResourceError, WordError

#: Bytes of a number or an address of each type, which is also its alignment.
FIELD_BYTES = {"pointer": 8, "int64": 8, "int32": 4, "float32": 4}
_FORMATS = {"pointer": "<Q", "int64": "<q", "int32": "<i", "float32": "<f"}
#: Limits of the program and the C runtime. Source of the kernel's limits: CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability", and kernel parameters of CUDA 12.1.
MOST_CTAS, MOST_THREADS, MOST_CLUSTER, MOST_PARAMETER_BYTES = 1 << 20, 1024, 16, 32764
#: Alignment of a workspace and of each table.
ALIGNMENT_BYTES = 256
#: Bytes of a ``CUtensorMap``. Source: CUDA driver API, "Tensor Map Object Management".
MAP_BYTES, MAP_ALIGNMENT_BYTES = 128, 64
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
#: Maximum launches of one op.
MOST_LAUNCHES = 8


@dataclass(frozen=True, kw_only=True)
class MapOf:
    """A tensor's description for TMA: arguments of ``cuTensorMapEncodeTiled``, innermost dimension first. Swizzle and
    L2 promotion are 128 bytes, and reads outside are zeros."""

    #: The tensor, by its name in `Op.tensors`.
    tensor: str
    dims: tuple[int, ...]
    #: Strides of all dimensions but the first.
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a kernel's struct: made by one of the functions below."""

    name: str
    #: One of `FIELD_BYTES`, or ``bytes[n]``.
    type: str = "pointer"
    #: Its meaning, as text.
    meaning: str = ""
    #: The tensor that it points to; empty if there is none.
    tensor: str = ""
    #: Value of a number.
    value: int | float | None = None
    #: Offset in the op's workspace that it points to, bytes; None if it points elsewhere.
    room: int | None = None
    #: Contents of the separate read-only memory that it points to; None if it points elsewhere.
    table: bytes | None = None
    #: Contents that are in the struct itself.
    data: bytes | None = None
    map: MapOf | None = None
    #: Whether it is the time limit of a wait, SM clock cycles, which each launch passes.
    is_spin_limit: bool = False
    #: Whether it is a null pointer.
    is_null: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes in the struct."""
        if self.data is not None:
            return len(self.data)
        return MAP_BYTES if self.map else FIELD_BYTES[self.type]

    @property
    def alignment_bytes(self) -> int:
        """Alignment in the struct."""
        return MAP_ALIGNMENT_BYTES if self.map else min(8, self.num_bytes)


def pointer(name: str, tensor: str, meaning: str = "") -> Field:
    """The address of a tensor, by its name in `Op.tensors`."""
    return Field(name=name, tensor=tensor, meaning=meaning)


def null(name: str, meaning: str = "") -> Field:
    """A null pointer."""
    return Field(name=name, is_null=True, meaning=meaning)


def number(name: str, value: int | float, type: str = "int32", meaning: str = "") -> Field:  # as in C
    """A number: ``int32``, ``int64`` or ``float32``."""
    return Field(name=name, type=type, value=value, meaning=meaning or str(value))


def room(name: str, offset_bytes: int = 0, meaning: str = "in the workspace") -> Field:
    """The address of a part of the op's workspace."""
    return Field(name=name, room=offset_bytes, meaning=meaning)


def table(name: str, data: bytes, meaning: str = "the file with this name on the device") -> Field:
    """The address of constants from the plan, such as tasks."""
    return Field(name=name, table=data, meaning=meaning)


def inline(name: str, data: bytes, meaning: str = "") -> Field:
    """Constants in the struct itself, at a multiple of 8 bytes."""
    return Field(name=name, type=f"bytes[{len(data)}]", data=data, meaning=meaning)


def tensor_map(name: str, tensor: str, dims: Sequence[int], strides_bytes: Sequence[int], box: Sequence[int]) -> Field:
    """A ``CUtensorMap``; see `MapOf`."""
    found = MapOf(tensor=tensor, dims=tuple(dims), strides_bytes=tuple(strides_bytes), box=tuple(box))
    return Field(name=name, type=f"bytes[{MAP_BYTES}]", map=found, meaning="the encoded tensor map with this name")


def spin_limit(name: str, meaning: str = "SM clock cycles that one wait may last") -> Field:
    """The time limit of a wait, SM clock cycles: an ``int64``."""
    return Field(name=name, type="int64", is_spin_limit=True, meaning=meaning)


@dataclass(frozen=True, kw_only=True)
class OpLaunch:
    """One launch."""

    #: Name of a kernel in the op's source, declared ``extern "C" __global__``.
    kernel: str
    #: CTAs along x; a multiple of the cluster.
    num_ctas: int
    #: Threads of a CTA, along x; a multiple of 32.
    num_threads: int
    #: Fields of the one struct that the kernel takes by value, in order.
    fields: tuple[Field, ...]
    #: CTAs of a cluster. The source has the attribute ``__cluster_dims__``.
    cluster: int = 1
    #: Dynamic shared memory of a CTA.
    smem_bytes: int = 0
    #: Whether no CTA can end before all have begun, e.g. because they wait for each other; such a launch is
    #: cooperative.
    needs_all_ctas: bool = False
    #: Whether the kernel waits for the previous launch with ``griddepcontrol.wait`` before it accesses anything that
    #: the previous one reads or writes; in a programmatic plan kind it may then begin early.
    waits: bool = False
    #: Number of tasks that its CTAs share, for display; 0 for one per CTA.
    num_tasks: int = 0

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of each field in the struct, with C layout."""
        found, end = [], 0
        for field in self.fields:
            found.append(-(-end // field.alignment_bytes) * field.alignment_bytes)
            end = found[-1] + field.num_bytes
        return tuple(found)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the struct."""
        if not self.fields:
            return 0
        end, alignment = self.offsets[-1] + self.fields[-1].num_bytes, max(one.alignment_bytes for one in self.fields)
        return -(-end // alignment) * alignment

    def parameter(self, value_of: Callable[[Field], bytes | int | float]) -> bytes:
        """The struct; `value_of` returns a tensor map's bytes, an address or a number for each non-constant field."""
        found = bytearray(self.parameter_bytes)
        for field, offset in zip(self.fields, self.offsets, strict=True):
            value = value_of(field) if field.data is None else field.data
            data = value if isinstance(value, bytes) else struct.pack(_FORMATS[field.type], value)
            found[offset : offset + len(data)] = data
        return bytes(found)


@dataclass(frozen=True, kw_only=True)
class OpLaunches:
    """All launches of a launch op, in sequence in one stream."""

    launches: tuple[OpLaunch, ...]
    #: Memory that the op keeps between launches and runs: all runs in one stream share it.
    workspace_bytes: int = 0
    #: Bytes at the workspace's beginning that are zero before the first run. Counters there continue from run to run.
    zero_bytes: int = 0
    #: Number of 32-bit words among these bytes in which a launch reports invalid inputs and expired waits, and their
    #: offset in bytes: the file ``launches`` has `report_of` for them.
    status_words: int = 0
    status_at: int = 0

    @property
    def num_tasks(self) -> int:
        """Sum over all launches."""
        return sum(one.num_tasks or one.num_ctas for one in self.launches)

    @property
    def num_ctas(self) -> int:
        """Maximum over the launches."""
        return max(one.num_ctas for one in self.launches)

    @property
    def smem_bytes(self) -> int:
        """Maximum shared memory of a CTA over the launches."""
        return max(one.smem_bytes for one in self.launches)

    @property
    def num_threads(self) -> int:
        """Threads of the largest CTA."""
        return max(one.num_threads for one in self.launches)

    @property
    def digest(self) -> str:
        """sha256, hex, of all launch arguments."""
        facts = [[vars(one) | {"fields": [_plain(field) for field in one.fields]} for one in self.launches]]
        text = json.dumps([*facts, self.workspace_bytes, self.zero_bytes], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _plain(field: Field) -> dict[str, Any]:
    binary = {name: data.hex() for name in ("table", "data") if (data := getattr(field, name)) is not None}
    return vars(field) | binary | {"map": field.map and vars(field.map), "meaning": ""}


def check_op_launches(launches: OpLaunches, name: str, tensors: Collection[str], written: Collection[str]) -> None:
    """Checks that every launch is possible, for an op called `name` with the tensors `tensors`, of which `written` are
    outputs.

    Raises:
        ResourceError: a grid, a CTA, a parameter or the workspace is too large.
        WordError: a field is invalid, or no kernel takes a tensor that the op writes.
    """
    if not 1 <= len(launches.launches) <= MOST_LAUNCHES:
        count = f"{len(launches.launches)} launches, use 1 to {MOST_LAUNCHES}"
        raise WordError("an op has no launch, or too many", f"{name} has {count}")
    if not 0 <= launches.zero_bytes <= launches.workspace_bytes:
        what = f"{launches.zero_bytes} bytes of a workspace of {launches.workspace_bytes} are zeroed"
        raise ResourceError("the workspace is smaller than the part that is zeroed", f"{name}: {what}")
    begin, end = launches.status_at, launches.status_at + 4 * launches.status_words
    if begin % 4 or not 0 <= begin <= end <= launches.zero_bytes:
        what = f"{launches.status_words} words from byte {begin}, of {launches.zero_bytes}"
        raise ResourceError("a launch reports outside the part of its workspace that is zeroed", f"{name}: {what}")
    for one in launches.launches:
        _check_grid(f"{name}, kernel {one.kernel}", one)
        _check_fields(f"{name}, kernel {one.kernel}", one, tensors, launches.workspace_bytes)
    fields = [field for one in launches.launches for field in one.fields]
    given = {field.map.tensor if field.map else field.tensor for field in fields}
    if missing := sorted(set(written) - given):
        raise WordError("no kernel takes this tensor", f"{name} writes {missing[0]}: add a field that points to it")


def _check_grid(where: str, one: OpLaunch) -> None:
    if not _IDENTIFIER.fullmatch(one.kernel):
        raise WordError("a kernel has no name", f"{where}: use the name of a function in the source")
    limits = {"num_ctas": MOST_CTAS, "num_threads": MOST_THREADS, "cluster": MOST_CLUSTER}
    for name, most in limits.items():
        if not 1 <= getattr(one, name) <= most:
            raise ResourceError("a launch is too large", f"{where}: {name} is {getattr(one, name)}, use 1 to {most}")
    if one.num_threads % 32 or one.num_ctas % one.cluster:
        what = f"{one.num_threads} threads and {one.num_ctas} CTAs in clusters of {one.cluster}"
        raise WordError("a launch sets only some of warps and clusters", f"{where}: {what}")
    if one.needs_all_ctas and one.waits:
        raise WordError(
            "a launch is cooperative and programmatic", f"{where}: a launch that needs all CTAs at once cannot wait"
        )


def _check_fields(where: str, one: OpLaunch, tensors: Collection[str], workspace_bytes: int) -> None:
    names = [field.name for field in one.fields]
    for field in one.fields:
        if problem := _field_problem(field, tensors, workspace_bytes):
            raise WordError("a field is invalid", f"{where}, field {field.name}: {problem}")
    if not names or one.parameter_bytes > MOST_PARAMETER_BYTES:
        what = f"{one.parameter_bytes} bytes"
        raise ResourceError("a parameter has another size", f"{where}: {what}, use 1 to {MOST_PARAMETER_BYTES}")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise WordError("two fields have one name", f"{where}: {twice}")


def _field_problem(field: Field, tensors: Collection[str], workspace_bytes: int) -> str:
    if not _IDENTIFIER.fullmatch(field.name):
        return "its name is not an identifier"
    is_sized = field.data is not None or field.map is not None
    if not is_sized and field.type not in FIELD_BYTES:
        return f"its type is {field.type}, use {', '.join(FIELD_BYTES)}"
    numbers = [field.value is not None, field.is_spin_limit]
    addresses = [bool(field.tensor), field.room is not None, field.table is not None, field.is_null]
    if sum([*numbers, *addresses, is_sized]) != 1 or (field.type == "pointer") != any(addresses):
        return "use one of the functions that make fields"
    named = field.map.tensor if field.map else field.tensor
    if named and named not in tensors:
        return f"there is no tensor {named!r}, use {', '.join(sorted(tensors))}"
    if field.room is not None and not 0 <= field.room < workspace_bytes:
        return f"byte {field.room} lies outside of a workspace of {workspace_bytes}"
    if field.value is not None:
        try:
            struct.pack(_FORMATS[field.type], field.value)
        except (struct.error, OverflowError, TypeError) as error:
            return f"{field.value!r} is not a {field.type}: {error}"
    if field.map:
        return _map_problem(field.map)
    return "it is empty" if b"" in (field.table, field.data) else ""


def _map_problem(of: MapOf) -> str:
    """Why TMA cannot use a tensor map; empty if it can. Source: CUDA driver API, ``cuTensorMapEncodeTiled``."""
    rank = len(of.dims)
    if not 2 <= rank <= 5 or len(of.box) != rank or len(of.strides_bytes) != rank - 1:
        return "a map has 2 to 5 dimensions, a box with as many, and one stride fewer"
    if min(of.dims) < 1 or not all(1 <= one <= 256 for one in of.box):
        return "a dimension is empty, or a box does not have 1 to 256 elements along it"
    return "a stride is not a multiple of 16 bytes" if any(one % 16 for one in of.strides_bytes) else ""
