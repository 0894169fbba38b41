"""Parts of an epilogue that other packages provide, through an entry point.

A package names the class of its part in its metadata:

    [project.entry-points."tuner.epilogue_parts"]
    softcap = "my_package.softcap:Softcap"

The part's device file, ``softcap.cuh``, is next to that module. It defines a struct with the name of the class, whose
members are the class's fields and then pointers to its tensors. It is called with an fp32 element, its row and its
column; for sums, the column is the row of W. Rows and columns are inside the matrix.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import getfile, isabstract
from pathlib import Path
from typing import Any, ClassVar, Self

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.kernel import KernelPart
from tuner.core.problem.epilogue.part import Argument, Broken, Part, Product, Stage, Traffic
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.interface import (
    ANY_FAULT,
    call_problem,
    overrides_problem,
    positional,
    reason_of,
    value_problem,
)
from tuner.core.problem.ops.codec import fields_from_json, fields_to_json, hints_of, spelling_problem
from tuner.core.problem.ops.op import Role, Tensor
from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.errors import InvalidInput

#: Entry-point group in which packages declare their parts.
GROUP = "tuner.epilogue_parts"
#: Name of a part, in JSON and in names of tensors.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: Prefix of what an op needs if it has a part.
_NEEDED = "epilogue:"
#: Types of tensor elements, and of fields, in device code.
_ELEMENTS = {"fp32": "float", "int32": "int"}
_NUMBERS: dict[Any, str] = {float: "float", int: "int", bool: "bool"}


@dataclass(frozen=True, kw_only=True)
class Own:
    """A tensor of a part."""

    #: Appended to the part's name.
    name: str
    #: Element type: ``fp32`` or ``int32``; empty for the workload's own.
    dtype: str = "fp32"
    #: Constant across launches, or an input.
    role: Role = Role.WEIGHT
    #: For integers, the minimum and the maximum.
    range: tuple[int, int] | None = None
    #: Whether a checkpoint contains it, as the scales of blocks of weights.
    is_of_blocks: bool = False


@dataclass(frozen=True, kw_only=True)
class AddedPart(Part):
    """A part from a package: a frozen dataclass whose fields are numbers that the device code gets as constants.

    It maps an element to an element, given its row and column. It must not need more registers than are free.
    """

    field: ClassVar[str] = "epilogue"
    #: Its name in JSON, as ``part``.
    name: ClassVar[str]
    #: Tensors that it reads, or writes if they are outputs: in that case it is called only inside the matrix, once per
    #: element, and its struct's last member is the number of columns.
    owns: ClassVar[tuple[Own, ...]] = ()
    #: What it requires of kernels, and which of their steps it replaces.
    kernel: ClassVar[KernelPart] = KernelPart()

    def __init_subclass__(cls) -> None:
        """Gives each class its own kernel, which runs after a vendor's product."""
        super().__init_subclass__()
        cls.library_kernel = f"tuner_{getattr(cls, 'name', '')}"

    @abstractmethod
    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        """The new values of the elements, in their own precision; tensors are named as in `owns`."""

    @abstractmethod
    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        """Maximum error of the new values, given the maximum error of the elements."""

    def shape(self, op: Product, name: str) -> tuple[int, ...]:
        """Shape of one of its tensors; it broadcasts to the elements: for sums, one column per row of W, otherwise
        per column of C."""
        return (op.weight_rows if self.stage is Stage.SUMS else op.n,)

    def stored(self, xp: ArrayModule, values: Array, *tensors: Array) -> tuple[Array, tuple[Array, ...]]:
        """The new values, and the tensors that it writes, in their own precision; `tensors` are those that it reads."""
        return self.host(xp, values, *tensors), ()

    def problem(self, op: Product) -> tuple[str, str]:
        """What is wrong with a field or the op, and how to fix it; empty if nothing is wrong."""
        return "", ""

    @property
    def needed(self) -> str:
        """What an op with this part needs, in the form that workers announce."""
        return f"{_NEEDED}{self.name}"

    def is_in(self, op: Product) -> bool:
        return self in op.epilogue

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        read = [tensors[self.tensor_name(op, own)].values for own in self.owns if own.role is not Role.OUTPUT]
        values, error = sums.values, sums.error
        sums.replace(self.host(sums.xp, values, *read), self.spread(sums.xp, values, error, *read))
        if self.stage is Stage.SUMS:
            sums.held = sums.xp.maximum(sums.xp.abs(sums.values), self.spread(sums.xp, values, sums.held, *read))
        sums.compute()
        sums.round()  # a library's own kernel runs after the previous one

    def step(self, op: Product) -> str:
        return f"apply {self.describe()}"

    def describe(self) -> str:
        """E.g. ``softcap cap=30.0``."""
        return " ".join([self.name, *(f"{key}={value}" for key, value in fields_to_json(self).items())])

    def tensor_name(self, op: Product, own: Own) -> str:
        """Name of one of its tensors in the workload."""
        return f"{op.name}.{self.name}_{own.name}"

    def broken(self, op: Product) -> list[Broken]:
        place = f"epilogue.{op.epilogue.index(self)}"
        found = [(place, problem, remedy) for problem, remedy in [self.problem(op)] if problem]
        if [type(one) for one in op.epilogue].count(type(self)) > 1:
            found.append((place, f"{self.name} occurs twice", "give it once"))
        if op.rotary:
            found.append((place, f"{op.name} is rotated, and {self.name} does not support heads", "leave it out"))
        return found

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                name=self.tensor_name(op, own),
                shape=self.shape(op, own.name),
                dtype=own.dtype or str(dtype),
                role=own.role,
                range=own.range,
                is_early=own.role is Role.WEIGHT,
            )
            for own in self.owns
        )

    def listed(self, op: Product, dtype: Dtype, cache: str) -> tuple[tuple[str, Tensor], ...]:
        return tuple((tensor.name.rpartition(".")[2], tensor) for tensor in self._read(op, dtype))

    def operands(self, op: Product) -> tuple[str, ...]:
        return tuple(self.tensor_name(op, own) for own in self.owns if own.role is not Role.OUTPUT)

    @classmethod
    def writes(cls) -> bool:
        """Whether it writes tensors besides the output."""
        return any(own.role is Role.OUTPUT for own in cls.owns)

    def _read(self, op: Product, dtype: Dtype) -> Iterator[Tensor]:
        return (tensor for tensor in self.tensors(op, dtype) if tensor.role is not Role.OUTPUT)

    def pointers(self, op: Product) -> tuple[Argument, ...]:
        return tuple(
            Argument(
                name=f"{self.name}_{own.name}",
                meaning=f"{own.dtype} {own.name} {[*self.shape(op, own.name)]} of {self.name}".strip(),
                tensor=self.tensor_name(op, own),
            )
            for own in self.owns
        )

    def traffic(self, op: Product, dtype: Dtype) -> Traffic:
        per_column = per_row = per_element = 0
        for tensor in self._read(op, dtype):
            rows, columns = (1, 1, *tensor.shape)[-2:]
            if rows == 1:
                per_column += tensor.num_bytes // op.n
            elif columns == 1:
                per_row += tensor.num_bytes // op.m
            else:
                per_element += tensor.num_bytes // (op.m * op.n)
        return Traffic(row=per_row, column=per_column, element=per_element)

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        return sum(tensor.num_bytes for tensor in self._read(op, dtype))

    def words(self, op: Product) -> Mapping[str, str]:
        return {"function": self.describe()}

    def torch(self, op: Product) -> str:
        return f"PyTorch has no call that applies {self.name} after a product: compare without it"

    @classmethod
    def text(cls) -> str:
        """Its device file."""
        return Path(getfile(cls)).with_name(f"{cls.name}.cuh").read_text(encoding="utf-8")

    @classmethod
    def wgmma_file(cls) -> str:
        """The name of its device file with the steps of `wgmma` kernels that it replaces."""
        return f"{cls.name}_wgmma.cuh"

    @classmethod
    def texts(cls) -> tuple[str, ...]:
        """All of its device code."""
        return (cls.text(), *([cls.wgmma_text()] if cls.kernel.has_device_file else []))

    @classmethod
    def wgmma_text(cls) -> str:
        """The device file `wgmma_file`."""
        return Path(getfile(cls)).with_name(cls.wgmma_file()).read_text(encoding="utf-8")

    @classmethod
    def pointer_types(cls) -> dict[str, str]:
        """CUDA types of its struct's last members, by name."""
        held = {own: "" if own.role is Role.OUTPUT else "const " for own in cls.owns}
        return {own.name: f"{const}{_ELEMENTS.get(own.dtype, 'Element::Bits')}*" for own, const in held.items()}

    @classmethod
    def number_types(cls) -> dict[str, str]:
        """CUDA types of its struct's first members, by name."""
        hints = hints_of(cls)
        return {field.name: _NUMBERS[hints[field.name]] for field in fields(cls)}

    def literals(self) -> list[str]:
        """Its fields as CUDA literals."""
        values = ((of, getattr(self, name)) for name, of in self.number_types().items())
        return [f"{float(value)!r}f" if of == "float" else str(value).lower() for of, value in values]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        return {"part": self.name, **fields_to_json(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a field is unknown, missing, or of the wrong type.
        """
        made = fields_from_json(cls, {name: value for name, value in data.items() if name != "part"})
        widened = {name: float(getattr(made, name)) for name, of in cls.number_types().items() if of == "float"}
        return replace(made, **widened)


#: The program's own parts, by name.
_OWN_PARTS: dict[str, type[AddedPart]] = {}


def keep_own(*parts: type[AddedPart]) -> None:
    """Registers the program's own parts, which are looked up like a package's."""
    _OWN_PARTS.update((part.name, part) for part in parts)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The parts that packages declare."""

    parts: dict[str, type[AddedPart]]
    #: Why an installed part cannot be used, by name.
    broken: dict[str, str]


@cache
def _found() -> _Found:
    found = _Found(parts=dict(_OWN_PARTS), broken={})
    for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        part, problem = _loaded(point)
        if part is None or (problem := problem or _problem(point.name, part, found.parts)):
            found.broken[point.name] = problem
        else:
            found.parts[point.name] = part
    return found


def _loaded(point: EntryPoint) -> tuple[Any, str]:
    try:
        return point.load(), ""
    except ANY_FAULT as error:
        return None, f"{point.value} cannot be imported: {reason_of(error, __file__)}"


def _problem(name: str, part: Any, others: Mapping[str, type[AddedPart]]) -> str:
    """Why a package's declaration is not a valid part of an epilogue; empty if it is."""
    if not (isinstance(part, type) and issubclass(part, AddedPart)) or not is_dataclass(part):
        return f"{part!r} is not a dataclass derived from AddedPart"
    if isabstract(part) or not hasattr(part, "stage") or not hasattr(part, "name"):
        missing = sorted({*part.__abstractmethods__, *({"stage", "name"} - set(dir(part)))})
        return f"{part.__name__} lacks {', '.join(missing)}"
    if part.name != name or not _NAME.fullmatch(name):
        return f"is called {part.name!r} but declared as {name!r}: use one name of lower-case letters, digits and _"
    if name in others:
        return f"another package has a part called {name}"
    if problem := spelling_problem(part, ("part",)):
        return f"{part.__name__} {problem}"
    if other := next((field.name for field in fields(part) if hints_of(part)[field.name] not in _NUMBERS), ""):
        return f"{part.__name__}.{other} is not a number: use {', '.join(one.__name__ for one in _NUMBERS)}"
    if problem := _interface_problem(part):
        return f"{part.__name__} has {problem}"
    try:
        part.texts()
    except (OSError, ValueError) as error:
        return f"{part.__name__} has no device file: {error}"
    return ""


def _interface_problem(part: type[AddedPart]) -> str:
    """Why a part does not provide the required interface."""
    if problem := value_problem(part.stage, Stage):
        return f"stage, which {problem}"
    if problem := value_problem(part.owns, tuple[Own, ...]):
        return f"owns, which {problem}"
    if problem := value_problem(part.kernel, KernelPart):
        return f"kernel, which {problem}"
    if problem := part.kernel.problem:
        return f"kernel with {problem}"
    if strange := next((own for own in part.owns if own.dtype not in ("", *_ELEMENTS)), None):
        return f"the tensor {strange.name!r} of {strange.dtype!r}: use {', '.join(_ELEMENTS)}, or '' for the op's own"
    tensors = ", ".join(own.name for own in part.owns)
    for name, count in (("host", 2), ("spread", 3)):
        asked = positional(1 + count + len(part.owns))
        if problem := call_problem(getattr(part, name), asked):
            return f"{name}, which {problem}, of which the last are {tensors or 'no tensors'}"
    return overrides_problem(part, AddedPart)


def added_parts() -> Mapping[str, type[AddedPart]]:
    """The parts that installed packages provide, by name."""
    return _found().parts


def part_versions() -> dict[str, int]:
    """The known parts, in the form that workers announce. If a package changes what a part does, it must rename the
    part."""
    return {f"{_NEEDED}{name}": 1 for name in added_parts()}


def unknown_part(epilogue: Any) -> str:
    """The first part in an op's JSON that no installed package provides, in the form that workers announce; empty if
    there is none."""
    listed = epilogue if isinstance(epilogue, list | tuple) else ()
    names = (one.get("part") for one in listed if isinstance(one, Mapping))
    return next((f"{_NEEDED}{name}" for name in names if isinstance(name, str) and name not in added_parts()), "")


def asked_part() -> type:
    """A dataclass for requesting a part: its name, and the fields of all parts from packages."""
    types: dict[str, Any] = {}
    for own in added_parts().values():
        for one in fields(own):
            hint = hints_of(own)[one.name]
            types[one.name] = hint if types.get(one.name, hint) is hint else float
    more = [
        (name, of | None, field(default=None, metadata={"doc": f"the part's {name}"})) for name, of in types.items()
    ]
    part = ("part", str, field(metadata={"doc": "the name of a part that a package on the server provides"}))
    made = make_dataclass("ChainPart", [part, *more], frozen=True, kw_only=True)
    made.__doc__ = "A part of an epilogue that a package provides, and its numbers."
    return made


def parts_from_json(given: Any) -> tuple[AddedPart, ...]:
    """The parts from packages in an op's ``epilogue``.

    Raises:
        InvalidInput: an entry is invalid, with what would be valid.
    """
    if not isinstance(given, list | tuple):
        raise InvalidInput("epilogue", f"is {given!r}", "pass a list of parts")
    return tuple(_part_from_json(f"epilogue.{place}", one) for place, one in enumerate(given))


def _part_from_json(place: str, data: Any) -> AddedPart:
    name = data.get("part") if isinstance(data, Mapping) else None
    part = added_parts().get(name) if isinstance(name, str) else None
    if part is None:
        because = f": {reason}" if (reason := _found().broken.get(str(name))) else ""
        known = f"install the package that provides it, or use one of {', '.join(added_parts())}"
        raise InvalidInput(f"{place}.part", f"is {name!r}, which no installed package provides{because}", known)
    try:
        return part.from_json(data)
    except InvalidInput as error:
        raise InvalidInput(f"{place}.{error.field}", error.problem, error.remedy) from error
