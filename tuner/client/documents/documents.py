"""The documents of the API for type checkers: plain dicts with these keys.

Written by ``python -m tests.house.documents``. `/openapi.json` describes each field.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from tuner.client.documents.asked import (
    Asked,
    Attention,
    AttentionHeads,
    AttentionSizes,
    Chain,
    ChainAttention,
    ChainConv,
    ChainConvPair,
    ChainOp,
    ChainPart,
    ChainPooling,
    ChainRotary,
    ConvPair,
    DecoderAttention,
    DecoderBlock,
    DecoderLayer,
    FfnPair,
    Filters,
    Gemm,
    IndependentPair,
    NetworkConvs,
    Pair,
    QuantisedFfn,
    UnknownOps,
)

__all__ = [
    "ArtifactLink",
    "Asked",
    "Attention",
    "AttentionHeads",
    "AttentionSizes",
    "BaselineTime",
    "Best",
    "Budget",
    "Candidate",
    "Chain",
    "ChainAttention",
    "ChainConv",
    "ChainConvPair",
    "ChainOp",
    "ChainPart",
    "ChainPooling",
    "ChainRotary",
    "ConvPair",
    "DecoderAttention",
    "DecoderBlock",
    "DecoderLayer",
    "Environment",
    "Failed",
    "FfnPair",
    "Filters",
    "FinalRow",
    "FinalsProcedure",
    "Forecast",
    "Gemm",
    "IndependentPair",
    "Job",
    "JobDetail",
    "LibraryCall",
    "LibraryRecipe",
    "Measured",
    "Metric",
    "NetworkConvs",
    "Objective",
    "Pair",
    "PolicyTime",
    "Prior",
    "Procedure",
    "QuantisedFfn",
    "Rejected",
    "TorchTime",
    "Trial",
    "UnknownOps",
    "Webhook",
]


class Objective(TypedDict):
    """What "fast" means for the job."""

    l2: str
    regime: str
    energy_within_percent: float | None
    torch_compile: bool


class Budget(TypedDict):
    """When the search stops."""

    trials: int
    seconds: float
    patience: int | None


class Job(TypedDict):
    """A job and its state."""

    id: str
    state: str
    reason: str
    workload: str
    pair: Pair
    target: str
    simulated: bool
    objective: Objective
    budget: Budget
    seed: int
    priors: str
    num_given: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    num_trials: int
    num_measured: int
    num_rejected: int
    num_failed: int
    best_us: float | None
    library_us: float | None
    best_speedup: float | None
    search_s: float
    eta_s: float | None
    card_share: float | None
    since_progress: int
    owners: list[str]
    priority: int
    project: str
    labels: list[str]
    deadline_at: str | None
    is_paused: bool
    links: dict[str, str]


class Forecast(TypedDict):
    """How well the simulator's forecasts ranked the job's measured fused trials."""

    num_trials: int
    rank_correlation: float | None
    regret: float | None
    reason: str


class Candidate(TypedDict):
    """The candidate of a trial."""

    plan_kind: str
    schedule: dict[str, Any] | None
    text: str
    words: list[str]


class Prior(TypedDict):
    """A prior, which the search tried early because an earlier search found it, and its result."""

    candidate: Candidate
    source: str
    workload: str
    found_us: float
    found_speedup: float
    kernel_version: str
    is_adapted: bool
    simulated: bool
    trial_number: int | None
    outcome: Literal["measured", "rejected", "failed"] | None
    time_us: float | None
    speedup: float | None


class Webhook(TypedDict):
    """The state of a job's webhook. Only the host of its address is shown; the rest is known only to its owner."""

    host: str
    state: str
    num_attempts: int
    next_at: str | None
    ended_at: str | None
    reason: str


class JobDetail(Job):
    """A job and its state, the accuracy of its forecasts, its priors, and its position in the queue."""

    forecast: Forecast
    priors_used: list[Prior]
    queue_position: int | None
    queue_eta_s: float | None
    webhooks: list[Webhook]


