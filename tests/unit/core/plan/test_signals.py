from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import syncs
from tuner.core.plan.waiting.signals import Ints, Signals, signals_of
from tuner.core.schedule.ordering import Granularity

sizes = st.integers(1, 9)


def waits_of(signals: Signals, read: Ints, steps: Ints | None = None) -> list[list[int]]:
    """The records of a single list."""
    table = signals.waits_of_lists(np.zeros(read.size, dtype=np.int64), read.ravel(), steps)
    assert not table[:, 0].any()
    found: list[list[int]] = table[:, 1:].tolist()
    return found


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
    for signal_begin, signal_end, threshold, per_launch, step in waits_of(signals, signals.post[begin:end]):
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
    waited = [s for begin, end, *_ in waits_of(signals, signals.post[row:row_end, cols]) for s in range(begin, end)]
    assert sorted(waited) == sorted(set(signals.post[row:row_end, cols].ravel().tolist()))


@given(syncs, sizes, sizes, st.data())
def test_several_lists_have_the_records_that_each_has_alone(
    sync: tuple[Granularity, int], num_rows: int, num_cols: int, data: st.DataObject
) -> None:
    signals = signals_of(*sync, num_rows, num_cols, 3)
    tiles = st.lists(st.tuples(st.integers(0, num_rows * num_cols - 1), st.integers(0, 3)), max_size=9)
    lists = data.draw(st.lists(tiles, max_size=4))
    by_slice = data.draw(st.booleans())
    of = np.repeat(np.arange(len(lists)), [len(one) for one in lists]).astype(np.int64)
    read, steps = np.array([pair for one in lists for pair in one], dtype=np.int64).reshape(-1, 2).T
    read = signals.post.ravel()[read]
    together = signals.waits_of_lists(of, read, steps if by_slice else None)
    apart = [
        [number, *record]
        for number in range(len(lists))
        for record in waits_of(signals, read[of == number], steps[of == number] if by_slice else None)
    ]
    assert together.tolist() == apart
    for number, begin, end, _, _, step in apart:  # a signal is waited for when the first of its tiles is read
        mine = (of == number) & (read >= begin) & (read < end)
        assert step == (steps[mine].min() if by_slice else 0)
