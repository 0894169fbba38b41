"""A schedule's three levels: its views, its JSON in both forms, and an axis of a single op kind."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given

from tests.support.attentions import alone, attention
from tests.support.cases import orderings, tiling
from tests.support.waiting import wait_until
from tuner.core.legal.launch_ops import launch_ops_problem
from tuner.core.legal.legality import check_schedule
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule import codec, levels
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.codec import Frozen
from tuner.core.schedule.levels import LaunchOpSchedule, TileOpSchedule
from tuner.core.schedule.ordering import Ordering, Raster, RasterKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Epilogue, Tile, Tiling
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

PAIR = ffn_pair(m=512, d_in=256, d_hidden=512, d_out=256)
PLAIN = Schedule.of(tiling((64, 64), (64, 32)), Ordering(rasters=(Raster(), Raster())))


@dataclass(frozen=True, kw_only=True)
class Halo(TileOpSchedule, kind="halo"):
    """The schedule of a tile op with its own axis."""

    halo_rows: int
    direction: RasterKind = RasterKind.ROW


@dataclass(frozen=True, kw_only=True)
class Exchange(LaunchOpSchedule, kind="exchange"):
    """The schedule of a launch op."""

    num_lanes: int = 4


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Unregisters `Halo` and `Exchange` after the tests of this module."""
    yield
    for kind in (Halo, Exchange):
        levels._KINDS.pop(kind.kind)


def mixed() -> Schedule:
    """A schedule of a product, a halo and an exchange."""
    product = PLAIN.tile_ops[0]
    halo = Halo(tile=Tile(m=64, n=32, k=32), parts=2, halo_rows=1)
    return replace(PLAIN, ops=(product, halo, Exchange(num_lanes=2)))


@given(orderings(PAIR))
def test_the_views_are_what_the_levels_were_made_of(order: Ordering) -> None:
    split = replace(PLAIN.tiling, split_k=(1, 2), epilogue=Epilogue.TMA)
    made = Schedule.of(split, order, alone().launch_ops)
    apart = pickle.loads(pickle.dumps(made))
    assert (apart.tiling, apart.ordering, apart.launch_ops) == (split, order, alone().launch_ops)
    assert apart == made
    assert hash(apart) == hash(made)
    assert Schedule.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("numbers", [(1, 2, 0), (2, 1, 0), (2, 2, 3)])
def test_views_of_other_numbers_of_ops_are_no_schedule(numbers: tuple[int, int, int]) -> None:
    num_tiles, num_rasters, num_parts = numbers
    tiles = replace(PLAIN.tiling, tiles=PLAIN.tiling.tiles[:num_tiles], split_k=(2,) * num_parts)
    order = Ordering(rasters=(Raster(),) * num_rasters)
    with pytest.raises(IllegalSchedule, match="pass one of each per op"):
        Schedule.of(tiles, order)


def test_all_parts_of_one_are_no_parts() -> None:
    assert PLAIN.but(tiling=replace(PLAIN.tiling, split_k=(1, 1))).tiling.split_k == ()


def test_the_json_of_a_new_kind_follows_from_its_fields() -> None:
    one = mixed()
    data = json.loads(json.dumps(one.to_json()))
    assert data["ops"] == [
        {"tile": {"m": 64, "n": 64, "k": 32}},
        {"op": "halo", "tile": {"m": 64, "n": 32, "k": 32}, "parts": 2, "halo_rows": 1},
        {"op": "exchange", "num_lanes": 2},
    ]
    assert Schedule.from_json(data) == one
    assert one.spelled_out()["ops"][1]["direction"] == "row"
    other = {**data, "ops": [{"op": "exchange"}, *data["ops"][:2]]}
    assert Schedule.from_json(other).ops == (*one.tile_ops, Exchange()), "tile ops come first"


@pytest.mark.parametrize(
    ("op", "error", "words"),
    [
        ({"op": "exchange", "num_lane": 2}, TypeError, "num_lane is not an axis: use one of num_lanes"),
        ({"op": "halo", "tile": {"m": 64, "n": 32, "k": 32}}, KeyError, "halo_rows"),
        ({"op": "halo", "tile": {"m": 64, "n": 32, "k": 32}, "halo_rows": 1, "direction": "up"}, ValueError, "up"),
    ],
)
def test_what_is_no_schedule_of_a_kind_is_refused(op: object, error: type[Exception], words: str) -> None:
    data = mixed().to_json() | {"ops": [op]}
    with pytest.raises(error, match=words):
        Schedule.from_json(data)


def test_what_was_chosen_of_an_unknown_kind_is_kept_and_not_legal() -> None:
    """The key, in both forms and at its position; the unknown kind may be a tile op's."""
    data = mixed().to_json()
    strange = {"op": "sieve", "tile": {"m": 64, "n": 32, "k": 32}, "holes": 3}
    kept = Schedule.from_json(data | {"ops": [data["ops"][0], strange, data["ops"][2]]})
    assert kept.to_json()["ops"] == [data["ops"][0], strange, data["ops"][2]]
    assert Schedule.from_json(kept.to_json()) == kept
    assert pickle.loads(pickle.dumps(kept)).digest == kept.digest
    listed = {"attentions": [{"tile_tokens": 64, "grooves": 2}]}
    with pytest.raises(TypeError, match="grooves is not an axis"):
        Schedule.from_json(listed)
    with patch.object(codec, "op_kinds", dict):  # none is known
        alone, both = Schedule.from_json(listed), Schedule.from_json(PLAIN.to_json() | listed)
    assert json.loads(json.dumps(alone.to_json())) == listed
    assert both.to_json() == PLAIN.to_json() | {"attentions": listed["attentions"]}
    assert both.tiling == PLAIN.tiling
    problem = launch_ops_problem(
        attention(), CATALOGUE["h200"], Schedule.from_json(data | {"ops": [strange]}).launch_ops
    )
    assert problem == ("a choice for sieve, which is not a known kind: pass a schedule of attention for attention")