class Metric(TypedDict):
    """One named figure."""

    tag: str
    unit: str
    value: float


class Procedure(TypedDict):
    """How a time was measured."""

    l2: str
    regime: str
    launch: str
    chain_length: int


class Measured(TypedDict):
    """The time of a candidate with correct results."""

    kind: Literal["measured"]
    time_us: float
    library_us: float
    speedup: float
    spread: float
    rel_error: float
    samples_us: list[float]
    metrics: list[Metric]
    stage_s: dict[str, float]
    procedure: Procedure | None
    truncated: bool
    remark: str


class Rejected(TypedDict):
    """Refused before it ran, with the reason."""

    kind: Literal["rejected"]
    stage: str
    reason: str
    stage_s: dict[str, float]


class Failed(TypedDict):
    """A failure of a candidate that should have worked."""

    kind: Literal["failed"]
    stage: str
    failure: str
    reason: str
    stage_s: dict[str, float]


class Trial(TypedDict):
    """One candidate and its outcome."""

    number: int
    simulated: bool
    candidate: Candidate
    outcome: Measured | Rejected | Failed
    num_known: int
    prior: int | None
    started_at: str
    finished_at: str


class FinalsProcedure(TypedDict):
    """How the finals were run."""

    num_rounds: int
    min_tie_band: float


class FinalRow(TypedDict):
    """One finalist; a plan kind may have several."""

    candidate: Candidate
    trial_number: int
    time_us: float | None
    spread: float | None
    speedup: float | None
    speedup_ci95: list[float] | None
    energy_mj: float | None
    num_rounds: int
    num_dropped: int
    reason: str


class ArtifactLink(TypedDict):
    """The location of the kernel."""

    digest: str
    href: str


class Environment(TypedDict):
    """The machine, or the simulator, that figures come from."""

    gpu_name: str
    simulated: bool
    driver: str
    cuda: str
    clocks_mhz: dict[str, int]
    tuner_version: str
    kernel_version: str


class PolicyTime(TypedDict):
    """The time of a policy's order with the kernel of the job's best fused schedule."""

    policy: str
    forecast_us: float
    measured_us: float | None
    trial_number: int | None


class LibraryCall(TypedDict):
    """One `cublasLtMatmul`: D[rows, columns] = A^T B in column-major order, where A is the weights and B the inputs."""

    op: str
    rows: int
    columns: int
    k: int
    data_type: str
    epilogue: str
    beta: int
    algorithm: dict[str, int]
    heuristic_index: int
    workspace_bytes: int
    afterwards: str


class LibraryRecipe(TypedDict):
    """The calls of one run."""

    cublaslt_version: int
    beside: bool
    calls: list[LibraryCall]
    attention: str


class TorchTime(TypedDict):
    """PyTorch's calls on the same card, in rounds with the library."""

    time_us: float | None
    winner_speedup: float | None
    library_speedup: float | None
    num_rounds: int
    reason: str
    calls: str
    is_library: bool


class BaselineTime(TypedDict):
    """A user's own program, timed in rounds with the library and all finalists, after the finals."""

    name: str
    time_us: float | None
    speedup: float | None
    speedup_ci95: list[float] | None
    winner_speedup: float | None
    num_rounds: int
    reason: str


class Best(TypedDict):
    """The result of a job."""

    job_id: str
    workload: str
    target: str
    simulated: bool
    verdict: str
    sentence: str
    winner: str
    tie_band: float
    procedure: FinalsProcedure | None
    finals: list[FinalRow]
    winner_row: int
    energy_row: int | None
    reference_us: float
    artifact: ArtifactLink | None
    environment: Environment
    policies: list[PolicyTime]
    library: LibraryRecipe | None
    torch: TorchTime | None
    baselines: list[BaselineTime]
