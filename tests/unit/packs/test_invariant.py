"""Batch-invariant ladders: kernels with one order of sums for every row count up to the largest, or a refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from tests.support.cases import wgmma
from tests.support.packs import ffn, make
from tuner.errors import InvalidInput
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.invariant import make_invariant_entry
from tuner.packs.ladder import MAX_ROWS, Found
from tuner.packs.read import read_pack
from tuner.packs.shapes import Shape
from tuner.packs.write import pack_bytes


@cache
def kernel(m: int, parts: int = 1) -> Kernel:
    return make(tiling=wgmma((16, 64, 64), split_k=(1, parts) if parts > 1 else ()), workload=ffn(m)).kernel


SHAPE = Shape.of_workload(kernel(8).manifest["workload"])


def found(m: int, speedup: float | None, parts: int = 1, best: float | None = None) -> Found:
    return Found(m=m, kernel=kernel(m, parts), speedup=speedup, interval=None, best_speedup=best or speedup)


def runs(entry: Entry) -> list[tuple[int, int, int | None, float | None]]:
    """(first row, last row, the kernel's own row count, gain) of the runs."""
    return [
        (rung.m_lo, rung.m_hi, rung.kernel and rung.kernel.manifest["rows"]["max"], rung.speedup)
        for rung in entry.rungs
    ]


def test_every_row_count_up_to_the_largest_has_a_kernel_of_one_order() -> None:
    entry = make_invariant_entry(SHAPE, [found(m, 1.1) for m in (1, 2, 8, 48)])
    assert runs(entry) == [
        (1, 1, 1, 1.1),
        (2, 2, 2, 1.1),
        (3, 4, 8, None),
        (5, 8, 8, 1.1),
        (9, 24, 48, None),
        (25, 48, 48, 1.1),
        (49, MAX_ROWS, None, None),
    ]
    assert entry.invariant_rows == 48
    for m in range(1, 601):
        rung = entry.at(m)
        assert rung is not None
        order = rung.kernel and rung.kernel.order_of_sums
        assert order == ("wgmma; up: 0-64; down: 0-256" if m <= 48 else None)


def test_a_kernel_of_another_order_gives_its_rows_to_the_next_larger_one_and_says_what_that_costs() -> None:
    entry = make_invariant_entry(SHAPE, [found(8, 1.3, parts=2), found(16, 1.1), found(48, 1.2)])
    assert runs(entry)[:3] == [(1, 8, 16, None), (9, 16, 16, 1.1), (17, 24, 48, None)]
    assert entry.rungs[0].provenance["without_the_promise"] == 1.3
    assert entry.rungs[1].provenance["without_the_promise"] == 1.1


def test_the_order_that_gains_most_of_those_of_the_largest_is_taken() -> None:
    """Among equal orders, the one with fewer kernels."""
    results = [found(8, 1.05), found(16, 1.3, parts=2), found(48, 1.1)]
    assert make_invariant_entry(SHAPE, results).rungs[-2].kernel == kernel(48)
    results[-1] = found(48, 1.1, parts=2)
    assert {rung.kernel.order_of_sums for rung in make_invariant_entry(SHAPE, results).rungs if rung.kernel} == {
        kernel(48, 2).order_of_sums
    }


def test_our_kernel_is_taken_where_the_library_is_faster() -> None:
    entry = make_invariant_entry(SHAPE, [found(8, 0.9, best=1.0), found(48, 0.95, best=1.0)])
    assert runs(entry)[1] == (5, 8, 8, 0.9)
    assert entry.rungs[1].provenance["without_the_promise"] == 1.0


def test_a_largest_m_without_such_a_kernel_is_refused_with_the_rows_that_can_be_had() -> None:
    dependent = Kernel(files={"manifest.json": _changed(kernel(48), rows_independent=False)})
    older = json.loads(kernel(48).files["manifest.json"])
    del older["numbers"]["rows_independent"], older["numbers"]["order_of_sums"]
    for largest in (dependent, Kernel(files={"manifest.json": json.dumps(older).encode()}), None):
        results = [found(8, 1.1), replace(found(48, 1.2), kernel=largest)]
        with pytest.raises(InvalidInput, match=r"no kernel for 48 rows.*request rows up to 8"):
            make_invariant_entry(SHAPE, results)
        with pytest.raises(InvalidInput, match="tune the shape again"):
            make_invariant_entry(SHAPE, results[1:])


def _changed(of: Kernel, **numbers: object) -> bytes:
    manifest = json.loads(of.files["manifest.json"])
    return json.dumps({**manifest, "numbers": {**manifest["numbers"], **numbers}}).encode()


def test_a_pack_says_what_it_promises_and_reads_back() -> None:
    entry = make_invariant_entry(SHAPE, [found(8, 1.1), found(48, 1.2)])
    pack = read_pack(pack_bytes([entry]))
    assert pack.entries[0].invariant_rows == 48
    (ladder,) = pack.document["shapes"]
    assert ladder["batch_invariant"] == {"rows": [1, 48], "order_of_sums": "wgmma; up: 0-64; down: 0-256"}
    plain = read_pack(pack_bytes([replace(entry, invariant_rows=0)]))
    assert "batch_invariant" not in plain.document["shapes"][0]
    assert plain.entries[0].invariant_rows == 0


@pytest.mark.parametrize(
    "rungs",
    [
        (Rung(m_lo=1, m_hi=8, kernel=kernel(8)), Rung(m_lo=9, m_hi=48, kernel=None)),
        (Rung(m_lo=1, m_hi=8, kernel=kernel(8)), Rung(m_lo=9, m_hi=48, kernel=kernel(48, 2))),
        (Rung(m_lo=2, m_hi=48, kernel=kernel(48)),),
        (Rung(m_lo=1, m_hi=8, kernel=kernel(8)), Rung(m_lo=10, m_hi=48, kernel=kernel(48))),
    ],
    ids=["the library", "another order", "not from 1 on", "a gap"],
)
def test_a_promise_that_the_ladder_does_not_keep_is_refused(rungs: tuple[Rung, ...]) -> None:
    with pytest.raises(InvalidInput, match="kernel with the same order of sums"):
        pack_bytes([Entry(shape=SHAPE, rungs=rungs, invariant_rows=48)])
