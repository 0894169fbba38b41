"""`tuner.tune`: in this process and with a service; its result, its output, and interruption."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import tuner
from tests.support.repository import ROOT
from tests.support.serving import SMALL_PAIR, Server, running_service
from tuner.client import Client
from tuner.client.documents.documents import Chain, FfnPair, JobDetail
from tuner.client.errors import Refused, Unreachable
from tuner.client.terminal.render import headline
from tuner.errors import InvalidInput
from tuner.python import bars
from tuner.versions import install_command

PAIR: FfnPair = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}
TARGET = "simulated:h200"


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the user's settings."""
    for name in ("TUNER_URL", "TUNER_TOKEN", "TUNER_DATA", "TUNER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuner.Result:
    """A pair that was tuned in this process, without a listening port."""

    def listen(*_: object) -> None:
        raise AssertionError("a port was opened")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "listen", listen)
        data = tmp_path_factory.mktemp("here")
        return tuner.tune(
            PAIR, target=TARGET, trials=8, patience=7, priors="none", energy_within=5, data=data, progress=False
        )


@pytest.mark.slow
def test_what_is_tuned_in_this_process_is_what_the_api_answers(result: tuner.Result) -> None:
    assert result.job["state"] == "succeeded"
    assert result.job["pair"] == {**SMALL_PAIR, **result.job["pair"]}
    assert (result.job["budget"]["trials"], result.job["budget"]["patience"]) == (8, 7)
    assert (result.job["priors"], result.job["objective"]["energy_within_percent"]) == ("none", 5)
    assert result.job["objective"]["torch_compile"] is False
    assert [trial["number"] for trial in result.trials] == list(range(8))
    assert result.simulated
    assert result.verdict == result.best["verdict"]
    assert result.winner["candidate"]["plan_kind"] == result.best["winner"]
    assert result.artifact is not None
    assert result.artifact.manifest["job_id"] == result.job["id"]


