"""The pair attention -> projection on a card: our two launches, and the library's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cupy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import TunerError
from tuner.ops.attention.schedule import AttentionTiling
from tuner.ops.attention.shapes.form import AttentionForm
from tuner.ops.attention.source import NextWeights
from tuner.ops.gemm.card.cublaslt import WORKSPACE_BYTES, CublasLt, LibraryGemm
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice
from tuner.workers.source.launch_args import OpBuffers, needs_co_residency
from tuner.workers.source.launchable import Launchable, LaunchRefused

from .measure import LIBRARIES, MASKED_LIBRARIES, operands
from .on_card import Attention, cubin_of, in_pages, random_pages
from .pair_rows import PairVariant, floor_us, projection_of
from .rows import Row
from .timing import captured

#: Bytes that pairs take in turns, so that each finds its own cold; pairs of a graph, at least, where they are short.
_COLD_BYTES, _LEAST_PAIRS = 240e6, 24
#: Builds are kept from run to run.
_BUILD_CACHE = Path("build/bench-cache")
#: A graph of so many microseconds is long enough.
_LONG_US = 2000.0


class PairTensors:
    """Of each slot a cache, weights and a result; queries, lengths and what attention leaves are shared."""

    def __init__(self, row: Row) -> None:
        self.row, op = row, row.op
        self.workload: Workload = projection_of(row)
        gemm = self.workload.tile_ops[0]
        pair_bytes = row.kv_bytes + self.workload.weight_bytes
        self.num_slots = max(3, int(_COLD_BYTES // pair_bytes) + 1)
        enough = min(_LEAST_PAIRS, int(_LONG_US // floor_us(row)))
        self.num_pairs = -(-max(enough, self.num_slots) // self.num_slots) * self.num_slots
        self.q, *_ = operands(op)
        self.caches = [operands(op)[1:] for _ in range(self.num_slots)]
        self.pages = random_pages(row)
        self.own_caches = [tuple(in_pages(row, one, self.pages) for one in cache) for cache in self.caches]
        like = {"dtype": self.q.dtype, "device": "cuda"}
        self.weights = [torch.randn(gemm.n, gemm.k, **like) * gemm.k**-0.5 for _ in range(self.num_slots)]
        self.results = [torch.empty(gemm.m, gemm.n, **like) for _ in range(self.num_slots)]
        self.attended = torch.empty_like(self.q)
        self.lengths = torch.tensor(row.lengths, dtype=torch.int32, device="cuda")
        self._expected: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def is_ragged(self) -> bool:
        """Whether a sequence is shorter than the longest context."""
        return set(self.row.lengths) != {self.row.op.max_length}

    def graph_of(self, launch: Callable[[int], None]) -> torch.cuda.CUDAGraph:
        """Pairs one after another; `launch` is given the slot."""
        return captured([lambda slot=pair % self.num_slots: launch(slot) for pair in range(self.num_pairs)])  # type: ignore[misc]

    def poison(self) -> None:
        """NaN where launches must write."""
        for tensor in (self.attended, *self.results):
            tensor.fill_(float("nan"))

    def expected(self, slot: int, sequence: int) -> torch.Tensor:
        """Rows of one sequence in float64: nothing between the two products is rounded. They are kept."""
        if (slot, sequence) not in self._expected:
            self._expected[slot, sequence] = self._in_float64(slot, sequence)
        return self._expected[slot, sequence]

    def _in_float64(self, slot: int, sequence: int) -> torch.Tensor:
        op, (k, v) = self.row.op, self.caches[slot]
        rows = []
        for token in range(op.new_tokens):
            seen = self.row.lengths[sequence] - op.new_tokens + 1 + token
            queries = self.q[sequence, token].double().view(op.kv_heads, op.query_heads, op.head_dim)
            scores = op.score_scale * queries @ k[sequence, :, :seen].double().transpose(1, 2)
            rows.append((scores.softmax(dim=2) @ v[sequence, :, :seen].double()).reshape(-1))
        return torch.stack(rows) @ self.weights[slot].double().T

    def error(self) -> float:
        """Of the results that are there: the worst of some rows, the norm of the difference over the norm."""
        op, worst = self.row.op, 0.0
        for slot in {0, self.num_slots - 1}:
            for sequence in {0, op.sequences // 2, op.sequences - 1}:
                expected = self.expected(slot, sequence)
                given = self.results[slot].double().view(op.sequences, op.new_tokens, -1)[sequence]
                errors = (given - expected).norm(dim=1) / expected.norm(dim=1)
                worst = max([worst, *errors.tolist()], key=lambda error: (error != error, error))
        return worst


class Projection:
    """One launch of our engine."""

    def __init__(self, launchable: Launchable, *, programmatic: bool, shares_sms: bool) -> None:
        """Loads.

        Raises:
            LaunchRefused: the card does not hold its CTAs at once.
        """
        self.kernel = Kernel(launchable)
        if shares_sms:
            self.kernel.prefer_shared_memory()
        self.plan = PlanOnDevice(launchable, programmatic=programmatic)
        plan = launchable.plans[0]
        if (programmatic or self.kernel.cluster_size > 1) and needs_co_residency(plan):
            self.kernel.check_fits(plan.plan.num_ctas)
        self.op = launchable.workload.tile_ops[0]
        cupy.cuda.Device().synchronize()  # what was copied is on another stream

    def launch(self, a: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> None:
        """On PyTorch's current stream."""
        op = self.op
        buffers = OpBuffers(a=a.data_ptr(), w=w.data_ptr(), bias=0, c=c.data_ptr(), m=op.m, n=op.n, k=op.k)
        self.kernel.launch(self.plan, (buffers,), torch.cuda.current_stream().cuda_stream)


