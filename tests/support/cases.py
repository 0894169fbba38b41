"""Random workloads, tilings, orderings and GPUs, small enough to run and unusual enough to find faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tuner.core.legal.ordering_rules import RUN_AHEADS
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Activation, Workload, WorkloadKind
from tuner.core.schedule.ordering import (
    ASSIGNMENTS,
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

H200 = CATALOGUE["h200"]
#: Resources of which two CTAs fit on an SM of any GPU.
SMALL = Resources(num_threads=128, smem_bytes=16384, registers_per_thread=64)


def small_gpu(num_sms: int) -> Gpu:
    """An H200 with fewer SMs."""
    return replace(H200, num_sms=num_sms)


def tiling(
    *tiles: tuple[int, int], num_stages: int = 2, num_warps: int = 4, k: int = 32, split: tuple[int, ...] = ()
) -> Tiling:
    """A tiling with the given (m, n) tiles."""
    whole = tuple(Tile(m=m, n=n, k=k) for m, n in tiles)
    return Tiling(tiles=whole, num_stages=num_stages, num_warps=num_warps, split_k=split)


def wgmma(*tiles: tuple[int, int, int], **fields: Any) -> Tiling:
    """A tiling of the wgmma engine with the given (m, n, k) tiles, or one tile for both ops."""
    both = tiles if len(tiles) > 1 else tiles * 2
    rings = {"num_stages": 4, "num_warps": 4, "input_stages": 3}
    return Tiling(engine=Engine.WGMMA, tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in both), **{**rings, **fields})


def simt(*tiles: tuple[int, int, int], **fields: Any) -> Tiling:
    """A tiling of the simt engine; same arguments as for `wgmma`."""
    both = tiles if len(tiles) > 1 else tiles * 2
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in both)
    return Tiling(engine=Engine.SIMT, tiles=whole, **{"num_stages": 3, "num_warps": 8, **fields})


def ordering(num_ops: int = 2, *, bands: int = 0, **changes: object) -> Ordering:
    """The simplest ordering, with changes."""
    interleave = Interleave(kind=InterleaveKind.BANDS, rows=bands) if bands else Interleave()
    return replace(Ordering(rasters=(Raster(),) * num_ops, interleave=interleave), **changes)  # type: ignore[arg-type]


def chain_of_three(m: int, dims: tuple[int, int, int, int]) -> Workload:
    """Y = ((X A^T) B^T) C^T."""
    ops = tuple(
        GemmOp(name=name, m=m, n=dims[i + 1], k=dims[i], source=source)
        for i, (name, source) in enumerate((("a", "x"), ("b", "a"), ("c", "b")))
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def fork(m: int, dims: tuple[int, int, int, int]) -> Workload:
    """One output that two ops read."""
    ops = (
        GemmOp(name="a", m=m, n=dims[1], k=dims[0], source="x"),
        GemmOp(name="b", m=m, n=dims[2], k=dims[1], source="a"),
        GemmOp(name="c", m=m, n=dims[3], k=dims[1], source="a", bias=True),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def gemms(m: int, *ops: tuple[str, str, int, int, dict[str, Any]]) -> Workload:
    """A chain of ops given by name, source, n, k and options."""
    made = (GemmOp(name=name, source=source, m=m, n=n, k=k, **options) for name, source, n, k, options in ops)
    return Workload(kind=WorkloadKind.CHAIN, ops=tuple(made))


def adds(tensor: str) -> dict[str, Any]:
    """Options of an op that adds a tensor."""
    return {"residual": True, "residual_source": tensor}


def decoder_block(m: int, d: int, hidden: int, qkv: int, *, heads: int = 32) -> Workload:
    """The ops between two attentions: two norms, two residuals, a gate and a fan-out of the residual stream."""
    return gemms(
        m,
        ("o", "attention", d, heads, adds("x")),
        ("up", "o", hidden, d, {"norm": "o", "gated": True, "activation": Activation.SILU}),
        ("down", "up", d, hidden, adds("o")),
        ("qkv", "down", qkv, d, {"norm": "down", "bias": True}),
    )


sizes = st.integers(1, 90)


def turned(m: int, d_in: int, width: int) -> Workload:
    """A product, followed by a normed qkv product with rotated heads that writes to a cache."""
    rotary = Rotary(heads=1, kv_heads=1, head_dim=64, max_length=9)
    return gemms(m, ("a", "x", width, d_in, {}), ("qkv", "a", rotary.num_pairs, width, {"norm": "a", "rotary": rotary}))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Pairs, chains of up to four and forks of small ragged matrices."""
    m, dims = draw(sizes), (draw(sizes), draw(sizes), draw(sizes), draw(sizes))
    match draw(st.sampled_from(("ffn", "independent", "chain", "fork", "block", "siblings", "turned"))):
        case "ffn":
            options = {name: draw(st.booleans()) for name in ("bias", "gated", "residual", "row_scale")}
            activation = draw(st.sampled_from(Activation))
            return ffn_pair(m=m, d_in=dims[0], d_hidden=dims[1], d_out=dims[2], activation=activation, **options)
        case "independent":
            return independent_pair((m, dims[0], dims[1]), (draw(sizes), dims[2], dims[3]))
        case "chain":
            return chain_of_three(m, dims)
        case "block":
            few = [1 + size // 2 for size in dims]
            return decoder_block(1 + m // 2, few[0], few[1], few[2], heads=few[3])
        case "turned":
            return turned(1 + m // 8, 1 + dims[0] // 2, 1 + dims[1] // 2)
        case "siblings":
            reads_both = {"norm": "a"} if draw(st.booleans()) else adds("a")
            shape = (dims[2], dims[1]) if "norm" in reads_both else (dims[1], dims[0])
            ops = (("a", "x", dims[1], dims[0], {}), ("b", "y", *shape, reads_both), ("c", "b", dims[3], shape[0], {}))
            return gemms(m, *ops)
        case _:
            return fork(m, dims)


#: Legal values that are not offered.
INTERLEAVES_BY_NAME = (
    Interleave(kind=InterleaveKind.HALF_ROWS),
    Interleave(kind=InterleaveKind.BANDS, rows=1, lag=1),
    Interleave(kind=InterleaveKind.BANDS, rows=2, lag=1),
    Interleave(kind=InterleaveKind.BANDS, rows=1, chunks=2),
)
SYNCS_BY_NAME = ((Granularity.BATCH, 2), (Granularity.BATCH, 4))

rasters = st.one_of(
    st.sampled_from([Raster(kind=kind) for kind in RasterKind if not kind.row.has_width]),
    st.builds(
        Raster,
        kind=st.sampled_from((RasterKind.GROUPED, RasterKind.PANEL, RasterKind.SNAKE)),
        width=st.integers(2, 4),
    ),
    st.just(Raster(kind=RasterKind.SNAKE)),
)
bands = st.builds(
    Interleave,
    kind=st.just(InterleaveKind.BANDS),
    rows=st.integers(1, 4),
    lag=st.integers(0, 2),
    chunks=st.integers(1, 3),
)
syncs = st.one_of(
    st.sampled_from([(kind, 1) for kind in (Granularity.ROW, Granularity.TILE, Granularity.BARRIER)]),
    st.tuples(st.sampled_from((Granularity.CHUNK, Granularity.STRIDED, Granularity.BATCH)), st.integers(2, 4)),
)
assignments = st.one_of(
    st.sampled_from([(one, 0) for one in ASSIGNMENTS]),
    st.tuples(st.just(Assignment.STATIC), st.sampled_from((1, 4, 7))),
)


def interleaves(workload: Workload) -> st.SearchStrategy[Interleave]:
    """Interleavings whose order is a linear extension of the workload's edges."""
    kinds = [InterleaveKind.PRODUCER_FIRST, InterleaveKind.LONGEST_FIRST]
    readers = [op for op in range(len(workload.tile_ops)) if workload.producer_of(op) is not None]
    kinds.append(InterleaveKind.HALF_ROWS if readers else InterleaveKind.PROPORTIONAL)
    deep = any(workload.consumers_of(op) for op in readers)
    return st.one_of(
        st.sampled_from([Interleave(kind=kind) for kind in kinds]),
        bands.map(lambda interleave: replace(interleave, chunks=1)) if deep else bands,
    )


@st.composite
def orderings(draw: st.DrawFn, workload: Workload) -> Ordering:
    """Any deadlock-free ordering, including redundant spellings; if the k-steps are shared evenly, the ordering has
    queues and contiguous parts."""
    interleave, (granularity, sync_width) = draw(interleaves(workload)), draw(syncs)
    if granularity in (Granularity.BATCH, Granularity.BARRIER):
        interleave = Interleave()
    assignment, partition = draw(assignments)
    split_tiles, split_order = draw(st.sampled_from(SplitTiles)), draw(st.sampled_from(SplitOrder))
    if split_tiles is SplitTiles.STREAM:
        assignment, split_order = Assignment.STATIC, SplitOrder.CONTIGUOUS
    return Ordering(
        rasters=tuple(draw(rasters) for _ in workload.tile_ops),
        interleave=interleave,
        granularity=granularity,
        sync_width=sync_width,
        assignment=assignment,
        partition=partition,
        ctas_per_sm=draw(st.sampled_from((1, 2))),
        wait_position=draw(st.sampled_from(WaitPosition)),
        run_ahead=draw(st.sampled_from(RUN_AHEADS)),
        split_order=split_order,
        split_tiles=split_tiles,
    )


@st.composite
def graphs(draw: st.DrawFn) -> TileGraph:
    """Tile graphs with tiles of unequal heights, of all ops or of one."""
    workload = draw(workloads())
    edge = st.sampled_from((16, 32, 48, 64))
    tiles = tuple((draw(edge), draw(edge)) for _ in workload.tile_ops)
    ops = draw(st.sampled_from((None, (0,), (len(workload.tile_ops) - 1,))))
    split = draw(
        st.one_of(st.just(()), st.tuples(*(st.integers(1, min(3, -(-op.k // 32))) for op in workload.tile_ops)))
    )
    return tile_graph(workload, tiling(*tiles, split=split if max(split, default=1) > 1 else ()), ops)


@st.composite
def ordered_graphs(draw: st.DrawFn) -> tuple[TileGraph, Ordering, Gpu]:
    """A graph, an ordering for it, and a GPU of a few SMs."""
    graph = draw(graphs())
    return graph, draw(orderings(graph.workload)), small_gpu(draw(st.integers(1, 5)))
