"""The table of a launch's operands, and the checks of each before its address is used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.dtype import ELEMENTS, Dtype
from tuner.packs.base_shape import is_product
from tuner.packs.recipes.own_launches import recipes_by_kind
from tuner.packs.recipes.parameters import has_rows
from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.tensors.arrays import BITS_OF, View, named_view

#: Accepted types for a manifest's element type; for an operand's type also bits without a name.
_NAMES: dict[str, tuple[str, ...]] = {name: (row.array_name,) for name, row in ELEMENTS.items()}
_NAMES |= {str(dtype): (dtype.row.array_name, BITS_OF[dtype.row.bits]) for dtype in Dtype}
#: The free dimension of operands with as many rows as the launch.
ROWS = "rows"
#: Roles of tensors that the launches write.
_WRITTEN = ("intermediate", "output", "squares")

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Operand:
    """One tensor of a launch. It is row-major and contiguous, except with `has_lines`."""

    #: The name in the manifest, or that of the argument.
    name: str
    #: ``input``, ``weight``, ``output`` ...: its purpose.
    role: str
    #: A dimension with a name is free: it is the same for all operands of a call that have this name.
    shape: tuple[int | str, ...]
    #: The manifest's name (``fp16``), or that of array libraries (``float16``).
    dtype: str
    #: Its address must be a multiple of this.
    alignment_bytes: int = 16
    #: Whether the launches change it.
    is_written: bool = False
    #: Whether the lines of its last dimension may have gaps, e.g. for a cache with interleaved keys and values.
    has_lines: bool = False
    #: The operands whose memory it may share, from the same address on; it must not overlap any other if one of the two
    #: is written.
    may_be: tuple[str, ...] = ()

    def check_form(self, shape: tuple[Any, ...], dtype: str, dims: dict[str, Any]) -> None:
        """Checks shape and element type. `dims` contains free dimensions by name, and receives new ones.

        Raises:
            WrongOperand: they do not fit; the message says what is expected.
        """
        before = dict(dims)
        fits = len(shape) == len(self.shape) and dtype in _NAMES.get(self.dtype, (self.dtype,))
        if fits and all(
            found == (dims.setdefault(one, found) if isinstance(one, str) else one)
            for one, found in zip(self.shape, shape, strict=True)
        ):
            return
        wanted = ", ".join(str(before.get(one, one)) if isinstance(one, str) else str(one) for one in self.shape)
        given = f"[{', '.join(map(str, shape))}] of {dtype}"
        raise WrongOperand(f"{self.name} is {given}: pass [{wanted}] of {self.dtype}, the {self.role}")

    def checked(self, array: Any, dims: dict[str, Any]) -> View:
        """The address and description of an array that fits this operand; `dims` as in `check_form`.

        Raises:
            WrongOperand: it does not fit, or NotAnArray: it is not an array, or not contiguous.
        """
        found = named_view(self.name, array, has_lines=self.has_lines)
        self.check_form(found.shape, found.dtype, dims)
        if found.address == 0 != found.end:
            raise WrongOperand(f"{self.name} has no memory, like a tensor of the device meta: pass one that has")
        if found.address % self.alignment_bytes:
            problem = f"{self.name} is at {found.address:#x}"
            raise WrongOperand(f"{problem}: use an address that is a multiple of {self.alignment_bytes} bytes")
        if self.is_written and found.is_read_only:
            raise WrongOperand(f"{self.name} is read-only, but the launch writes to it: pass a writable one")
        return found


class Table:
    """All operands of a launch, by name."""

    def __init__(self, operands: Iterable[Operand]) -> None:
        self._operands = {one.name: one for one in operands}

    def __getitem__(self, name: str) -> Operand:
        return self._operands[name]

    def __iter__(self) -> Iterator[Operand]:
        return iter(self._operands.values())

    def checked(
        self, arrays: Mapping[str, Any], beside: Mapping[str, View] | None = None, device: str = ""
    ) -> dict[str, View]:
        """The addresses and descriptions of these arrays. `beside`: operands of the same launch that have already been
        checked. `device`: the device of the kernels, if known.

        Raises:
            WrongOperand: a name is unknown, an array does not fit its operand, they are on several devices or not on
                that of the kernels, or two overlap and one is written.
        """
        if unknown := sorted(set(arrays) - set(self._operands)):
            raise WrongOperand(f"there is no tensor {unknown[0]}: pass {', '.join(sorted(self._operands))}")
        dims: dict[str, Any] = {}
        views = {one.name: one.checked(arrays[one.name], dims) for one in self if one.name in arrays}
        every = {**(beside or {}), **views}
        _check_devices(every, device)
        self._check_overlaps(every)
        return views

    def _check_overlaps(self, views: Mapping[str, View]) -> None:
        """Checks that written operands overlap no other, unless both may be the same."""
        for name, found in views.items():
            if not self[name].is_written:
                continue
            for other, beside in views.items():
                if other == name or (self[other].is_written and other < name) or not found.overlaps(beside):
                    continue
                is_shared = other in self[name].may_be or name in self[other].may_be
                if not (is_shared and found.address == beside.address):
                    may = (
                        (f"{name} may be {other} itself, from its first element on")
                        if is_shared
                        else "pass separate memory"
                    )
                    raise WrongOperand(f"{name} is written and overlaps {other}: {may}")


def _check_devices(views: Mapping[str, View], of_kernels: str) -> None:
    """Checks that operands are on one device, as far as their libraries report it."""
    known = [("the kernels", of_kernels)] if of_kernels else []
    known += [(name, found.device) for name, found in views.items() if found.device]
    for name, device in known:
        if device != known[0][1]:
            raise WrongOperand(f"{name} is on {device} and {known[0][0]} on {known[0][1]}: pass all on one device")


def of_ffn(d_in: Any, d_hidden: Any, d_out: Any, dtype: str, *, gated: bool, scale_dtype: str = "float32") -> Table:
    """The operands of an FFN, including optional ones. ``m`` is the number of its rows."""
    rows = 2 * d_hidden if gated else d_hidden
    shapes: dict[str, tuple[str, tuple[Any, ...]]] = {
        "x": ("input", ("m", d_in)),
        "w1": ("weight", (rows, d_in)),
        "w2": ("weight", (d_out, d_hidden)),
        "b1": ("bias", (rows,)),
        "b2": ("bias", (d_out,)),
        "residual": ("residual", ("m", d_out)),
        "row_scale": ("row_scale", ("m",)),
        "out": ("output", ("m", d_out)),
    }
    return Table(
        Operand(
            name=name,
            role=role,
            shape=shape,
            dtype=scale_dtype if name == "row_scale" else dtype,
            is_written=name == "out",
            may_be=("residual",) if name == "out" else (),
        )
        for name, (role, shape) in shapes.items()
    )


def of_manifest(manifest: Json, paged: Collection[str], tables: Collection[str], appends: bool) -> Table:
    """The operands of an artifact. `paged` names caches with any number of pages, and `tables` their tables with any
    width. `appends`: the launches include kernels that write to what the others read.
    """
    written = set(_written_caches(manifest))
    shared = [tuple(pair["tensors"].split(", ")) for pair in manifest.get("aliasing", ())]
    optional: list[Json] = []
    for kind, recipe in recipes_by_kind(manifest):
        written |= kind.written_in_front(recipe, manifest) if appends else set()
        optional += kind.tensors_in_front(recipe)
        if "launch_order" not in manifest:  # the attention has ended before a product writes
            shared += [(kind.source_of(recipe, manifest), name) for name in _outputs(manifest)]
    return Table(
        Operand(
            name=tensor["name"],
            role=tensor.get("role", "optional"),
            shape=_shape(manifest, tensor, tensor["name"] in paged, tensor["name"] in tables),
            dtype=tensor["dtype"],
            alignment_bytes=tensor.get("alignment_bytes", 16),
            has_lines=tensor["name"] in paged,
            is_written=tensor.get("role") in _WRITTEN or tensor["name"] in written or tensor.get("written", False),
            may_be=tuple(one for pair in shared if tensor["name"] in pair for one in pair if one != tensor["name"]),
        )
        for tensor in (*manifest["tensors"], *optional)
    )


def _written_caches(manifest: Json) -> Iterator[str]:
    """Caches that products write new keys and values to; for a layer that begins with its qkv, its attention's
    caches."""
    fields = {one["name"]: one for one in (manifest["parameter"] or {"fields": ()})["fields"]}
    for op in manifest["workload"]["ops"]:
        for name in (f"{op['name']}.keys", f"{op['name']}.values") if op.get("rotary") else ():
            yield fields.get(name, {}).get("tensor", name)


def _outputs(manifest: Json) -> list[str]:
    """The tensors that products write and no other op reads."""
    products = {op["name"] for op in manifest["workload"]["ops"] if is_product(op)}
    return [one["name"] for one in manifest["tensors"] if one["role"] == "output" and one["name"] in products]


def _shape(manifest: Json, tensor: Json, is_paged: bool, is_table: bool) -> tuple[int | str, ...]:
    first, *others = tensor["shape"]
    if is_table:
        return (first, f"numbers in a row of {tensor['name']}")
    return (f"pages of {tensor['name']}" if is_paged else ROWS if has_rows(manifest, tensor) else first, *others)
