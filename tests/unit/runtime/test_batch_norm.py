"""A batch norm folded into the convolution before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tuner.runtime import WrongOperand, fold_batch_norm

FILTERS, CHANNELS, KERNEL, SIZE = 5, 3, 3, 6
RANDOM = np.random.default_rng(7)
NORM: dict[str, Any] = {
    "mean": RANDOM.standard_normal(FILTERS),
    "variance": RANDOM.uniform(0.1, 4, FILTERS),
    "scale": RANDOM.standard_normal(FILTERS),
    "shift": RANDOM.standard_normal(FILTERS),
}


def convolved(image: Any, filters: Any, bias: Any) -> Any:
    """Of [size, size, channels], without padding: a plain loop over pixels."""
    found = np.empty((SIZE - KERNEL + 1, SIZE - KERNEL + 1, FILTERS))
    for y, x in np.ndindex(*found.shape[:2]):
        window = image[y : y + KERNEL, x : x + KERNEL]
        found[y, x] = [(window * one).sum() for one in filters]
    return found + bias


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("left_out", [(), ("scale",), ("shift",), ("scale", "shift")])
def test_the_folded_convolution_computes_both(has_bias: bool, left_out: tuple[str, ...]) -> None:
    """A batch norm without affine parameters has the scale 1 and the shift 0."""
    filters = RANDOM.standard_normal((FILTERS, KERNEL, KERNEL, CHANNELS))
    image, bias = RANDOM.standard_normal((SIZE, SIZE, CHANNELS)), RANDOM.standard_normal(FILTERS) if has_bias else None
    norm = {name: array for name, array in NORM.items() if name not in left_out}
    apart = convolved(image, filters, 0 if bias is None else bias)
    both = norm.get("scale", 1) * (apart - norm["mean"]) / np.sqrt(norm["variance"] + 1e-3) + norm.get("shift", 0)
    folded = fold_batch_norm(filters, bias, **norm, eps=1e-3)
    assert np.allclose(convolved(image, *folded), both, rtol=1e-12, atol=1e-12)


def test_arrays_of_pytorch_are_folded_in_its_own_layout() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    first, norm = torch.nn.Conv2d(CHANNELS, FILTERS, KERNEL).double(), torch.nn.BatchNorm2d(FILTERS).double().eval()
    norm.running_mean.normal_(), norm.running_var.uniform_(0.1, 4), torch.nn.init.normal_(norm.weight)
    with torch.no_grad():
        given = {"mean": norm.running_mean, "variance": norm.running_var, "scale": norm.weight, "shift": norm.bias}
        filters, bias = fold_batch_norm(first.weight, first.bias, **given, eps=norm.eps)
        image = torch.randn(1, CHANNELS, SIZE, SIZE, dtype=torch.float64)
        assert torch.allclose(torch.nn.functional.conv2d(image, filters, bias), norm(first(image)), rtol=1e-12)


@pytest.mark.parametrize("name", ["bias", "mean", "variance", "scale", "shift"])
def test_another_number_of_elements_is_refused(name: str) -> None:
    given = {"bias": None, **NORM, name: np.ones(FILTERS + 1)}
    with pytest.raises(WrongOperand, match=rf"{name} has the shape \(6,\): give \[5\], one per filter"):
        fold_batch_norm(np.ones((FILTERS, KERNEL, KERNEL, CHANNELS)), **given)
