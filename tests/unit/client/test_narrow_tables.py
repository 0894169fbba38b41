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
            "reason": "a wait never ended",
            "interval_us": None,
            "candidate": {"schedule": {"ops": []}},
        },
    ],
}


@pytest.mark.parametrize("width", [80, 120])
def test_results_and_studies_fit_with_every_figure_whole(width: int) -> None:
    for table, figures in (
        (results_table(BEST, width), ("163.1 µs", "1.06x", "1.058–1.069", "138.3 mJ", "two launches pdl", "3.0e-01")),
        (
            study_table(STUDY, width),
            ("21.6 µs", "21.42–21.87", "1.00x", "1096", "producer_first", "a wait never ended"),
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
