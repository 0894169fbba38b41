"""What is known only at a launch: the pages of its caches, an abort, and an invalid length or page."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from tests.support.chains import block
from tests.support.native.recorder import Recorder
from tests.unit.runtime.test_artifact import TURNED, attention_alone, chain, launched, tensors_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.attention.append import AppendBuffers, pack_append_args
from tuner.runtime import Artifact, RuntimeFailure


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))


def test_what_goes_in_front_is_given_the_table_and_as_many_pages_as_the_cache_has(recorder: Recorder) -> None:
    made, kernel = attention_alone(page_tokens=16, heads_first=False)
    artifact, append = Artifact(made.files), made.manifest["attentions"][0]["append"]
    given = tensors_of(artifact, "optional")
    for name in ("attention.keys", "attention.values"):
        given[name] = replace(given[name], shape=(1000, *given[name].shape[1:]))
    sizes = [append["parameter"]["size_bytes"], made.manifest["attentions"][0]["parameter"]["size_bytes"]]
    first, _ = launched(recorder, artifact, given, sizes)
    names = ("qkv", "frequencies", "keys", "values", "lengths", "pages")
    at = {name: given[f"attention.{name}"].address for name in names}
    buffers = AppendBuffers(q=given["q"].address, num_pages=1000, **at)
    assert first.parameter == pack_append_args(kernel.op.shape, buffers, kernel.op.form.paged)


def test_an_abort_and_a_refused_length_are_told(recorder: Recorder) -> None:
    made, _ = chain(PlanKind.FUSED_PDL, block(16))
    artifact = Artifact(made.files)
    assert not artifact.aborted()
    assert artifact._products is not None
    record = artifact._products._workspaces[0] + made.manifest["launches"][0]["workspace"]["abort_record"]["offset"]
    ctypes.c_uint32.from_address(record).value = 1
    assert artifact.aborted()
    assert artifact.refused() == ""
    files, _ = attention_alone()
    attentions = Artifact(files.files)
    assert attentions.refused() == ""
    at = attentions._of_caches[0]._own["refused"]
    assert isinstance(at, int)
    (ctypes.c_int32 * 4).from_address(at)[:] = [1, 3, -5, 701]
    assert attentions.refused() == "sequence 3 has the length -5: use 0 to 700"
    made, _ = chain(PlanKind.RUNS, block(16, rotary=TURNED))
    turned = Artifact(made.files)
    assert turned._products is not None
    (at,) = turned._products._refused
    (ctypes.c_int32 * 4).from_address(at)[:] = [2, 1, 99, 80]
    assert turned.refused() == "sequence 1 has the page 99: use 0 to 79"
    turned.forget_refused()
    assert turned.refused() == ""
    assert not turned.aborted()


def test_keys_of_other_pages_than_values_are_refused() -> None:
    made, _ = chain(PlanKind.N_LAUNCHES, block(16, rotary=replace(TURNED, page_tokens=16, heads_first=False)))
    artifact = Artifact(made.files)
    given = tensors_of(artifact)
    given["qkv.keys"] = replace(given["qkv.keys"], shape=(3, *given["qkv.keys"].shape[1:]))
    with pytest.raises(
        RuntimeFailure,
        match=(
            r"qkv\.keys and qkv\.values have \[3, 80\] pages: use the "
            r"same number for both"
        ),
    ):
        artifact.bind(given)
