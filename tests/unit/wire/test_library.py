"""The service reports the recorded calls of the library."""

from __future__ import annotations

from tests.support.builders import BEST
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.wire.responses.library import LibraryRecipeView


def test_a_recipe_is_the_same_on_the_wire_and_in_the_database() -> None:
    recipe = BEST.library
    assert recipe is not None
    assert LibraryRecipeView.model_validate(recipe).model_dump(mode="json") == recipe.to_json()
    assert LibraryRecipe.from_json(recipe.to_json()) == recipe
