"""Energy of a run from a counter that advances in steps: between two steps, and per run."""

from __future__ import annotations

import pytest

from tuner.workers.timing.energy import Reading, energy_of, is_enough


def readings(power_w: float, runs_per_s: float, *, tick_s: float = 0.1, turn_s: float = 0.005, end_s: float = 1.3):
    """A GPU of constant power whose counter advances every `tick_s`, read every `turn_s`."""
    return [
        Reading(
            at_s=5 + turn_s * i,
            total_mj=1e9 + 1e3 * power_w * tick_s * int(turn_s * i / tick_s + 1e-9),
            num_runs=round(runs_per_s * turn_s * i),
        )
        for i in range(int(end_s / turn_s))
    ]


@pytest.mark.parametrize("tick_s", [0.02, 0.05, 0.1])
def test_energy_of_a_run_is_power_over_rate(tick_s: float) -> None:
    found = energy_of(readings(600, 20_000, tick_s=tick_s))
    assert found is not None
    assert found.power_w == pytest.approx(600, rel=0.01)
    assert found.run_mj == pytest.approx(600 / 20_000 * 1e3, rel=0.01)
    assert found.window_s >= 1.0


def test_only_steps_count_so_a_late_first_reading_costs_nothing() -> None:
    """The counter was constant for most of a tick before the first reading, which must not count as time without
    energy."""
    found = energy_of(readings(600, 20_000)[19:])
    assert found is not None
    assert found.power_w == pytest.approx(600, rel=0.01)


def test_a_window_below_a_second_is_not_enough() -> None:
    short = readings(600, 20_000, end_s=1.05)
    assert not is_enough(short)
    assert energy_of(short) is None
    assert is_enough(readings(600, 20_000))


def test_a_counter_that_stands_gives_nothing() -> None:
    assert energy_of([Reading(at_s=i, total_mj=7.0, num_runs=i) for i in range(10)]) is None
    assert energy_of([]) is None
