"""What a kind of op brings for the card: its inputs and references, and the library's baseline. Found by name."""

from __future__ import annotations

from typing import Any, Protocol, cast

from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.library_recipe import LibraryRecipe
from tuner.errors import WorkerError

from ..protocol.stopwatch import Stopwatch
from ..timing.library_choice import Choices, Picked
from .baselines import Runner
from .cublaslt import CublasLt
from .data import ProblemData


class Library(Runner, Protocol):
    """A baseline whose ops each have algorithms to choose from."""

    #: Per op, which of the heuristic's algorithms.
    choices: Choices

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Per op, how many are offered."""

    @property
    def can_run_beside(self) -> bool:
        """Whether ops may run side by side."""

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""

    def use(self, picked: Picked) -> None:
        """Runs as was picked from now on."""

    def recipe(self) -> LibraryRecipe:
        """How to call the library as this does."""


class CardSide(Protocol):
    """The folder ``card`` of a kind, which needs a card's libraries. It is of a whole workload: of that which has such
    an op, and beside it what kinds of tile ops there are."""

    def data_of(self, problem: Problem, l2_bytes: int, watch: Stopwatch) -> ProblemData:
        """Inputs, caches and references on the card.

        Raises:
            DoesNotFit: the card's free memory does not hold one copy.
        """

    def library_of(self, lt: CublasLt, data: Any, tools: Any) -> Library:
        """The library's best for it, and what cross-checks that."""


def card_side_of(workload: Workload) -> CardSide:
    """Of the workload's launch ops' kind, or else of its first op's.

    Raises:
        WorkerError: the kind is not known on this machine, or has nothing for a card.
    """
    op = (*workload.launch_ops, *workload.ops)[0]
    card = part_of(op.KIND, "card")
    if card is None:
        raise WorkerError(f"{op.describe()}: this machine has nothing that runs such an op on a card")
    return cast(CardSide, card)
