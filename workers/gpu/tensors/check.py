"""Results before times: a candidate's outputs are compared with float64 references, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import DtypeRow

from ...protocol.messages import Work
from .compare import Comparer
from .data import NUM_CHECK_SEEDS, ProblemData
from .op_data import RunOperands
from .reference import Reference

#: Runs the candidate once on these operands and waits for it; returns the reason of an abort, or None.
Run = Callable[[RunOperands], str | None]

#: The results of another program for these operands: the output bits [m, n] on the card, by op.
OtherRun = Callable[[RunOperands], Mapping[str, Any]]


class WrongNumbers(Exception):
    """An output is wrong; the message names the first bad element with its tile."""


class Aborted(Exception):
    """A bounded wait expired; the message is its record."""


def check_numbers(data: ProblemData, comparer: Comparer, run: Run, work: Work) -> float:
    """Checks all seeds but the last, each launched twice; the worst relative error. A second launch of our kernel must
    produce the same bits. A library may sum in a different order each time, so its second launch is checked like its
    first.

    Raises:
        WrongNumbers: an element is out of its bound, or a second launch of our kernel differs.
        Aborted: a wait expired.
    """
    worst = 0.0
    for seed_index in range(NUM_CHECK_SEEDS):
        worst = max(worst, _check_seed(data, comparer, run, work, seed_index))
        if not work.plan_kind.is_ours:
            worst = max(worst, _check_seed(data, comparer, run, work, seed_index))
            continue
        first = {name: data.written(name, seed_index).copy() for name in data.outputs[0]}
        _launch_poisoned(data, run, seed_index)
        for name, before in first.items():  # in order, so that the first difference is the cause
            if not comparer.are_same(before, data.written(name, seed_index), data.dtype_of(name)):
                raise WrongNumbers(f"a second launch of {name} computed different bits")
    return worst


def check_after_timing(data: ProblemData, comparer: Comparer, run: Run, work: Work) -> float:
    """One more check with inputs not used before, in which a launch that read an old intermediate fails."""
    return _check_seed(data, comparer, run, work, NUM_CHECK_SEEDS)


def check_others(data: ProblemData, comparer: Comparer, outputs_of: OtherRun) -> float:
    """Checks another program's outputs for all seeds but the last, each as a whole: it may round at different points
    than our kernel, so there are no bounds for single elements. Returns the worst relative error.

    Raises:
        WrongNumbers: an output is farther from its reference than any of ours may be.
    """
    worst, limit = 0.0, data.workload.dtype.row.max_rel_error
    for seed_index in range(NUM_CHECK_SEEDS):
        for name, bits in outputs_of(data.check_ops(seed_index)).items():
            want = data.references[seed_index][name]
            rel_error = comparer.difference(bits, data.dtype_of(name), want).rel_error
            if not rel_error <= limit:
                raise WrongNumbers(f"{name}: relative error {rel_error:.2e}, the maximum is {limit:.0e}")
            worst = max(worst, rel_error)
    return worst


def _launch_poisoned(data: ProblemData, run: Run, seed_index: int) -> None:
    data.poison()
    record = run(data.check_ops(seed_index))
    if record is not None:
        raise Aborted(record)


def _check_seed(data: ProblemData, comparer: Comparer, run: Run, work: Work, seed_index: int) -> float:
    _launch_poisoned(data, run, seed_index)
    worst = 0.0
    for name, reference in data.wanted(seed_index):
        if work.plan_kind.is_joined and not data.workload.leaves(data.workload.op_named(name)):
            continue  # such a kernel need not write what only its ops read
        bits = data.written(name, seed_index)
        worst = max(worst, _compare(data, comparer, work, name, bits, reference))
        if strayed := data.strayed(name, seed_index):
            raise WrongNumbers(f"{name}: {strayed}")
    return worst


def _compare(data: ProblemData, comparer: Comparer, work: Work, name: str, bits: Any, want: Reference) -> float:
    dtype = data.dtype_of(name)
    found = comparer.difference(bits, dtype, want)
    if found.num_bad:
        row, column = divmod(found.first_bad, bits.shape[1])
        got = _value(bits[row, column].get(), dtype)
        raise WrongNumbers(
            f"{found.num_bad} of {bits.size} elements of {name} are wrong, the first at [{row}, {column}]"
            f"{_where(data, work, name, row, column)}: {got:.6g} instead of "
            f"{float(want.values[row, column].get()):.6g} within {float(want.tolerance[row, column].get()):.2g}"
        )
    limit = data.workload.dtype.row.max_rel_error
    if not found.rel_error <= limit:
        raise WrongNumbers(f"{name}: relative error {found.rel_error:.2e}, the maximum is {limit:.0e}")
    return found.rel_error


def _value(bits: np.ndarray[Any, Any], dtype: Dtype | DtypeRow) -> float:
    """The number with the bits of one element."""
    if isinstance(dtype, Dtype):
        return float(dtype.row.from_bits(np, bits.reshape(1))[0])
    return float(bits.reshape(1).view(dtype.array_name)[0])


def _where(data: ProblemData, work: Work, name: str, row: int, column: int) -> str:
    """The tile and the task of an element, or its sequence and head; without tiles for the library."""
    if name not in {op.name for op in data.workload.ops}:
        return ""  # an additional output of a launch op
    launched = work.plans[0].graph.workload if work.plans else data.workload  # one op may compute several
    op, op_index = data.workload.op_named(name), launched.op_index(name)
    if op_index is None:
        return f" ({place})" if (place := op.place_of(row, column)) else ""
    if work.tiling is None:
        return ""
    shape = work.tiling.tiles[op_index]
    tile = (op_index, row // shape.m, op.column_of_tiles(column) // shape.n)
    for launch, plan in enumerate(work.plans):
        tasks = np.flatnonzero((plan.plan.tasks[:, :3] == tile).all(axis=1))
        if tasks.size:
            return f" (tile {tile[1]}, {tile[2]}; task {tasks[0]} of launch {launch})"
    return f" (tile {tile[1]}, {tile[2]}; no task computes it)"
