"""The host half of CUPTI's profiler, which needs no GPU: the available counters of chips, and the number of passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.core.insight.derived_counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES, DURATION_NS
from tuner.errors import InvalidInput
from tuner.workers.cupti.host import ProfilerHost
from tuner.workers.cupti.library import Cupti, CuptiError, load_cupti
from tuner.workers.cupti.metrics import BASE_SET, CATALOGUE
from tuner.workers.cupti.profiler import chip_name

HOPPER, AMPERE, BLACKWELL_CONSUMER = "GH100", "GA100", "GB202"
GMMA = "sm__inst_executed_pipe_tensor_op_gmma.sum"


@pytest.fixture
def hopper() -> Iterator[ProfilerHost]:
    with ProfilerHost(load_cupti(), HOPPER) as host:
        yield host


@pytest.mark.parametrize(
    ("metrics", "num_passes"),
    [
        ((DURATION_NS, DRAM_READ_BYTES, DRAM_WRITE_BYTES, "lts__t_bytes.sum"), 1),
        (("sm__inst_executed_pipe_tensor.sum", GMMA), 1),
        (("lts__t_sector_hit_rate.pct",), 2),
        (("sm__throughput.avg.pct_of_peak_sustained_elapsed",), 8),
    ],
)
def test_metrics_take_the_passes_that_a_card_took(
    hopper: ProfilerHost, metrics: tuple[str, ...], num_passes: int
) -> None:
    assert hopper.configure(metrics).num_passes == num_passes


def test_hopper_has_the_whole_base_set_in_few_passes(hopper: ProfilerHost) -> None:
    chosen = hopper.choose(BASE_SET)
    assert (chosen.metrics, chosen.absent) == (BASE_SET, {})
    assert 8 <= hopper.configure(BASE_SET).num_passes <= 16


@pytest.mark.parametrize(
    ("chip", "lacks"),
    [(AMPERE, {GMMA}), (BLACKWELL_CONSUMER, {GMMA, DRAM_READ_BYTES, DRAM_WRITE_BYTES})],
)
def test_what_a_chip_lacks_is_absent_by_name_and_the_rest_is_kept(chip: str, lacks: set[str]) -> None:
    with ProfilerHost(load_cupti(), chip) as host:
        chosen = host.choose(BASE_SET)
        assert lacks <= set(chosen.absent)
        assert set(chosen.absent.values()) == {f"{chip} has no such counter"}
        assert set(chosen.metrics) | set(chosen.absent) == set(BASE_SET)
        assert len(chosen.metrics) >= 20
        assert host.configure(chosen.metrics).num_passes > 0


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ("dram__bytes_reed.sum", "dram__bytes_read.sum or "),
        ("dram__bytes_read.smu", r"dram__bytes_read\.sum$"),
        ("dram__bytes_read", r"dram__bytes_read\.\w+"),
        ("lts__t_sectors_hit_rate.pct", r"lts__t_sector_hit_rate\.pct"),
        ("nothing of the kind", "Nsight Compute"),
    ],
)
def test_an_unknown_metric_is_refused_with_near_ones(hopper: ProfilerHost, asked: str, remedy: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"GH100 has no metric called '{asked}'")) as refusal:
        hopper.choose((DRAM_READ_BYTES, asked))
    assert re.search(remedy, refusal.value.remedy)
    for named in re.findall(r"\w+__[\w.]+", refusal.value.remedy):
        assert hopper.choose((named,)).metrics == (named,)


def test_metrics_beyond_the_catalogue_have_cuptis_words_and_our_units(hopper: ProfilerHost) -> None:
    assert hopper.describe("dram__bytes.sum") == ("bytes", "Number of bytes accessed in DRAM.")
    assert hopper.describe("dram__bytes.sum.per_second")[0] == "bytes/s"
    assert hopper.describe("dram__bytes.avg.pct_of_peak_sustained_elapsed")[0] == "%"
    assert hopper.describe("sm__cycles_active.avg")[0] == "gpc_cycle"
    assert hopper.describe(DRAM_READ_BYTES)[1] == CATALOGUE[DRAM_READ_BYTES].description


def test_the_catalogue_agrees_with_cupti_on_units(hopper: ProfilerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    units = {metric: info.unit for metric, info in CATALOGUE.items()}
    monkeypatch.setattr("tuner.workers.cupti.host.CATALOGUE", {})
    unit_of = {metric: hopper.describe(metric)[0] for metric in units}
    counts = {metric for metric, unit in unit_of.items() if unit.startswith("l1data_bank")}  # a plain number to us
    assert {metric: "" if metric in counts else unit for metric, unit in unit_of.items()} == units


def test_an_unknown_chip_is_refused_in_a_sentence() -> None:
    with pytest.raises(CuptiError, match=r"this CUPTI is too old for the GPU|cuptiProfilerHostInitialize failed"):
        ProfilerHost(load_cupti(), "NO100")


def test_a_library_that_is_not_there_is_reported_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(CuptiError, match=f"CUPTI cannot be loaded.*{tmp_path.name}"):
        Cupti(tmp_path, "libcupti.so.13")


def test_without_any_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.workers.cupti.library._folders", lambda major: iter(()))
    load_cupti.cache_clear()
    try:
        with pytest.raises(CuptiError, match="pip install nvidia-cuda-cupti"):
            load_cupti()
    finally:
        load_cupti.cache_clear()


def test_a_call_that_fails_is_reported_by_cuptis_own_name() -> None:
    with pytest.raises(CuptiError, match=r"cuptiProfilerHostDeinitialize failed with CUPTI_ERROR_\w+"):
        load_cupti().call("cuptiProfilerHostDeinitialize", pHostObject=None)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a card")
def test_without_a_driver_the_device_half_says_so_and_does_not_crash() -> None:
    with pytest.raises(CuptiError):
        chip_name(load_cupti(), 0)
