"""What six published analytical models predict for the traffic of a pair of products, in bytes.

The pair is H = act(X W1^T), Y = H W2^T with X of [m, k], H of [m, h] and Y of [m, o]; a gated first product has twice
the weights. There are two boundaries: between DRAM and the chip, and between L2 and the SMs. A model with only one
cache is evaluated at each boundary, with the GPU's capacity there. Four of them choose the best tiles they know;
`tileflow` and `maestro` count those of a plan, in its order.

Sources, by function:

- `pebbles`: Hong, Kung, "I/O complexity: the red-blue pebble game", STOC 1981, with the constant of Kwasniewski et
  al., SC 2019.
- `chimera`: Zheng et al., "Chimera: an analytical optimizing framework for effective compute-intensive operators
  fusion", HPCA 2023: data movement by the order of the block loops.
- `welder`: Shi et al., "Welder: scheduling deep learning memory access via tile-graph", OSDI 2023: traffic of tiles.
- `optimus`: Cai, Wang, Zhang, "Optimus: an operator fusion framework for deep neural networks", ACM TECS 22(1), 2022:
  off-chip accesses of a fused group.
- `tileflow`: Zheng et al., "TileFlow: a framework for modeling fusion dataflow via tree-based analysis", MICRO 2023:
  what a step's slices have that the previous step's did not have.
- `maestro`: Kwon et al., "Understanding reuse, performance, and hardware cost of DNN dataflow", MICRO 2019: reads of
  the shared buffer with multicast, layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from tuner.core.model.bounds import io_bytes
from tuner.core.plan.order.task_source import TaskSource
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan

#: The smallest tile of a search for tiles: what a tensor core multiplies.
LEAST_TILE = 16
#: Tile sizes by loop.
Sizes = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The sizes of a pair, in elements."""

    m: int
    k: int
    h: int
    o: int
    #: Weight rows of the first product per column of H: 2 if it is gated, else 1.
    num_weights: int
    #: Size of an element.
    size_bytes: int

    @classmethod
    def of(cls, workload: Workload) -> Pair:
        """The pair of a workload of two products, the second of which reads the first."""
        first, second = workload.tile_ops
        return cls(
            m=first.m,
            k=first.k,
            h=second.k,
            o=second.n,
            num_weights=first.weight_rows // second.k,
            size_bytes=workload.dtype.size_bytes,
        )

    @property
    def weights(self) -> int:
        """Elements of both ops' weights."""
        return self.h * (self.num_weights * self.k + self.o)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that pass the two boundaries, read and written; None if the model does not define them."""

    dram_bytes: float | None
    l2_bytes: float | None


def sm_bytes(gpu: Gpu) -> int:
    """The capacity of an SM: shared memory and registers."""
    return gpu.smem_per_sm_bytes + 4 * gpu.registers_per_sm


def pebbles(workload: Workload, gpu: Gpu) -> Traffic:
    """A lower bound: no order moves fewer bytes, whatever its tiles."""
    chip_bytes = gpu.l2_bytes + gpu.num_sms * sm_bytes(gpu)
    return Traffic(dram_bytes=io_bytes(workload, chip_bytes), l2_bytes=io_bytes(workload, sm_bytes(gpu)))


# -- Models that choose tiles ------------------------------------------------------------------------------------------

#: By op of the pair: its loops, and its tensors with the loops that index each. H is omitted if it stays on the chip.
LOOPS = ("mhk", "mho")
TENSORS: tuple[dict[str, str], ...] = ({"X": "mk", "W1": "hk", "H": "mh"}, {"H": "mh", "W2": "ho", "Y": "mo"})


def chimera(workload: Workload, gpu: Gpu) -> Traffic:
    """The minimum data movement over block orders and tiles, for one fused nest or for two."""
    pair = Pair.of(workload)
    return Traffic(dram_bytes=_least_movement(pair, gpu.l2_bytes), l2_bytes=_least_movement(pair, sm_bytes(gpu)))


def _least_movement(pair: Pair, capacity_bytes: int) -> float:
    capacity = capacity_bytes // pair.size_bytes
    apart = sum(
        min(
            sum(movement(pair, sizes, order, tensor, LOOPS[op]) for tensor in TENSORS[op])
            for sizes in _tilings(pair, LOOPS[op])
            if _footprint(pair, sizes, op) <= capacity
            for order in map("".join, permutations(LOOPS[op]))
        )
        for op in (0, 1)
    )
    # In one nest, the loops of H are outside, so that a block of it is complete before it is read.
    together = min(
        (
            sum(
                movement(pair, sizes, order + LOOPS[op][2], tensor, LOOPS[op])
                for op in (0, 1)
                for tensor in TENSORS[op]
                if tensor != "H"
            )
            for sizes in _tilings(pair, "mhko")
            if max(_footprint(pair, sizes, op) for op in (0, 1)) <= capacity
            for order in ("mh", "hm")
        ),
        default=math.inf,
    )
    return min(apart, together) * pair.size_bytes


def movement(pair: Pair, sizes: Sizes, order: str, tensor: str, loops: str) -> float:
    """Elements of a tensor that nested loops over blocks move, with the last loop of `order` innermost: the elements in
    a block, times the iterations of the innermost loop that indexes the tensor and of all loops around that one."""
    indices = next(of[tensor] for of in TENSORS if tensor in of)
    moved, is_reused = math.prod(sizes[loop] for loop in indices) * (pair.num_weights if tensor == "W1" else 1), True
    for loop in reversed(order):
        trips = getattr(pair, loop) / sizes[loop]
        if loop not in loops or trips == 1:
            continue
        is_reused = is_reused and loop not in indices
        moved *= 1 if is_reused else trips
    return moved


def welder(workload: Workload, gpu: Gpu) -> Traffic:
    """The minimum traffic of tiles, for two separate ops or for one tile that passes its rows of H on. Welder has no
    L2: its memory is what the SMs read from; with the L2's capacity, the same is computed for DRAM."""
    pair = Pair.of(workload)
    return Traffic(dram_bytes=_tile_traffic(pair, gpu.l2_bytes), l2_bytes=_tile_traffic(pair, sm_bytes(gpu)))


