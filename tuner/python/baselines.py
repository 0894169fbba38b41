"""A user's own programs in the form for a card's process. They are checked here, so that a mistake does not waste a
search.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tuner.core.problem.op_kinds import op_kinds
from tuner.core.problem.ops.op import LaunchOp, Tensor
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.baselines import Baseline, CudaSource, PythonFunction, given_tensors, parameter_names
from tuner.errors import InvalidInput
from tuner.versions import install_command

#: A function of PyTorch tensors, whose parameters are the tensors' names with `_` for a dot; or kernels of CUDA.
Program = Callable[..., Any] | CudaSource

#: Characters of a name.
_LONGEST = 60


def baselines_of(workload: Workload, programs: Mapping[str, Program]) -> tuple[Baseline, ...]:
    """The programs by name, for that workload.

    Raises:
        InvalidInput: one of them, or the workload, cannot be run; the message says which, why, and what would be valid.
    """
    # After a launch op, a check's references start from the output of our launches, which a user's program does not
    # have.
    is_alone = len(workload.ops) == 1 or not workload.launch_ops
    if programs and (not is_alone or any(op.written_cache for op in workload.ops)):
        problem = f"cannot be checked for {workload.describe()}"
        alone = " or ".join(name for name, kind in op_kinds().items() if issubclass(kind.op, LaunchOp))
        raise InvalidInput("baselines", problem, f"give them for ops that share launches, or for one {alone} alone")
    return tuple(_baseline(workload, name, program) for name, program in programs.items())


def _baseline(workload: Workload, name: str, program: Program) -> Baseline:
    if not isinstance(name, str) or not 0 < len(name.strip()) <= _LONGEST:
        raise InvalidInput("baselines", f"has the name {name!r}", f"use a name of at most {_LONGEST} characters")
    field = f"baselines.{name}"
    if isinstance(program, CudaSource):
        _check_launches(workload, field, program)
        return Baseline(name=name, program=program)
    if not callable(program):
        raise InvalidInput(field, f"is a {type(program).__name__}", "pass a function of tensors, or a CudaSource")
    arguments = _arguments(given_tensors(workload), field, program)
    return Baseline(name=name, program=PythonFunction(pickled=_pickled(field, program), arguments=arguments))


def _arguments(tensors: Mapping[str, Tensor], field: str, program: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's tensor parameters."""
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidInput(field, f"has no signature: {error}", "wrap it in a function of tensors") from error
    known = parameter_names(tensors)
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return tuple(tensors)
    for one in parameters:
        by_name = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if not (by_name and one.name in known) and one.default is one.empty:
            shapes = ", ".join(f"{name} {list(tensors[known[name]].shape)}" for name in known)
            raise InvalidInput(field, f"takes {one}, which is not a tensor", f"there are {shapes}")
    return tuple(known[one.name] for one in parameters if one.name in known)


def _check_launches(workload: Workload, field: str, program: CudaSource) -> None:
    names = [*given_tensors(workload), *(op.name for op in workload.ops)]
    if not program.launches:
        raise InvalidInput(f"{field}.launches", "is empty", "pass a KernelLaunch for each launch of a run")
    for index, launch in enumerate(program.launches):
        place = f"{field}.launches[{index}]"
        if f" {launch.kernel}" not in program.text.replace("*", " ").replace("\n", " "):
            raise InvalidInput(
                f"{place}.kernel", f"is {launch.kernel!r}, which the source does not define", "name one of its kernels"
            )
        for name, sizes in (("grid", launch.grid), ("block", launch.block)):
            if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
                raise InvalidInput(f"{place}.{name}", f"is {sizes!r}", "use three whole numbers above 0")
        if strange := [one for one in launch.arguments if isinstance(one, str) and one not in names]:
            raise InvalidInput(
                f"{place}.arguments", (f"has {strange[0]!r}, which is not a tensor"), f"there are {', '.join(names)}"
            )


def _pickled(field: str, program: Callable[..., Any]) -> bytes:
    """The programs in the form for the card's process, which does not import the main module."""
    try:
        import cloudpickle
    except ImportError as error:
        raise InvalidInput(field, "needs cloudpickle, which is missing", install_command("server")) from error
    try:
        pickled: bytes = cloudpickle.dumps(program)
    except Exception as error:  # a user's object may raise anything
        problem = f"cannot be sent to the process at the card: {type(error).__name__}: {error}"
        raise InvalidInput(
            field, problem, "pass a function that refers only to numbers, modules and tensors"
        ) from error
    return pickled
