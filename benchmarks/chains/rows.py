"""The measured chains, as data: models, numbers of rows, and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.errors import InvalidInput
from tuner.ops.gemm.asked import DecoderBlock
from tuner.ops.gemm.op import GemmOp

DECODE_MS, OTHER_MS = (1, 16, 64), (128, 512)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Widths of a decoder layer on one card."""

    #: Columns that o_proj reads.
    heads: int
    #: Width of the residual stream.
    width: int
    #: Width of the gate, and of the up projection.
    hidden: int
    #: Columns of the next layer's q, k and v together, and of k alone (v has as many as k).
    qkv: int
    k: int
    #: The epsilon that norms add to the mean of squares.
    eps: float = 1e-5
    #: Whether q, k and v have a bias.
    bias: bool = False


#: A shard of a model has an all-reduce after o_proj and after down; its four ops are measured as a chain without the
#: all-reduces.
LAYERS = {
    "llama3-8b": Layer(heads=4096, width=4096, hidden=14336, qkv=6144, k=1024),
    "llama3-70b-tp8-synthetic": Layer(heads=1024, width=8192, hidden=3584, qkv=1280, k=128),
    "qwen2.5-7b": Layer(heads=3584, width=3584, hidden=18944, qkv=4608, k=512, eps=1e-6, bias=True),
}
#: Between two all-reduces: norm, gate and up projection, down.
RUNS = {"llama3-70b-tp8-run": LAYERS["llama3-70b-tp8-synthetic"]}
#: Products that read one normalized input, and that a model keeps separate.
UNMERGED = {"llama3-8b": LAYERS["llama3-8b"], "llama3-70b-tp8": LAYERS["llama3-70b-tp8-synthetic"]}
#: Whole chains of a model with weights of fewer bits: their dtype, and the format of weights that are converted.
STORED: dict[str, tuple[Dtype, WeightFormat | None]] = {
    "int4": (Dtype.BF16, WeightFormat.INT4_G128),
    "w8a16": (Dtype.BF16, WeightFormat.E4M3),
    "token": (Dtype.FP8_E4M3, None),
    "w4a8": (Dtype.FP8_E4M3, WeightFormat.INT4_G128_A8),
    "w8a16-block": (Dtype.BF16, WeightFormat.E4M3_G128),
    "block": (Dtype.FP8_E4M3, WeightFormat.E4M3_G128),
}
_STORED_MODEL = "llama3-8b"


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The targets of a chain; None where there is no target."""

    #: Geometric mean over `DECODE_MS` of the library's time divided by the verdict's, and the minimum for each of these
    #: rows.
    mean: float | None = None
    each: float | None = None
    #: Maximum of our best time divided by the reference, by number of rows.
    over_reference: dict[int, float] = field(default_factory=dict)


BARS = {
    "llama3-8b": Bars(mean=1.15, each=1.07, over_reference={1: 1.10, 16: 1.10, 64: 1.15}),
    "llama3-70b-tp8-synthetic": Bars(mean=1.26, each=1.22, over_reference={1: 1.18, 16: 1.18, 64: 1.25}),
    "llama3-70b-tp8-run": Bars(mean=1.20, over_reference={1: 1.12, 16: 1.12, 64: 1.12}),
    "qwen2.5-7b": Bars(mean=1.13, over_reference={1: 1.12, 16: 1.12, 64: 1.12}),
}
#: Their peers are kernels that multiply such weights; a job's library cannot.
BARS |= {f"{_STORED_MODEL}-{name}": Bars() for name in STORED}
BARS |= {f"{model}-{products}": Bars() for model in UNMERGED for products in ("q-k-v", "gate-up")}
#: The target for every row with more rows than `DECODE_MS`.
EACH_OTHER = 0.99


@dataclass(frozen=True, kw_only=True)
class ChainRow:
    """One chain at one number of rows."""

    chain: str
    m: int
    workload: Workload = field(repr=False)

    @property
    def name(self) -> str:
        """e.g. ``llama3-8b/m16``."""
        return f"{self.chain}/m{self.m}"

    @property
    def problem(self) -> Problem:
        """The problem with cold caches, in burst."""
        return Problem(workload=self.workload, objective=Objective(l2=CacheState.COLD, regime=Regime.BURST), seed=1)


def block(layer: Layer, m: int) -> Workload:
    """o_proj and its residual, norm, gate and up projection, down and its residual, norm, the next layer's qkv."""
    ops = (
        GemmOp(name="o", m=m, n=layer.width, k=layer.heads, source="attention", residual=True),
        _hidden_op(layer, m, "o"),
        GemmOp(
            name="down",
            m=m,
            n=layer.width,
            k=layer.hidden,
            source="gate_up",
            residual=True,
            residual_source="o",
            is_output=True,
        ),
        GemmOp(name="qkv", m=m, n=layer.qkv, k=layer.width, source="down", norm="down", eps=layer.eps, bias=layer.bias),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=Dtype.FP16)


