"""A wrong conversion of an element type is found before results are compared, although kernel and reference share
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import OperandRow
from tuner.errors import WorkerError
from tuner.workers.gpu.tensors.row_check import check_row

_REFERENCE = """
from tuner.core.problem.workload import Workload
from tuner.errors import WorkerError
from tuner.workers.gpu.tensors.reference import references_of
import numpy as np
ops = [{"name": "up", "m": 2, "n": 8, "k": 8, "source": "x", "activation": "identity", "bias": False}]
workload = Workload.from_json({"kind": "chain", "ops": ops, "dtype": "e5m2"})
class Known:
    values, tolerance = np.ones((2, 8)), None
class Weight:
    values, tolerance = np.ones((8, 8)), None
try:
    references_of(np, workload.ops[0], {"x": Known, "up.weight": Weight}, workload.dtype)
    print("right")
except WorkerError as error:
    print(error)
"""


@pytest.mark.parametrize("dtype", Dtype)
def test_the_programs_rows_convert_as_they_say(dtype: Dtype) -> None:
    check_row(dtype.row)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rounded = (bits + 0x7F + ((bits >> 8) & 1)) >> 8", "rounded = bits >> 8", "nearest "),
        ("xp.where(xp.isnan(half), 0x7F, rounded)", "(rounded * 0 + 0x3C)", " becomes 1, but "),
        ("(bits.astype(xp.uint16) << 8)", "(bits.astype(xp.uint16) << 7)", " becomes "),
        (
            "0x7F, rounded).astype(xp.uint8)",
            "0x7F, rounded).astype(xp.uint16)",
            "to_bits returns uint16, but elements of 8 bits",
        ),
        (
            "xp.where(xp.isnan(half), 0x7F, rounded)",
            "xp.where(xp.isnan(half), 0x3C, rounded)",
            "to_bits turns a NaN",
        ),
        ("roundoff=2.0**-3 * (1 + 2.0**-8)", "roundoff=2.0**-5", "the roundoff is 0.03125"),
    ],
)
def test_a_planted_fault_of_a_packages_row_is_found(old: str, new: str, said: str, tmp_path: Path) -> None:
    site = toys.install("rows", tmp_path)
    path = site / "toy_rows" / "__init__.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    found = toys.run(_REFERENCE, site, warnings="default")
    assert found.startswith("dtype e5m2: ")
    assert said in found


def test_the_toys_row_is_right(tmp_path: Path) -> None:
    assert toys.run(_REFERENCE, toys.install("rows", tmp_path)).strip() == "right"


def tf32(half: int = 0x0FFF, *, mask: int = 0xFFFFE000, least: int = 0) -> OperandRow:
    """A 32-bit element with the first ten mantissa bits of a float32, or with a fault."""

    def to_bits(xp: Any, values: Any) -> Any:
        bits = values.astype(xp.float32).view(xp.uint32)
        rounded = (bits + half + ((bits >> 13) & (half > 0))) & mask
        rounded = xp.where(bits & 0x7FFFFFFF < least, bits & 0x80000000, rounded)
        return xp.where(xp.isnan(values), 0x7FFFE000, rounded).astype(xp.uint32)

    return OperandRow(
        name="tf32",
        bits=32,
        number=200,
        array_name="tf32",
        roundoff=2.0**-11,
        smallest_step=2.0**-136,
        max_rel_error=1e-3,
        nan_bits=0x7FFFE000,
        to_bits=to_bits,
        from_bits=lambda xp, bits: (bits & 0xFFFFE000).astype(xp.uint32).view(xp.float32),
        device="",
    )


def test_a_row_of_four_bytes_is_right_or_its_fault_is_found() -> None:
    check_row(tf32())
    for wrong in (tf32(0), tf32(0x1FFF), tf32(mask=0xFFFFC000), tf32(least=0x01000000)):
        with pytest.raises(WorkerError, match="dtype tf32: "):
            check_row(wrong)