def test_a_printed_result_fits_the_terminal(result: tuner.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    widest = {}
    for columns in (80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        widest[columns] = max(map(len, str(result).splitlines()))
    assert widest[80] <= 80 < widest[140] <= 140


def test_a_result_is_a_line_a_table_and_a_page_with_its_chart(result: tuner.Result) -> None:
    assert repr(result).startswith(f"<Result {result.job['id']}: {headline(result.best)}, ")
    assert f"Verdict: {headline(result.best)}" in str(result)
    html = result._repr_html_()
    page = ElementTree.fromstring(html)
    points = page.findall(".//{http://www.w3.org/2000/svg}circle")
    measured = [
        trial for trial in result.trials if trial["outcome"]["kind"] == "measured" and trial["candidate"]["schedule"]
    ]
    assert len(points) == len(measured) > 0
    assert len(page.findall(".//tbody/tr")) == len(result.best["finals"])
    # Each figure of the table is next to its mark.
    assert all("(simulated)" in (row[0].text or "") for row in page.findall(".//tbody/tr"))
    for text in (repr(result), str(result)):
        assert "(simulated)" in text


# In CI, tests/unit/python/test_tuning.py does so without a service.
@pytest.mark.soak
def test_a_chain_is_tuned_and_judged_against_torch_compile_where_it_is_asked_for(tmp_path: Path) -> None:
    chain: Chain = {
        "kind": "chain",
        "m": 16,
        "ops": [
            {"name": "up", "source": "x", "n": 512, "k": 256, "norm": "x", "gated": True, "activation": "silu"},
            {"name": "down", "source": "up", "n": 256, "k": 512},
        ],
    }
    found = tuner.tune(chain, target=TARGET, trials=4, torch_compile=True, data=tmp_path, progress=False)
    assert found.job["objective"]["torch_compile"]
    assert "torch.compile was not timed: a simulated GPU has no PyTorch" in str(found)


# In CI, tests/unit/python/test_tuning.py does so without a service.
@pytest.mark.soak
def test_programs_of_ones_own_stand_beside_the_finals_and_never_go_to_a_service(
    result: tuner.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert result.best["baselines"] == []
    programs = {"mine": lambda x, up_weight, down_weight: (x @ up_weight.T) @ down_weight.T}
    with pytest.warns(UserWarning, match="the baseline 'mine' was not timed: a simulated GPU cannot run programs"):
        found = tuner.tune(PAIR, target=TARGET, trials=4, baselines=programs, data=tmp_path, progress=False)
    (mine,) = found.best["baselines"]
    assert (mine["name"], mine["time_us"], mine["reason"]) == ("mine", None, "a simulated GPU cannot run programs")
    assert "your own: a simulated GPU cannot run programs" in str(found)
    rows = ElementTree.fromstring(found._repr_html_()).findall(".//tbody/tr")
    assert [cell.text for cell in rows[-1]][0::4] == ["mine", "your own: a simulated GPU cannot run programs"]
    monkeypatch.setenv("TUNER_URL", "http://127.0.0.1:9")
    with pytest.raises(InvalidInput, match="baselines: can only run in this process, but the job would go to http"):
        tuner.tune(PAIR, baselines=programs, progress=False)


def test_the_kernel_is_saved_whole(result: tuner.Result, tmp_path: Path) -> None:
    written = result.save(tmp_path / "kernel")
    manifest = json.loads((tmp_path / "kernel/manifest.json").read_text())
    assert {path.name for path in written} == {*manifest["files"], "manifest.json"}
    assert all(path.is_file() for path in written)


# In CI, tests/unit/python/test_tuning.py does so without a service.
@pytest.mark.soak
def test_the_service_that_the_environment_or_the_file_names_is_asked(
    server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_URL", server.url)
    pair = {**PAIR, "m": 77}  # no other job has this problem, so the best result is this one
    found = tuner.tune(pair, trials=4, seed=77, progress=False)
    assert client.job(found.job["id"])["seed"] == 77
    monkeypatch.delenv("TUNER_URL")
    (tmp_path / "config/tuner").mkdir(parents=True)
    (tmp_path / "config/tuner/config.toml").write_text(f'url = "{server.url}"\n')
    again = tuner.tune(pair, trials=4, seed=77, reuse=True, progress=False)
    assert again.job["id"] == found.job["id"]
    # The energy may arrive after the job has ended.
    first, second = (
        one.best | {"finals": [row | {"energy_mj": None} for row in one.best["finals"]]} for one in (found, again)
    )
    assert second == first
    assert not (tmp_path / "cache").exists()


def test_what_is_refused_says_which_field_and_why(server: Server) -> None:
    with pytest.raises(Refused, match=r"pair.m: .*greater than or equal to 1"):
        tuner.tune({**PAIR, "m": 0}, url=server.url)
    with pytest.raises(Refused, match="there is no GPU called 'h9000'"):
        tuner.tune(PAIR, target="h9000", url=server.url)


@pytest.mark.slow
def test_an_interrupt_cancels_the_job_and_says_where_its_trials_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    def sleep(seconds: float) -> None:
        (job,) = service.jobs()
        if job["num_trials"]:
            signal.raise_signal(signal.SIGINT)
        time.sleep(seconds)

    monkeypatch.setattr("tuner.python.tuning._pause", sleep)
    # A process that a script starts in the background ignores interrupts.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tuner.connect(data=tmp_path / "data", gpu=TARGET) as service:
        with pytest.raises(KeyboardInterrupt):
            tuner.tune(PAIR, trials=100_000, client=service)
        (job,) = service.jobs()
        assert job["state"] == "cancelled"
        assert len(list(service.trials(job["id"]))) > 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"{job['id']} is cancelled; its" in said
    assert f"tuner serve --data {tmp_path}/data shows them at /ui/jobs/{job['id']}" in said


def test_a_folder_that_another_process_has_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with running_service(tmp_path / "data"), pytest.raises(Unreachable, match="another"):
        tuner.tune(PAIR, data=tmp_path / "data")


def test_without_the_servers_libraries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tuner.python.here", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(Unreachable, match=re.escape(f"set TUNER_URL, or {install_command('server')}")):
        tuner.tune(PAIR)


def test_elsewhere_than_in_a_terminal_each_state_is_a_line(
    result: tuner.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [{**result.job, "state": state} for state in ("queued", "searching", "searching", "succeeded")]
    seen: list[JobDetail] = list(bars.shown(states, Console(stderr=True)))  # type: ignore[arg-type]
    assert seen == states
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["queued", "searching", "succeeded"]
    assert all("8/8 trials" in line for line in lines)


# In CI, another test has a result's line, table and page with its chart.
@pytest.mark.soak
def test_the_notebook_of_the_examples_runs_in_a_real_kernel_and_shows_bar_and_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples/tune.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3", resources=place).execute()
    outputs = {cell["id"]: cell.get("outputs", []) for cell in notebook.cells}
    shown = [output["data"]["text/html"] for output in outputs["tune"] if "data" in output]
    assert any("<progress value='8' max='8'>" in html and "succeeded" in html for html in shown)
    assert "<svg" in shown[-1]
    assert not [output for output in outputs["tune"] if output["output_type"] == "stream"], "something was warned of"
    assert (tmp_path / "kernel/kernel.cu").is_file()


# In CI, tests/unit/python/test_tuning.py does so without a service.
@pytest.mark.soak
def test_a_schedule_in_an_order_of_ones_own_is_tried_in_this_process(tmp_path: Path) -> None:
    def backwards_by_row(grids: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int, int]]:
        for op, (rows, cols) in enumerate(grids):
            yield from ((op, row, col) for row in range(rows) for col in reversed(range(cols)))

    line = "mma 16x64x64+16x64x64 s2 w4 | row+row producer_first row-sync static 1/SM less 130 SMs"
    result = tuner.tune(
        PAIR, target=TARGET, schedules=[line], orders=[backwards_by_row], data=tmp_path / "data", progress=False
    )
    assert result.study
    table = result.study["members"][2]["candidate"]["schedule"]["ordering"]["interleave"]["tiles"]
    assert table[:2] == [[0, 0, 7], [0, 0, 6]]
    assert "given-backwards_by_row" in str(result)
    assert "●" in str(result)
    with pytest.raises(InvalidInput, match="orders: were given without schedules"):
        tuner.tune(PAIR, orders=[backwards_by_row], data=tmp_path / "none", progress=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": None}, r"^pair\.kind: is missing; use one of ffn, "),
        ({"kind": "fnn"}, r"^pair\.kind: there is no kind called 'fnn'; use one of ffn, "),
        ({"m": None}, r"^pair\.m: is missing"),
        ({"m": "x"}, r"^pair\.m: is 'x'; use a whole number"),
        ({"dtype": "fp61"}, r"^pair\.dtype: is 'fp61'; use one of fp16"),
    ],
)
def test_a_wrong_pair_is_refused_by_field_before_anything_starts(changed: dict[str, object], said: str) -> None:
    pair = {name: value for name, value in (SMALL_PAIR | changed).items() if value is not None}
    with pytest.raises(Refused, match=said):
        tuner.tune(pair, baselines={"mine": print})  # type: ignore[arg-type]
