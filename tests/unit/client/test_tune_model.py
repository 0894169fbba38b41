"""What `tuner-client tune-model` refuses, what it asks a service for, and that only its own jobs make a pack. No server
runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.unit.client.test_models import config
from tuner.client import Client, ExitCode
from tuner.client.commands.tune_model import tune_model
from tuner.client.errors import Refused, Simulated

#: Runs the command; returns its result, and the body of `POST /batches`.
Tune = Callable[..., tuple[Result, dict[str, Any]]]

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = config("llama_3_8b", **SIZES, num_hidden_layers=2, torch_dtype="float16")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FFN = {"kind": "ffn", "m": 2, "d_in": 256, "d_hidden": 512, "d_out": 256, "activation": "silu", "gated": True}
BATCH = {
    "id": "batch-1",
    "links": {"page": "/ui/batches/batch-1"},
    "state": "succeeded",
    "num_trials": 3,
    "num_planned": 3,
    "num_jobs": 1,
    "jobs_by_state": {"succeeded": 1},
    "eta_s": None,
    "card_share": None,
    "simulated": True,
}


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """The command for a model of two layers, and for a service whose batch has `jobs`."""

    def run(
        *options: str, jobs: list[dict[str, Any]] | None = None, targets: str = "h200", **config: Any
    ) -> tuple[Result, dict[str, Any]]:
        asked: dict[str, Any] = {}

        def answer(request: httpx.Request) -> httpx.Response:
            match request.method, request.url.path:
                case "GET", "/targets":
                    found = [{"id": name, "simulated": name.startswith("simulated:")} for name in targets.split()]
                    return httpx.Response(200, json=found)
                case "POST", "/batches":
                    asked.update(json.loads(request.content))
                    return httpx.Response(202, json=BATCH)
                case "GET", "/batches/batch-1":
                    return httpx.Response(200, json=BATCH)
                case "GET", "/batches/batch-1/jobs":
                    items = [{"job": job, "ladder": 0, "m": 2} for job in jobs or []]
                    return httpx.Response(200, json={"items": items, "next_cursor": None})
            return httpx.Response(404, json={"status": 404, "title": "Not Found", "detail": request.url.path})

        path = tmp_path / "tiny" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**CONFIG, **config}))
        with Client("http://service", transport=httpx.MockTransport(answer)) as client:
            command = [str(path), "--m", "2", "--no-between", "-o", str(tmp_path / "out.tunerpack"), *options]
            return CliRunner().invoke(tune_model, command, obj=client), asked

    return run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--blocks"], "--blocks covers all ops of a block: use it with --context"),
        (["--context", "300", "--blocks", "--with-qkv"], "--blocks covers all ops of a block: use it with --context"),
        (["--with-qkv"], "--with-qkv applies to attentions: add --context"),
        (["--page-tokens", "16"], "--page-tokens describes an attention's cache: add --context"),
        (["--context", "300", "--batch-invariant"], "an attention cannot be batch-invariant"),
        (["--layers"], "--layers covers whole layers: use it with --context, and without --with-qkv and --blocks"),
        (["--context", "300", "--layers", "--blocks"], "--layers covers whole layers"),
        (["--context", "300", "--tokens-first"], "--tokens-first applies to a paged cache: add --page-tokens"),
        (["--lengths", "uniform"], "--lengths needs contexts: add --context"),
        (["--timed-length", "9"], "--timed-length needs contexts: add --context, which must be at least as long"),
        (["--context", "300", "--timed-length", "301"], "--timed-length needs contexts"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_submitted(
    tune: Tune, options: list[str], words: str
) -> None:
    refused, asked = tune(*options)
    assert (refused.exit_code, asked) == (ExitCode.USAGE, {}), refused.output
    assert words in refused.stderr


def test_attentions_of_a_quantised_model_are_refused_before_anything_is_submitted(
    tune: Tune,
) -> None:
    refused, asked = tune("--context", "64", quantization_config=AWQ)
    assert (refused.exit_code, asked) == (ExitCode.USAGE, {}), refused.output
    assert "quantised by awq" in refused.stderr


def test_a_simulated_pack_is_made_only_for_a_target_that_was_named(tune: Tune) -> None:
    result, asked = tune(targets="simulated:h200 h200")
    assert isinstance(result.exception, Simulated)
    assert str(result.exception).endswith("nothing was submitted without --target simulated:h200")
    assert not asked
    for options, targets in ((["--target", "simulated:h200"], "simulated:h200"), ([], "h200 simulated:h200"), ([], "")):
        _, asked = tune(*options, targets=targets)
        assert asked.get("target") == (options[1] if options else None)
        assert asked["shapes"]


def test_the_batch_has_what_the_options_say(tune: Tune) -> None:
    options = ["--trials", "3", "--seconds", "9", "--project", "chat", "--label", "nightly", "--target", "h100"]
    _, asked = tune(*options, "--l2", "warm", "--regime", "sustained", "--anew")
    (shape,) = asked.pop("shapes")
    assert [shape[name] for name in ("m", "d_in", "d_hidden", "d_out", "gated")] == [[2], 256, 512, 256, True]
    assert asked == {
        "budget": {"trials": 3, "seconds": 9},
        "reuse": False,
        "objective": {"l2": "warm", "regime": "sustained"},
        "target": "h100",
        "project": "chat",
        "labels": ["nightly", "tiny"],
    }
    _, asked = tune()
    assert (asked["reuse"], asked["labels"], asked["budget"], asked["objective"]) == (True, ["tiny"], {}, {})
    assert not asked.keys() & {"target", "project", "pairs"}


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize(("what", "num_ops"), [("", 1), ("--with-qkv", 3), ("--layers", 5), ("--blocks", 5)])
def test_the_batch_has_the_ops_around_an_attention_and_its_cache(
    tune: Tune, tokens_first: bool, what: str, num_ops: int
) -> None:
    options = ["--context", "300", "--page-tokens", "16", "--lengths", "uniform", "--timed-length", "100"]
    options += [*([what] if what else []), *(["--tokens-first"] if tokens_first else [])]
    ran, asked = tune(*options)
    assert asked, ran.output
    (pair,) = asked["pairs"]
    ops = pair.get("ops", [pair])
    (attention,) = (op for op in ops if "attention" in (op.get("op"), op.get("kind")))
    assert len(ops) == num_ops
    found = {name: attention.get(name) for name in ("max_length", "page_tokens", "lengths", "timed_length")}
    assert found == {"max_length": 300, "page_tokens": 16, "lengths": "uniform", "timed_length": 100}
    assert attention.get("heads_first", True) is not tokens_first


@pytest.mark.parametrize(
    "pair",
    [FFN | {"activation": "relu"}, FFN | {"m": 4}, FFN | {"d_hidden": 1024}],
    ids=["activation", "rows", "columns"],
)
def test_another_models_jobs_make_no_pack(tune: Tune, tmp_path: Path, pair: dict[str, Any]) -> None:
    def job(pair: dict[str, Any]) -> dict[str, Any]:
        objective = {"l2": "cold", "regime": "burst"}
        facts = {"id": "job-1", "workload": "", "state": "failed", "reason": "", "target": "h200"}
        return {**facts, "pair": pair, "objective": objective}

    own, _ = tune(jobs=[job(FFN)])
    assert "no job has succeeded" in str(own.exception), own.output
    for jobs in ([job(pair)], [job(FFN), job(pair)], []):
        refused, _ = tune(jobs=jobs)
        assert isinstance(refused.exception, Refused), refused.output
        assert "is not the requested one" in str(refused.exception)
    assert not (tmp_path / "out.tunerpack").exists()
