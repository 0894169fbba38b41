"""The interface for packages with kinds of ops, parts of epilogues, element types, activations or rasters: all names
are here, and stay compatible. docs/extending.md explains how to write such a package.

Names are loaded on demand, since a client, which has only the standard library, reads the file `op` of a kind.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.core.model.launch_ops import LaunchTimeline as LaunchTimeline
    from tuner.core.model.launch_ops import TimedTask as TimedTask
    from tuner.core.model.rates import rates_of as rates_of
    from tuner.core.plan.graph.boxes import Bound as Bound
    from tuner.core.plan.graph.boxes import Box as Box
    from tuner.core.plan.graph.boxes import BoxRead as BoxRead
    from tuner.core.plan.graph.boxes import Extent as Extent
    from tuner.core.plan.graph.boxes import RunTimeInput as RunTimeInput
    from tuner.core.plan.graph.boxes import TileSpace as TileSpace
    from tuner.core.plan.graph.boxes import along as along
    from tuner.core.plan.graph.boxes import whole as whole
    from tuner.core.plan.op_launches import OpLaunch as OpLaunch
    from tuner.core.plan.op_launches import OpLaunches as OpLaunches
    from tuner.core.plan.op_launches import number as number
    from tuner.core.plan.op_launches import pointer as pointer
    from tuner.core.plan.op_launches import room as room
    from tuner.core.plan.op_launches import table as table
    from tuner.core.problem.asked import AskedOp as AskedOp
    from tuner.core.problem.asked import AskedWorkload as AskedWorkload
    from tuner.core.problem.asked import asked_field as asked_field
    from tuner.core.problem.dtype import Dtype as Dtype
    from tuner.core.problem.epilogue import AddedPart as AddedPart
    from tuner.core.problem.epilogue import Product as Product
    from tuner.core.problem.epilogue import Stage as Stage
    from tuner.core.problem.epilogue.added import Own as Own
    from tuner.core.problem.gpu import Gpu as Gpu
    from tuner.core.problem.op_kinds import OpKind as OpKind
    from tuner.core.problem.ops.dataflow import Read as Read
    from tuner.core.problem.ops.op import LaunchOp as LaunchOp
    from tuner.core.problem.ops.op import Op as Op
    from tuner.core.problem.ops.op import Role as Role
    from tuner.core.problem.ops.op import Tensor as Tensor
    from tuner.core.problem.ops.op import cache as cache
    from tuner.core.problem.ops.op import given as given
    from tuner.core.problem.ops.op import output as output
    from tuner.core.problem.ops.op import weight as weight
    from tuner.core.problem.resources import Resources as Resources
    from tuner.core.problem.rows.activation import ActivationRow as ActivationRow
    from tuner.core.problem.rows.activation import within as within
    from tuner.core.problem.rows.dtype import OperandRow as OperandRow
    from tuner.core.problem.rows.dtype import VendorType as VendorType
    from tuner.core.problem.rows.raster import RasterRow as RasterRow
    from tuner.core.problem.tile_op import TileOp as TileOp
    from tuner.core.problem.workload import Workload as Workload
    from tuner.core.schedule.axis import axis as axis
    from tuner.core.schedule.axis import log2 as log2
    from tuner.core.schedule.axis import values_problem as values_problem
    from tuner.core.schedule.levels import LaunchOpSchedule as LaunchOpSchedule
    from tuner.core.schedule.levels import TileOpSchedule as TileOpSchedule
    from tuner.core.schedule.schedule import Schedule as Schedule
    from tuner.core.schedule.tiling import Tile as Tile
    from tuner.core.space.joint import AroundOp as AroundOp
    from tuner.core.trial.reports.library_recipe import LibraryRecipe as LibraryRecipe
    from tuner.core.trial.reports.numbers import Expected as Expected
    from tuner.errors import InvalidInput as InvalidInput
    from tuner.errors import WorkerError as WorkerError
    from tuner.search.launch_op import LaunchOpSearch as LaunchOpSearch

#: The exported names of each module.
PLACES = {
    "tuner.core.model.launch_ops": "LaunchTimeline TimedTask",
    "tuner.core.model.rates": "rates_of",
    "tuner.core.plan.graph.boxes": "Bound Box Extent BoxRead RunTimeInput TileSpace along whole",
    "tuner.core.plan.op_launches": "OpLaunch OpLaunches number pointer room table",
    "tuner.core.problem.asked": "AskedOp AskedWorkload asked_field",
    "tuner.core.problem.dtype": "Dtype",
    "tuner.core.problem.epilogue": "AddedPart Product Stage",
    "tuner.core.problem.epilogue.added": "Own",
    "tuner.core.problem.gpu": "Gpu",
    "tuner.core.problem.op_kinds": "OpKind",
    "tuner.core.problem.ops.dataflow": "Read",
    "tuner.core.problem.ops.op": "LaunchOp Op Role Tensor cache given output weight",
    "tuner.core.problem.resources": "Resources",
    "tuner.core.problem.rows.activation": "ActivationRow within",
    "tuner.core.problem.rows.dtype": "OperandRow VendorType",
    "tuner.core.problem.rows.raster": "RasterRow",
    "tuner.core.problem.tile_op": "TileOp",
    "tuner.core.problem.workload": "Workload",
    "tuner.core.schedule.axis": "axis log2 values_problem",
    "tuner.core.schedule.levels": "LaunchOpSchedule TileOpSchedule",
    "tuner.core.schedule.schedule": "Schedule",
    "tuner.core.schedule.tiling": "Tile",
    "tuner.core.space.joint": "AroundOp",
    "tuner.core.trial.reports.library_recipe": "LibraryRecipe",
    "tuner.core.trial.reports.numbers": "Expected",
    "tuner.errors": "InvalidInput WorkerError",
    "tuner.search.launch_op": "LaunchOpSearch",
    # Imports of the folder `card` of a kind, which need CuPy.
    "tuner.workers.gpu.library.op_library": "OpLibrary",
    "tuner.workers.gpu.library.vendor": "Vendor",
    "tuner.workers.gpu.tensors.op_data": "Arrays OpData",
}
_FOUND = {name: module for module, names in PLACES.items() for name in names.split()}

__all__ = list(_FOUND)


def __getattr__(name: str) -> Any:
    """An exported name, loaded from its module."""
    if name not in _FOUND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(_FOUND)}")
    return getattr(import_module(_FOUND[name]), name)