def _tile_traffic(pair: Pair, capacity_bytes: int) -> float:
    capacity = capacity_bytes // pair.size_bytes
    first = min(
        _of_tile(pair, m=m, n=h, depth=pair.k, columns=pair.h, num_weights=pair.num_weights)
        for m, h in _pairs_of_sizes(pair.m, pair.h)
        if m * h * pair.num_weights + LEAST_TILE * (m + pair.num_weights * h) <= capacity
    )
    second = min(
        _of_tile(pair, m=m, n=o, depth=pair.h, columns=pair.o, num_weights=1)
        for m, o in _pairs_of_sizes(pair.m, pair.o)
        if m * o + LEAST_TILE * (m + o) <= capacity
    )
    # A tile of Y needs whole rows of H, which are computed for it from all of W1.
    together = min(
        (
            _trips(pair.m, m)
            * _trips(pair.o, o)
            * (m * pair.k + pair.num_weights * pair.h * pair.k + o * pair.h + m * o)
            for m, o in _pairs_of_sizes(pair.m, pair.o)
            if m * pair.h + m * o + LEAST_TILE * (m + max(pair.num_weights * LEAST_TILE, o)) <= capacity
        ),
        default=math.inf,
    )
    return min(first + second, together) * pair.size_bytes


def _of_tile(pair: Pair, *, m: int, n: int, depth: int, columns: int, num_weights: int) -> float:
    """Elements that the tiles of one op load and store."""
    return _trips(pair.m, m) * _trips(columns, n) * (m * depth + num_weights * n * depth + m * n)


def optimus(workload: Workload, gpu: Gpu) -> Traffic:
    """Off-chip accesses: features once, and H only if its rows do not stay on the chip; weights once for each band of
    rows that fits in the buffer, or once if the buffer holds all of them."""
    pair = Pair.of(workload)
    capacity = gpu.l2_bytes // pair.size_bytes
    together = pair.m * (pair.k + pair.o) + _weights_again(pair, pair.k + pair.h + pair.o, pair.weights, capacity)
    apart = (
        pair.m * (pair.k + 2 * pair.h + pair.o)
        + _weights_again(pair, pair.k + pair.h, pair.num_weights * pair.h * pair.k, capacity)
        + _weights_again(pair, pair.h + pair.o, pair.h * pair.o, capacity)
    )
    return Traffic(dram_bytes=min(together, apart) * pair.size_bytes, l2_bytes=None)


