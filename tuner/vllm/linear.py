"""What is asked of a linear layer of vLLM before its weight is computed with."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.dtype import UNSCALED

#: By the names that PyTorch has for them.
DTYPES = {dtype.row.array_name: dtype for dtype in UNSCALED}
#: Of what computes a layer whose weight is what was loaded; the name is of vLLM 0.26.
PLAIN = "UnquantizedLinearMethod"


def reason_against(layer: Any) -> str:
    """Why its weight is no plain matrix; empty where it is. A layer may quantise its weight after it was loaded."""
    method, weight = getattr(layer, "quant_method", None), getattr(layer, "weight", None)
    if method is not None and type(method).__name__ != PLAIN:
        return f"its weights are quantised, by {type(method).__name__}"
    if weight is None or (dtype := str(weight.dtype).removeprefix("torch.")) not in DTYPES:
        given = "there is no plain weight" if weight is None else f"its weights are {dtype}"
        return f"{given}, and kernels here have {' and '.join(DTYPES)}"
    return ""
