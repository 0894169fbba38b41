"""The contents of a pack: a table from shapes to ladders, each of whose rungs is a kernel or the library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.core.json_names import each_once
from tuner.errors import InvalidInput
from tuner.packs.recipes.launches import FALLBACK, check_launches
from tuner.packs.recipes.own_launches import check_own_sections
from tuner.packs.shapes import AnyShape, Shape, is_pair, shape_of, sizes_of


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A fetched artifact."""

    #: Its files by name, including ``manifest.json``.
    files: Mapping[str, bytes]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Its launch recipe."""
        found: dict[str, Any] = json.loads(self.files["manifest.json"], object_pairs_hook=each_once)
        return found

    @cached_property
    def digest(self) -> str:
        """sha256 of the manifest, which contains the digests of all other files; hexadecimal."""
        return hashlib.sha256(self.files["manifest.json"]).hexdigest()

    @property
    def launch_lists(self) -> tuple[list[dict[str, Any]], ...]:
        """Its launches of products, then those for cards on which the former do not fit, if any."""
        return tuple(self.manifest[name] for name in ("launches", FALLBACK) if name in self.manifest)

    @property
    def has_allowed_streams(self) -> bool:
        """Whether a pack may contain it: on one stream, or on two if it may run its workload so."""
        return is_pair(self.manifest["workload"]) or not any(launch["stream"] for launch in self.manifest["launches"])

    @property
    def order_of_sums(self) -> str:
        """The order in which it sums products; empty if a row's bits depend on its position, or it is unknown."""
        numbers = self.manifest["numbers"]
        return str(numbers.get("order_of_sums", "")) if numbers.get("rows_independent") else ""

    @property
    def simulated(self) -> bool:
        """Whether it never ran on a card."""
        return bool(self.manifest["simulated"])

    @cached_property
    def shape(self) -> AnyShape:
        """What it computes, without its sizes.

        Raises:
            InvalidInput: it cannot be put into a pack.
        """
        return shape_of(self.manifest["workload"])

    def check_files(self, where: str) -> None:
        """Checks that every file matches the manifest, and every launch its plan; messages start with `where`.

        Raises:
            InvalidInput: one of them does not.
        """
        for name, facts in self.manifest["files"].items():
            if hashlib.sha256(self.files.get(name, b"")).hexdigest() != facts["sha256"]:
                problem = f"{where}: {name} does not match its manifest"
                raise InvalidInput("kernel", problem, "fetch the artifact again")
        try:
            check_launches(self.manifest, self.files)
            check_own_sections(self.manifest, self.files)
        except InvalidInput as error:
            raise InvalidInput("kernel", f"{where}: {error.field}: {error.problem}", error.remedy) from error


@dataclass(frozen=True, kw_only=True)
class Rung:
    """The kernel or the library for a range of sizes of a shape.

    Its speed-up is that at `m_hi` rows. If the kernel was measured with more rows, its gain here is a bound without an
    interval.
    """

    #: The range of rows, inclusive; for an attention or a layer, sequences.
    m_lo: int
    m_hi: int
    #: Tokens of the longest context, and of a contiguous cache's rows; 0 if there is no cache.
    max_length: int = 0
    #: None for the library.
    kernel: Kernel | None
    #: The library's recipe if known, as text: algorithm, versions.
    library: Mapping[str, Any] = field(default_factory=dict)
    #: The library's time divided by the kernel's, and its 95 % interval; None if nothing was measured.
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    #: Its origin as text, e.g. the job.
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        if self.max_length:
            return f"{self.m_hi} x {self.max_length} tokens"
        return f"rows {self.m_lo} to {self.m_hi}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One shape's ladder."""

    shape: AnyShape
    #: By rows ascending, then by contexts; sizes outside all ranges have no entry.
    rungs: tuple[Rung, ...]
    #: Up to this many rows, a row's bits depend only on its own values; 0 if that is not guaranteed.
    invariant_rows: int = 0

    def at(self, m: int, length: int = 0) -> Rung | None:
        """The rung for m rows, or sequences, with contexts up to `length`: that with the smallest sufficient context.
        None if there is none."""
        fitting = (rung for rung in self.rungs if rung.m_lo <= m <= rung.m_hi and rung.max_length >= length)
        return next(fitting, None)


def check(entries: tuple[Entry, ...]) -> None:
    """Checks that no shape is repeated, each ladder has one rung per size, and each kernel fits its rung.

    Raises:
        InvalidInput: the message has the problem.
    """
    seen: set[AnyShape] = set()
    for entry in entries:
        if entry.shape in seen:
            raise InvalidInput(entry.shape.section, f"{entry.shape} occurs twice", "use one ladder for each shape")
        seen.add(entry.shape)
        _check_order(entry)
        for rung in entry.rungs:
            if rung.kernel is not None:
                _check_kernel(f"{entry.shape}, {rung.sizes}", entry.shape, rung, rung.kernel)
        if entry.invariant_rows:
            _check_promise(entry)


def _check_order(entry: Entry) -> None:
    rows, length = (0, 0), 0
    for rung in entry.rungs:
        where, own = f"{entry.shape}, {rung.sizes}", (rung.m_lo, rung.m_hi)
        is_behind = rung.max_length > length if own == rows else rows[1] < rung.m_lo <= rung.m_hi
        if not is_behind or (rung.max_length > 0) == entry.shape.by_rows:
            behind = f"row {rows[1]}" + (f" and {length} tokens" if length else "")
            raise InvalidInput("rungs", f"{where}: not after {behind}", "sort the ranges by number of rows, ascending")
        rows, length = own, rung.max_length


def _check_promise(entry: Entry) -> None:
    promised = [rung for rung in entry.rungs if rung.m_lo <= entry.invariant_rows]
    orders = {rung.kernel and rung.kernel.order_of_sums for rung in promised}
    ends = [1, *(rung.m_hi + 1 for rung in promised)]
    begins = [*(rung.m_lo for rung in promised), entry.invariant_rows + 1]
    if len(orders) != 1 or not all(orders) or ends != begins:
        raise InvalidInput(
            "invariant_rows",
            f"{entry.shape}: not every number of rows up to {entry.invariant_rows} has a kernel with the same order "
            "of sums",
            "use kernels with one order of sums, without gaps",
        )


def _check_kernel(where: str, shape: AnyShape, rung: Rung, kernel: Kernel) -> None:
    manifest, name = kernel.manifest, kernel.digest[:12]
    is_old = shape.by_rows and "rows" not in manifest
    if is_old or (isinstance(shape, Shape) and "variants" not in manifest["kernel"]):
        raise InvalidInput(
            "kernel", (f"{where}: {name} was made by an older version"), "tune the shape again with this version"
        )
    if (found := kernel.shape) != shape:
        raise InvalidInput("kernel", f"{where}: {name} computes {found}", "use a kernel of this shape")
    rows, length = sizes_of(manifest["workload"])
    legal = {"min": rows, "max": rows} if length else manifest["rows"]
    if rung.m_lo < legal["min"] or rung.m_hi > legal["max"] or rung.max_length != length:
        contexts = f" with contexts of {length} tokens" if length else ""
        problem = f"{where}: the kernel supports {legal['min']} to {legal['max']} rows{contexts}"
        raise InvalidInput("rungs", problem, "narrow the range")
    if not kernel.has_allowed_streams:
        problem = f"{where}: {name} runs on two streams"
        raise InvalidInput("kernel", problem, "use a kernel of another plan kind, e.g. two_launches_pdl")
    kernel.check_files(where)
