"""What `tuner-client pack` requests for finished jobs, and its message for jobs that no pack can include."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.support.attention_packs import make_attention, table, without_sources
from tests.support.packs import ffn
from tests.support.presets import LayerRun, Run, decoder_block, decoder_layer
from tuner.client.commands.packs.making import order_of_jobs, update
from tuner.client.delivery.lock import Lock, LockedPack, read_lock, write_lock
from tuner.client.delivery.meaning import check_pack
from tuner.client.errors import Refused
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.ops.gemm.pairs import independent_pair
from tuner.packs.contents import Entry, Rung
from tuner.packs.read import read_pack
from tuner.packs.shapes import shape_of
from tuner.packs.write import pack_bytes
from tuner.wire.requests.pairs import pair_of


def job(workload: Workload, job_id: str = "job-1", regime: str = "burst") -> dict[str, Any]:
    """A job as `GET /jobs/{id}` returns it."""
    return {
        "id": job_id,
        "pair": pair_of(workload).model_dump(mode="json"),
        "target": "h200",
        "objective": {"l2": "cold", "regime": regime},
    }


def test_a_job_that_no_pack_holds_is_told_how_its_kernels_are_taken_home() -> None:
    with pytest.raises(click.UsageError) as refused:
        order_of_jobs([job(independent_pair((16, 512, 512), (16, 256, 512)), "job-7")], 1.02)
    for words in ("cannot be in a pack", "fetch best --job job-7", "tuner.runtime.load_artifact"):
        assert words in str(refused.value), words


@pytest.mark.parametrize(
    "workload",
    [decoder_block("llama3-8b", m=16), decoder_block("llama3-70b", m=16, tp=8, run=Run.MLP)],
    ids=["decoder-block", "mlp"],
)
def test_a_chain_without_an_attention_has_a_place(workload: Workload) -> None:
    order = order_of_jobs([job(workload), job(workload)], 1.02)
    assert (order["shapes"], [len(one["ops"]) for one in order["chains"]]) == ([], [len(workload.ops)])


def test_two_products_of_a_chain_are_no_ffn() -> None:
    """The chain's workload has another digest, so only that digest finds its results."""
    chain = replace(ffn(), kind=WorkloadKind.CHAIN)
    order = order_of_jobs([job(chain), job(ffn())], 1.02)
    assert (len(order["shapes"]), len(order["chains"])) == (1, 1)


def test_a_layer_around_an_attention_has_a_place() -> None:
    run = decoder_layer("llama3-70b", sequences=1, max_length=512, tp=8, run=LayerRun.QKV_ATTENTION)
    order = order_of_jobs([job(run)], 1.02)
    assert (order["shapes"], len(order["layers"])) == ([], 1)


def test_a_pack_of_an_attention_whose_cap_differs_by_less_than_its_name_shows_is_not_what_was_asked_for() -> None:
    made = make_attention(form={"soft_cap": 30.0})
    pack = read_pack(pack_bytes([without_sources(table(made))]))
    [pair] = order_of_jobs([job(made.workload)], 1.02)["attentions"]
    check_pack(pack, {"shapes": [], "attentions": [pair]})
    near = {**pair, "ops": [{**pair["ops"][0], "soft_cap": 30.000001}]}
    with pytest.raises(Refused, match="the pack is not the requested one: its attentions"):
        check_pack(pack, {"shapes": [], "attentions": [near]})


def test_an_order_names_the_regime_of_jobs_whose_rows_suggest_another() -> None:
    (few, many), asked = (job(ffn(m=m), f"job-{m}") for m in (16, 512)), {"shapes": [], "attentions": []}
    assert "regime" not in order_of_jobs([few, job(ffn(m=512), "job-3", "sustained")], 1.02)
    assert order_of_jobs([few, many], 1.02)["regime"] == "burst"
    assert order_of_jobs([job(ffn(), "job-4", "sustained")], 1.02)["regime"] == "sustained"
    with pytest.raises(click.UsageError, match="several regimes: burst, sustained"):
        order_of_jobs([many, job(ffn(), "job-5", "sustained")], 1.02)
    made = make_attention()
    pack = read_pack(pack_bytes([without_sources(table(made))], provenance={"regime": "burst"}))
    asked |= {"attentions": order_of_jobs([job(made.workload)], 1.02)["attentions"]}
    check_pack(pack, asked | {"regime": "burst"})
    with pytest.raises(Refused, match="its regime"):
        check_pack(pack, asked | {"regime": "sustained"})


def test_an_order_asks_for_kernels_of_one_order_of_sums_where_the_pack_is_to_be_batch_invariant() -> None:
    asked = order_of_jobs([job(ffn())], 1.02, batch_invariant=True)
    assert asked.pop("batch_invariant") is True
    assert asked == order_of_jobs([job(ffn())], 1.02)


class Service:
    """Makes the same pack, whatever is asked for."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def make_pack(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"digest": hashlib.sha256(self._content).hexdigest()}

    def content(self, digest: str) -> bytes:
        return self._content


def test_update_writes_the_pack_of_now_to_the_lock_and_says_what_is_new(tmp_path: Path) -> None:
    path, order = tmp_path / "tuner.lock", order_of_jobs([job(ffn())], 1.02)
    shape = shape_of(ffn().to_json())
    entry = Entry(shape=shape, rungs=(Rung(m_lo=1, m_hi=16, kernel=None, library={"algorithm": 7}),))
    about = {name: order[name] for name in ("target", "l2", "min_gain")} | {"rows": {shape.name: [16]}}
    before, after = (pack_bytes([entry], provenance=about | {"jobs": [one]}) for one in ("job-1", "job-2"))

    def locked(content: bytes) -> Lock:
        digest = hashlib.sha256(content).hexdigest()
        return Lock(key=None, packs=(LockedPack(path="a", sha256=digest, size_bytes=len(content), order=order),))

    def updated(content: bytes) -> str:
        options = ["--lock", str(path), "--cache", str(tmp_path / "cache")]
        done = CliRunner().invoke(update, options, obj=Service(content))
        assert done.exit_code == 0, done.output
        assert read_lock(path) == locked(content)
        return " ".join(done.output.split())

    write_lock(path, locked(before))
    assert "a: nothing changed" in (said := updated(before))
    assert "is unchanged" in said
    other_figures = "a: no kernel and no speed-up changed; it is now based on other jobs or figures"
    assert other_figures in (said := updated(after))
    assert "tuner.lock written" in said
