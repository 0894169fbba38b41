"""The rows of element types and activations in the C runtime: runtime/src/rows.h.

python -m tuner.runtime.binding.rows    writes that file; a test compares it with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import ELEMENTS, Dtype

#: The path in the wheel and, through a link, in a checkout.
HEADER = Path(__file__).parents[1] / "c" / "src" / "rows.h"
#: CUtensorMapDataType for types without a tensor map.
_NO_MAP = 0xFFFFFFFF


def header(*, own_alone: bool = False) -> str:
    """The text of rows.h; optionally without the rows of packages."""
    numbers = [one.row for one in Dtype if not (own_alone and one.row.is_added)]
    elements = [row for row in ELEMENTS.values() if not (own_alone and row.is_added)]
    activations = [one.row for one in Activation if not (own_alone and one.row.is_added)]
    operands = {row.number: row.tensor_map.number if row.tensor_map else _NO_MAP for row in numbers}
    rows = [f"ROW({row.number}u, {operands.get(row.number, _NO_MAP)}u, {row.size_bytes}u)" for row in elements]
    return f"""\
/* Written by `python -m tuner.runtime.binding.rows`: the program's rows of element types and activations. */
#ifndef TUNER_ROWS_H
#define TUNER_ROWS_H

/* For each element type: its number, its CUtensorMapDataType or 0x{_NO_MAP:X}, and the bytes of an element. */
#define ROWS_OF_ELEMENTS(ROW) {" ".join(rows)}
/* The numbers of the types that kernels multiply. */
#define ROWS_OF_OPERANDS(ROW) {" ".join(f"ROW({number}u)" for number in operands)}
#define ROWS_OPERAND_NAMES "{_names(row.name for row in numbers)}"
/* Numbers of activations. */
#define ROWS_OF_ACTIVATIONS(ROW) {" ".join(f"ROW({row.number}u)" for row in activations)}
#define ROWS_ACTIVATION_NAMES "{_names(row.name for row in activations)}"

#endif
"""


def _names(names: Iterable[str]) -> str:
    *most, last = (f"TUNER_{name.upper()}" for name in names)
    return f"{', '.join(most)} or {last}"


if __name__ == "__main__":
    HEADER.write_text(header(own_alone=True))
