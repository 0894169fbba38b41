"""What request models have in common: strictness, and shared fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tuner.core.problem.ops.codec import MOST_CHARACTERS, TEXT
from tuner.core.problem.tile_op import MAX_ELEMENTS
from tuner.core.problem.workload import Dtype

Size = Annotated[int, Field(ge=1, le=MAX_ELEMENTS)]
# JSON has no enumerations, so a strict model would refuse the string.
DtypeName = Annotated[Dtype, Field(strict=False, description="element type of every tensor; sums are in fp32")]


Name = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS, pattern=TEXT)]


class Strict(BaseModel):
    """Refuses unknown fields, and values that would need a conversion."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
