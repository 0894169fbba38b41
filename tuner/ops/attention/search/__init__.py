"""How a search starts with decode attention, and how it compares its schedules."""

from __future__ import annotations

from tuner.ops.attention.search.features import kernel_features, plan_features
from tuner.ops.attention.search.priors import adapt_attention, attention_distance
from tuner.ops.attention.search.seeds import attention_beside, attention_guesses
from tuner.search.launch_op import LaunchOpSearch

SEARCH = LaunchOpSearch(
    guesses=attention_guesses,
    first=attention_beside,
    adapt=adapt_attention,
    distance=attention_distance,
    compiled_features=kernel_features,
    plan_features=plan_features,
)
