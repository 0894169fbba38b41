"""The tables of a pack show the gains of our kernels, and the changes between two packs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.table import Table

from tests.support.packs import ladder, make
from tuner.client.terminal.pack_tables import diff_table, ladder_table
from tuner.core.problem.asked import workload_of
from tuner.packs.contents import Entry, Rung
from tuner.packs.read import Pack, read_pack
from tuner.packs.shapes import ChainShape
from tuner.packs.write import pack_bytes


@pytest.fixture(scope="module")
def entry() -> Entry:
    """A kernel for some rows; the library is used above them."""
    return ladder(make().kernel)


def of(entry: Entry, speedup: float, the_librarys: float | None = None) -> Pack:
    """A pack in which the kernel has this gain; the library's entry also has a figure, as for a rejected kernel."""
    ours, library = entry.rungs
    rungs = (replace(ours, speedup=speedup), replace(library, speedup=the_librarys))
    return read_pack(pack_bytes([replace(entry, rungs=rungs)]))


def rows(table: Table) -> list[list[str]]:
    return [list(row) for row in zip(*(column._cells for column in table.columns), strict=True)]


def test_beside_the_library_there_stands_no_speed_up(entry: Entry) -> None:
    ours, library = rows(ladder_table(of(entry, 1.25, 0.9)))
    assert ours[2:] == ["fused", "–", "–", "1.25x", "1.200–1.300"]
    assert library[2:] == ["library: never measured", "–", "–", "–", "–"]


def test_the_librarys_time_is_that_of_which_the_speed_up_is_one(entry: Entry) -> None:
    ours, library = entry.rungs
    rungs = (
        replace(ours, speedup=1.5, provenance={"time_us": 40.0}),
        replace(library, speedup=0.5, provenance={"time_us": 90.0, "winner": "library"}),
    )
    found = rows(ladder_table(read_pack(pack_bytes([replace(entry, rungs=rungs)]))))
    assert [row[3:5] for row in found] == [["40.0 µs", "60.0 µs"], ["–", "45.0 µs"]]


@pytest.mark.parametrize(
    ("provenance", "speedup", "why"),
    [
        ({}, None, "never measured"),
        ({"winner": "library"}, 0.9, "ours is slower"),
        ({"winner": "library", "timed_ours": True}, 0.9, "ours is slower"),
        ({"winner": "library", "timed_ours": False}, None, "ours was not timed"),
        ({"winner": "fused"}, 1.016, "tuner's kernel gains 1.016x, below --min-gain 1.02"),
        ({"winner": "fused"}, 1.01, "tuner's kernel gains 1.010x, below --min-gain 1.02"),
        ({"winner": "fused"}, None, "tuner's kernel gains, below --min-gain 1.02"),
    ],
)
def test_why_the_library_runs_is_said(
    entry: Entry, provenance: dict[str, str | bool], speedup: float | None, why: str
) -> None:
    ours, library = entry.rungs
    rungs = (ours, replace(library, provenance=provenance, speedup=speedup))
    pack = read_pack(pack_bytes([replace(entry, rungs=rungs)], provenance={"min_gain": 1.02}))
    assert rows(ladder_table(pack))[1][2] == f"library: {why}"


def test_a_gain_that_changed_is_shown_and_a_figure_beside_the_library_is_not(entry: Entry) -> None:
    before = of(entry, 1.25, 0.9)
    [changed] = rows(diff_table("a", before, of(entry, 1.5, 0.8)))
    assert changed[2:] == ["fused 1.25x", "fused 1.50x"]
    assert rows(diff_table("a", before, of(entry, 1.25, 0.8))) == []


def test_convolutions_are_told_apart_by_their_sizes_and_counted_by_images() -> None:
    def entry(stage: int, images: int) -> Entry:
        network = {"kind": "network-convs", "network": "resnet50", "stage": stage, "run": "front", "images": images}
        workload = workload_of(network)
        pixels = workload.tile_ops[0].m
        rung = Rung(m_lo=pixels, m_hi=pixels, kernel=None, speedup=0.9, provenance={"winner": "library"})
        return Entry(shape=ChainShape.of_workload(workload.to_json()), rungs=(rung,))

    shapes = {3: "fp16 conv1 1x1 256 of 14x14 -> conv2 3x3 256 of 14x14", 2: "fp16 conv1 1x1 128 of 28x28 -> conv2 3x3"}
    small, large, other = entry(3, 1), entry(3, 16), entry(2, 1)
    found = {tuple(row[:2]) for row in rows(ladder_table(read_pack(pack_bytes([small, large, other]))))}
    wanted = {(shapes[3], "images=1"), (shapes[3], "images=16"), (f"{shapes[2]} 128 of 28x28", "images=1")}
    assert found == wanted
    [changed] = rows(diff_table("a", read_pack(pack_bytes([small])), read_pack(pack_bytes([small, large]))))
    assert changed == [shapes[3], "images=16", "–", "library"]
