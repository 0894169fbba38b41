"""`torch.ops.tuner.program` of quantised weights; requires PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.converted import pair
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload
from tuner.ops.gemm.quantised import Scheme
from tuner.packs.shapes import ops_without_sizes

torch = pytest.importorskip("torch")

K, HIDDEN, ROWS = 256, 256, 3
Array = np.ndarray[Any, Any]


@pytest.fixture
def op() -> Any:
    """The module, which registers the operator at its first import."""
    from tuner.runtime import torch_program

    return torch_program


def workload(scheme: Scheme) -> Workload:
    return pair(scheme, m=ROWS, d=K, hidden=HIDDEN)


def tensors_of(scheme: Scheme) -> tuple[dict[str, Any], dict[str, Array]]:
    """Random tensors as the operator takes them, and the values that they represent, in float64."""
    rng = np.random.default_rng(3)
    given: dict[str, Any] = {}
    known: dict[str, Array] = {}
    has_eight = scheme.row.dtype is Dtype.FP8_E4M3
    element = torch.float8_e4m3fn if has_eight else torch.bfloat16
    given["x"] = torch.from_numpy(rng.standard_normal((ROWS, K), dtype=np.float32)).to(element)
    known["x"] = given["x"].to(torch.float64).numpy()
    for one in workload(scheme).tile_ops:
        normal = rng.standard_normal((one.weight_rows, one.k), dtype=np.float32)
        if one.weights is None:
            given[f"{one.name}.w"] = torch.from_numpy(normal).to(element)
            known[f"{one.name}.w"] = given[f"{one.name}.w"].to(torch.float64).numpy()
        else:
            row = one.weights.row
            factors = rng.uniform(0.5, 2, (one.weight_rows, one.k // (row.group or one.k))).astype(np.float32)
            codes = row.drawn(np, normal, factors if row.group else None, Dtype.BF16.row)
            given[f"{one.name}.w"] = torch.from_numpy(codes.reshape(one.weight_rows, -1))
            known[f"{one.name}.w"] = row.known(np, codes, one.k, Dtype.BF16.row)
        for part in one.epilogue:
            for own in part.owns:
                name = part.tensor_name(one, own)
                if name.startswith("up.group_scale"):
                    continue  # the first op writes it
                values = rng.uniform(0.01, 0.02, part.shape(one, own.name)).astype(np.float32)
                given[name], known[name] = torch.from_numpy(values), values.astype(np.float64)
        if one.row_scale:
            values = rng.uniform(0.5, 2, ROWS).astype(np.float32)
            given[f"{one.name}.row_scale"] = torch.from_numpy(values)
            known[f"{one.name}.row_scale"] = values.astype(np.float64)
    return given, known


def expected(scheme: Scheme, known: dict[str, Array]) -> Array:
    """silu(gate) * up, stored in its element type, times W2."""
    if scheme is Scheme.BLOCK:
        return in_blocks(known)
    sums = known["x"] @ known["up.w"].T
    if "up.channel_scale_factors" in known:
        sums = sums * known["up.channel_scale_factors"]
    if "up.row_scale" in known:
        sums = sums * known["up.row_scale"][:, None]
    gate, up = np.split(sums, 2, axis=1)
    hidden = gate / (1 + np.exp(-gate)) * up
    if scheme is Scheme.TOKEN_GROUPS:
        codes, scales = in_groups(hidden)
        return np.asarray((codes * scales) @ known["down.w"].T * known["down.channel_scale_factors"])
    if "up.output_scale_factor" in known:
        hidden = hidden / known["up.output_scale_factor"]
    stored = scheme.row.dtype.row
    hidden = stored.from_bits(np, stored.to_bits(np, hidden.astype(np.float32))).astype(np.float64)
    y = hidden @ known["down.w"].T
    return np.asarray(y * known["down.channel_scale_factors"] if "down.channel_scale_factors" in known else y)


def in_blocks(known: dict[str, Array]) -> Array:
    """The same with scales of 1 x 128 inputs and 128 x 128 weights, of which those of the intermediate are computed."""

    def product(x: Array, scales: Array, op: str) -> Array:
        of_weights = known[f"{op}.block_scale_weights"].repeat(128, 0).repeat(128, 1)
        return np.asarray((x * scales.repeat(128, 1)) @ (known[f"{op}.w"] * of_weights).T)

    gate, up = np.split(product(known["x"], known["x.group_scale_factors"], "up"), 2, axis=1)
    hidden = gate / (1 + np.exp(-gate)) * up
    codes, scales = in_groups(hidden)
    return product(codes, scales[:, ::128], "down")


def in_groups(hidden: Array) -> tuple[Array, Array]:
    """The values of 8-bit elements, and each element's scale."""
    scales = (abs(hidden).reshape(len(hidden), -1, 128).max(axis=2) / 448).repeat(128, 1)
    row = Dtype.FP8_E4M3.row
    codes = row.from_bits(np, row.to_bits(np, (hidden / scales).astype(np.float32)))
    return codes.astype(np.float64), scales


