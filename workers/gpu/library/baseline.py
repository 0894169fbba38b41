"""The library's baseline of a workload, whose algorithms are chosen by their times."""

from __future__ import annotations

from typing import Protocol

from tuner.core.trial.reports.library_recipe import LibraryRecipe

from ...timing.library_choice import Choices, Picked
from .runners import Runner


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
