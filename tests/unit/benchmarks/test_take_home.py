"""The benchmark of packs: its winners are legal, and its timed loops make the calls that they name."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from benchmarks.runtime import take_home
from tests.support.cases import H200
from tests.support.native.recorder import compile_recorder
from tests.support.packs import ladder, make
from tuner.core.legal.legality import check_schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack
from tuner.runtime import native


def test_its_winners_are_legal_and_of_several_suites() -> None:
    found = take_home.winners("h200", take_home.NUM_WINNERS)
    assert len(found) == take_home.NUM_WINNERS
    for chosen in found:
        assert chosen.candidate.schedule is not None
        check_schedule(chosen.workload, H200, chosen.candidate.schedule)
    assert len({chosen.name.partition("/")[0] for chosen in found}) >= 2


def test_the_driver_is_called_as_often_with_and_without_the_runtime(tmp_path: Path) -> None:
    recorder = compile_recorder(tmp_path)
    fake = ctypes.CDLL(str(recorder))
    c = take_home.host_library(tmp_path)
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
    given = native.Tensors(x=16, w1=16, w2=16, hidden=16, y=16)
    for name in ("host_time_of_runtime", "host_time_of_driver"):
        fake.fake_clear()
        assert getattr(c, name)(ffn, 16, ctypes.byref(given), 0, 7) >= 0
        assert fake.fake_num_calls() == 7 + (4 if name == "host_time_of_runtime" else 0)  # its maps are encoded first
    c.tuner_ffn_release(ffn)
    c.tuner_pack_close(pack)


def test_a_simulated_gpu_is_refused() -> None:
    with pytest.raises(SystemExit, match="give --gpu auto"):
        take_home.main(["--gpu", "simulated:h200"])