def stored_block(m: int, dtype: Dtype, weights: WeightFormat | None) -> Workload:
    """Same as `block`, with weights of fewer bits."""
    return DecoderBlock(model=_STORED_MODEL, m=m, dtype=dtype, weights=weights).to_workload()


def run_of(layer: Layer, m: int) -> Workload:
    """Norm, gate and up projection, down."""
    down = GemmOp(name="down", m=m, n=layer.width, k=layer.hidden, source="gate_up")
    return Workload(kind=WorkloadKind.CHAIN, ops=(_hidden_op(layer, m, "r"), down), dtype=Dtype.FP16)


def q_k_v_of(layer: Layer, m: int) -> Workload:
    """Norm, then q, k and v side by side."""
    columns = {"q": layer.qkv - 2 * layer.k, "k": layer.k, "v": layer.k}
    return _of_one_input([_normed_op(layer, m, name, n) for name, n in columns.items()])


def unmerged_hidden_of(layer: Layer, m: int) -> Workload:
    """Norm, then the activated gate and the up projection side by side; the chain does not multiply them."""
    first, second = (_normed_op(layer, m, name, layer.hidden) for name in ("gate", "up"))
    return _of_one_input([replace(first, activation=Activation.SILU), second])


def _of_one_input(ops: Sequence[GemmOp]) -> Workload:
    return Workload(kind=WorkloadKind.CHAIN, ops=tuple(ops), dtype=Dtype.FP16)


def _normed_op(layer: Layer, m: int, name: str, n: int) -> GemmOp:
    return GemmOp(name=name, m=m, n=n, k=layer.width, source="r", norm="r", eps=layer.eps)


def _hidden_op(layer: Layer, m: int, source: str) -> GemmOp:
    return GemmOp(
        name="gate_up",
        m=m,
        n=layer.hidden,
        k=layer.width,
        source=source,
        norm=source,
        eps=layer.eps,
        activation=Activation.SILU,
        gated=True,
    )


def _rows(layers: Mapping[str, Layer], make: Callable[[Layer, int], Workload], ms: Sequence[int]) -> list[ChainRow]:
    return [ChainRow(chain=chain, m=m, workload=make(layer, m)) for m in ms for chain, layer in layers.items()]


ROWS = (
    *(
        row
        for m in (*DECODE_MS, *OTHER_MS)
        for layers, make in ((LAYERS, block), (RUNS, run_of))
        for row in _rows(layers, make, [m])
    ),
    *_rows({f"{model}-q-k-v": layer for model, layer in UNMERGED.items()}, q_k_v_of, DECODE_MS),
    *_rows({f"{model}-gate-up": layer for model, layer in UNMERGED.items()}, unmerged_hidden_of, DECODE_MS),
    *(
        ChainRow(chain=f"{_STORED_MODEL}-{name}", m=m, workload=stored_block(m, *stored))
        for name, stored in STORED.items()
        for m in DECODE_MS
    ),
)


def choose_rows(names: Sequence[str] = ()) -> tuple[ChainRow, ...]:
    """The rows with the given names (a row's, a chain's or ``m16``), in the order of the names; all if none is given.

    Raises:
        InvalidInput: there is no such row.
    """
    if not names:
        return ROWS
    chosen = tuple(dict.fromkeys(row for name in names for row in ROWS if name in (row.name, row.chain, f"m{row.m}")))
    if not chosen:
        remedy = f"rows have names like {ROWS[0].name}, {ROWS[0].chain} or m{ROWS[0].m}"
        raise InvalidInput("row", f"no row is called {' '.join(names)}", remedy)
    return chosen
