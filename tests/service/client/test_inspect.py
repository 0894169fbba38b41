"""`counters` and `trace` against a real server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.service.client.conftest import Run
from tests.service.client.test_cli import BIG
from tuner.client import Client, ExitCode
from tuner.client.errors import NothingSeen, Refused
from tuner.client.terminal.render import counters_table


@pytest.fixture
def fused(client: Client, job_id: str) -> str:
    """Number of the fastest fused trial."""
    return str(next(client.trials(job_id, outcome="measured", plan_kind="fused", sort="time"))["number"])


def test_counters_are_printed_as_a_table_and_as_json(run: Run, job_id: str, fused: str) -> None:
    table = run("counters", job_id, fused, "--timeout", "90")
    assert table.exit_code == ExitCode.OK
    assert f"Counters of trial {fused} of {job_id} (simulated)" in table.stdout
    assert "dram__bytes_read.sum" in table.stdout
    found = json.loads(run("counters", job_id, fused, "--json").stdout)
    assert (found["state"], found["simulated"], found["metrics"]) == ("done", True, None)
    named = json.loads(run("counters", job_id, fused, "--metric", "dram__bytes_read.sum", "--json").stdout)
    assert named["metrics"] == ["dram__bytes_read.sum"]


def test_a_trace_is_written_for_perfetto_and_left_alone_when_it_is_there(
    run: Run, job_id: str, fused: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    written = run("trace", job_id, fused, "-o", str(path), "--timeout", "90")
    assert (written.exit_code, written.stdout) == (ExitCode.OK, "")
    assert "simulated: it never ran on a card" in written.stderr
    document = json.loads(path.read_text())
    assert {event["ph"] for event in document["traceEvents"]} >= {"X", "M"}
    assert "is unchanged" in run("trace", job_id, fused, "-o", str(path)).stderr
    assert json.loads(run("trace", job_id, fused).stdout) == document


def test_the_library_says_what_a_trace_is_of_and_gives_the_spans(client: Client, job_id: str, fused: str) -> None:
    found = client.trace(job_id, int(fused))
    assert found["op_names"] == ["up", "down"]
    assert found["spans"]


def test_what_is_refused_or_not_there_has_its_exit_code(run: Run, job_id: str, fused: str) -> None:
    for arguments, code, words in (
        (["counters", job_id, fused, "--metric", "dram__byte_read.sum"], ExitCode.REFUSED, "dram__bytes_read.sum"),
        (["trace", job_id, "0"], ExitCode.REFUSED, "library"),
        (["counters", job_id, "999"], ExitCode.NO_RESULT, "has no trial 999"),
        (["trace", "job-0", "1"], ExitCode.NO_RESULT, "there is no job"),
        (["trace", job_id, "one"], ExitCode.USAGE, "TRIAL"),
        (["counters", job_id], ExitCode.USAGE, "TRIAL"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (code, ""), arguments
        assert words in result.stderr


def test_an_inspection_that_waits_too_long_is_a_timeout(run: Run, client: Client) -> None:
    job_id = run("submit", *BIG).stdout.strip()
    while not client.job(job_id)["num_measured"]:
        time.sleep(0.05)
    result = run("counters", job_id, "0", "--timeout", "0.0001")
    assert result.exit_code == ExitCode.TIMEOUT
    assert "are not ready; ask again" in result.stderr
    run("cancel", job_id)


def test_a_gpu_that_allows_no_counters_is_an_exit_code_of_its_own() -> None:
    import httpx

    refusal = {"job_id": "job-0", "reason": "no permission (error 35)", "state": "done"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=refusal))
    with Client("http://tuner.example", transport=transport) as client, pytest.raises(NothingSeen, match="error 35"):
        client.counters("job-0", 1)
    assert NothingSeen.exit_code == ExitCode.NOTHING_SEEN
    assert not issubclass(NothingSeen, Refused)


def test_a_counter_that_is_absent_has_its_row_with_the_reason() -> None:
    found = {"trial_number": 1, "job_id": "job-0", "simulated": False, "absent": {"sm__x": "this GPU lacks it"}}
    counter = {"name": "dram__bytes_read.sum", "value": 1.5e6, "unit": "bytes", "description": "Bytes read."}
    table = counters_table({**found, "counters": [counter]})
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["dram__bytes_read.sum", "sm__x"], ["1.5 MB", "–"], ["Bytes read.", "this GPU lacks it"]]
