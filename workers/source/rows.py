"""The code of element types and activations in a source, which replaces the device files' declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.activation import ActivationRow
from tuner.core.problem.rows.dtype import OperandRow
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload


def element_of(row: OperandRow, name: str = "Element") -> str:
    """The struct of an element type, as element.cuh declares it."""
    promotes = row.tensor_product is not None and row.tensor_product.max_promoted is not None
    columns = f"kHasPairs = {str(row.has_pairs).lower()}, kPromotesSums = {str(promotes).lower()}"
    return (
        f"struct {name} {{\n  using Bits = u{row.bits};\n"
        f"  static constexpr Bits kNan = {row.nan_bits:#x};\n  enum : bool {{ {columns} }};\n{row.device}}};\n"
    )


def outputs_of(workload: Workload) -> str:
    """The types of outputs, if one differs from the operands', as element.cuh declares them; else empty."""
    others = {i: op.out_dtype for i, op in enumerate(workload.tile_ops) if op.out_dtype not in (None, workload.dtype)}
    if not others:
        return ""
    kinds = list(dict.fromkeys(others.values()))
    structs = "".join(element_of(one.row, f"Element{number}") for number, one in enumerate(kinds))
    usual = "template <int kOp>\nstruct OutputOf {\n  using Type = Element;\n};\n"
    special = "template <>\nstruct OutputOf<{}> {{\n  using Type = Element{};\n}};\n"
    return structs + usual + "".join(special.format(op, kinds.index(one)) for op, one in others.items())


def weights_of(workload: Workload) -> str:
    """The storage of weights, if they are not elements, as element.cuh declares it; else empty."""
    formats = (op.weights for op in workload.tile_ops if op.weights)
    return next((one.row.text(workload.dtype.row) for one in formats), "")


def with_rows(
    text: str, dtype: OperandRow, activations: Iterable[ActivationRow] = (), outputs: str = "", weights: str = ""
) -> str:
    """A device file with these rows instead of its defaults; `outputs` are those of `outputs_of`, `weights` of
    `weights_of`."""
    rows = sorted({row for row in activations if row.device != "x"}, key=lambda row: row.number)
    enumerators = ["kIdentity = 0", *(f"{row.enumerator} = {row.number}" for row in rows)]
    cases = [f"  if constexpr (kActivation == {row.enumerator}) return {row.device};\n" for row in rows]
    said = {
        "TUNER_ELEMENT": element_of(dtype),
        "TUNER_ACTIVATIONS": f"enum Activation : int {{ {', '.join(enumerators)} }};\n",
        "TUNER_ACTIVATE": "".join(cases),
    }
    said |= {name: given for name, given in (("TUNER_OUTPUTS", outputs), ("TUNER_WEIGHTS", weights)) if given}
    return in_place(text, said)


def in_place(text: str, said: Mapping[str, str]) -> str:
    """A device file with different lines in place of those for the case that a switch is not defined."""
    for switch, instead in said.items():
        before, found, after = text.partition(f"#ifndef {switch}\n")
        text = before + instead + after.partition("#endif\n")[2] if found else text
    return text


def own_text() -> str:
    """The code of the program's rows."""
    elements = [element_of(one.row) for one in Dtype if not one.row.is_added]
    formats = dict.fromkeys(one.row.device.read_text(encoding="utf-8") for one in WeightFormat)
    return "".join([*elements, *formats, activate_by_number([one.row for one in Activation if not one.row.is_added])])


def added_text(workload: Workload) -> tuple[str, ...]:
    """The code of packages in a workload: rows of its dtype and of its ops' fields, and parts."""
    named = [workload.dtype, *(value for op in workload.ops for value in vars(op).values())]
    rows = dict.fromkeys(one.row for one in named if isinstance(one, Dtype | Activation))
    parts = dict.fromkeys(type(part) for op in workload.tile_ops for part in op.epilogue)
    return (*(row.device for row in rows if row.is_added), *(text for part in parts for text in part.texts()))


def activate_by_number(rows: Sequence[ActivationRow]) -> str:
    """A function that applies one of these activations, by its number."""
    cases = "".join(f"  if (activation == {row.number}) return {row.device};\n" for row in rows)
    head = "__device__ __forceinline__ float activate(float x, int activation)"
    return f"{head} {{\n{cases}  return x;\n}}\n"
