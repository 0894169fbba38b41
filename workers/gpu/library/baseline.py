"""The library's baseline for a workload; its algorithms are chosen by their times."""

from __future__ import annotations

from typing import Protocol

from tuner.core.trial.reports.library_recipe import LibraryRecipe

from ...timing.library_choice import Choices, Picked
from .runners import Runner


class Library(Runner, Protocol):
    """A baseline whose ops each have algorithms to choose from."""

    #: The chosen algorithm of the heuristic for each op.
    choices: Choices

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Number of algorithms for each op."""

    @property
    def can_run_beside(self) -> bool:
        """Whether ops may run side by side."""

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""

    def use(self, picked: Picked) -> None:
        """Makes later runs use this choice."""

    def recipe(self) -> LibraryRecipe:
        """How the library is called."""
