"""Only its own file names an epilogue part, except for a frozen list that may only shrink."""

from __future__ import annotations

import pytest

from tests.house import parts


@pytest.mark.slow
def test_no_file_that_did_not_before_names_a_part_of_an_epilogue() -> None:
    """If a file moves, its entry moves too: `python -m tests.house.parts` renews the list unless it would grow."""
    assert parts.grown(parts.named_in(parts.sources()), parts.frozen()) == []


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("a.py", "op.rotary", {"rotary"}),
        ("a.py", "from tuner.core.problem.ops.rotary import Rotary", {"rotary"}),
        ("a.py", "options = ('bias', 'gated')", {"bias", "gate"}),
        ("a.py", "RowScale(residuals=row_scale)", {"row_scale", "residual"}),
        ("a.cuh", "if (kConfig.residual) out += load_bias(op); // rotary", {"residual", "bias"}),
        ("a.py", '"""The rotary part."""\naggregate = unbiased = scale_of_row = 1  # bias', set()),
    ],
)
def test_each_way_to_name_a_part_is_seen(path: str, text: str, named: set[str]) -> None:
    assert parts.parts_of(path, text) == named


def test_a_file_that_names_a_part_anew_is_told() -> None:
    assert parts.grown({"bias": ["one.py", "two.py"]}, {"bias": ["one.py"]}) == [
        "two.py names bias: use the op's parts instead"
    ]
