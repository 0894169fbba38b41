"""Texts about poolings."""

from __future__ import annotations

from tuner.core.trial.reports.library_recipe import LibraryRecipe


def library_of(recipe: LibraryRecipe | None) -> str:
    """The library that they are compared with."""
    return "cuDNN"
