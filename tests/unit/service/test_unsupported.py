"""A request for which no schedule exists is refused with the field before a job begins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import H200
from tuner.core.problem.asked import workload_of
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.schedule.tiling import Engine
from tuner.core.space.joint import any_space_of
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule
from tuner.service.submission.unsupported import refusal

A100, A40 = CATALOGUE["a100"], CATALOGUE["a40"]


def workload(**asked: Any) -> Any:
    pair = {"kind": "quantised-ffn", "m": 16, "d_in": 512, "d_hidden": 1024, "d_out": 512, "scheme": "int4"}
    return workload_of({**pair, **asked})


@pytest.mark.parametrize(
    ("gpu", "asked", "field", "words"),
    [
        (A100, {"scheme": "tensor"}, "dtype", "compute capability 8.0, and fp8_e4m3 needs 8.9"),
        (A40, {"scheme": "token"}, "dtype", "compute capability 8.6, and fp8_e4m3 needs 8.9"),
        (A100, {"scheme": "w8a16", "d_in": 208}, "sizes", "up has k 208: k must be a multiple of 128, for weights in"),
        (
            H200,
            {"weights": "int4_g32", "d_in": 384},
            "sizes",
            "up has k 384: k must be a multiple of 256, for weights in",
        ),
        (H200, {"weights": "int4_g32", "d_hidden": 128}, "sizes", "down has k 128: k must be a multiple of 256"),
        (H200, {"scheme": "w8a16", "d_in": 208}, "sizes", "up has k 208: k must be a multiple of 128"),
        (H200, {"scheme": "tensor", "d_in": 200}, "sizes", "TMA needs multiples of 16; up has k 200: the simt engine"),
    ],
)
def test_what_no_engine_runs_is_refused_by_field(gpu: Gpu, asked: dict[str, Any], field: str, words: str) -> None:
    found = refusal(workload(**asked), gpu)
    assert found is not None
    assert (found[0], words in found[1], bool(found[2])) == (field, True, True), found
    with pytest.raises(IllegalSchedule):
        any_space_of(workload(**asked), gpu)


@pytest.mark.parametrize("scheme", ["tensor", "token", "w8a16", "w8a16_block", "int4", "int4_zp"])
def test_what_an_engine_runs_is_not(scheme: str) -> None:
    assert refusal(workload(scheme=scheme), H200) is None


@pytest.mark.parametrize("scheme", ["w8a16", "w8a16_block", "int4", "int4_zp", "mxfp4"])
@pytest.mark.parametrize("gpu", [A100, A40], ids=["a100", "a40"])
def test_weights_are_converted_on_other_gpus(scheme: str, gpu: Gpu) -> None:
    """By mma.sync."""
    assert refusal(workload(scheme=scheme), gpu) is None
    assert not any_space_of(workload(scheme=scheme), gpu).is_empty


def test_columns_that_tensor_maps_do_not_support_are_multiplied_by_mma() -> None:
    space = any_space_of(workload(d_out=100), H200)
    assert isinstance(space, Space)
    assert {tiling.engine for tiling in space.tilings} == {Engine.MMA}


def test_a_space_without_schedules_says_so() -> None:
    """The engines that convert weights have no tiles for so few columns, but do not report it."""
    few_columns = workload(scheme="w8a16", d_out=8)
    assert refusal(few_columns, H200) is None
    with pytest.raises(IllegalSchedule, match=r"no schedule of .* is legal on .*: change the sizes"):
        any_space_of(few_columns, H200)


def test_whether_there_are_schedules_is_known_without_listing_all_tilings() -> None:
    some = any_space_of(workload(m=17), H200)
    assert isinstance(some, Space)
    assert (some.is_empty, "tilings" in vars(some)) == (False, False)