def test_an_axis_of_a_kind_outlives_a_change_of_what_all_tile_ops_have() -> None:
    tiles = (Tile(m=64, n=64, k=32), Tile(m=32, n=32, k=32))
    other = mixed().but(tiling=replace(mixed().tiling, tiles=tiles))
    assert other.tile_ops[1] == Halo(tile=tiles[1], parts=2, halo_rows=1)
    assert other.ops[2] == Exchange(num_lanes=2)


def test_a_proof_is_not_named_by_axes_that_came_later() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(Tiling):
        planted: int = 1

    values = vars(PLAIN.tiling)
    Later.__name__ = "Tiling"
    assert repr(Frozen(Later(**values, planted=2))).endswith(", planted=2)")
    assert "planted" not in repr(Frozen(Later(**values)))
    assert repr(Frozen(PLAIN.tiling)).startswith("Tiling(engine=<Engine.MMA: 'mma'>, tiles=(Tile(m=64, n=64, k=32), ")


def test_a_schedule_names_itself_as_it_did() -> None:
    """The simulated GPU seeds its random numbers with the name, so figures of a seed stay the same."""
    one = Schedule.of(tiling((64, 64)), Ordering(rasters=(Raster(),)), alone().launch_ops)
    assert repr(one) == (
        "Schedule(tiling=Tiling(engine=<Engine.MMA: 'mma'>, tiles=(Tile(m=64, n=64, k=32),), num_stages=2, "
        "num_warps=4, input_stages=0, window=0, ahead_window=0, startup_prefetch=0, "
        "warpgroups=<Warpgroups.COOPERATIVE: 'cooperative'>, swap_ab=False, in_band=False, "
        "epilogue=<Epilogue.DIRECT: 'direct'>, split_k=(), cluster_m=1, cluster_n=1, cluster_k=1, resident_ctas=1, "
        "weight_hint=<CacheHint.DEFAULT: 'default'>, intermediate_hint=<CacheHint.DEFAULT: 'default'>), "
        "ordering=Ordering(rasters=(Raster(kind=<RasterKind.ROW: 'row'>, width=1),), "
        "interleave=Interleave(kind=<InterleaveKind.PRODUCER_FIRST: 'producer_first'>, rows=0, lag=0, chunks=1), "
        "granularity=<Granularity.ROW: 'row'>, assignment=<Assignment.TICKET: 'ticket'>, ctas_per_sm=1, "
        "reserved_sms=0, sync_width=1, partition=0, part_major=False, wait_position=<WaitPosition.TASK: 'task'>, "
        "run_ahead=100, split_order=<SplitOrder.CONTIGUOUS: 'contiguous'>, split_tiles=<SplitTiles.ALL: 'all'>, "
        "run_starts=()), attentions=(AttentionSchedule(tile_tokens=64, num_stages=6, math_warps=8, finish_warps=4, "
        "cluster=1, parts_at_once=16, span_tokens=704, contiguous=False, speculative=False, by_length=False, "
        "next_percent=0, next_early=False),))"
    )


@pytest.mark.parametrize("split_k", [(0, 1), (1, 0), (-1, 1)])
def test_a_number_of_parts_that_cannot_be_is_kept_as_it_is_and_refused(split_k: tuple[int, ...]) -> None:
    data = PLAIN.to_json()
    read = Schedule.from_json({**data, "tiling": {**data["tiling"], "split_k": split_k}})
    assert read.tiling.split_k == split_k
    with pytest.raises(IllegalSchedule, match="split"):
        check_schedule(PAIR, CATALOGUE["h200"], read)


def test_a_kind_whose_file_another_thread_imports_is_not_known_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests arrived simultaneously at a server that had just started, and one of them got a 500."""
    (tmp_path / "halved.py").write_text(
        "import threading\n"
        "from dataclasses import dataclass\n"
        "from tuner.core.schedule.levels import LaunchOpSchedule\n"
        "begun, may_end = threading.Event(), threading.Event()\n"
        "def held(made):\n"
        "    begun.set()\n"
        "    assert may_end.wait(60)\n"
        "    return dataclass(frozen=True, kw_only=True)(made)\n"
        "@held\n"
        "class Halved(LaunchOpSchedule, kind='halved'):\n"
        "    num_halves: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(levels, "part_of", lambda kind, part: import_module(kind))
    monkeypatch.setattr(levels, "op_kinds", lambda: {"halved": None})
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(levels.schedule_class, "halved")
        wait_until(lambda: "halved" in sys.modules and hasattr(sys.modules["halved"], "begun"))
        slow = sys.modules["halved"]
        assert slow.begun.wait(60)
        second = threads.submit(lambda: axes_of(levels.schedule_class("halved")))
        wait_until(lambda: second.running() or second.done())
        time.sleep(0.05)  # so that a thread that does not wait would have ended
        slow.may_end.set()
        assert list(second.result(60)) == ["num_halves"]
        assert first.result(60) is slow.Halved
    levels._KINDS.pop("halved")
    levels._IMPORTED.discard("halved")
