"""The benchmark of packs: its winners are legal, and its timed loops make the calls that they are named after."""

from __future__ import annotations

import ctypes
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.common.report import taken
from benchmarks.runtime import chosen, costs, model, take_home
from benchmarks.runtime.ladder import AtRows, judge
from benchmarks.runtime.rounds import PackRunner
from tests.support.cases import H200
from tests.support.native.recorder import DeviceMemory, Recorder, compile_recorder
from tests.support.packs import ladder, make
from tuner.core.legal.legality import check_schedule
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import Target
from tuner.core.problem.workload import Dtype
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.order_of_sums import order_of_sums
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack
from tuner.runtime import Pack
from tuner.runtime.binding import native
from tuner.workers.source.launch_args import OpBuffers


def check_legal(one: chosen.Chosen) -> None:
    assert one.candidate.schedule is not None
    check_schedule(one.workload, H200, one.candidate.schedule)


def test_its_winners_are_legal_and_of_several_suites() -> None:
    found = chosen.winners("h200", take_home.NUM_WINNERS)
    assert len(found) == take_home.NUM_WINNERS
    for one in found:
        check_legal(one)
    assert len({one.name.partition("/")[0] for one in found}) >= 2


@pytest.mark.parametrize("dtype", UNSCALED)
def test_the_ladders_winners_are_one_for_each_m_and_legal_in_both_types(dtype: Dtype) -> None:
    found = chosen.ladder("h200", take_home.PAIR, dtype)
    assert [one.workload.tile_ops[0].m for one in found] == [1, 16, 32, 64, 96, 128, 192, 256]
    for one in found:
        assert one.workload.dtype is dtype
        check_legal(one)
    assert chosen.at_rows(found[-1], 256) == found[-1].workload
    assert chosen.at_rows(found[0], 40).tile_ops[1].m == 40


def test_the_kernels_of_one_order_make_a_batch_invariant_ladder() -> None:
    found = chosen.ladder("h200", take_home.PAIR, Dtype.FP16)
    last = order_of_sums(plans_for(found[-1].workload, H200, found[-1].candidate))
    assert last.is_of_rows


def test_every_sentence_of_what_is_checked_on_a_card_has_a_check(tmp_path: Path) -> None:
    """The checks are listed without a GPU; running one needs a GPU, and reports its absence in a row."""
    kernels = SimpleNamespace(builder=None)
    target = Target(gpu=H200, simulated=False)
    bench = SimpleNamespace(target=target, kernels=kernels, folder=tmp_path, rounds=None, wait=lambda: None)
    found = dict(take_home.all_checks(bench, chosen.winners("h200", 2)))  # type: ignore[arg-type]
    assert [name.partition(":")[0] for name in found] == [
        "guard",
        "guard",
        "ladder, fp16",
        "ladder, bf16",
        "host time",
        "host time of torch.ops.tuner.ffn",
        "loading",
    ]
    (row,) = taken("ladder, fp16", found["ladder, fp16"])
    assert (row["check"], row["holds"]) == ("ladder, fp16", False)


def at_rows(gain: float, over_finals: float | None = None) -> AtRows:
    """Results with a library time of 10 us; at a winner's own m if `over_finals` is given."""
    finals_us = None if over_finals is None else 10.0 / gain / over_finals
    return AtRows(
        op_us=10.0 / gain, library_us=10.0, library_over_op=gain, finals_us=finals_us, op_over_finals=over_finals or 0.0
    )


def test_a_ladder_is_judged_by_its_worst_m() -> None:
    rows = judge("a", {8: at_rows(1.1, 1.01), 16: at_rows(1.0, 1.02), 12: at_rows(0.99)})
    assert [(row["value"], row["bar"], row["holds"]) for row in rows] == [(1.02, 1.02, True), (0.99, 0.99, True)]
    assert rows[0]["by_m"] == {8: 1.01, 16: 1.02}
    assert rows[1]["by_m"] == {8: 1.1, 12: 0.99, 16: 1.0}
    assert [row["holds"] for row in judge("a", {8: at_rows(1.1, 1.03), 9: at_rows(0.98)})] == [False, False]
    assert [row["holds"] for row in judge("a", {})] == [False, False]


@pytest.mark.parametrize("flags", [native.AS_MEASURED, 0])
def test_a_packs_kernel_is_launched_on_the_operands_of_the_finals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    recorder = Recorder(tmp_path)
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    made = make(PlanKind.FUSED_PDL)
    write_pack([ladder(made.kernel)], tmp_path / "one.tunerpack")
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(made.kernel.manifest["parameter"]["size_bytes"])

    def on_host(num_bytes: int) -> tuple[DeviceMemory, int]:
        memory = DeviceMemory(num_bytes)
        return memory, memory.address

    up, down = made.workload.tile_ops
    first = OpBuffers(a=0x10000000, w=0x20000000, bias=0, c=0x30000000, m=up.m, n=up.n, k=up.k)
    second = OpBuffers(a=0x30000000, w=0x40000000, bias=0, c=0x50000000, m=down.m, n=down.n, k=down.k)
    with (
        closing(Pack(tmp_path / "one.tunerpack")) as pack,
        closing(PackRunner(pack, 9, flags, allocate=on_host)) as runner,
    ):
        recorder.cuda.fake_clear()
        runner.enqueue((first, second), 0x77)
        (call,) = recorder.calls("cuLaunchKernelEx")
        assert runner.abort_record() is None
    places = (104, 104 + 8, 104 + 24, 168, 168 + 8, 168 + 24)
    found = [int.from_bytes(call.parameter[at : at + 8], "little") for at in places]
    assert (call.stream, found) == (0x77, [0x10000000, 0x20000000, 0x30000000, 0x30000000, 0x40000000, 0x50000000])
    assert int.from_bytes(call.parameter[104 + 48 : 104 + 52], "little") == 9


