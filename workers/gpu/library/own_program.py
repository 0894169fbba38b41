"""A user's own programs on the problem's buffers: a function of PyTorch tensors, or kernels of a .cu file."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import cupy
import numpy as np
from cuda.bindings import driver

from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.baselines import (
    KernelLaunch,
    PythonFunction,
    given_tensors,
    parameter_names,
)
from tuner.errors import WorkerError

from ...protocol.messages import OwnKernels, OwnProgram
from ..launching.launch import check
from ..tensors.data import ProblemData
from ..tensors.op_data import RunOperands
from .runners import Runner
from .torch_graph import TorchGraph, imported_torch, torch_tensor

#: Captures the chain of a runner over the problem's slots as a graph.
Capture = Callable[[Runner], Any]


class CapturedProgram(Protocol):
    """A captured chain of a program."""

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""

    def outputs_of(self, ops: RunOperands) -> Mapping[str, Any]:
        """The output bits [m, n] of one run on these operands, by op."""


def captured(program: OwnProgram, data: ProblemData, capture: Capture) -> CapturedProgram:
    """A program over the problem's slots.

    Raises:
        WorkerError: it cannot be loaded or captured, or does not return what is required.
        Exception: any exception of the program itself.
    """
    return _Kernels(program, data, capture) if isinstance(program, OwnKernels) else _function(program, data)


def _function(program: PythonFunction, data: ProblemData) -> TorchGraph:
    torch = imported_torch()
    function: Callable[..., Any] = pickle.loads(program.pickled)
    parameters = {name: parameter for parameter, name in parameter_names(program.arguments).items()}
    tensors, workload = given_tensors(data.workload), data.workload
    types = {name: ELEMENTS[tensors[name].dtype].array_name for name in parameters}

    def operands_of(ops: RunOperands) -> dict[str, Any]:
        return {
            parameter: torch_tensor(torch, ops.arrays[name].reshape(tensors[name].shape), types[name])
            for name, parameter in parameters.items()
        }

    return TorchGraph(torch, data, operands_of, lambda operands: _outputs(torch, workload, function(**operands)))


def _outputs(torch: Any, workload: Workload, returned: Any) -> dict[str, Any]:
    """The values that a function returned, by op.

    Raises:
        WorkerError: it is not one tensor for each output, with its shape and type.
    """
    leaving = [op for op in workload.ops if workload.leaves(op)]
    listed = returned if isinstance(returned, tuple | list) else [returned]
    if len(listed) != len(leaving):
        raise WorkerError(f"it returns {len(listed)} tensors: return {', '.join(op.name for op in leaving)}")
    for op, tensor in zip(leaving, listed, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise WorkerError(f"it returns a {type(tensor).__name__} as {op.name}: return a tensor")
        shapes = {one.name: one.shape for one in op.tensors(workload.dtype)}
        wanted = shapes[op.name], getattr(torch, op.stored_in(workload.dtype).row.array_name)
        if (tuple(tensor.shape), tensor.dtype) != wanted:
            found = f"{list(tensor.shape)} of {tensor.dtype}"
            raise WorkerError(f"it returns {found} as {op.name}: return {list(wanted[0])} of {wanted[1]}")
    return {op.name: tensor.reshape(op.m, op.c_columns) for op, tensor in zip(leaving, listed, strict=True)}


class _Kernels:
    """Kernels of a user's own source, launched one after the other; a `Runner`."""

    def __init__(self, program: OwnKernels, data: ProblemData, capture: Capture) -> None:
        """Loads and captures."""
        self._data = data
        self._module = cupy.cuda.function.Module()
        self._module.load(program.cubin)
        self._launches = [(launch, self._loaded(launch)) for launch in program.launches]
        self._graph = capture(self)

    def _loaded(self, launch: KernelLaunch) -> Any:
        function = self._module.get_function(launch.kernel)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(function.ptr, attribute, launch.smem_bytes))
        return function

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues one run."""
        with cupy.cuda.ExternalStream(stream):
            for launch, function in self._launches:
                arguments = tuple(_value(one, ops) for one in launch.arguments)
                function(launch.grid, launch.block, arguments, launch.smem_bytes)

    def launch(self, stream: Any) -> None:
        """Enqueues the chain on a CuPy stream."""
        self._graph.launch(stream)

    def outputs_of(self, ops: RunOperands) -> dict[str, Any]:
        """The output bits [m, n] of one run, by op; NaN before the run."""
        self._data.poison()
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        self.enqueue(ops, stream.ptr)
        stream.synchronize()
        workload = self._data.workload
        return {op.name: ops.arrays[op.name] for op in workload.ops if workload.leaves(op)}

    def abort_record(self) -> str | None:
        """None: waits of such kernels are unknown."""
        return None

    def overwritten(self) -> str:
        """Empty: memory of such kernels is unknown."""
        return ""

    def poison(self) -> None:
        """Does nothing: memory of such kernels is unknown."""


def _value(argument: str | int | float, ops: RunOperands) -> Any:
    if isinstance(argument, str):
        return ops.arrays[argument]
    return np.int32(argument) if isinstance(argument, int) else np.float32(argument)
