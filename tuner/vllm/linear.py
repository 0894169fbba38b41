"""Whether our kernels can use the weights of a vLLM linear layer."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.dtype import UNSCALED

#: Element types by PyTorch's names.
DTYPES = {dtype.row.array_name: dtype for dtype in UNSCALED}
#: The method of a layer whose weight is used as loaded; its name in vLLM 0.26.
PLAIN = "UnquantizedLinearMethod"


def reason_against(layer: Any) -> str:
    """Why its weight is not a plain matrix; empty if it is. A layer may quantise its weight after loading."""
    method, weight = getattr(layer, "quant_method", None), getattr(layer, "weight", None)
    if method is not None and type(method).__name__ != PLAIN:
        return f"its weights are quantised, by {type(method).__name__}"
    if weight is None or (dtype := str(weight.dtype).removeprefix("torch.")) not in DTYPES:
        given = "there is no plain weight matrix" if weight is None else f"its weights are {dtype}"
        return f"{given}, but kernels support {' and '.join(DTYPES)}"
    return ""
