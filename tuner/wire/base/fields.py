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

#: One line without NUL, which some databases do not support.
ONE_LINE = r"^[^\x00-\x1f\x7f]*$"
PRINTABLE = r"^[!-~]+$"
SHA256 = r"^[0-9a-f]{64}$"
SIZES = r"^\d{1,10}(,\d{1,10})*$"
#: What each pattern of a request accepts, for messages.
PATTERNS_IN_WORDS = {
    TEXT: "letters, digits, _, . and -, beginning with a letter or _, e.g. `up_proj`",
    ONE_LINE: "one line, without control characters",
    PRINTABLE: "printable ASCII characters without spaces, e.g. `dram__bytes_read.sum`",
    SHA256: "64 digits from 0 to 9 and a to f, as `digest` in a result",
    SIZES: "integers separated by commas, without spaces, e.g. `64,256,128`",
}

Name = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS, pattern=TEXT)]


class Strict(BaseModel):
    """Refuses unknown fields, and values that would need a conversion."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