class Workshop:
    """Compilers, and the threads that wait for them: a compiler's process ends with the thread that started it."""

    def __init__(self, gpu: Gpu, num_processes: int) -> None:
        self.gpu = gpu
        self._builder = Builder(_BUILD_CACHE, num_processes=num_processes)
        self._threads = ThreadPoolExecutor(num_processes)

    def close(self) -> None:
        """Ends all of them."""
        self._threads.shutdown()
        self._builder.close()

    def launchables(self, workload: Workload, schedules: Sequence[Schedule]) -> dict[Schedule, Launchable | str]:
        """Of each schedule what is launched, or why it is not; all are built at once."""

        def made(schedule: Schedule) -> Launchable | str:
            candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=schedule)
            try:
                prepared = prepare(workload, self.gpu, candidate, self._builder, {})
            except (TunerError, LaunchRefused) as error:
                return str(error)
            return prepared.refusal or prepared.work.shared or "nothing to launch"

        return dict(zip(schedules, self._threads.map(made, schedules), strict=True))

    def build_attention(self, tilings: Sequence[AttentionTiling], dtype: Dtype, form: AttentionForm) -> None:
        """So that each is at hand; one that does not build is built again where it is asked for, and says why."""

        def build(tiling: AttentionTiling) -> None:
            with contextlib.suppress(RuntimeError, TunerError):
                cubin_of(tiling, dtype, form)

        list(self._threads.map(build, tilings))


