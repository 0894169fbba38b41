"""The minimum time of a problem, from the measured rates of a GPU model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.reference import H200, rates_file, rates_of, reference_us
from benchmarks.common.rows import ROWS

BY_NAME = {row.name: row.workload for row in ROWS}
FEW, MANY = BY_NAME["decode-plain/llama3-8b/m1"], BY_NAME["prefill-swiglu/llama3-70b-tp8/m2048"]


def test_references_are_those_of_the_measured_rates() -> None:
    assert reference_us(FEW, H200) == pytest.approx(53.4, abs=0.1)
    assert reference_us(MANY, H200) == pytest.approx(456.7, abs=0.5)


def test_a_card_has_the_rates_of_its_own_file_and_none_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rates_of("h200") == rates_of("simulated:h200") == H200
    assert rates_of("h100") is None
    path = rates_file("simulated:h100")
    assert path == rates_file("h100")
    path.parent.mkdir(parents=True)
    rows = [{"rate": "read_bytes_per_s", "value": 3e12}, {"rate": "flops_per_s", "value": 500e12}]
    path.write_text(json.dumps({"meta": {}, "rows": rows}))
    rates = rates_of("simulated:h100")
    assert rates is not None
    assert reference_us(FEW, rates) == pytest.approx(53.4 * 4.4 / 3, rel=1e-3)
    assert reference_us(MANY, rates) == pytest.approx(456.7 * 790 / 500, rel=1e-3)
