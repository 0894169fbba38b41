"""Schedules of a list are timed beside each other on the simulated twin, each with its figures or its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from benchmarks.chains import variants
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.winners import ShippedWinners

ROW = "llama3-70b-tp8-run/m16"


def test_the_schedules_of_a_row_have_figures_and_traces_or_a_reason(tmp_path: Path) -> None:
    known = next(
        one.candidate.schedule
        for one in ShippedWinners().of("h200")
        if one.source == f"shipped chains/{ROW}" and one.candidate.plan_kind is PlanKind.FUSED_PDL
    )
    assert known is not None
    illegal = known.but(tiling=replace(known.tiling, num_stages=99))
    asked = [
        {"row": ROW, "label": label, "kind": "fused_pdl", "schedule": schedule.to_json()}
        for label, schedule in (("known", known), ("too deep", illegal))
    ]
    listed, out = tmp_path / "asked.json", tmp_path / "variants.json"
    listed.write_text(json.dumps([*asked, asked[0] | {"row": "llama3-70b-tp8-run/m1"}]))
    variants.main([str(listed), "--row", ROW, "--gpu", "simulated:h200", "--rounds", "5", "--out", str(out)])
    good, bad = json.loads(out.read_text())["rows"]
    assert (good["label"], good["row"]) == ("known", ROW)
    assert 0 < good["ratio"] < 1 < good["over_floor"]
    assert [one["op"] for one in good["boundaries"]] == ["gate_up", "down"]
    assert "99 stages" in bad["reason"]
    assert "us" not in bad
