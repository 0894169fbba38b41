"""What `tuner.tune` asks a service for, where it asks, and that programs of one's own stay in this process. No service
runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tuner
from tuner.client import Client
from tuner.client.documents.asked import FfnPair
from tuner.client.errors import JobFailed
from tuner.errors import InvalidInput
from tuner.python.client_here import ClientHere

PAIR: FfnPair = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}
LINE = "mma 16x64x64+16x64x64 s2 w4 | row+row producer_first row-sync static 1/SM less 130 SMs"
PROGRAMS = {"mine": lambda x, up_weight, down_weight: (x @ up_weight.T) @ down_weight.T}


class Service(httpx.BaseTransport):
    """Takes any job, which then has a state."""

    def __init__(self, state: str) -> None:
        self.body: dict[str, Any] = {}
        self._job = {"id": "job-1", "state": state, "reason": "planted"}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.body = json.loads(request.read())
        return httpx.Response(200, json=self._job)


def asked(**options: Any) -> dict[str, Any]:
    """The body of `POST /jobs`."""
    service = Service("failed")
    with Client("http://service", transport=service) as client, pytest.raises(JobFailed, match="planted"):
        tuner.tune(PAIR, client=client, progress=False, **options)
    return service.body


def test_what_is_left_out_is_left_to_the_service() -> None:
    assert asked() == {"pair": PAIR, "reuse": False, "budget": {}, "objective": {}}


def test_all_that_is_given_is_asked_for() -> None:
    budget = {"trials": 3, "seconds": 9.0, "patience": 2}
    objective = {"l2": "warm", "regime": "sustained", "torch_compile": True}
    more = {"target": "h100", "seed": 7, "priors": "none", "sweep": "rasters", "reuse": True}
    body = asked(**budget, **objective, **more, energy_within=5.0)
    assert body == {"pair": PAIR, "budget": budget, "objective": {**objective, "energy_within_percent": 5.0}, **more}


def test_a_schedule_is_asked_for_as_it_is_and_in_each_order_of_ones_own() -> None:
    def backwards_by_row(grids: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int, int]]:
        for op, (rows, cols) in enumerate(grids):
            yield from ((op, row, col) for row in range(rows) for col in reversed(range(cols)))

    as_it_is, backwards = asked(schedules=[LINE], orders=[backwards_by_row])["schedules"]
    assert as_it_is in asked(schedules=[LINE])["schedules"]
    interleave = backwards["schedule"]["ordering"]["interleave"]
    assert interleave["tiles"][:2] == [[0, 0, 7], [0, 0, 6]]
    with pytest.raises(InvalidInput, match="orders: were given without schedules"):
        asked(orders=[backwards_by_row])


def test_programs_of_ones_own_go_to_no_service() -> None:
    service = Service("failed")
    with Client("http://service", transport=service) as client, pytest.raises(InvalidInput) as refused:
        tuner.tune(PAIR, client=client, baselines=PROGRAMS, progress=False)
    assert "baselines: can only run in this process, but the job would go to http://service" in str(refused.value)
    assert service.body == {}, "nothing was submitted"


def test_programs_of_ones_own_are_timed_beside_a_result_in_this_process() -> None:
    class Timed(Exception):
        """Ends the call when they are timed."""

    def beside(job_id: str, programs: tuple[Any, ...]) -> None:
        assert (job_id, [one.name for one in programs]) == ("job-1", ["mine"])
        raise Timed

    for state, ends in (("succeeded", Timed), ("failed", JobFailed)):
        with ClientHere("http://localhost", transport=Service(state)) as here:
            here.why, here.data, here.beside = "", Path(), beside
            with pytest.raises(ends):
                tuner.tune(PAIR, client=here, baselines=PROGRAMS, progress=False)


def test_the_service_that_is_named_first_is_asked_and_this_process_where_a_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address(**options: Any) -> str:
        with tuner.connect(**options) as client:
            return str(client.url)

    here = SimpleNamespace(service_here=lambda *given: nullcontext(SimpleNamespace(url=f"here {given[0]}")))
    monkeypatch.setitem(sys.modules, "tuner.python.here", here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TUNER_URL", raising=False)
    assert address() == "here None"
    (tmp_path / "tuner").mkdir()
    (tmp_path / "tuner/config.toml").write_text('url = "http://file"\n')
    assert address() == "http://file"
    monkeypatch.setenv("TUNER_URL", "http://environment")
    assert address() == "http://environment"
    assert address(url="http://given") == "http://given"
    assert address(data=tmp_path) == f"here {tmp_path}"
