"""Feed-forward blocks with quantised weights as clients request them: one row per scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.asked import SIZE, AskedWorkload, Example, asked_field
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.added import AddedPart
from tuner.core.problem.epilogue.scales.block_scale import BlockScale, InputScale
from tuner.core.problem.epilogue.scales.channel_scale import ChannelScale
from tuner.core.problem.epilogue.scales.group_scale import GroupScale
from tuner.core.problem.epilogue.scales.output_scale import OutputScale
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp


@dataclass(frozen=True, kw_only=True)
class SchemeRow:
    """A scheme: the dtypes and scales of its two products."""

    name: str
    #: The scheme in a few words.
    doc: str
    #: The dtype of X and H, if the request names none.
    dtype: Dtype
    #: The storage format of weights in fewer bits; None for elements.
    weights: WeightFormat | None = None
    #: Whether each row of X has a factor.
    row_scale: bool = False
    #: Parts of the first product's epilogue, and of the second one's.
    up: tuple[AddedPart, ...] = ()
    down: tuple[AddedPart, ...] = ()


class Scheme(StrEnum):
    """The scales of quantised operands."""

    row: SchemeRow

    def __new__(cls, row: SchemeRow | str) -> Scheme:
        """The member for a row; if given a name, looks up the existing member."""
        assert isinstance(row, SchemeRow), row
        member = str.__new__(cls, row.name)
        member._value_, member.row = row.name, row
        return member

    TENSOR = SchemeRow(
        name="tensor",
        doc="fp8, static scales per tensor",
        dtype=Dtype.FP8_E4M3,
        up=(ChannelScale(), OutputScale()),
        down=(ChannelScale(),),
    )
    TOKEN = SchemeRow(
        name="token",
        doc="fp8, scales per token and channel",
        dtype=Dtype.FP8_E4M3,
        row_scale=True,
        up=(ChannelScale(), OutputScale()),
        down=(ChannelScale(),),
    )
    TOKEN_GROUPS = SchemeRow(
        name="token_groups",
        doc="the same, and H with a scale per token and 128 columns, which the kernel computes",
        dtype=Dtype.FP8_E4M3,
        row_scale=True,
        up=(ChannelScale(), GroupScale()),
        down=(InputScale(), ChannelScale()),
    )
    BLOCK = SchemeRow(
        name="block",
        doc="fp8, scales per token and 128 of k, and per block of 128 x 128 weights",
        dtype=Dtype.FP8_E4M3,
        up=(BlockScale(), GroupScale()),
        down=(BlockScale(),),
    )
    W8A16 = SchemeRow(
        name="w8a16",
        doc="fp8 weights, scales per channel",
        dtype=Dtype.BF16,
        weights=WeightFormat.E4M3,
        up=(ChannelScale(),),
        down=(ChannelScale(),),
    )
    W8A16_BLOCK = SchemeRow(
        name="w8a16_block",
        doc="fp8 weights, one scale per block of 128 x 128",
        dtype=Dtype.BF16,
        weights=WeightFormat.E4M3_G128,
    )
    INT4 = SchemeRow(
        name="int4",
        doc="4-bit weights with one scale per group of 128",
        dtype=Dtype.BF16,
        weights=WeightFormat.INT4_G128,
    )
    INT4_ZP = SchemeRow(
        name="int4_zp", doc="the same with zero points", dtype=Dtype.BF16, weights=WeightFormat.INT4_G128_ZP
    )
    W4A8 = SchemeRow(
        name="w4a8",
        doc="4-bit weights with one scale per group of 128, fp8 activations with scales per token",
        dtype=Dtype.FP8_E4M3,
        weights=WeightFormat.INT4_G128_A8,
        row_scale=True,
        up=(OutputScale(),),
        down=(ChannelScale(),),
    )
    MXFP4 = SchemeRow(
        name="mxfp4",
        doc="fp4 weights with one power-of-two scale (e8m0) per group of 32",
        dtype=Dtype.BF16,
        weights=WeightFormat.MXFP4,
    )


def _width(weights: WeightFormat) -> tuple[int, bool, int]:
    """Bits of a code, whether groups have scales, and bits of elements: the other parts of a scheme depend on these."""
    return weights.row.bits, weights.row.group > 0, weights.row.element_bits


@dataclass(frozen=True, kw_only=True)
class QuantisedFfn(AskedWorkload):
    """A feed-forward block with quantised weights: Y = s2 (H W2^T), H = act(s1 X W1^T) / h, rounded.

    With 8 bits throughout, s1 [d_hidden] has one scale per row of W1, which includes the scales of X except those
    per row, which `token` passes separately. s2 [d_out] includes h, which is static. With `w4a8`, weights have scales
    per group, and s2 is h. With `token_groups`, H has
    scales along k, computed with it; with `block`, X and weights do, too. If X and H have 16 bits, there is no h;
    s1 and s2 are per channel, or weights have scales per group.
    """

    KIND: ClassVar[str] = "quantised-ffn"
    SUMMARY: ClassVar[str] = "two GEMMs of quantised weights with scales; the second reads the output of the first"
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "quantised": Example(
            "A SwiGLU feed-forward block in fp8, with dynamic scales per token",
            {"m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096, "scheme": "token"},
        )
    }

    m: int = asked_field("rows of X and Y", bounds={**SIZE, "example": 16, "label": "Rows (m), or several"})
    d_in: int = asked_field("columns of X", bounds={**SIZE, "example": 4096, "label": "d_in"})
    d_hidden: int = asked_field("columns of the intermediate", bounds={**SIZE, "example": 14336, "label": "d_hidden"})
    d_out: int = asked_field("columns of Y", bounds={**SIZE, "example": 4096, "label": "d_out"})
    scheme: Scheme = asked_field(f"which scales there are: {'; '.join(f'{one} ({one.row.doc})' for one in Scheme)}")
    activation: Activation = asked_field("applied to the first product", Activation.SILU)
    gated: bool = asked_field("whether the intermediate is act(gate) * up", True)
    out_dtype: Dtype = asked_field("element type of Y", Dtype.BF16)
    dtype: Dtype | None = asked_field("element type of X and H; null for the scheme's, fp8_e4m3 or bf16", None)
    weights: WeightFormat | None = asked_field(
        "format in which weights are stored, e.g. with other groups; null for the scheme's", None
    )

    def to_workload(self) -> Workload:
        """The two ops.

        Raises:
            InvalidInput: the scheme has no such weights.
        """
        scheme, dtype = self.scheme.row, self.dtype or self.scheme.row.dtype
        weights = self.weights or scheme.weights
        if weights and (scheme.weights is None or _width(weights) != _width(scheme.weights)):
            has = f"stores weights in {scheme.weights or dtype}"
            raise InvalidInput("weights", f"are {weights}, and scheme {self.scheme} {has}", "give another scheme")
        up = GemmOp(
            name="up",
            m=self.m,
            n=self.d_hidden,
            k=self.d_in,
            activation=self.activation,
            gated=self.gated,
            row_scale=scheme.row_scale,
            epilogue=scheme.up,
            weights=weights,
        )
        down = GemmOp(
            name="down",
            m=self.m,
            n=self.d_out,
            k=self.d_hidden,
            source="up",
            epilogue=scheme.down,
            out_dtype=None if self.out_dtype is dtype else self.out_dtype,
            weights=weights,
        )
        return Workload(kind=WorkloadKind.CHAIN, ops=(up, down), dtype=dtype)
