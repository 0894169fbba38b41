"""Compares the library baseline with PyTorch's own calls, and its best algorithms with its heuristic's first choices.

All are timed in the same rounds on the same rotating buffers, in a process that ends afterwards, since PyTorch keeps
memory pools.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from benchmarks.common.report import check_row, failed_row
from benchmarks.common.setting import problem_of
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import Activation, Workload
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.stats import median, paired_ratios
from tuner.ops.gemm.pairs import ffn_pair

#: Maximum distance of PyTorch's time from that of the library's first algorithms, and maximum excess of the best
#: algorithms' time.
TORCH_BAR, BEST_BAR = 0.03, 0.01
#: Rounds per pair, by regime.
NUM_ROUNDS = {Regime.BURST: 40, Regime.SUSTAINED: 10}
#: (m, d_in, d_hidden, d_out, activation, bias).
PAIRS = (
    (16, 4096, 14336, 4096, Activation.IDENTITY, False),
    (64, 4096, 14336, 4096, Activation.IDENTITY, True),
    (256, 2048, 8192, 2048, Activation.IDENTITY, False),
    (512, 4096, 14336, 4096, Activation.IDENTITY, False),
    (16, 4096, 14336, 4096, Activation.RELU, False),
    (512, 4096, 14336, 4096, Activation.RELU, False),
)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The times of one pair: microseconds by valid round."""

    workload: Workload
    regime: Regime
    first_us: list[float]
    best_us: list[float]
    #: None if PyTorch was not timed; `reason` says why.
    torch_us: list[float] | None
    reason: str
    #: For each op, the index of the best algorithm in the heuristic's list.
    choices: tuple[int, ...]
    num_dropped: int

    @property
    def makes_the_same_calls(self) -> bool:
        """Whether PyTorch makes the library's calls; for an activation it launches one more kernel."""
        return all(op.activation is Activation.IDENTITY for op in self.workload.tile_ops)

    @property
    def torch_ratio(self) -> float | None:
        """PyTorch's time divided by the first algorithms'."""
        return None if self.torch_us is None else median(paired_ratios(self.torch_us, self.first_us))

    @property
    def best_ratio(self) -> float:
        """The best algorithms' time divided by the first algorithms'."""
        return median(paired_ratios(self.best_us, self.first_us))

    def to_json(self) -> dict[str, Any]:
        """Raw figures of a row."""
        return {
            "pair": self.workload.describe(),
            "regime": str(self.regime),
            "judged_by_torch": self.makes_the_same_calls,
            "first_us": median(self.first_us),
            "best_us": median(self.best_us),
            "torch_us": None if self.torch_us is None else median(self.torch_us),
            "torch_ratio": self.torch_ratio,
            "best_ratio": self.best_ratio,
            "algorithms": self.choices,
            "num_rounds": len(self.first_us),
            "num_dropped": self.num_dropped,
        }


def problems() -> list[Problem]:
    """All pairs, each in the regime for its number of rows."""
    return [
        problem_of(ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, activation=activation, bias=bias))
        for m, d_in, d_hidden, d_out, activation, bias in PAIRS
    ]


def contests(tools_cubin: bytes, uuid: str, asked: list[Problem]) -> list[Contest]:
    """One contest per problem, on the visible card; `tools_cubin` is tools.cu compiled for that card."""
    import cupy

    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.gpu.measuring.card import CardView
    from tuner.workers.gpu.measuring.problem import ProblemOnCard

    vendor, view = open_vendor(), CardView(uuid)
    # Workspace that PyTorch uses by default for products without a bias, KiB; read at the first use.
    os.environ["CUBLASLT_WORKSPACE_SIZE"] = str(vendor.workspace_bytes // 1024)
    tools = cupy.cuda.function.Module()
    tools.load(tools_cubin)
    found = []
    for problem in asked:
        found.append(_contest(ProblemOnCard(problem, tools, vendor, view)))
        cupy.get_default_memory_pool().free_all_blocks()
        print(f"    {found[-1].to_json()}", flush=True)
    return found


def _contest(prepared: Any) -> Contest:
    """`prepared` is a `tuner.workers.gpu.measuring.problem.ProblemOnCard`."""
    from tuner.workers.gpu.library.torch_baseline import torch_runner
    from tuner.workers.gpu.measuring.measure import time_together
    from tuner.workers.timing.library_choice import first_of

    library, best = prepared.library, prepared.picked.choices
    library.choices = first_of(best)
    graphs = [prepared.timer.capture(library), prepared.library_graph]
    library.choices = best
    reason = ""
    try:
        graphs.append(torch_runner(prepared.data))
    except Exception as error:  # the library does not need PyTorch, whatever the error
        reason = f"{type(error).__name__}: {error}"
    regime = prepared.problem.objective.regime
    (first_us, best_us, *others_us), num_dropped = time_together(prepared, graphs, NUM_ROUNDS[regime])
    return Contest(
        workload=prepared.data.workload,
        regime=regime,
        first_us=first_us,
        best_us=best_us,
        torch_us=others_us[0] if others_us else None,
        reason=reason,
        choices=best,
        num_dropped=num_dropped,
    )


def torch_row(found: list[Contest]) -> dict[str, Any]:
    """`torch_agreement`: how far the ratio of PyTorch's time to that of the library's first algorithms is from 1, at
    most, if both make the same calls. With an activation, PyTorch launches one more kernel, so that distance is
    reported separately."""
    distances: dict[bool, list[float]] = {True: [], False: []}
    for contest in found:
        if contest.torch_ratio is None:
            return failed_row("torch_agreement", contest.reason)
        distances[contest.makes_the_same_calls].append(abs(contest.torch_ratio - 1))
    return check_row(
        "torch_agreement",
        max(distances[True]),
        TORCH_BAR,
        with_activation_worst=max(distances[False], default=None),
        each=[contest.to_json() for contest in found],
    )


def best_row(found: list[Contest]) -> dict[str, Any]:
    """`best_of_8`: the maximum by which the best algorithms are slower than the first ones; negative if they are
    faster."""
    ratios = [contest.best_ratio for contest in found]
    return check_row("best_of_8", max(ratios) - 1, BEST_BAR, ratios=ratios)
