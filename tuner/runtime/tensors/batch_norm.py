"""Batch norms as part of the convolution before them."""

from __future__ import annotations

from typing import Any

from tuner.runtime.binding.native import WrongOperand


def fold_batch_norm(
    filters: Any,
    bias: Any | None,
    *,
    mean: Any,
    variance: Any,
    scale: Any | None = None,
    shift: Any | None = None,
    eps: float = 1e-5,
) -> tuple[Any, Any]:
    """Filters and bias of the convolution that computes what a convolution and the batch norm after it compute at
    inference: ``scale * (convolution - mean) / sqrt(variance + eps) + shift``.

    `filters` are [filters, ...] in any layout; all others [filters]: PyTorch's `running_mean`, `running_var`, `weight`
    and `bias`. They are NumPy, CuPy or PyTorch arrays; pass them in fp32, and round the results to the element type of
    the kernel.

    Raises:
        WrongOperand: one has a different number of elements than there are filters.

    Source: Ioffe, Szegedy, "Batch Normalization", ICML 2015, algorithm 2.
    """
    given = {"bias": bias, "mean": mean, "variance": variance, "scale": scale, "shift": shift}
    for name, array in given.items():
        if array is not None and tuple(array.shape) != (filters.shape[0],):
            raise WrongOperand(f"{name} has the shape {tuple(array.shape)}: give [{filters.shape[0]}], one per filter")
    factor = (variance + eps) ** -0.5
    if scale is not None:
        factor = factor * scale
    moved = (-mean if bias is None else bias - mean) * factor
    return filters * factor.reshape(-1, *[1] * (filters.ndim - 1)), moved if shift is None else moved + shift
