"""What a pack holds: per shape a ladder of ranges of rows, and for each range a kernel or the library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.core.problem.activation import Activation
from tuner.core.problem.attention_op import ATTENTION
from tuner.core.problem.dtype import Dtype
from tuner.errors import InvalidInput

from .attention_launches import check_attention_launches
from .launches import check_launches

#: Their numbers in `pack.bin`.
DTYPES = {str(dtype): dtype.row.number for dtype in Dtype}
ACTIVATIONS = {str(one): one.row.number for one in Activation}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An FFN without its rows: Y = activation(s X W1^T + b1) W2^T + b2 + R; gated as `ffn_pair` says."""

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: Of the first product: ``identity``, ``relu``, ``gelu`` (tanh) or ``silu``.
    activation: str
    #: Columns of X.
    d_in: int
    #: Columns of the intermediate.
    d_hidden: int
    #: Columns of Y.
    d_out: int
    #: Whether W1 holds the gate's rows above the up projection's.
    gated: bool = False
    #: Whether both products have one.
    bias: bool = False
    #: Whether R is added to Y.
    residual: bool = False
    #: Whether the rows of X are scaled.
    row_scale: bool = False

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> Shape:
        """That of a manifest's workload.

        Raises:
            InvalidInput: it is no FFN of two products.
        """
        ops = workload["ops"]
        if any(op.get("op") == ATTENTION for op in ops):
            problem = "has an attention, and packs have no place for a cache and its lengths"
            raise InvalidInput("workload", problem, "fetch its artifact, whose manifest says how to launch it")
        if len(ops) != 2 or ops[1]["source"] != ops[0]["name"]:
            raise InvalidInput(
                "workload", f"has {len(ops)} ops or they are not a chain", "give the artifacts of an FFN's two products"
            )
        first, second = ops
        odd = [name for name in ("gated", "row_scale") if second.get(name)]
        odd += ["residual"] if first.get("residual") else []
        if odd or second["activation"] != "identity" or bool(first["bias"]) != bool(second["bias"]):
            raise InvalidInput(
                "workload",
                f"has {', '.join(odd) or 'an activation or a bias'} where a pack has no place for it",
                "give activation, gate and row scale to the first product, the residual to the second, biases to both",
            )
        return cls(
            dtype=workload.get("dtype", "fp16"),
            activation=first["activation"],
            d_in=first["k"],
            d_hidden=first["n"],
            d_out=second["n"],
            gated=bool(first.get("gated")),
            bias=bool(first["bias"]),
            residual=bool(second.get("residual")),
            row_scale=bool(first.get("row_scale")),
        )

    def __str__(self) -> str:
        options = [name for name in ("gated", "bias", "residual", "row_scale") if getattr(self, name)]
        return " ".join([self.dtype, f"{self.d_in} -> {self.d_hidden} -> {self.d_out}", self.activation, *options])


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A fetched artifact."""

    #: Its files by name, ``manifest.json`` among them.
    files: Mapping[str, bytes]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Its launch recipe."""
        found: dict[str, Any] = json.loads(self.files["manifest.json"])
        return found

    @cached_property
    def digest(self) -> str:
        """sha256 of the manifest, which names every other file by its own; hexadecimal."""
        return hashlib.sha256(self.files["manifest.json"]).hexdigest()

    @property
    def order_of_sums(self) -> str:
        """In which order it adds up its products; empty where a row's bits depend on its place, or it does not say."""
        numbers = self.manifest["numbers"]
        return str(numbers.get("order_of_sums", "")) if numbers.get("rows_independent") else ""

    @property
    def simulated(self) -> bool:
        """Whether no card ever ran it."""
        return bool(self.manifest["simulated"])

    @property
    def has_attention(self) -> bool:
        """Whether it computes one."""
        return "attentions" in self.manifest

    def check_files(self, where: str) -> None:
        """That every file is what its manifest names, and every launch what its plan says; `where` begins the sentence.

        Raises:
            InvalidInput: one is not.
        """
        for name, facts in self.manifest["files"].items():
            if hashlib.sha256(self.files.get(name, b"")).hexdigest() != facts["sha256"]:
                problem = f"{where}: {name} is not what its manifest names"
                raise InvalidInput("kernel", problem, "fetch the artifact once more")
        try:
            check_launches(self.manifest, self.files)
            check_attention_launches(self.manifest, self.files)
        except InvalidInput as error:
            raise InvalidInput("kernel", f"{where}: {error.field}: {error.problem}", error.remedy) from error


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What computes something: a kernel or the library."""

    #: None for the library.
    kernel: Kernel | None
    #: The library's recipe where it is known: algorithm, versions; for people.
    library: Mapping[str, Any] = field(default_factory=dict)
    #: The library's time over the kernel's, and its 95 % interval; None where nothing was measured.
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    #: Where it comes from, e.g. the job; for people.
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rung(Answer):
    """What computes an FFN for the rows of a range.

    Its speed-up is that at `m_hi` rows. The kernel may have been measured with more. What it gains here is then a bound
    without an interval.
    """

    #: The range, both ends in it.
    m_lo: int
    m_hi: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One shape's ladder."""

    shape: Shape
    #: By rows, from the fewest on; rows of no range have no answer.
    rungs: tuple[Rung, ...]
    #: Up to so many rows a row's bits depend on its own values alone; 0 where that is not promised.
    invariant_rows: int = 0

    def at(self, m: int) -> Rung | None:
        """What computes it for m rows; None where the ladder has no answer."""
        return next((rung for rung in self.rungs if rung.m_lo <= m <= rung.m_hi), None)


