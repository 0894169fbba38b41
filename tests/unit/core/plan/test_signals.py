from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import syncs
from tuner.core.plan.waiting.signals import signals_of
from tuner.core.schedule.ordering import Granularity

sizes = st.integers(1, 9)


@given(syncs, sizes, sizes, st.integers(0, 5), st.data())
def test_waits_name_each_signal_of_the_rows_read_with_all_posts_that_it_gets(
    sync: tuple[Granularity, int], num_rows: int, num_cols: int, first: int, data: st.DataObject
) -> None:
    signals = signals_of(*sync, num_rows, num_cols, first)
    posts = np.bincount(signals.post.ravel() - first, minlength=signals.num_signals)
    assert posts.min() > 0
    assert len(posts) == signals.num_signals
    begin = data.draw(st.integers(0, num_rows - 1))
    end = data.draw(st.integers(begin + 1, num_rows))
    waited: dict[int, int] = {}
    for signal_begin, signal_end, threshold, per_launch, step in signals.waits_for(signals.post[begin:end].ravel()):
        assert (threshold, step) == (per_launch, 0)
        for signal in range(signal_begin, signal_end):
            assert signal not in waited
            waited[signal] = threshold
    assert set(waited) == set(signals.post[begin:end].ravel().tolist())
    assert all(threshold == posts[signal - first] for signal, threshold in waited.items())


def test_each_granularity_groups_the_tiles_as_it_says() -> None:
    def groups(granularity: Granularity, width: int = 1) -> list[list[int]]:
        rows: list[list[int]] = signals_of(granularity, width, 3, 4, 0).post.tolist()
        return rows

    assert groups(Granularity.TILE) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert groups(Granularity.ROW) == [[0] * 4, [1] * 4, [2] * 4]
    assert groups(Granularity.CHUNK, 2) == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]
    assert groups(Granularity.CHUNK, 3) == [[0, 0, 0, 3], [1, 1, 1, 4], [2, 2, 2, 5]]  # two banks
    assert groups(Granularity.STRIDED, 2) == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 4, 5]]
    assert groups(Granularity.BATCH, 2) == [[0] * 4, [0] * 4, [1] * 4]
    assert groups(Granularity.BARRIER) == [[0] * 4] * 3


@given(syncs, sizes, sizes, st.data())
def test_a_reader_of_some_columns_waits_for_the_signals_of_its_tiles_alone(
    sync: tuple[Granularity, int], num_rows: int, num_cols: int, data: st.DataObject
) -> None:
    signals = signals_of(*sync, num_rows, num_cols, 3)
    row = data.draw(st.integers(0, num_rows - 1))
    row_end = data.draw(st.integers(row + 1, num_rows))
    cols = np.array(sorted(data.draw(st.sets(st.integers(0, num_cols - 1), min_size=1))))
    waited = [
        s for begin, end, *_ in signals.waits_for(signals.post[row:row_end, cols].ravel()) for s in range(begin, end)
    ]
    assert sorted(waited) == sorted(set(signals.post[row:row_end, cols].ravel().tolist()))