@pytest.mark.parametrize("scheme", Scheme)
def test_pytorch_computes_what_the_scheme_says(op: Any, scheme: Scheme) -> None:
    given, known = tensors_of(scheme)
    form = op.form(ops_without_sizes(workload(scheme).to_json()))
    assert set(form.names) == set(given)
    assert set(form.weights) == set(given) - {"x", "up.row_scale", "x.group_scale_factors"}
    (y,) = op.call(form, given)
    wanted = expected(scheme, known)
    assert y.dtype is torch.bfloat16
    assert abs(y.to(torch.float64).numpy() - wanted).max() <= 0.02 * abs(wanted).max()
    torch.compiler.reset()  # it compiles no more than eight forms of a function
    fused = torch.compile(lambda x: op.call(form, {**given, "x": x}), backend="eager", fullgraph=True)
    assert (fused(given["x"])[0] == y).all()


@pytest.mark.parametrize(
    ("scheme", "name", "wrong", "says"),
    [
        (Scheme.INT4, "up.w", (2 * HIDDEN, K), "uint8"),
        (Scheme.W8A16, "up.channel_scale_factors", (HIDDEN,), r"up\.channel_scale_factors is \[256\]"),
        (Scheme.TENSOR, "up.output_scale_factor", (2,), r"up\.output_scale_factor is \[2\]"),
    ],
)
def test_what_is_no_operand_is_refused(op: Any, scheme: Scheme, name: str, wrong: tuple[int, ...], says: str) -> None:
    given, _ = tensors_of(scheme)
    given[name] = torch.ones(wrong)
    with pytest.raises(ValueError, match=says):
        op.call(op.form(ops_without_sizes(workload(scheme).to_json())), given)


def test_a_result_that_is_larger_than_the_largest_is_stored_as_that(op: Any) -> None:
    given, _ = tensors_of(Scheme.TENSOR)
    given["up.output_scale_factor"] = torch.tensor([1e-9])
    (y,) = op.call(op.form(ops_without_sizes(workload(Scheme.TENSOR).to_json())), given)
    assert bool(torch.isfinite(y).all())


@pytest.mark.parametrize("stored", WeightFormat)
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP16])
def test_codes_stand_for_what_numpy_says(stored: WeightFormat, dtype: Dtype) -> None:
    from tuner.runtime.pytorch.scaled import known

    rng, row = np.random.default_rng(5), stored.row
    factors = rng.uniform(0.5, 2, (16, 512 // (row.group or 512))).astype(np.float32)
    codes = row.drawn(np, rng.standard_normal((16, 512), dtype=np.float32), factors if row.group else None, dtype.row)
    element = getattr(torch, dtype.row.array_name)
    found = known(torch.from_numpy(codes.reshape(16, -1)), stored, 512, element)
    wanted = torch.from_numpy(row.known(np, codes, 512, dtype.row).astype(np.float32)).to(element)
    assert bool((found == wanted).all())
