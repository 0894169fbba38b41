"""Inputs of a chain whose names look like misspelt names of earlier ops."""

from __future__ import annotations

from itertools import takewhile

from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput

#: Shorter names differ by one letter anyway.
_FEWEST_LETTERS = 3


def check_inputs(workload: Workload) -> None:
    """An input may have any name. But one that is a letter away from an earlier op's name, where that op's output has
    the shape that is read and nothing reads it, is most likely that output.

    Raises:
        InvalidInput: there is such an input.
    """
    for place, op in enumerate(workload.ops):
        for read in op.reads:
            near = [
                one.name
                for one in workload.ops[:place]
                if (one.m, one.c_columns) == read.shape
                and not one.is_output
                and not workload.is_read(one.name)
                and _differ_by_a_letter(one.name, read.tensor)
            ]
            if near and read.tensor not in workload.written:
                field = f"pair.ops.{place}.{read.field.removesuffix('_source')}"
                problem = f"is {read.tensor!r}, which no op writes, and no op reads {near[0]}"
                remedy = f"did you mean {near[0]}? If it is an input, rename it, or set {near[0]}'s is_output"
                raise InvalidInput(field, problem, remedy)


def _differ_by_a_letter(one: str, other: str) -> bool:
    """Whether a letter is added, missing, replaced or swapped with its neighbour. Digits are numbers, not slips."""
    begin = _num_equal(one, other)
    ends = one[begin:][::-1], other[begin:][::-1]
    end = _num_equal(*ends)
    rests = [text[end:] for text in ends]
    is_slip = max(map(len, rests)) <= 1 or (len(rests[0]) == 2 and rests[0] == rests[1][::-1])
    return is_slip and max(len(one), len(other)) >= _FEWEST_LETTERS and "".join(rests).isalpha()


def _num_equal(one: str, other: str) -> int:
    """Length of the common begin."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])