def _weights_again(pair: Pair, row_elements: int, weights: int, capacity: int) -> float:
    """Elements of weights that are read if each band, with `row_elements` per row, shares the buffer with a slice of
    the weights."""
    if weights + LEAST_TILE * row_elements <= capacity:
        return weights
    rows = max(1, capacity // row_elements - LEAST_TILE)
    return weights * _trips(pair.m, min(rows, pair.m))


# -- Models that count a plan ------------------------------------------------------------------------------------------

#: A tensor, and a box in it.
Slice = tuple[str, tuple[tuple[int, int], ...]]


def tileflow(plan: VerifiedPlan, gpu: Gpu) -> Traffic:
    """By slices: a wave of tasks loads from DRAM what the previous wave did not have, or everything if the L2 cannot
    hold the slices of a wave; H stays on the chip if it fits. An SM loads all slices of its tasks, since a stage of its
    ring holds one step."""
    size_bytes, of_ops, inner = plan.graph.workload.dtype.size_bytes, _outputs(plan), _inner(plan)
    stays = sum(of_ops[tensor] for tensor in inner) * size_bytes <= gpu.l2_bytes
    loaded, asked, held = 0, 0, set[Slice]()
    for wave in waves_of(plan):
        slices = {each for task in wave for each in slices_of(plan, task)}
        loaded += sum(_area(each) for each in slices - held if not (stays and each[0] in inner))
        asked += sum(_area(each) for task in wave for each in slices_of(plan, task))
        held = slices if sum(map(_area, slices)) * size_bytes <= gpu.l2_bytes else set()
    stored = sum(area for tensor, area in of_ops.items() if not (stays and tensor in inner))
    return Traffic(dram_bytes=(loaded + stored) * size_bytes, l2_bytes=(asked + sum(of_ops.values())) * size_bytes)


def maestro(plan: VerifiedPlan) -> Traffic:
    """Layer by layer, from a shared buffer with multicast: a slice that several tasks of a wave read leaves the buffer
    once. Each tensor of a layer passes the chip's boundary once, H in both directions."""
    size_bytes, of_ops, inner = plan.graph.workload.dtype.size_bytes, _outputs(plan), _inner(plan)
    sent = sum(
        _area(each) for wave in waves_of(plan) for each in {one for task in wave for one in slices_of(plan, task)}
    )
    once = plan.graph.workload.compulsory_bytes / size_bytes + 2 * sum(of_ops[tensor] for tensor in inner)
    return Traffic(dram_bytes=once * size_bytes, l2_bytes=(sent + sum(of_ops.values())) * size_bytes)


def waves_of(plan: VerifiedPlan) -> Iterator[list[int]]:
    """Tasks that CTAs compute concurrently, if all take the same time: the first task of each CTA, then the second,
    ..."""
    source = TaskSource(plan.plan)
    while wave := [task for task in map(source.take, range(plan.plan.num_ctas)) if task >= 0]:
        yield wave


def slices_of(plan: VerifiedPlan, task: int) -> Sequence[Slice]:
    """What a task reads in its steps, as one slice per tensor."""
    words = plan.plan.tasks[task : task + 1]
    space = plan.graph.spaces[int(words[0, 0])]
    first, stride, count = map(int, plan.graph.steps_of(words)[0])
    coordinates = space.coordinates(int(words[0, 1]), int(words[0, 2]))
    found = []
    for read in space.reads:
        begin = read.box.at(coordinates, first)
        end = read.box.at(coordinates, first + (count - 1) * stride)
        found.append((read.box.tensor, tuple((one.start, other.stop) for one, other in zip(begin, end, strict=True))))
    return found


def _area(one: Slice) -> int:
    return math.prod(end - begin for begin, end in one[1])


def _outputs(plan: VerifiedPlan) -> Mapping[str, int]:
    """Op -> elements of its output."""
    return {op.name: op.m * op.result_columns for op in plan.graph.workload.tile_ops}


def _inner(plan: VerifiedPlan) -> frozenset[str]:
    """Outputs that only other ops of the launch read."""
    return frozenset(op.name for op in plan.graph.workload.tile_ops if not plan.graph.workload.leaves(op))


# -- Tiles -------------------------------------------------------------------------------------------------------------


def _sizes(extent: int) -> list[int]:
    """Tile sizes of one loop: powers of two, and the whole loop."""
    powers = [LEAST_TILE << power for power in range(12) if LEAST_TILE << power < extent]
    return [*powers, extent]


def _pairs_of_sizes(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    return product(_sizes(rows), _sizes(columns))


def _tilings(pair: Pair, loops: str) -> Iterator[Sizes]:
    for sizes in product(*(_sizes(getattr(pair, loop)) for loop in loops)):
        yield dict(zip(loops, sizes, strict=True))


def _footprint(pair: Pair, sizes: Sizes, op: int) -> int:
    """Elements of an op's tensors in a block."""
    areas = {tensor: math.prod(sizes[loop] for loop in loops) for tensor, loops in TENSORS[op].items()}
    return sum(area * (pair.num_weights if tensor == "W1" else 1) for tensor, area in areas.items())


def _trips(extent: int, tile: int) -> int:
    return -(-extent // tile)
