"""A schedule file is strict: every key is known and in the right object; its schema is documented."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support import builders
from tests.support.presets import LayerRun, Run, decoder_block, decoder_layer
from tests.support.repository import ROOT
from tuner.client.documents.orders import names_of
from tuner.core.legal.legality import check_schedule
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.op_kinds import op_kinds
from tuner.core.schedule.given_order import grids_of, in_order
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.ops.gemm.pairs import ffn_pair
from tuner.schedule_files.reading import read_schedule
from tuner.schedule_files.schema import faults, file_schema, schedule_schema, workload_schema

SCHEMA = ROOT / "docs" / "schedule-file.schema.json"
WINNERS = sorted((ROOT / "tuner" / "winners").glob("*.json"))


def asked() -> dict[str, Any]:
    schedule = builders.schedule().to_json()
    return copy.deepcopy({"workload": builders.workload().to_json(), "gpu": "h200", "schedule": schedule})


def test_the_documented_schema_is_that_which_is_checked() -> None:
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(file_schema()))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("sched",), "sched is not a known key there"),
        (("plan_kind",), "plan_kind is not a known key there"),
        (("schedule", "plan_kind"), "schedule.plan_kind is not a known key there"),
        (("schedule", "tiling", "num_stage"), "did you mean num_stages?"),
        (("schedule", "tiling", "plan_kind"), "schedule.tiling.plan_kind is not a known key there"),
        (("schedule", "ordering", "reserved_sm"), "did you mean reserved_sms?"),
        (("schedule", "ordering", "rasters", 0, "widht"), "schedule.ordering.rasters.0.widht is not a known key there"),
        (("workload", "num_in_fronts"), "did you mean num_in_front?"),
    ],
)
def test_a_key_that_is_misspelled_or_misplaced_is_named(tmp_path: Path, place: tuple[Any, ...], words: str) -> None:
    path, document = tmp_path / "asked.json", asked()
    path.write_text(json.dumps(document))
    read_schedule(path)
    part: Any = document
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = "fused"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=words):
        read_schedule(path)


@pytest.mark.parametrize("value", ["4", 4.5, True, None, [4]])
def test_a_value_of_another_type_is_named(tmp_path: Path, value: Any) -> None:
    path, document = tmp_path / "asked.json", asked()
    document["schedule"]["tiling"]["num_stages"] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"schedule\.tiling\.num_stages is .* use a JSON integer"):
        read_schedule(path)


def test_every_schedule_that_is_shipped_is_one_by_the_schema() -> None:
    def schedules(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("schedule"), dict):
                yield value["schedule"]
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from schedules(one)

    rows = [row for path in WINNERS for row in json.loads(path.read_text()).values()]
    # Files that ship have all kinds, also where one is not installed.
    known = [row for row in rows if {op.get("op") for op in row["workload"]["ops"]} <= {None, *op_kinds()}]
    found = [*schedules(known)]
    assert len(found) > 100
    schema = schedule_schema()
    for one in found:
        assert [*faults(one, schema)] == []
        Schedule.from_json(one)


def test_every_preset_is_a_workload_by_the_schema() -> None:
    sizes: dict[str, Any] = {"sequences": 2, "max_length": 256}
    workloads = [
        *(decoder_block("llama3-8b", m=16, tp=1, run=run) for run in Run),
        *(decoder_layer("llama3-8b", **sizes, run=run) for run in LayerRun),
        decoder_layer("llama3-8b", **sizes, run=LayerRun.LAYER, page_tokens=16, window=64, soft_cap=30.0),
    ]
    for workload in workloads:
        assert [*faults(json.loads(json.dumps(workload.to_json())), workload_schema())] == []


def test_a_workload_may_be_spelled_as_a_job_asks_for_it(tmp_path: Path) -> None:
    pair = {"kind": "ffn", "m": 256, "d_in": 256, "d_hidden": 512, "d_out": 256}
    line = "mma 64x64x64+64x64x64 s3 w4 | row+row producer_first row-sync static 1/SM"
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps({"workload": pair, "schedule": line, "gpu": "h200"}))
    workload, gpu, schedule = read_schedule(file)
    assert (workload, gpu.id, str(schedule)) == (ffn_pair(m=256, d_in=256, d_hidden=512, d_out=256), "h200", line)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(file.read_text()))
    file.write_text(json.dumps({"workload": pair | {"d_hiden": 4}, "schedule": line, "gpu": "h200"}))
    with pytest.raises(InvalidInput, match="d_hiden: is not a known field; use some of m, d_in, d_hidden"):
        read_schedule(file)


def in_backward_order(**of_merge: Any) -> dict[str, Any]:
    """The usual schedule with a table of its tiles."""
    workload, schedule = builders.workload(), builders.schedule()
    grids = enumerate(grids_of(workload, schedule))
    tiles = [(op, row, col) for op, (rows, cols) in grids for row in range(rows) for col in reversed(range(cols))]
    found = in_order(schedule, tiles).to_json()
    found["ordering"]["interleave"] |= of_merge
    return {"workload": workload.to_json(), "gpu": "h200", "schedule": found}


def test_an_order_of_ones_own_is_called_as_its_file_unless_it_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "my snail (2).json"
    path.write_text(json.dumps(in_backward_order()))
    workload, gpu, schedule = read_schedule(path)
    assert " given-my-snail-2 " in str(schedule)
    check_schedule(workload, gpu, schedule)
    assert Schedule.from_json(schedule.to_json()) == schedule
    path.write_text(json.dumps(in_backward_order(name="slow.one")))
    assert " given-slow.one " in str(read_schedule(path)[2])


@pytest.mark.parametrize("merge", [{"name": "a b"}, {"name": "a" * 41}, {"name": 5}, {"kind": "bands", "name": "a"}])
def test_a_name_that_is_none_is_refused(merge: dict[str, Any]) -> None:
    schedule = Schedule.from_json(in_backward_order(**merge)["schedule"])
    with pytest.raises(IllegalSchedule, match="name"):
        check_schedule(builders.workload(), CATALOGUE["h200"], schedule)


def test_two_orders_of_one_name_are_told_apart() -> None:
    assert names_of(["a/snail.json", "b/snail.json", "mine.py:snail"]) == ["snail", "snail-2", "snail-3"]
