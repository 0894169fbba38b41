"""What the client knows about its machine, and how differences are reported."""

from __future__ import annotations

from pathlib import Path

from tuner import __version__
from tuner.client.delivery.environment import Asker, detect, differences

MEASURED = {
    "gpu_name": "NVIDIA H200",
    "simulated": False,
    "driver": "580.95.05",
    "cuda": "13.0",
    "clocks_mhz": {},
    "tuner_version": __version__,
    "kernel_version": "abc",
}


def test_a_machine_with_a_card_is_known_by_name_and_driver(tmp_path: Path) -> None:
    card = tmp_path / "gpus" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 97\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version:  gcc 12.2.0\n"
    )
    assert detect(tmp_path) == {"gpu_name": "NVIDIA H200", "driver": "580.95.05"}


def test_a_machine_without_a_card_is_not_known(tmp_path: Path) -> None:
    assert detect(tmp_path) == {}


def test_what_is_unknown_is_not_compared_and_what_is_alike_does_not_differ() -> None:
    assert differences(Asker(), MEASURED) == []
    assert differences(Asker(gpu_name="NVIDIA H200", driver="580.95.05", cuda="13.0"), MEASURED) == []


def test_each_thing_that_differs_is_reported() -> None:
    asker = Asker(gpu_name="NVIDIA H100", driver="570.1", cuda="12.8", kernel_version="def")
    found = differences(asker, MEASURED)
    assert len(found) == 4
    assert found[0] == "measured with gpu name 'NVIDIA H200', but the request has 'NVIDIA H100'"


def test_another_version_of_the_client_is_no_weaker_match_since_it_runs_no_kernel() -> None:
    assert differences(Asker(), {**MEASURED, "tuner_version": "another"}) == []


def test_a_simulated_result_has_no_gpu_to_compare() -> None:
    asker = Asker(gpu_name="NVIDIA H200", driver="1", cuda="2")
    assert differences(asker, {**MEASURED, "simulated": True}) == []
