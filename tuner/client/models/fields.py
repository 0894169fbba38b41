"""Fields of a model's config: misspelt ones, missing ones, and the defaults used for those."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from tuner.client.models.kinds_in_models import kinds_in_models
from tuner.client.models.model_families import FAMILIES, language_fields, wrapped_family
from tuner.client.models.models import EXPERTS, QUANTISED
from tuner.core.problem.quantisation.said import NAMES as QUANTISATION_NAMES
from tuner.errors import InvalidInput

#: Sizes that a config must have, although transformers has defaults for them.
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers")
#: The fields that are read from the config of any family, besides those with defaults.
_OF_ALL = {"model_type", "text_config", "dtype", "torch_dtype", "num_experts_per_tok", *QUANTISED, *EXPERTS}
#: Similarity of two names, from 0 to 1, at or above which one is assumed to be a misspelling of the other. In
#: transformers' supported families, no two fields are this similar if one of them may be missing.
_NEAR = 0.85


def check_fields(config: Mapping[str, Any], *, with_context: bool) -> list[str]:
    """Checks the names of all fields before any is read.

    Args:
        config: the contents of `config.json`.
        with_context: whether the attentions are read as well.

    Returns:
        The defaults for missing fields, e.g. ``num_key_value_heads 8``. Defaults for
        features that the model does not have are left out.

    Raises:
        InvalidInput: a field is unknown and similar to one that is missing, or the model's sizes are missing.
    """
    model, where = _language_model(config)
    family = FAMILIES.get(model["model_type"]) if isinstance(model.get("model_type"), str) else None
    of_kinds = {name for kind in kinds_in_models() for name in (*kind.REQUIRED, *kind.FIELDS)}
    known = _OF_ALL | of_kinds | set(family.defaults if family else FAMILIES["llama"].defaults)
    _check_names(config, known, "")
    if where:
        _check_names(model, known, where)
    if family is None:
        return []
    needed = [name for kind in kinds_in_models() for name in kind.REQUIRED]
    for name in (*_SIZES, *(needed if with_context and not family.leaves_out_sizes else ())):
        if name not in model:
            raise InvalidInput(where + name, "is missing", "pass the whole config.json of the model")
    used = family.defaults if with_context else (family.activation_field,)
    return [_words(name, family.defaults[name]) for name in used if name not in model and _matters(name, family)]


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The part of a config that describes the language model, and its path."""
    if (family := wrapped_family(config)) is None:
        return config, ""
    return {**language_fields(config), "model_type": family}, "text_config." * ("text_config" in config)


def _matters(name: str, family: Any) -> bool:
    return name == "num_key_value_heads" or family.defaults[name] not in (None, False)


def _words(name: str, default: Any) -> str:
    return f"{name} {'as many as heads' if default is None else default}"


def _check_names(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name, near in _misspelt(given, known):
        problem = f"is unknown, and there is no {near}"
        raise InvalidInput(where + name, problem, f"did you mean {near}? If not, add {near} too")
    for name, value in given.items():
        inner = _names_in(name) or (known if known is QUANTISATION_NAMES else ())
        if inner and isinstance(value, Mapping):
            _check_names(value, inner, f"{where}{name}.")


def _names_in(name: str) -> Collection[str]:
    """The field names that are read in the object with that name."""
    if name in QUANTISED:
        return QUANTISATION_NAMES
    return [one for kind in kinds_in_models() for one in kind.OBJECTS.get(name, ())]


def _misspelt(given: Mapping[str, Any], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Pairs of an unknown name and a similar missing one. Names that begin with ``_`` belong to transformers."""
    missing = [name for name in known if name not in given]
    for name in given:
        if name not in known and not name.startswith("_"):
            plain = name.strip().lower().replace("-", "_").replace(" ", "_")
            near = get_close_matches(plain, missing, n=1, cutoff=_NEAR)
            # Another size with one more word, such as DeepSeek's v_head_dim, is not a misspelling.
            yield from ((name, one) for one in near if not plain.endswith(f"_{one}"))
