"""The C header has the numbers of the rows."""

from __future__ import annotations

import re

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import ELEMENTS
from tuner.runtime.native import FOLDER

#: Of rows that ship with the program; those of packages begin here.
FIRST_OF_PACKAGES = 128


def enumerators(*names: str) -> dict[str, int]:
    """Of the enumeration that has these names."""
    header = (FOLDER / "include" / "tuner" / "tuner.h").read_text()
    found = [
        block for block in re.findall(r"enum \{(.*?)\}", header, re.DOTALL) if all(name in block for name in names)
    ]
    assert len(found) == 1, names
    return {name: int(number) for name, number in re.findall(r"TUNER_(\w+) = (\d+)", found[0])}


def test_element_types_have_the_numbers_of_their_rows() -> None:
    rows = {name.upper(): row.number for name, row in ELEMENTS.items() if row.number < FIRST_OF_PACKAGES}
    assert enumerators("TUNER_FP16") == rows


def test_activations_have_the_numbers_of_their_rows() -> None:
    rows = {one.upper(): one.row.number for one in Activation if one.row.number < FIRST_OF_PACKAGES}
    assert enumerators("TUNER_RELU") == rows
