"""The query of `GET /best`: which result is asked for, spelled as parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tuner.core.problem.presets import LayerRun, Run
from tuner.core.problem.workload import MAX_ELEMENTS, Activation, Dtype, Workload
from tuner.core.trial.job import CacheState, Regime
from tuner.core.trial.questions import DEFAULT_MAX_DISTANCE, Machine, Question
from tuner.core.trial.records import MatchKind
from tuner.errors import InvalidInput
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.requests import Attention, Count, DecoderAttention, DecoderLayer
from tuner.wire.chains import DecoderBlock
from tuner.wire.fields import Size
from tuner.wire.requests import (
    FFN_OPTIONS,
    FFN_SIZES,
    FfnPair,
    Gemm,
    IndependentPair,
    TargetId,
    workload_of,
)
from tuner.wire.searches import objective_for

#: Further than any two shapes are apart.
MAX_DISTANCE = 6 * 31.0
Fact = Annotated[str, Field(min_length=1, max_length=100)]
MatchName = Annotated[MatchKind, Field(description="the weakest match that may answer")]
Sizes = Annotated[
    str, Field(pattern=r"^\d{1,10},\d{1,10},\d{1,10}$", description="m,n,k of an independent pair's GEMM")
]


#: What an attention's cache and scores may be.
_FORM = ("page_tokens", "heads_first", "window", "soft_cap")
#: Parameters of `GET /best` by kind: those that must be given, and those with a default.
_PARAMETERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ffn": (FFN_SIZES, FFN_OPTIONS),
    "independent": (("first", "second"), ()),
    "decoder-block": (("model", "m"), ("tp", "run")),
    "attention": (("sequences", "max_length", "heads", "kv_heads", "head_dim"),
                  ("new_tokens", "lengths", "scale", "d_out", *_FORM)),
    "decoder-attention": (("model", "sequences", "max_length"), ("tp", "new_tokens", "lengths", "projection", *_FORM)),
    "decoder-layer": (("model", "sequences", "max_length"), ("tp", "new_tokens", "lengths", "run", "rotary", *_FORM)),
}  # fmt: skip


class BestQuery(BaseModel):
    """The query of `GET /best`: a pair, a model's block or an attention, spelled as parameters, and a target."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["ffn", "independent", "decoder-block", "attention", "decoder-attention", "decoder-layer"] = Field(
        default="ffn", description="which parameters spell the pair, or the block"
    )
    m: Size | None = Field(default=None, description="ffn: rows of X and Y; decoder-block: tokens of a step")
    d_in: Size | None = Field(default=None, description="ffn: columns of X")
    d_hidden: Size | None = Field(default=None, description="ffn: columns of the intermediate")
    d_out: Size | None = Field(default=None, description="ffn: columns of Y")
    activation: Activation | None = Field(default=None, description="ffn: identity unless given")
    bias: bool | None = Field(default=None, description="ffn: false unless given")
    gated: bool | None = Field(default=None, description="ffn: false unless given")
    residual: bool | None = Field(default=None, description="ffn: false unless given")
    row_scale: bool | None = Field(default=None, description="ffn: false unless given")
    first: Sizes | None = None
    second: Sizes | None = None
    model: Fact | None = Field(default=None, description="decoder-block: e.g. `llama3-8b`")
    tp: int | None = Field(default=None, ge=1, le=64, description="decoder-block: ranks that share the layer; 1")
    run: Run | LayerRun | None = Field(
        default=None, description="decoder-block and decoder-layer: the whole one unless given"
    )
    sequences: Count | None = Field(default=None, description="attention: sequences of a launch")
    max_length: Count | None = Field(default=None, description="attention: tokens of the longest context")
    new_tokens: Count | None = Field(default=None, description="attention: of each sequence, 1 unless given")
    lengths: Lengths | None = Field(default=None, description="attention: at which it was timed, `full` unless given")
    heads: Count | None = Field(default=None, description="attention: query heads")
    kv_heads: Count | None = Field(default=None, description="attention: heads of the cache")
    head_dim: Count | None = Field(default=None, description="attention: elements of a head")
    scale: float | None = Field(default=None, description="attention: of the scores; 1 / sqrt(head_dim) unless given")
    page_tokens: Count | None = Field(default=None, description="attention: of a page; contiguous unless given")
    heads_first: bool | None = Field(default=None, description="attention: of a page; true unless given")
    window: Count | None = Field(default=None, description="attention: tokens that a query sees; all unless given")
    soft_cap: float | None = Field(default=None, description="attention: of the scores; none unless given")
    projection: bool | None = Field(default=None, description="decoder-attention: o_proj behind it, unless false")
    rotary: bool | None = Field(default=None, description="decoder-layer: qkv writes to the cache, unless false")
    dtype: Dtype = Field(default=Dtype.FP16, description="element type of every tensor")
    target: TargetId | None = Field(default=None, description="by default the server's own")
    l2: CacheState = Field(default=CacheState.COLD, description="what the L2 holds when a sample starts")
    regime: Regime | None = Field(default=None, description="by default sustained from 256 rows on")
    match: MatchName = MatchKind.EXACT
    max_distance: float = Field(
        default=DEFAULT_MAX_DISTANCE,
        ge=0,
        le=MAX_DISTANCE,
        description="how far the shape of a weaker match may be: the factors between m, n and k of both products, in "
        "powers of two, summed",
    )
    gpu_name: Fact | None = Field(default=None, description="the GPU that will run the kernel, e.g. `NVIDIA H200`")
    driver: Fact | None = Field(default=None, description="its driver")
    cuda: Fact | None = Field(default=None, description="its CUDA version")
    kernel_version: Fact | None = Field(default=None, description="the digest of the kernel sources that is wanted")

    def to_question(self, default_target_id: str | None) -> Question:
        """What is asked for.

        Raises:
            InvalidInput: a parameter of the pair is wrong, or no target is given and the server has none.
        """
        target_id = self.target or default_target_id
        if target_id is None:
            raise InvalidInput("target", "is missing, and this server has none of its own", "give one, e.g. `h200`")
        workload = self.to_workload()
        return Question(
            workload=workload,
            target_id=target_id,
            objective=objective_for(self.l2, self.regime, workload),
            machine=Machine(
                gpu_name=self.gpu_name, driver=self.driver, cuda=self.cuda, kernel_version=self.kernel_version
            ),
            match=self.match,
            max_distance=self.max_distance,
        )

    def to_workload(self) -> Workload:
        """The pair that is asked for.

        Raises:
            InvalidInput: a parameter of the pair is missing, or belongs to the other kind.
        """
        needed, optional = _PARAMETERS[self.kind]
        others = {name for names in _PARAMETERS.values() for of_kind in names for name in of_kind}
        for name in needed:
            if getattr(self, name) is None:
                raise InvalidInput(name, f"is missing: a pair of kind {self.kind} needs it", f"add `{name}=…`")
        for name in sorted(others.difference(needed, optional)):
            if getattr(self, name) is not None:
                raise InvalidInput(name, f"does not belong to a pair of kind {self.kind}", "remove it")
        given: dict[str, Any] = {
            name: value for name in (*needed, *optional) if (value := getattr(self, name)) is not None
        }
        if self.kind == "ffn":
            return workload_of(FfnPair(kind="ffn", dtype=self.dtype, **given))
        if self.kind == "decoder-block":
            return workload_of(DecoderBlock(kind="decoder-block", dtype=self.dtype, **given))
        if self.kind == "attention":
            return workload_of(Attention(kind="attention", dtype=self.dtype, **given))
        if self.kind == "decoder-attention":
            return workload_of(DecoderAttention(kind="decoder-attention", dtype=self.dtype, **given))
        if self.kind == "decoder-layer":
            return workload_of(DecoderLayer(kind="decoder-layer", dtype=self.dtype, **given))
        first, second = (_gemm(name, text) for name, text in given.items())
        return workload_of(IndependentPair(kind="independent", first=first, second=second, dtype=self.dtype))


def _gemm(name: str, text: str) -> Gemm:
    """`16,4096,4096` as a GEMM."""
    sizes = [int(size) for size in text.split(",")]
    if not all(1 <= size <= MAX_ELEMENTS for size in sizes):
        raise InvalidInput(name, f"sizes must be 1 to {MAX_ELEMENTS}, got {text}", "give three sizes as m,n,k")
    return Gemm(m=sizes[0], n=sizes[1], k=sizes[2])
