"""Numbers before time: a candidate's outputs against float64 references, element by element."""

from __future__ import annotations

from collections.abc import Callable

import cupy

from tuner.core.schedule import Tiling
from tuner.core.workload import Dtype
from workers.gpu.data import NUM_CHECK_SEEDS, ProblemData, Reference, from_bits
from workers.gpu.launch import OpBuffers

#: Largest ||out - reference|| / ||reference|| by dtype.
MAX_REL_ERROR = {Dtype.FP16: 2e-3, Dtype.BF16: 1.6e-2}

#: Runs the candidate once on these operands and waits for it; the sentence of an abort, or None.
Run = Callable[[tuple[OpBuffers, ...]], str | None]


class WrongNumbers(Exception):
    """An output is wrong; the message names the first bad element with its tile."""


class Aborted(Exception):
    """A bounded wait expired; the message is the waiter's record."""


def check_numbers(data: ProblemData, run: Run, tiling: Tiling | None) -> float:
    """Checks all seeds but the last, each launched twice; the worst relative error.

    Raises:
        WrongNumbers: an element is out of its bound, a canary is gone, or a second launch differs.
        Aborted: a wait expired.
    """
    worst = 0.0
    for seed_index in range(NUM_CHECK_SEEDS):
        worst = max(worst, _check_seed(data, run, tiling, seed_index))
        first = [output.bits.copy() for output in data.outputs[0].values()]
        _launch_poisoned(data, run, seed_index)
        for op_index, before in zip(data.outputs[0], first, strict=True):
            after = data.outputs[0][op_index].bits
            if not bool((before == after).all()):
                raise WrongNumbers(f"a second launch of {data.workload.ops[op_index].name} gave other bits")
    return worst


def check_after_timing(data: ProblemData, run: Run, tiling: Tiling | None) -> float:
    """One more check with inputs not used before: a launch that read the last one's intermediate fails here."""
    return _check_seed(data, run, tiling, NUM_CHECK_SEEDS)


def _launch_poisoned(data: ProblemData, run: Run, seed_index: int) -> None:
    for output in data.outputs[0].values():
        output.poison()
    record = run(data.check_ops(seed_index))
    if record is not None:
        raise Aborted(record)


def _check_seed(data: ProblemData, run: Run, tiling: Tiling | None, seed_index: int) -> float:
    _launch_poisoned(data, run, seed_index)
    worst = 0.0
    for op_index, reference in data.references[seed_index].items():
        output = data.outputs[0][op_index]
        error = _compare(data, tiling, op_index, output.bits, reference)
        worst = max(worst, error)
        if not output.canaries_intact():
            raise WrongNumbers(f"{data.workload.ops[op_index].name}: something was written outside of the output")
    return worst


def _compare(data: ProblemData, tiling: Tiling | None, op_index: int, bits: cupy.ndarray, want: Reference) -> float:
    op = data.workload.ops[op_index]
    got = from_bits(bits, data.workload.dtype, as_type=cupy.float64)
    difference = cupy.abs(got - want.values)
    bad = ~(difference <= want.tolerance)  # NaN is bad
    num_bad = int(bad.sum())
    if num_bad:
        row, column = divmod(int(bad.ravel().argmax()), op.n)
        tile = ""
        if tiling is not None:
            shape = tiling.tiles[op_index]
            tile = f" (tile {row // shape.m}, {column // shape.n})"
        raise WrongNumbers(
            f"{num_bad} of {op.m * op.n} elements of {op.name} are wrong, the first at [{row}, {column}]{tile}: "
            f"{float(got[row, column]):.6g} instead of {float(want.values[row, column]):.6g} "
            f"within {float(want.tolerance[row, column]):.2g}"
        )
    norm = float(cupy.linalg.norm(want.values))
    rel_error = float(cupy.linalg.norm(difference)) / norm if norm else 0.0
    limit = MAX_REL_ERROR[data.workload.dtype]
    if not rel_error <= limit:
        raise WrongNumbers(f"{op.name}: relative error {rel_error:.2e}, at most {limit:.0e} is allowed")
    return rel_error
