"""Quantised weights laid out by PyTorch where they are, on the card. The host takes a minute of CPU time for 6 billion.

These functions know the usual tensors only, and return None for all others: `tuner.runtime.checkpoints` reads those on
the host, or says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tuner.core.problem.quantisation import stored_as
from tuner.core.problem.quantisation.methods import method_of
from tuner.core.problem.weights import WeightRow
from tuner.core.problem.weights.row import Sixteen

from ..linear import DTYPES

#: Words of GPTQ's zero points that all stand for 8: its format stores them minus one, `gptq_v2` as they are.
_ZEROS = {False: 0x77777777, True: 0x88888888 - (1 << 32)}
_NAN = 0x7F
#: The lowest bit of each of eight rows in a word of AWQ.
_AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A product's weights on the card."""

    #: uint8 [rows, bytes]: codes in the order of k, lowest bits first.
    codes: torch.Tensor
    #: [rows, k / group], of the workload's element type; None without groups.
    factors: torch.Tensor | None = None
    #: float32 [rows]; None without scales per channel.
    channels: torch.Tensor | None = None
    #: int16 [rows, k / group], as `WeightRow.raised` returns them; None without zero points.
    zeros: torch.Tensor | None = None


def laid_out(layer: Any, module: str, config: Mapping[str, Any], wanted: Mapping[str, Any]) -> Any:
    """Weights in the layout of a kernel's tensor `wanted`, and the scales of their channels, if any; None if the host
    must read them. `module` is the name of the layer in the config."""
    stored = stored_as(config, module)
    if stored is None or not wanted.get("stored"):
        return None
    row = stored.weights.row
    names, reader = _READERS.get((method_of(config), row.element is not None), ((), None))
    if reader is None or any(getattr(layer, name, None) is None for name in names):
        return None
    if row.has_powers or row.has_float_factors or row.element_bits != 16 or row.has_zeros != (reader is _of_awq):
        return None
    if (read := reader(layer, config, row)) is None or not _are_positive(read.factors, read.channels):
        return None
    rows, num_bytes = read.codes.shape
    dtype = "" if read.factors is None else str(DTYPES[str(read.factors.dtype).removeprefix("torch.")])
    has = {**row.about(num_bytes * 8 // row.bits, dtype), "rows": rows}
    if {**wanted["stored"], "rows": wanted["shape"][0]} != has:
        return None
    return packed(row, read.codes, read.factors, read.zeros), read.channels


def packed(
    row: WeightRow, codes: torch.Tensor, factors: torch.Tensor | None = None, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """Same as `WeightRow.packed`, from uint8 [rows, bytes] with codes in the order of k, lowest bits first, and factors
    as elements."""
    rows = codes.shape[0]
    tables = _tables(row, codes.device)
    # Both codes of a pair are looked up together.
    numbers = codes if 2 * row.bits <= 8 else codes.view(torch.int16)
    numbers = numbers.reshape(rows, -1, len(tables), row.chunk // 2 // len(tables))
    words = torch.zeros_like(numbers[:, :, 0], dtype=torch.int32)
    for place, table in enumerate(tables):
        words |= table[numbers[:, :, place].int() & len(table) - 1]
    found = words.reshape(-1).view(torch.uint8)
    lists = [one.view(torch.int16) for one in (factors, zeros) if one is not None]
    if lists:
        bundles = [one.reshape(rows, -1, row.bundle // row.group).transpose(0, 1) for one in lists]
        found = torch.cat([found, torch.stack(bundles, dim=1).reshape(-1).view(torch.uint8)])
    return found.view(rows, -1)


@cache
def _tables(row: WeightRow, device: torch.device) -> list[torch.Tensor]:
    """For each pair of columns of a word, the bits that stand for each pair of codes."""
    return [torch.tensor(one, dtype=torch.int64).to(torch.int32).to(device) for one in row.pair_places]


def _are_positive(*given: torch.Tensor | None) -> bool:
    return all(bool((one.isfinite() & (one > 0)).all()) for one in given if one is not None)


def _of_gptq(layer: Any, config: Mapping[str, Any], row: WeightRow) -> _Read | None:
    """qweight int32 [k / 8, rows], scales [k / group, rows]."""
    words, scales, order = layer.qweight.data, layer.scales.data, layer.g_idx.data
    groups = torch.arange(8 * len(words), device=order.device, dtype=order.dtype) // row.group
    if order.numel() and not torch.equal(order, groups):
        return None
    if bool((layer.qzeros.data != _ZEROS[config.get("checkpoint_format") == "gptq_v2"]).any()):
        return None
    return _of_words(words.T.contiguous(), scales.T.contiguous(), row)


def _of_packed(layer: Any, config: Mapping[str, Any], row: WeightRow) -> _Read | None:
    """weight_packed int32 [rows, k / 8], weight_scale [rows, k / group]."""
    if getattr(layer, "weight_g_idx", None) is not None:
        return None
    return _of_words(layer.weight_packed.data.contiguous(), layer.weight_scale.data.contiguous(), row)


def _of_awq(layer: Any, config: Mapping[str, Any], row: WeightRow) -> _Read | None:
    """qweight int32 [k, rows / 8], scales [k / group, rows], qzeros int32 [k / group, rows / 8]."""
    k, scales = len(layer.qweight), layer.scales.data
    dtype = DTYPES.get(str(scales.dtype).removeprefix("torch."))
    if dtype is None or k % row.unit or len(scales) != k // row.group:
        return None
    codes, zeros = _by_row(layer.qweight.data), _by_row(layer.qzeros.data)
    return _Read(
        codes=codes[:, 0::2] | codes[:, 1::2] << 4,
        factors=scales.T.contiguous(),
        zeros=zeros.to(torch.int16) + Sixteen.of(dtype.row).counting,
    )


def _by_row(words: torch.Tensor) -> torch.Tensor:
    """uint8 [rows, lines] from AWQ's words [lines, rows / 8]."""
    rows = torch.stack([(words >> shift & 0xF).to(torch.uint8) for shift in _AWQ_SHIFTS], dim=2)
    return rows.view(len(words), -1).T.contiguous()


def _of_words(words: torch.Tensor, scales: torch.Tensor, row: WeightRow) -> _Read | None:
    """Words with eight codes of k each, lowest bits first."""
    rows, columns = words.shape
    is_known = words.dtype == torch.int32 and str(scales.dtype).removeprefix("torch.") in DTYPES
    if not is_known or 8 * columns % row.unit or scales.shape != (rows, 8 * columns // row.group):
        return None
    return _Read(codes=words.view(torch.uint8), factors=scales)


def _of_e4m3(layer: Any, config: Mapping[str, Any], row: WeightRow) -> _Read | None:
    """weight float8_e4m3fn [rows, k], weight_scale for each row, or one for each merged layer."""
    weight, scales = layer.weight.data, layer.weight_scale.data.float().reshape(-1)
    widths = torch.tensor(getattr(layer, "logical_widths", None) or [len(weight)], device=scales.device)
    if len(scales) == len(widths):
        scales = scales.repeat_interleave(widths)
    if weight.dtype != torch.float8_e4m3fn or row.group or weight.shape[1] % row.unit or len(scales) != len(weight):
        return None
    codes = weight.contiguous().view(torch.uint8)
    return None if bool((codes & _NAN == _NAN).any()) else _Read(codes=codes, channels=scales)


_Reader = Callable[[Any, Mapping[str, Any], WeightRow], _Read | None]
#: By method, and whether codes are elements of a type: the tensors that a layer must have, and what reads them.
_READERS: dict[tuple[str, bool], tuple[tuple[str, ...], _Reader]] = {
    ("gptq", False): (("qweight", "scales", "qzeros", "g_idx"), _of_gptq),
    ("awq", False): (("qweight", "scales", "qzeros"), _of_awq),
    ("compressed-tensors", False): (("weight_packed", "weight_scale"), _of_packed),
    ("compressed-tensors", True): (("weight", "weight_scale"), _of_e4m3),
}
