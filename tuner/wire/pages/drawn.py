"""An order from the explorer as a schedule, for a kernel with square tiles on few CTAs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tuner.core.problem.asked import workload_of
from tuner.core.problem.gpu import Gpu, parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.given_order import in_order
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.errors import InvalidInput
from tuner.wire.responses.orders import OrdersQuery, OrdersView, stops_of

#: Sizes of a tile and of a k-step, and numbers of stages and warps. Every GPU in the catalogue supports such a kernel.
_SIDE, _STAGES, _WARPS = 64, 3, 4
MAX_CTAS = 64


class DrawnQuery(OrdersQuery):
    """An order from the explorer, and the target for it."""

    target: Annotated[str | None, Field(max_length=100, description="default: the server's own")] = None
    ctas: Annotated[int, Field(ge=1, le=MAX_CTAS, description="number of CTAs that share the tiles")] = 4


def drawn_body(query: DrawnQuery, default_target_id: str | None) -> dict[str, Any]:
    """The body of `POST /jobs` that tries the order, and the same kernel in row order for comparison.

    Raises:
        InvalidInput: the path is invalid, or does not contain every tile; or the target is unknown.
    """
    target_id, gpu = _target(query, default_target_id)
    pair, plain, own = _pair(query), _plain(query, gpu), _drawn(query, gpu)
    schedules = [{"plan_kind": "fused", "schedule": fused(one).to_json()["schedule"]} for one in (plain, own)]
    return {"pair": pair, "target": target_id, "schedules": schedules}


def drawn_file(query: DrawnQuery, default_target_id: str | None) -> dict[str, Any]:
    """The order of `query` as a schedule file.

    Raises:
        InvalidInput: the path is invalid, or does not contain every tile; or the target is unknown.
    """
    _, gpu = _target(query, default_target_id)
    return {"workload": _workload(query).to_json(), "gpu": gpu.id, "schedule": _drawn(query, gpu).to_json()}


def _target(query: DrawnQuery, default_target_id: str | None) -> tuple[str, Gpu]:
    target_id = query.target or default_target_id
    if target_id is None:
        raise InvalidInput("target", "is missing, and this server has no default", "pass one, e.g. `h200`")
    return target_id, parse_target(target_id).gpu


def _pair(query: DrawnQuery) -> dict[str, Any]:
    m, n, k = (_SIDE * count for count in (query.rows, query.cols, query.k))
    if query.second_cols:
        return {"kind": "ffn", "m": m, "d_in": k, "d_hidden": n, "d_out": _SIDE * query.second_cols}
    return {"kind": "chain", "m": m, "ops": [{"name": "up", "source": "x", "n": n, "k": k}]}


def _workload(query: DrawnQuery) -> Workload:
    return workload_of(_pair(query))


def _plain(query: DrawnQuery, gpu: Gpu) -> Schedule:
    num_ops = 2 if query.second_cols else 1
    tile = Tile(m=_SIDE, n=_SIDE, k=_SIDE)
    tiling = Tiling(tiles=(tile,) * num_ops, num_stages=_STAGES, num_warps=_WARPS)
    reserved_sms = max(0, gpu.num_sms - query.ctas) if query.ctas < query.grid.num_tiles else 0
    rasters = (Raster(),) * num_ops
    ordering = Ordering(rasters=rasters, assignment=Assignment.STATIC, reserved_sms=reserved_sms)
    return Schedule.of(tiling=tiling, ordering=ordering)


def _drawn(query: DrawnQuery, gpu: Gpu) -> Schedule:
    view = OrdersView.of(query)
    if not view.is_whole:
        problem = f"has {len(view.steps)} of {view.num_tiles} tiles"
        raise InvalidInput("path", problem, "add the other tiles: a kernel computes every tile")
    return in_order(_plain(query, gpu), stops_of(view.path))
