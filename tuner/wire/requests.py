"""What a client may ask: strict models with bounds, and their way into the domain."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tuner.core.problem.workload import (
    Activation,
    Dtype,
    Workload,
    WorkloadKind,
    ffn_pair,
    independent_pair,
)
from tuner.core.trial.job import (
    MAX_LABELS,
    MAX_PRIORITY,
    Budget,
    JobSpec,
    JobTerms,
    PriorsChoice,
)
from tuner.errors import InvalidInput
from tuner.ops.attention.requests import Attention, DecoderAttention, DecoderLayer
from tuner.wire.chains import Chain, DecoderBlock
from tuner.wire.fields import ActivationName, DtypeName, Size, Strict
from tuner.wire.searches import (
    MAX_SECONDS,
    BudgetRequest,
    ObjectiveRequest,
    objective_of,
)
from tuner.wire.sizes import check_size

#: Seeds stay within what every random generator takes.
MAX_SEED = 2**31 - 1

#: Of one line, in anybody's words: a database that takes no NUL must take it, too.
_LINE = r"^[^\x00-\x1f\x7f]*$"
Label = Annotated[str, Field(min_length=1, max_length=64, pattern=_LINE)]
Project = Annotated[str, Field(max_length=64, pattern=_LINE, description="what it belongs to, in your own words")]
PriorsName = Annotated[
    PriorsChoice,
    Field(
        strict=False,
        description="`nearest`: the search begins with what was found for the nearest shapes on the same GPU model; "
        "`none`: it knows of no earlier one",
    ),
]
TargetId = Annotated[
    str, Field(min_length=1, max_length=100, description="a target's id, e.g. `h200` or `simulated:h200`")
]


#: Fields of an ffn pair beside its kind and dtype: those that must be given, and those with a default.
FFN_SIZES = ("m", "d_in", "d_hidden", "d_out")
FFN_OPTIONS = ("activation", "bias", "gated", "residual", "row_scale")


class FfnPair(Strict):
    """Y[m, d_out] = act(s[m] X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R[m, d_out].

    Gated, W1 is [2 d_hidden, d_in], a gate above an up projection, and the intermediate is act(gate) * up.
    """

    kind: Literal["ffn"] = Field(description="two GEMMs, the second reads the first one's output")
    m: Size = Field(description="rows of X and Y")
    d_in: Size = Field(description="columns of X")
    d_hidden: Size = Field(description="columns of the intermediate")
    d_out: Size = Field(description="columns of Y")
    dtype: DtypeName = Dtype.FP16
    activation: ActivationName = Activation.IDENTITY
    bias: bool = Field(default=False, description="whether both products add a bias vector")
    gated: bool = Field(
        default=False,
        description="whether W1 holds a gate above an up projection and the intermediate is act(gate) * up: "
        "SwiGLU with silu, GeGLU with gelu",
    )
    residual: bool = Field(default=False, description="whether R [m, d_out] is added to the second product")
    row_scale: bool = Field(
        default=False,
        description="whether row i of the first product is multiplied by s[i], fp32: RMSNorm, its weight in W1",
    )

    def to_workload(self) -> Workload:
        """The two ops."""
        return ffn_pair(**self.model_dump(exclude={"kind"}))

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Inverse of `to_workload`."""
        up, down = workload.tile_ops
        return cls(
            kind="ffn",
            m=up.m,
            d_in=up.k,
            d_hidden=up.n,
            d_out=down.n,
            dtype=workload.dtype,
            activation=up.activation,
            bias=up.bias,
            gated=up.gated,
            residual=down.residual,
            row_scale=up.row_scale,
        )


class Gemm(Strict):
    """C[m, n] = A[m, k] W[n, k]^T."""

    m: Size = Field(description="rows of A and C")
    n: Size = Field(description="rows of W, columns of C")
    k: Size = Field(description="columns of A and W")


class IndependentPair(Strict):
    """Two GEMMs that share nothing."""

    kind: Literal["independent"] = Field(description="two GEMMs that share nothing")
    first: Gemm
    second: Gemm
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """The two ops."""
        first, second = ((gemm.m, gemm.n, gemm.k) for gemm in (self.first, self.second))
        return independent_pair(first, second, dtype=self.dtype)

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Inverse of `to_workload`."""
        first, second = (Gemm(m=op.m, n=op.n, k=op.k) for op in workload.tile_ops)
        return cls(kind="independent", first=first, second=second, dtype=workload.dtype)


Pair = Annotated[
    FfnPair | IndependentPair | Chain, Field(discriminator="kind", description="the ops; a preset, expanded")
]
AnyPair = FfnPair | IndependentPair | Chain | DecoderBlock | Attention | DecoderAttention | DecoderLayer
Asked = Annotated[AnyPair, Field(discriminator="kind", description="the ops to tune")]


def workload_of(pair: AnyPair) -> Workload:
    """The domain's view of a pair, or of a chain.

    Raises:
        InvalidInput: a matrix overflows a 32-bit index, or a chain's ops do not fit together.
    """
    try:
        return pair.to_workload()
    except InvalidInput as error:
        if not isinstance(pair, FfnPair | IndependentPair):
            # The client names the tensor that is added in the field that says whether one is.
            field = error.field.replace(".residual_source", ".residual")
            raise InvalidInput(f"pair.{field}", error.problem, error.remedy) from error
        # The domain names an op's matrix, the client knows the pair.
        raise InvalidInput("pair", f"{error.field}: {error.problem}", error.remedy) from error


class UnknownOps(Strict):
    """Ops of a job, of which one is of a kind that this server does not know: it keeps them, and cannot run them."""

    kind: Literal["unknown"] = Field(description="an op's kind is not known here")
    unknown_kinds: list[str] = Field(description="the kinds: install the packages that bring them")
    ops: list[dict[str, Any]] = Field(description="as the server that took the job kept them")
    dtype: DtypeName

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """What is kept of them."""
        kinds = list(workload.unknown_kinds)
        return cls(kind="unknown", unknown_kinds=kinds, ops=workload.to_json()["ops"], dtype=workload.dtype)


AnyKept = Annotated[
    FfnPair | IndependentPair | Chain | UnknownOps,
    Field(discriminator="kind", description="the ops; a preset, expanded"),
]


def pair_of(workload: Workload) -> FfnPair | IndependentPair | Chain | UnknownOps:
    """Inverse of `workload_of`, but that a preset has become its chain."""
    if workload.unknown_kinds:
        return UnknownOps.from_workload(workload)
    forms = {WorkloadKind.FFN: FfnPair, WorkloadKind.INDEPENDENT: IndependentPair, WorkloadKind.CHAIN: Chain}
    form: type[FfnPair] | type[IndependentPair] | type[Chain] = forms[workload.kind]  # type: ignore[assignment]
    return form.from_workload(workload)


LLAMA_FFN = {"kind": "ffn", "m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096, "dtype": "fp16"}
EXAMPLES: dict[str, Any] = {
    "smallest": {"summary": "Only the pair: everything else has a default", "value": {"pair": LLAMA_FFN}},
    "all_fields": {
        "summary": "A feed-forward block with SiLU, every field given",
        "value": {
            "pair": {**LLAMA_FFN, **dict.fromkeys(FFN_OPTIONS, False), "activation": "silu"},
            "target": "simulated:h200",
            "objective": {"l2": "cold", "regime": "burst"},
            "budget": {"trials": 60, "seconds": 600, "patience": 30},
            "seed": 0,
            "priors": "nearest",
            "reuse": True,
            "priority": -1,
            "project": "llama",
            "labels": ["nightly"],
            "deadline_s": 3600,
            "webhook": "https://ci.example/hooks/tuner",
        },
    },
    "gated": {
        "summary": "A SwiGLU feed-forward block behind RMSNorm, with its residual",
        "value": {"pair": {**LLAMA_FFN, "activation": "silu", "gated": True, "residual": True, "row_scale": True}},
    },
    "independent": {
        "summary": "Two GEMMs that share nothing",
        "value": {
            "pair": {
                "kind": "independent",
                "first": {"m": 512, "n": 4096, "k": 4096},
                "second": {"m": 512, "n": 1024, "k": 4096},
                "dtype": "bf16",
            },
            "budget": {"trials": 40},
        },
    },
    "chain": {
        "summary": "Three GEMMs: the second adds what the first wrote, the third norms that",
        "value": {
            "pair": {
                "kind": "chain",
                "m": 16,
                "ops": [
                    {"name": "o_proj", "source": "attention", "n": 2048, "k": 2048, "residual": "stream"},
                    {"name": "up", "source": "o_proj", "norm": "o_proj", "n": 8192, "k": 2048, "activation": "silu"},
                    {"name": "down", "source": "up", "n": 2048, "k": 8192, "residual": "o_proj"},
                ],
            },
        },
    },
    "attention": {
        "summary": "Decode attention of a model's layer, and o_proj behind it",
        "value": {
            "pair": {
                "kind": "decoder-attention",
                "model": "llama3-8b",
                "sequences": 16,
                "max_length": 2048,
                "dtype": "bf16",
            }
        },
    },
    "decoder_layer": {
        "summary": "A decode step of a model's layer, from its attention on",
        "value": {
            "pair": {
                "kind": "decoder-layer",
                "model": "llama3-8b",
                "sequences": 1,
                "max_length": 2048,
                "dtype": "bf16",
            }
        },
    },
    "rank_of_a_layer": {
        "summary": "A rank's run between two all-reduces: norm, qkv, attention and o_proj",
        "value": {
            "pair": {
                "kind": "decoder-layer",
                "model": "llama3-70b",
                "tp": 8,
                "run": "qkv_attention",
                "sequences": 1,
                "max_length": 2048,
                "dtype": "bf16",
            }
        },
    },
    "decoder_block": {
        "summary": "What lies between two attentions of a model's layer",
        "value": {"pair": {"kind": "decoder-block", "model": "llama3-8b", "m": 16}},
    },
}


class TuneRequest(Strict):
    """The body of `POST /jobs`."""

    pair: Asked
    target: TargetId | None = Field(default=None, description="by default the server's own")
    objective: ObjectiveRequest = ObjectiveRequest()
    budget: BudgetRequest = BudgetRequest()
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="of the sampler, the inputs and the simulated noise")
    priors: PriorsName = PriorsChoice.NEAREST
    reuse: bool = Field(
        default=False, description="answer with the best finished job of the same problem, if there is one"
    )
    priority: int = Field(
        default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="the higher goes first; above 0 only for admins"
    )
    project: Project = ""
    labels: list[Label] = Field(default=[], max_length=MAX_LABELS, description="words by which it is found again")
    deadline_s: float | None = Field(
        default=None, gt=0, le=MAX_SECONDS, description="seconds until its search must end; finals not counted"
    )
    webhook: str | None = Field(
        default=None, min_length=1, max_length=500, description="address that is told of its end, of an allowed host"
    )

    @property
    def terms(self) -> JobTerms:
        """How the job is to be treated."""
        return JobTerms(
            priority=self.priority,
            project=self.project,
            labels=tuple(self.labels),
            deadline_s=self.deadline_s,
            webhook=self.webhook,
        )

    def to_spec(self, default_target_id: str | None) -> JobSpec:
        """The job that is asked for.

        Raises:
            InvalidInput: the pair is not well formed, or too large; or no target is given and the server has none.
        """
        target_id = self.target or default_target_id
        if target_id is None:
            raise InvalidInput("target", "is missing, and this server has none of its own", "give one, e.g. `h200`")
        workload = workload_of(self.pair)
        check_size("pair", self.pair, workload, target_id)
        return JobSpec(
            workload=workload,
            target_id=target_id,
            objective=objective_of(self.objective, workload),
            budget=Budget(**self.budget.model_dump()),
            seed=self.seed,
            priors=self.priors,
            energy_within_percent=self.objective.energy_within_percent,
            torch_compile=self.objective.torch_compile,
        )

    @property
    def digest(self) -> str:
        """sha256 of the canonical body, hex: two bodies that ask the same have the same. What came later is left out
        while it has its default, so that a body that was sent to an older version keeps its digest."""
        body = self.model_dump(mode="json")
        if self.priors is PriorsChoice.NEAREST:
            del body["priors"]
        if self.objective.energy_within_percent is None:
            del body["objective"]["energy_within_percent"]
        if not self.objective.torch_compile:
            del body["objective"]["torch_compile"]
        if self.budget.patience is None:
            del body["budget"]["patience"]
        for name in ("priority", "project", "labels", "deadline_s", "webhook"):
            if body[name] == type(self).model_fields[name].default:
                del body[name]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