class OurPair:
    """Two launches of ours. The second may begin when all CTAs of the first have, and ends behind it."""

    def __init__(
        self, tensors: PairTensors, variant: PairVariant, launchable: Launchable, num_sms: int, *, traced: bool = False
    ) -> None:
        self.tensors, self.variant, self.launchable = tensors, variant, launchable
        shares = variant.shares_sms
        op, form = tensors.row.op, tensors.row.form
        self.attention = Attention(
            op,
            variant.attention,
            num_sms,
            form=form,
            traced=traced,
            shares_sms=shares,
            asks_early=variant.next_early,
        )
        self.projection = Projection(launchable, programmatic=variant.programmatic, shares_sms=shares)

    def attend(self, slot: int, lengths: torch.Tensor | None = None) -> None:
        """The first launch; `lengths` in the place of the row's."""
        tensors, weights = self.tensors, self.tensors.weights[slot]
        row_bytes = weights.shape[1] * weights.element_size()
        asked = NextWeights(
            address=weights.data_ptr(),
            num_rows=weights.shape[0],
            row_bytes=row_bytes,
            taken_bytes=int(self.variant.next_share * row_bytes) // 16 * 16,
            early=self.variant.next_early,
        )
        seen = tensors.lengths if lengths is None else lengths
        keys, values = tensors.own_caches[slot]
        self.attention.launch(tensors.q, keys, values, seen, tensors.attended, tensors.pages, asked)

    def project(self, slot: int) -> None:
        """The second launch."""
        tensors = self.tensors
        self.projection.launch(tensors.attended, tensors.weights[slot], tensors.results[slot])

    def launch(self, slot: int, lengths: torch.Tensor | None = None) -> None:
        """Both."""
        self.attend(slot, lengths)
        self.project(slot)

    def phases(self, num_sms: int) -> list[dict[str, Any]]:
        """Of attention, in a graph of pairs, by a traced build of it: `taken` says how early its CTAs begin."""
        traced = OurPair(self.tensors, self.variant, self.launchable, num_sms, traced=True)
        graph = self.tensors.graph_of(traced.launch)
        graph.replay()
        torch.cuda.synchronize()
        return traced.attention.phases()

    def bits_one_by_one(self) -> list[torch.Tensor]:
        """Each slot's result where every launch has the card for itself."""
        for slot in range(self.tensors.num_slots):
            for launch in (self.attend, self.project):
                launch(slot)
                torch.cuda.synchronize()
        return [result.clone() for result in self.tensors.results]


class LibraryPair:
    """PyTorch's attention by one backend, and cuBLASLt by one of its algorithms."""

    def __init__(self, tensors: PairTensors, lt: CublasLt) -> None:
        self.tensors = tensors
        self.gemm = LibraryGemm(lt, tensors.workload.tile_ops[0], tensors.workload.dtype.row.library_type, 0)
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.backends = MASKED_LIBRARIES if tensors.is_ragged else LIBRARIES
        op = tensors.row.op
        places = torch.arange(op.max_length, device="cuda")
        seen = (places[None] < tensors.lengths[:, None])[:, None, None]
        self._mask = seen if tensors.is_ragged else None

    def attend(self, slot: int) -> torch.Tensor:
        """By whatever backend is in force."""
        k, v = self.tensors.caches[slot]
        queries = self.tensors.q.transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, k, v, attn_mask=self._mask, enable_gqa=True
        )
        return attended.transpose(1, 2)

    def project(self, attended: torch.Tensor, slot: int, algorithm: int) -> None:
        """`attended` is [sequences, new tokens, heads, head_dim], row-major."""
        tensors = self.tensors
        w, c = tensors.weights[slot].data_ptr(), tensors.results[slot].data_ptr()
        workspace, stream = self.workspace.data_ptr(), torch.cuda.current_stream().cuda_stream
        self.gemm.launch(attended.data_ptr(), w, c, 0, workspace, stream, algorithm=algorithm)

    def captured(self, backend: SDPBackend, algorithm: int) -> torch.cuda.CUDAGraph:
        """The pairs of a graph."""

        def launch(slot: int) -> None:
            attended = self.attend(slot)
            assert attended.is_contiguous(), "the projection reads whole rows"
            self.project(attended, slot, algorithm)

        with sdpa_kernel([backend]):
            return self.tensors.graph_of(launch)

    def captured_projection(self, algorithm: int) -> torch.cuda.CUDAGraph:
        """The projections alone."""
        return self.tensors.graph_of(lambda slot: self.project(self.tensors.attended, slot, algorithm))
