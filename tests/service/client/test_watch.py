"""Watching several jobs together, and the output after Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.support.serving import SMALL_PAIR, Server, body
from tuner.client import Client
from tuner.client.cli import main
from tuner.client.follow.many import follow_many, standing_table

pytestmark = pytest.mark.slow

SHAPE = {name: value for name, value in SMALL_PAIR.items() if name not in ("kind", "m")}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose card is so slow that endless searches take little processor time."""
    data = Path(tmp_path_factory.mktemp("watch")) / "data"
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="0.2") as server:
        yield server.url


@pytest.fixture(scope="module")
def ids(url: str) -> list[str]:
    """The ids of two jobs and a batch."""
    with Client(url) as client:
        jobs = [
            client.submit(body(seed=seed, pair={**SMALL_PAIR, "m": 16 * seed}, budget={"trials": 4}))["id"]
            for seed in (1, 2)
        ]
        batch = client.submit_batch({"shapes": [{**SHAPE, "m": [48, 64]}], "budget": {"trials": 4}})
    return [*jobs, batch["id"]]


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--url", url, *arguments])


# In CI, tests/unit/client/test_following.py does so without a server.
@pytest.mark.soak
def test_several_are_watched_until_all_have_ended(url: str, ids: list[str]) -> None:
    watched = run(url, "watch", *ids, ids[0])
    assert watched.exit_code == 0, watched.output
    assert "3 of 3 ended" in watched.stdout
    for one in ids:
        assert watched.stdout.count(one) == 1
        assert f"{one}: succeeded: " in watched.stderr
    documents = [json.loads(line) for line in run(url, "watch", *ids, "--json").stdout.splitlines()]
    assert [(one["id"], one["state"]) for one in documents] == [(one, "succeeded") for one in ids]


def test_one_that_was_cancelled_is_an_exit_code_and_one_that_is_not_there_another(url: str, ids: list[str]) -> None:
    with Client(url) as client:
        long = client.submit(body(seed=9, pair={**SMALL_PAIR, "m": 99}, budget={"trials": 5000}))["id"]
        late = run(url, "watch", ids[0], long, "--timeout", "0.5")
        assert (late.exit_code, long in late.stderr) == (9, True)
        client.cancel(long)
    lost = run(url, "watch", ids[0], long)
    assert (lost.exit_code, f"{long} cancelled" in lost.stderr) == (7, True)
    assert run(url, "watch", ids[0], "job-none").exit_code == 3


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_live_table_fits_its_terminal(url: str, ids: list[str], width: int) -> None:
    screen = io.StringIO()
    with Client(url) as client:
        found = follow_many(client, ids, Console(file=screen, force_terminal=True, width=width))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    assert standing_table(found, width).row_count == 3
    if width >= 80:
        assert all(any(one in line for line in lines) for one in ids)


# In CI, tests/unit/client/test_following.py has what is said.
@pytest.mark.soak
def test_behind_ctrl_c_it_says_what_goes_on_and_its_lines_lead_back(url: str, tmp_path: Path) -> None:
    """In a terminal, with the real key: each suggested command is then run there."""
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
                    "hidden_act": "silu", "num_attention_heads": 4, "torch_dtype": "bfloat16"})
    )  # fmt: skip
    command = ["--url", url, "tune-model", str(config), "--m", "1,4", "--trials", "3000", "--anew"]
    command += ["--target", "simulated:h200"]
    command += ["--output", str(tmp_path / "model.tunerpack")]
    said = interrupted(command, "searching: ")
    (batch_id,) = set(re.findall(r"batch-\w+", said))
    assert f"{batch_id} continues on the service" in said
    assert "the same command again without --anew" in said
    assert "Traceback" not in said
    assert said.rstrip().endswith(f"cancel {batch_id}"), "nothing follows, such as click's own message"
    back, end = (shlex.split(found) for found in re.findall(r"(?:come back|end it): +tuner-client (.*)", said))
    assert "continues on the service" in interrupted(back, "searching: ")
    assert CliRunner().invoke(main, end).stdout == "cancelled\n"
    with Client(url) as client:
        assert client.batch(batch_id)["state"] == "cancelled"


#: Runs a command in its own terminal, with this program's stdin as keyboard input and its stdout as the screen.
_IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def interrupted(command: list[str], shown: str) -> str:
    """The client's output in a terminal after Ctrl-C, which is typed once `shown` has appeared."""
    client = [sys.executable, "-m", "tuner.client.cli", *command]
    with subprocess.Popen(
        [sys.executable, "-c", _IN_A_TERMINAL, *client], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        said, typed = b"", False
        while read := os.read(terminal.stdout.fileno(), 65536):
            said += read
            if not typed and shown.encode() in said:
                terminal.stdin.write(b"\x03")
                terminal.stdin.flush()
                typed = True
        assert terminal.wait(60) == 1, said
    return said.decode().replace("\r\n", "\n")
