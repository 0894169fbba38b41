"""Products on a card."""

from __future__ import annotations

from typing import Any

from tuner.core.trial.evaluator import Problem
from tuner.workers.gpu.baselines import LibraryRunner
from tuner.workers.gpu.cublaslt import CublasLt
from tuner.workers.gpu.data import ProblemData
from tuner.workers.protocol.stopwatch import Stopwatch


def data_of(problem: Problem, l2_bytes: int, watch: Stopwatch) -> ProblemData:
    """Inputs, weights and references.

    Raises:
        DoesNotFit: the card's free memory does not hold one copy.
    """
    return ProblemData(problem, l2_bytes, watch)


def library_of(lt: CublasLt, data: ProblemData, tools: Any) -> LibraryRunner:
    """The vendor library's products, with its own fused epilogues."""
    return LibraryRunner(lt, data, tools)
