"""Raw samples as bytes: compact, exact, and readable in the forms of old versions."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.core.trial.samples import DropReason, Round
from tuner.store.tables.rounds import pack_rounds, unpack_rounds

TIME_US = st.floats(min_value=1e-6, max_value=1e12)
CLOCK_MHZ = st.integers(0, 65535)
ROUNDS = st.lists(
    st.builds(
        Round,
        time_us=TIME_US,
        library_us=st.none() | TIME_US,
        clock_mhz=CLOCK_MHZ,
        library_clock_mhz=CLOCK_MHZ,
        dropped=st.none() | st.sampled_from(DropReason),
    )
).map(tuple)


@given(ROUNDS)
def test_rounds_read_back_as_they_were_packed(rounds: tuple[Round, ...]) -> None:
    packed = pack_rounds(rounds)
    assert unpack_rounds(packed) == rounds
    assert len(packed) == 4 + 24 * len(rounds)


@given(st.lists(TIME_US))
def test_times_of_the_first_form_are_rounds_without_anything_else(times_us: list[float]) -> None:
    assert unpack_rounds(struct.pack(f"<{len(times_us)}d", *times_us)) == tuple(Round(time_us=t) for t in times_us)


@pytest.mark.parametrize("packed", [None, b""])
def test_what_was_removed_is_no_rounds(packed: bytes | None) -> None:
    assert unpack_rounds(packed) == ()
