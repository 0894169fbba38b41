"""Tables of results on 80 and on 120 columns: no line is wider, no figure is cut or broken."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.client.delivery.output import plain_console
from tuner.client.terminal.render import results_table
from tuner.client.terminal.study import study_table

LINE = "wgmma 16x56x256+16x32x256 s6 i6 window2 w4 cluster1x1x2 | row+row producer_first chunk8-sync by slice static"
INTERVAL = [1.058, 1.069]


def row(kind: str, text: str) -> dict[str, Any]:
    figures = {"time_us": 163.14, "speedup": 1.06, "speedup_ci95": INTERVAL, "energy_mj": 138.31, "reason": ""}
    return figures | {"candidate": {"plan_kind": kind, "text": text, "schedule": {} if text else None}}


BEST: dict[str, Any] = {
    "workload": "ffn fp16 M=16 4096 -> 14336 -> 4096",
    "target": "simulated:h200",
    "simulated": True,
    "finals": [row("library", ""), row("two_launches_pdl", LINE)],
    "winner": "two_launches_pdl",
    "winner_row": 1,
    "energy_row": None,
    "tie_band": 0.016,
    "reference_us": 49.0,
    "baselines": [
        {
            "name": "mine",
            "time_us": None,
            "speedup": None,
            "speedup_ci95": None,
            "reason": "down: relative error 3.0e-01",
        }
    ],
}
REFUSAL = (
    "the proof refuses it: a wait never ends: task 7 (down, tile row 0, tile column 3) of CTA 12 waits for signal 4, "
    "which task 9 of the same CTA posts later: start the producer's tiles first"
)
MEMBER = {"interval_us": [21.42, 21.87], "forecast_us": 20.1, "panels": 1096, "time_us": 21.6, "reason": ""}
STUDY: dict[str, Any] = {
    "workload": "ffn fp16 M=512 1024 -> 512 -> 512",
    "target": "simulated:h200",
    "simulated": True,
    "num_rounds": 10,
    "state": "succeeded",
    "cache": 4,
    "members": [
        MEMBER | {"varied": "grouped2+grouped2 producer_first", "candidate": {"schedule": {"ops": []}}},
        MEMBER
        | {
            "varied": "",
            "time_us": None,
            "reason": REFUSAL,
            "interval_us": None,
            "candidate": {"schedule": {"ops": []}},
        },
        MEMBER | {"varied": "given-spiral", "time_us": None, "reason": REFUSAL, "candidate": {"schedule": {}}},
        MEMBER | {"varied": "given-last", "reason": "its own trial", "candidate": {"schedule": {"ops": []}}},
    ],
}


@pytest.mark.parametrize("width", [80, 120])
def test_results_and_studies_fit_with_every_figure_whole(width: int) -> None:
    for table, figures in (
        (results_table(BEST, width), ("163.1 µs", "1.06x", "1.058–1.069", "138.3 mJ", "two launches pdl", "3.0e-01")),
        (
            study_table(STUDY, width),
            ("21.6 µs", "21.42–21.87", "1.00x", "1096", "producer_first", "– (1)", "(1) the proof"),
        ),
    ):
        for column in table.columns:
            column.overflow = "fold"
        console = plain_console(width=width)
        with console.capture() as captured:
            console.print(table)
        text = captured.get()
        assert max(map(len, text.splitlines())) <= width
        for figure in figures:
            assert figure in text, text
        assert "spiral" not in text or text.count("(1)") == 3


@pytest.mark.parametrize("width", [80, 120])
def test_a_refused_order_leaves_a_study_one_line_for_each_schedule(width: int) -> None:
    console = plain_console(width=width)
    with console.capture() as captured:
        console.print(study_table(STUDY, width))
    lines = captured.get().splitlines()
    rows = [line for line in lines if line.startswith("│")]
    assert len(rows) <= len(STUDY["members"]) + 1, "only the longest name may take two lines"
    assert "µs (2)" in rows[-1]
    after = " ".join(" ".join(lines[lines.index(next(line for line in lines if line.startswith("└"))) + 1 :]).split())
    assert f"(1) {REFUSAL} (2) its own trial" in after