def test_the_driver_is_called_as_often_with_and_without_the_runtime(tmp_path: Path) -> None:
    recorder = compile_recorder(tmp_path)
    fake = ctypes.CDLL(str(recorder))
    c = costs.host_library(tmp_path)
    native.checked(c, c.tuner_load_driver(str(recorder).encode()))
    made = make(PlanKind.FUSED_PDL).kernel
    write_pack([ladder(made)], tmp_path / "one.tunerpack")
    pack, shape, choice, ffn = ctypes.c_void_p(), native.Shape(), native.Choice(), ctypes.c_void_p()
    native.checked(c, c.tuner_pack_open(str(tmp_path / "one.tunerpack").encode(), ctypes.byref(pack)))
    native.checked(c, c.tuner_pack_shape(pack, 0, ctypes.byref(shape), None))
    native.checked(c, c.tuner_ffn_find(pack, shape, 16, ctypes.byref(choice)))
    raw = (ctypes.c_uint8 * (choice.memory_bytes + 256))()
    memory = -(-ctypes.addressof(raw) // 256) * 256
    native.checked(c, c.tuner_ffn_prepare(pack, choice, memory, 0, 0, 0, ctypes.byref(ffn)))
    fake.fake_parameter_bytes(16)
    given = native.Tensors(x=1 << 32, w1=2 << 32, w2=3 << 32, hidden=4 << 32, y=5 << 32)
    for name in ("host_time_of_runtime", "host_time_of_driver"):
        fake.fake_clear()
        assert getattr(c, name)(ffn, 16, ctypes.byref(given), 0, 7) >= 0
        # The runtime encodes its maps first. It queries for each launch's stream whether it is captured, and its id;
        # for a new stream also its SMs.
        assert fake.fake_num_calls() == 7 + (23 if name == "host_time_of_runtime" else 0)
    c.tuner_ffn_release(ffn)
    c.tuner_pack_close(pack)


@pytest.mark.soak
def test_a_model_is_tuned_by_the_commands_of_a_user_and_what_is_there_is_not_tuned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MODELS", tuple(replace(one, rows=(16,)) for one in model.MODELS[1:]))
    packs, out = str(tmp_path / "packs"), str(tmp_path / "rows.json")
    given = ["--gpu", "simulated:h200", "--trials", "8", "--packs", packs, "--out", out, "--model", "llama-3-70b-tp8"]
    model.main(given)
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["check"], row["value"]) == ("tune-model, llama-3-70b-tp8: row counts that a kernel serves", 1)
    assert [key.rpartition(", ")[2] for key in row["speedup"]] == ["16"]
    pack = tmp_path / "packs" / "llama-3-70b-tp8.tunerpack"
    before = pack.stat().st_mtime_ns
    model.main(given)
    assert pack.stat().st_mtime_ns == before
    pack.unlink()
    model.main([*given, "--trials", "0"])
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"][1:]
    assert (row["check"], row["holds"]) == ("tune-model, llama-3-70b-tp8", False)
    assert "ended with 2" in row["reason"]


def test_a_model_with_a_context_has_its_attentions_tuned_and_an_example_of_its_own(tmp_path: Path) -> None:
    class Steps:
        def run(self, *command: str, **variables: str) -> str:
            raise RuntimeError(" ".join(command))

    steps: Any = Steps()
    plain, _, attending = model.MODELS
    with pytest.raises(RuntimeError, match=r"tune-model .*llama_3_8b.json .*--m 1,16 .*--context 1024"):
        model.tune(steps, "", "h200", attending, tmp_path, 8)
    with pytest.raises(RuntimeError, match=r"llama_attention.py .*llama-3-8b-attention.tunerpack .*--batch 1,16"):
        model.decode(steps, attending, tmp_path)
    with pytest.raises(RuntimeError, match="--m 1,16,64") as caught:
        model.tune(steps, "", "h200", plain, tmp_path, 8)
    assert "--context" not in str(caught.value)
    with pytest.raises(RuntimeError, match=r"llama_decode.py .*--compiled 1"):
        model.decode(steps, plain, tmp_path)


def test_a_simulated_gpu_is_refused() -> None:
    with pytest.raises(SystemExit, match="use --gpu auto"):
        take_home.main(["--gpu", "simulated:h200"])
