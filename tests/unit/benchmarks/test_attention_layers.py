"""The measured decoder layers, and the figures computed from their jobs' finals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.attention import layers
from benchmarks.attention.layer_rows import ONE_JOB_ROWS, PAIR_ROWS, ROWS, choose_rows
from tuner.core.problem.workload import Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import InvalidInput


def ended(**times_us: float) -> Any:
    finals = [final(kind, us) for kind, us in times_us.items()]
    best = SimpleNamespace(
        finals=finals, verdict="fused wins", winner=PlanKind(min(times_us, key=times_us.__getitem__))
    )
    return SimpleNamespace(best=best, trials=[], job=SimpleNamespace(id="job-1", num_trials=3))


def final(kind: str, us: float) -> Any:
    candidate = SimpleNamespace(plan_kind=PlanKind(kind), schedule=f"of {kind}")
    return SimpleNamespace(candidate=candidate, time_us=us, speedup=143.0 / us, speedup_ci95=(1.2, 1.4))


def test_the_rows_are_those_that_are_asked_for() -> None:
    eight = [row.name for row in ROWS if row.model == "llama3-8b"]
    assert eight == [f"llama3-8b/layer/{batch}/{context}" for batch in (1, 16) for context in (512, 2048)]
    shard = choose_rows(["llama3-70b-tp8/qkv-"])
    assert [(row.batch, row.context) for row in shard] == [(1, 512), (1, 2048), (16, 512), (16, 2048)]
    first, second = shard[0].parts
    assert [op.name for op in first.ops] == ["qkv"]
    assert [op.name for op in second.ops] == ["attention", "o_proj"]
    assert second.launch_ops[0].shape.max_length == 512
    (paged,) = choose_rows(["llama3-70b-tp8/qkv_attention/16/2048/pages16"])
    assert [op.rotary and op.rotary.page_tokens for op in paged.parts[0].tile_ops] == [16, None]
    (one, many) = choose_rows(["llama3-8b-int4"])
    assert [str(op.weights) for op in one.parts[0].tile_ops] == 4 * ["int4_g128"]
    assert layers.in_order({many.name: {"batch": 16}})[0] == [{"batch": 16}]
    with pytest.raises(InvalidInput, match="no row is called llama9"):
        choose_rows(["llama9"])


def test_a_floor_counts_weights_and_caches() -> None:
    row = ROWS[0]
    weights = 4096 * (4096 + 2 * 14336 + 14336 + 6144)
    caches = 2 * 8 * 512 * 128
    assert row.floor_us(1e12) == pytest.approx(2 * (weights + caches) / 1e6)


def test_what_runs_in_front_of_an_attention_is_launched_as_that_is() -> None:
    before = ended(library=8.0, two_launches=9.0, fused=8.5, fused_pdl=6.5, two_launches_pdl=7.0)
    last = ended(library=12.0, two_launches=11.0, two_launches_pdl=10.0)
    rounds = layers.of_jobs([before, last])
    assert rounds.times_us == {
        PlanKind.LIBRARY: [20.0],
        PlanKind.TWO_LAUNCHES: [19.5],
        PlanKind.TWO_LAUNCHES_PDL: [16.5],
    }
    ways = layers.ways_of([before, last])
    assert [[one.plan_kind for one in way] for way in ways] == [
        [PlanKind.FUSED, PlanKind.TWO_LAUNCHES],
        [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL],
    ]


def test_a_row_says_which_kind_is_best_and_what_was_not_tried() -> None:
    gpu = SimpleNamespace(dram_bytes_per_s=4.8e12)
    last = ended(library=143.0, runs=120.0, fused_pdl=110.0, n_launches=130.0)
    found = layers.layer_row(ROWS[0], gpu, [last], None)  # type: ignore[arg-type]
    assert (found["winner"], found["verdict"], found["verdict_speedup"]) == (PlanKind.FUSED_PDL, "fused wins", 1.3)
    assert found["ci95"] == [1.2, 1.4]
    assert found["kind_us"]["n_launches_pdl"] is None
    assert found["library_us"] == 143.0
    assert found["floor_us"] == pytest.approx(ROWS[0].floor_us(), abs=0.01)
    assert found["over_floor"] == pytest.approx(110.0 / ROWS[0].floor_us(), abs=0.001)


def test_a_row_of_several_parts_is_judged_by_what_they_take_together() -> None:
    gpu = SimpleNamespace(dram_bytes_per_s=4.8e12)
    parts = [ended(library=8.0, two_launches_pdl=7.0), ended(library=12.0, two_launches_pdl=9.0)]
    found = layers.layer_row(choose_rows(["llama3-70b-tp8/qkv-"])[0], gpu, parts, None)  # type: ignore[arg-type]
    assert (found["winner"], found["verdict_speedup"]) == (PlanKind.TWO_LAUNCHES_PDL, 1.25)


def test_rows_of_one_job_are_measured_where_they_are_named_and_are_in_no_mean(tmp_path: Path) -> None:
    assert not set(choose_rows()) & set(ONE_JOB_ROWS)
    (row,) = choose_rows(["llama3-70b-tp8/qkv_attention/16/2048"])
    (part,) = row.parts
    assert [op.name for op in part.ops] == ["qkv", "attention", "o_proj"]
    assert part.turned_for == part.launch_ops[0]
    apart = sum(one.rotated_bytes for one in choose_rows(["llama3-70b-tp8/qkv-attention/16/2048"])[0].parts)
    assert part.rotated_bytes == apart
    results = layers.Results(tmp_path / "layers.json", {"gpu": "none", "driver": "", "cuda": ""})
    pair = choose_rows(["llama3-8b/attention/"])[0]
    for one, speedup in ((pair, 2.0), (row, 3.0), (ROWS[0], 1.2)):
        results.put(one, {"verdict_speedup": speedup})
    written = json.loads((tmp_path / "layers.json").read_text())
    assert [one["row"] for one in written["rows"]] == [ROWS[0].name, row.name, pair.name]
    assert [one["row"] for one in layers.merged([written])["rows"]] == [ROWS[0].name, row.name, pair.name]
    assert written["meta"]["mean_speedup"] == 1.2


def test_there_are_eighteen_attentions_with_their_projections() -> None:
    assert choose_rows(["llama3-8b/attention/", "llama3-70b-tp8/attention/"]) == PAIR_ROWS
    assert len(PAIR_ROWS) == 18
    assert {tuple(op.name for op in part.ops) for row in PAIR_ROWS for part in row.parts} == {("attention", "o_proj")}


def test_the_mean_is_over_all_rows(tmp_path: Path) -> None:
    results = layers.Results(tmp_path / "layers.json", {"gpu": "none", "driver": "", "cuda": ""})
    for row, speedup in zip(ROWS, (1.2, 1.3), strict=False):
        results.put(row, {"verdict_speedup": speedup})
    assert layers.summary_of(list(results.rows.values())) == {
        "mean_speedup": round(math.sqrt(1.2 * 1.3), 4),
        "mean_bar": 1.2,
    }
    again = layers.Results(tmp_path / "layers.json", {"gpu": "none", "driver": "", "cuda": ""})
    assert list(again.rows) == [ROWS[0].name, ROWS[1].name]


def test_files_of_several_runs_become_one_whose_rows_say_where_they_are_from(tmp_path: Path) -> None:
    for name, some in (("a", ROWS[:2]), ("b", ROWS[1:3])):
        results = layers.Results(tmp_path / f"{name}.json", {"gpu": f"card {name}", "driver": "", "cuda": ""})
        for row in some:
            results.put(row, {"verdict_speedup": 1.3 if name == "a" else 1.2})
    files = [str(tmp_path / f"{name}.json") for name in "ab"]
    layers.main(["--merge", *files, "--out", str(tmp_path / "all.json")])
    found = json.loads((tmp_path / "all.json").read_text())
    assert [row["row"] for row in found["rows"]] == [row.name for row in ROWS[:3]]
    assert [row["run"]["gpu"] for row in found["rows"]] == ["card a", "card b", "card b"]
    assert (found["meta"]["complete"], found["meta"]["mean_speedup"]) == (False, round((1.3 * 1.2**2) ** (1 / 3), 4))
    with pytest.raises(SystemExit):
        layers.main(["--merge", *files])


def test_merged_rows_that_are_in_no_mean_have_none_of_their_runs() -> None:
    rows = [{"row": row.name, "verdict_speedup": 1.3} for row in ONE_JOB_ROWS[:1]]
    of_run = {"gpu": "a card", "mean_speedup": 1.2, "mean_bar": 1.2}
    assert not {"mean_speedup", "mean_bar"} & layers.merged([{"meta": of_run, "rows": rows}])["meta"].keys()


def test_parts_have_names_and_a_context_where_their_time_depends_on_it() -> None:
    names = {name for row in ROWS for name in row.named_parts}
    assert {"llama3-8b/layer/1/512", "llama3-70b-tp8/qkv/16", "llama3-70b-tp8/attention/1/2048"} <= names
    by_name: dict[str, Workload] = {}
    for row in ROWS:
        for name, part in row.named_parts.items():
            assert by_name.setdefault(name, part) == part
    assert len(by_name) == len({part.digest for part in by_name.values()}) == 4 + 2 + 4 + 2
