"""Which kind a test run can leave out together with its folder, and how links to the kind are handled."""

from __future__ import annotations

import pytest

from tests.house import without
from tests.house.without import main
from tests.support.repository import ROOT
from tests.support.subtracted import unlinked


@pytest.mark.parametrize(
    ("kind", "why"), [("gemm", "gemm cannot be left out: an op without a kind in JSON"), ("atention", "no kind of op")]
)
def test_what_cannot_be_left_out_is_said_before_anything_is_copied(kind: str, why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        main(kind)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("[`a.cuh`](../tuner/ops/attention/device/a.cuh), [b](../tuner/ops/attention#b)", "[`a.cuh`], [b]"),
        ("`tuner/ops/attention`, `tuner/ops/attention/op.py`", "tuner/ops/attention, tuner/ops/attention/op.py"),
        ("| `attention/device/a.cuh` | roles |", "| attention/device/a.cuh | roles |"),
    ],
)
def test_what_leads_into_the_folder_is_text(line: str, left: str) -> None:
    assert unlinked("attention", line) == left


@pytest.mark.parametrize(
    "line",
    ["[a](../tuner/ops/attentive/a.py)", "`attention`", "`tests/unit/attention/a.py`", "[a](kernels/attention.md#a)"],
)
def test_other_links_and_words_stay(line: str) -> None:
    assert unlinked("attention", line) == line


def test_a_file_of_the_kind_that_needs_it_only_by_its_requests_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails during its import, although none of its names belongs to the kind."""
    monkeypatch.setenv(without.KIND, "conv")
    monkeypatch.setattr(without, "_imported", lambda _: False)
    monkeypatch.setattr(without, "_FILES", [])
    found = [without.pytest_ignore_collect(ROOT / f"tests/compile/test_{name}.py") for name in ("convs", "hints")]
    assert (found, without._FILES) == ([True, None], ["tests.compile.test_convs"])
