from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.core.problem.gpu import CATALOGUE, Gpu, LiveFacts, Target, gpu_from_live, parse_target
from tuner.errors import InvalidInput
from tuner.ops.attention.plans.tasks import num_attention_clusters

H200 = CATALOGUE["h200"]


def facts_of(gpu: Gpu, **changes: object) -> LiveFacts:
    facts = LiveFacts(
        name=f"NVIDIA {gpu.name}",
        uuid="GPU-0",
        compute_capability=gpu.compute_capability,
        num_sms=gpu.num_sms,
        smem_per_sm_bytes=gpu.smem_per_sm_bytes,
        smem_per_cta_bytes=gpu.smem_per_cta_bytes,
        registers_per_sm=gpu.registers_per_sm,
        threads_per_sm=gpu.threads_per_sm,
        l2_bytes=gpu.l2_bytes,
        dram_bytes=gpu.dram_bytes,
        clock_mhz=gpu.clock_mhz,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def test_the_catalogue_knows_the_promised_gpus() -> None:
    assert set(CATALOGUE) == {"a100", "a40", "rtx3050", "rtx4090", "l40s", "rtx5090", "h100", "h200", "b200"}
    assert all(gpu.id == key for key, gpu in CATALOGUE.items())
    archs = {key: gpu.arch for key, gpu in CATALOGUE.items()}
    assert (archs["a100"], archs["h200"], archs["rtx5090"]) == ("sm_80", "sm_90a", "sm_120")


@pytest.mark.parametrize("gpu", CATALOGUE.values(), ids=lambda gpu: gpu.id)
def test_a_listed_card_that_agrees_is_its_catalogue_entry(gpu: Gpu) -> None:
    assert gpu_from_live(facts_of(gpu)) == gpu


def test_what_a_listed_card_says_corrects_the_catalogue() -> None:
    live = gpu_from_live(facts_of(H200, num_sms=66, l2_bytes=30 * 2**20))
    assert (live.id, live.num_sms, live.l2_bytes) == ("h200", 66, 30 * 2**20)
    assert live.dram_bytes_per_s == H200.dram_bytes_per_s


def test_an_unlisted_card_gets_a_name_of_its_own_and_scaled_rates() -> None:
    facts = facts_of(CATALOGUE["rtx4090"], name="NVIDIA L4", num_sms=64, dram_bytes_per_s=300e9)
    live = gpu_from_live(facts)
    assert (live.id, live.name) == ("l4", "L4")
    assert live.dram_bytes_per_s == 300e9
    assert live.tensor_flops_per_s == pytest.approx(CATALOGUE["rtx4090"].tensor_flops_per_s / 2)


def test_a_target_is_a_gpu_or_its_simulated_twin() -> None:
    assert parse_target("h200") == Target(gpu=H200)
    twin = parse_target("simulated:h200")
    assert (twin.simulated, twin.id, twin.gpu) == (True, "simulated:h200", H200)
    assert {parse_target(target.id) for target in (twin, Target(gpu=H200))} == {twin, Target(gpu=H200)}


@pytest.mark.parametrize("name", ["h201", "", "simulated:", "H200", "simulated:simulated:h200"])
def test_an_unknown_target_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidInput, match="use one of a100, a40") as caught:
        parse_target(name)
    assert caught.value.field == "target"


def test_a_live_card_says_how_many_clusters_it_holds_and_a_model_what_each_card_does() -> None:
    live = gpu_from_live(facts_of(H200, clusters=((4, 30), (8, 15), (16, 7))))
    assert [live.num_clusters(size) for size in (1, 2, 4, 8, 16)] == [132, 66, 30, 15, 7]
    assert [live.num_common_clusters(size) for size in (1, 2, 4, 8, 16)] == [132, 66, 24, 8, 0]
    assert [H200.num_clusters(size) for size in (2, 4, 8)] == [66, 24, 8]
    assert [live.num_clusters(4, reserved) for reserved in (8, 12, 13, 132)] == [30, 30, 29, 0]
    assert live.as_any_card.num_clusters(4) == 24
    fewer = gpu_from_live(facts_of(H200, clusters=((4, 22), (8, 15))))
    assert [fewer.as_any_card.num_clusters(size) for size in (4, 8)] == [22, 8], (
        "a grid that fits each card fits this one"
    )
    assert num_attention_clusters(live, 4) == 30
