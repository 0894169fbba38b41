"""Numbers before time: a candidate's outputs against float64 references, element by element."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.tolerance import MAX_REL_ERROR

from ..protocol.messages import Work
from ..source.launch_args import OpBuffers
from .data import NUM_CHECK_SEEDS, ProblemData, from_bits
from .reference import Reference

#: Runs the candidate once on these operands and waits for it; the sentence of an abort, or None.
Run = Callable[[tuple[OpBuffers, ...]], str | None]


class WrongNumbers(Exception):
    """An output is wrong; the message names the first bad element with its tile."""


class Aborted(Exception):
    """A bounded wait expired; the message is the waiter's record."""


def check_numbers(data: ProblemData, run: Run, work: Work) -> float:
    """Checks all seeds but the last, each launched twice; the worst relative error.

    Raises:
        WrongNumbers: an element is out of its bound, or a second launch differs.
        Aborted: a wait expired.
    """
    worst = 0.0
    for seed_index in range(NUM_CHECK_SEEDS):
        worst = max(worst, _check_seed(data, run, work, seed_index))
        first = [output.bits.copy() for output in data.outputs[0].values()]
        _launch_poisoned(data, run, seed_index)
        for op_index, before in zip(data.outputs[0], first, strict=True):
            after = data.outputs[0][op_index].bits
            if not bool((before == after).all()):
                raise WrongNumbers(f"a second launch of {data.workload.numbered_ops[op_index].name} gave other bits")
    return worst


def check_after_timing(data: ProblemData, run: Run, work: Work) -> float:
    """One more check with inputs not used before: a launch that read the last one's intermediate fails here."""
    return _check_seed(data, run, work, NUM_CHECK_SEEDS)


def _launch_poisoned(data: ProblemData, run: Run, seed_index: int) -> None:
    for output in data.outputs[0].values():
        output.poison()
    record = run(data.check_ops(seed_index))
    if record is not None:
        raise Aborted(record)


def _check_seed(data: ProblemData, run: Run, work: Work, seed_index: int) -> float:
    _launch_poisoned(data, run, seed_index)
    worst = 0.0
    for op_index, reference in data.references[seed_index].items():
        output = data.outputs[0][op_index]
        worst = max(worst, _compare(data, work, op_index, output.bits, reference))
    return worst


def _compare(data: ProblemData, work: Work, op_index: int, bits: cupy.ndarray, want: Reference) -> float:
    op = data.workload.numbered_ops[op_index]
    got = from_bits(bits, data.workload.dtype, as_type=cupy.float64)
    difference = cupy.abs(got - want.values)
    bad = ~(difference <= want.tolerance)  # NaN is bad
    num_bad = int(bad.sum())
    if num_bad:
        row, column = divmod(int(bad.ravel().argmax()), op.n)
        raise WrongNumbers(
            f"{num_bad} of {op.m * op.n} elements of {op.name} are wrong, the first at [{row}, {column}]"
            f"{_where(data, work, op_index, row, column)}: {float(got[row, column]):.6g} instead of "
            f"{float(want.values[row, column]):.6g} within {float(want.tolerance[row, column]):.2g}"
        )
    norm = float(cupy.linalg.norm(want.values))
    rel_error = float(cupy.linalg.norm(difference)) / norm if norm else 0.0
    limit = MAX_REL_ERROR[data.workload.dtype]
    if not rel_error <= limit:
        raise WrongNumbers(f"{op.name}: relative error {rel_error:.2e}, at most {limit:.0e} is allowed")
    return rel_error


def _where(data: ProblemData, work: Work, op_index: int, row: int, column: int) -> str:
    """The tile and the task that own an element, or its sequence and head; nothing of tiles for the library."""
    op = data.workload.numbered_ops[op_index]
    if isinstance(op, AttentionOp):
        sequence, token = divmod(row, op.shape.new_tokens)
        head, dim = divmod(column, op.shape.head_dim)
        return f" (sequence {sequence}, new token {token}, head {head}, element {dim})"
    if work.tiling is None:
        return ""
    shape = work.tiling.tiles[op_index]
    tile = (op_index, row // shape.m, column // shape.n)
    for launch, plan in enumerate(work.plans):
        tasks = np.flatnonzero((plan.plan.tasks[:, :3] == tile).all(axis=1))
        if tasks.size:
            return f" (tile {tile[1]}, {tile[2]}; task {tasks[0]} of launch {launch})"
    return f" (tile {tile[1]}, {tile[2]}; no task computes it)"
