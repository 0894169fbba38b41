"""`tuner-client submit KIND`: a kind's options come from its fields; also the flat options, and a kind of another
package."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner

from tests.support import toys
from tuner.client import Client
from tuner.client.cli import main
from tuner.client.commands.submit import submit
from tuner.client.options.pair_options import options_of, pair_body, take_pair
from tuner.core.problem.asked import (
    AskedWorkload,
    asked_field,
    asked_workloads,
    document_of,
    parameter_names,
    workload_of,
)
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload
from tuner.ops.gemm.pairs import ffn_pair

#: Lines of a screen with 80 columns.
SCREEN = 41
#: A command line for each kind, and the request that it makes.
SPELLED: dict[str, dict[str, Any]] = {
    "ffn --m 16 --d-in 256 --d-hidden 512 --d-out 128 --activation silu --gated --no-bias --dtype bf16": {
        "kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 128, "activation": "silu", "gated": True,
        "bias": False, "dtype": "bf16",
    },
    "independent --first 64,32,128 --second 64,256,128": {
        "kind": "independent", "first": {"m": 64, "n": 32, "k": 128}, "second": {"m": 64, "n": 256, "k": 128},
    },
    "decoder-block --model llama3-8b --m 16 --tp 2 --run mlp": {
        "kind": "decoder-block", "model": "llama3-8b", "m": 16, "tp": 2, "run": "mlp",
    },
    "attention --sequences 4 --max-length 512 --heads 8 --kv-heads 2 --head-dim 64 --page-tokens 16 --tokens-first "
    "--soft-cap 30": {
        "kind": "attention", "sequences": 4, "max_length": 512, "heads": 8, "kv_heads": 2, "head_dim": 64,
        "page_tokens": 16, "heads_first": False, "soft_cap": 30.0,
    },
    "decoder-attention --model llama3-8b --sequences 2 --max-length 256 --no-projection --lengths uniform "
    "--timed-length 100": {
        "kind": "decoder-attention", "model": "llama3-8b", "sequences": 2, "max_length": 256, "projection": False,
        "lengths": "uniform", "timed_length": 100,
    },
    "decoder-layer --model llama3-8b --sequences 2 --max-length 256 --no-rotary --new-tokens 2": {
        "kind": "decoder-layer", "model": "llama3-8b", "sequences": 2, "max_length": 256, "rotary": False,
        "new_tokens": 2,
    },
}  # fmt: skip


def command_of(kind: str) -> click.Command:
    found = submit.get_command(click.Context(submit), kind)
    assert found is not None
    return found


def test_the_help_of_submit_is_one_screen_and_has_every_kind() -> None:
    text = CliRunner().invoke(main, ["submit", "--help"], terminal_width=80).stdout
    assert len(text.splitlines()) <= SCREEN
    for kind, one in asked_workloads().items():
        assert f"  {kind} " in text, kind
        assert one.SUMMARY[:50] in text
    assert "--d-in" not in text, "options of a kind are in the help of the kind"


@pytest.mark.parametrize("kind", asked_workloads())
def test_the_help_of_a_kind_has_an_option_for_each_of_its_fields(kind: str) -> None:
    text = CliRunner().invoke(main, ["submit", kind, "--help"], terminal_width=80).stdout
    assert len(text.splitlines()) <= SCREEN + 10
    for name in (*parameter_names(asked_workloads()[kind]).values(), "dtype"):
        assert f"--{name.replace('_', '-')} " in text
    assert "--trials" not in text
    assert "None" not in text


@pytest.mark.parametrize("line", SPELLED)
def test_the_options_of_a_kind_and_the_flat_ones_spell_the_same(line: str) -> None:
    kind, *words = shlex.split(line)
    own = command_of(kind).make_context(kind, list(words)).params
    assert pair_body(take_pair({"kind": kind, "preset": None, **own})) == SPELLED[line]
    said = ["--kind", kind] if kind in ("decoder-attention", "decoder-layer") else []
    flat = submit.make_context("submit", [*said, *words]).params
    assert pair_body(take_pair(flat)) == SPELLED[line]
    assert workload_of(SPELLED[line]).ops


@pytest.mark.parametrize(
    ("short", "kind"),
    [
        (short, name)
        for name in asked_workloads()
        if name.startswith("decoder-") and (short := name.rpartition("-")[2]) not in asked_workloads()
    ],
)
def test_the_end_of_one_name_is_a_name(short: str, kind: str) -> None:
    assert command_of(short).name == kind


def test_what_several_kinds_are_called_is_the_one_of_that_name() -> None:
    assert command_of("attention").name == "attention"
    assert submit.get_command(click.Context(submit), "lay") is None


@dataclass(frozen=True, kw_only=True)
class Drawn(AskedWorkload):
    """A kind with a field named like an option of every job."""

    KIND: ClassVar[str] = "of-chance"
    SUMMARY: ClassVar[str] = "drawn"

    seed: int = asked_field("of what is drawn")
    m: int = asked_field("rows", 4)
    dtype: Dtype = asked_field("element type", Dtype.FP16)

    def to_workload(self) -> Workload:
        return ffn_pair(m=self.m, d_in=self.seed, d_hidden=8, d_out=8)


def test_a_field_that_is_called_as_an_option_of_a_job_has_its_kind_in_front() -> None:
    assert parameter_names(Drawn) == {"seed": "of_chance_seed", "m": "m"}
    assert [option.opts for option in options_of(Drawn)] == [["--of-chance-seed"], ["--m"], ["--dtype"]]
    assert document_of(Drawn, {"of_chance_seed": 7, "seed": 1}) == {"kind": "of-chance", "seed": 7}


@pytest.mark.parametrize("kind", asked_workloads())
def test_no_name_of_an_option_has_two_meanings(kind: str) -> None:
    names = [option.name for option in command_of(kind).params]
    assert len(names) == len(set(names))
    assert len(parameter_names(asked_workloads()[kind])) == len(fields(asked_workloads()[kind])) - 1  # type: ignore[arg-type]  # a dataclass


def test_options_of_a_job_stand_before_or_behind_its_kind_and_in_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[dict[str, Any]] = []

    def keep(client: object, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        sent.append(body)
        return {"id": "job-1", "links": {"page": "/ui/jobs/job-1"}}

    monkeypatch.setattr(Client, "submit", keep)
    config = tmp_path / "config.toml"
    config.write_text("[submit]\ntrials = 7\nm = 3\n")
    monkeypatch.setenv("TUNER_CONFIG", str(config))
    ffn = ["ffn", "--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "128"]
    for words, trials in ((ffn, 7), (["--trials", "9", *ffn], 9), ([*ffn, "--trials", "11"], 11)):
        result = CliRunner().invoke(main, ["submit", *words, "--label", "a"])
        assert result.exit_code == 0, result.output
        assert (sent[-1]["budget"], sent[-1]["labels"], sent[-1]["pair"]["m"]) == ({"trials": trials}, ["a"], 16)


TOY = """
from click.testing import CliRunner
from tuner.client import Client
from tuner.client.cli import main
from tuner.client.options.pair_options import pair_body, take_pair
from tuner.client.commands.submit import submit
from tuner.core.problem.asked import workload_of
from tuner.wire.requests.best_query import BestQuery
from tuner.wire.requests.requests import TuneRequest
from tuner.wire.requests.submit_form import INPUTS, WHAT, SubmitForm, as_client
help = CliRunner().invoke(main, ["submit", "gather", "--help"], terminal_width=80).stdout
assert "Rows of the table." in help and "--table-rows N" in help, help
assert "  gather " in CliRunner().invoke(main, ["submit", "--help"]).stdout
words = "--m 16 --n 512 --table-rows 4096 --dtype bf16".split()
pair = pair_body(take_pair(submit.make_context("submit", words).params))
assert pair == {"kind": "gather", "m": 16, "n": 512, "table_rows": 4096, "dtype": "bf16"}, pair
workload = workload_of(pair)
assert TuneRequest.model_validate({"pair": pair}).to_spec("simulated:h200").workload == workload
assert BestQuery.model_validate({**pair, "m": "16"}).to_workload() == workload
assert "gather" in WHAT and INPUTS["table_rows"].whats == ("gather",)
filled = SubmitForm.of({"what": "gather", "m": "16", "n": "512", "table_rows": "4096", "dtype": "bf16"}).body()
assert filled["pair"] == pair, filled
print(as_client("http://h", filled).partition("submit ")[2])
print(workload.describe())
"""


# In CI, tests/service/test_toys.py submits jobs of other packages.
@pytest.mark.soak
def test_a_kind_of_another_package_has_a_command_requests_a_query_and_inputs_of_the_page(tmp_path: Path) -> None:
    command, words = toys.run(TOY, toys.install("gather", tmp_path)).splitlines()
    assert command == "gather --m 16 --n 512 --table-rows 4096 --dtype bf16 --trials 60 --seconds 600"
    assert words == "gather bf16 gather of 16 from 4096 x 512"