def check(entries: tuple[Entry, ...]) -> None:
    """That each shape is there once, and each ladder says one thing of a row.

    Raises:
        InvalidInput: names what is wrong.
    """
    seen: set[Shape] = set()
    for entry in entries:
        if entry.shape in seen:
            raise InvalidInput("shapes", f"{entry.shape} is there twice", "give each shape one ladder")
        seen.add(entry.shape)
        end = 0
        for rung in entry.rungs:
            where = f"{entry.shape}, rows {rung.m_lo} to {rung.m_hi}"
            if not end < rung.m_lo <= rung.m_hi:
                raise InvalidInput("rungs", f"{where}: not behind row {end}", "give ranges from the fewest rows on")
            end = rung.m_hi
            if rung.kernel is not None:
                _check_kernel(where, entry.shape, rung, rung.kernel)
        if entry.invariant_rows:
            _check_promise(entry)


def _check_promise(entry: Entry) -> None:
    promised = [rung for rung in entry.rungs if rung.m_lo <= entry.invariant_rows]
    orders = {rung.kernel and rung.kernel.order_of_sums for rung in promised}
    ends = [1, *(rung.m_hi + 1 for rung in promised)]
    begins = [*(rung.m_lo for rung in promised), entry.invariant_rows + 1]
    if len(orders) != 1 or not all(orders) or ends != begins:
        raise InvalidInput(
            "invariant_rows",
            f"{entry.shape}: not every number of rows up to {entry.invariant_rows} has a kernel of one order of sums",
            "give kernels of one order, without a gap",
        )


def _check_kernel(where: str, shape: Shape, rung: Rung, kernel: Kernel) -> None:
    manifest = kernel.manifest
    if "rows" not in manifest or "variants" not in manifest["kernel"]:
        raise InvalidInput(
            "kernel", f"{where}: an older version made {kernel.digest[:12]}", "tune the shape again with this version"
        )
    if (found := Shape.of_workload(manifest["workload"])) != shape:
        raise InvalidInput("kernel", f"{where}: {kernel.digest[:12]} computes {found}", "give the kernel of this shape")
    legal = manifest["rows"]
    if rung.m_lo < legal["min"] or rung.m_hi > legal["max"]:
        raise InvalidInput(
            "rungs", f"{where}: the kernel serves {legal['min']} to {legal['max']} rows", "narrow the range"
        )
    kernel.check_files(where)
