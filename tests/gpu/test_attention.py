"""Decode attention on a GPU: results against float64, the same bits in each launch, and no stray writes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.support.attention_cases import CASES, ENGINES_OF_CASES, Case, form_of, plan_of, tiling_of
from tests.support.attention_faults import FAULTS
from tests.support.attention_parameter import AttentionBuffers, cache_bytes, pack_attention_args
from tests.support.emulated.attention import EmulatedAttention
from tests.support.emulated.chain import from_bits
from tuner.core.trial.limits import Limits
from tuner.ops.attention.schedule import MOST_PORTABLE_CLUSTER, AttentionEngine
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import (
    ATTENTION_KERNEL,
    STATUS_WORDS,
    CacheMap,
    aborted_launch,
    cache_map,
    render_attention,
)
from tuner.workers.builder.nvrtc import compile_source
from tuner.workers.source.refused import refused_launch

cupy = pytest.importorskip("cupy")

#: Number of back-to-back launches.
NUM_LAUNCHES = 20
CANARY = 0x5A5A


class OnCard:
    """The device tensors of a case, and launches over them."""

    def __init__(
        self,
        case: Case,
        *,
        programmatic: bool,
        engine: AttentionEngine = AttentionEngine.TMA,
        changes: tuple[tuple[str, str], ...] = (),
        spin_limit_cycles: int = Limits.spin_limit_cycles,
    ) -> None:
        from cuda.bindings import driver

        from tuner.workers.gpu.launching.launch import check
        from tuner.workers.gpu.launching.tensor_maps import encode

        self.op = op = DecodeAttention(**case.op)
        self.tiling = tiling_of(case, op, engine)
        self.programmatic = programmatic
        self.form = form_of(case, op)
        self.inputs = EmulatedAttention(op=op, lengths=case.lengths, form=self.form)
        cupy.zeros(1)  # a context
        source = render_attention(self.tiling, op.dtype, form=self.form)
        for before, after in changes:
            assert before in source, before
            source = source.replace(before, after)
        cubin, _ = compile_source(source, "sm_90a")
        self.function = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(cubin)), b"tuner_attention"))
        assert ATTENTION_KERNEL == "tuner_attention"
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self.function, attribute, self.tiling.smem_bytes))
        if case.cluster > MOST_PORTABLE_CLUSTER:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(driver.cuFuncSetAttribute(self.function, attribute, 1))
        self.plan = plan_of(case, op, contiguous=False)
        arrays = (self.inputs.q, self.inputs.k, self.inputs.v, np.array(case.lengths, np.int32), self.inputs.pages)
        self.kept = [cupy.asarray(array) for array in (*arrays, self.plan.tasks, self.plan.queues)]
        q, k, v, lengths, pages, tasks, queues = self.kept
        self.refused = cupy.zeros(STATUS_WORDS, dtype=cupy.uint32)
        floats = self.plan.num_slots * self.plan.num_spans * self.tiling.partial_floats
        self.partials = cupy.full(floats, cupy.nan, dtype=cupy.float32)
        self.arrivals = cupy.zeros(self.plan.num_counters, dtype=cupy.uint32)
        self.out = cupy.full(q.size + 256, CANARY, dtype=cupy.uint16)
        a_map = cache_map(op, self.tiling, self.form.paged)

        def encoded(found: CacheMap, address: int) -> bytes:
            return encode(found, op.dtype, address)

        keys, values = (cache_bytes(a_map, engine, cache.data.ptr, encoded) for cache in (k, v))
        buffers = AttentionBuffers(
            k=keys,
            v=values,
            q=q.data.ptr,
            out=self.out.data.ptr,
            lengths=lengths.data.ptr,
            tasks=tasks.data.ptr,
            queues=queues.data.ptr,
            partials=self.partials.data.ptr,
            arrivals=self.arrivals.data.ptr,
            trace=0,
            refused=self.refused.data.ptr,
            pages=pages.data.ptr if pages.size else 0,
        )
        self.args = pack_attention_args(
            self.plan, buffers, speculative=case.speculative, spin_limit_cycles=spin_limit_cycles
        )

    def launch(self) -> Any:
        """The bits of the result after one launch over the previous contents."""
        from cuda.bindings import driver

        from tuner.workers.gpu.launching.launch import check, launch_config, programmatic_attribute

        kept = ctypes.create_string_buffer(self.args, len(self.args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        stream = cupy.cuda.get_current_stream().ptr
        config = launch_config(self.plan.num_ctas, self.tiling.num_threads, self.tiling.smem_bytes, stream)
        config.attrs = [programmatic_attribute()] if self.programmatic else []
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))
        return self.out.copy()


@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize(("name", "engine"), ENGINES_OF_CASES)
def test_attention_is_right_and_the_same_in_each_launch(name: str, engine: AttentionEngine, programmatic: bool) -> None:
    case = CASES[name]
    on_card = OnCard(case, programmatic=programmatic, engine=engine)
    results = [bits.get() for bits in [on_card.launch() for _ in range(NUM_LAUNCHES)]]
    size = on_card.inputs.q.size
    assert all((bits == results[0]).all() for bits in results)
    assert (results[0][size:] == CANARY).all()
    assert refused_launch(on_card.refused.get().tolist()) is None
    expected = on_card.inputs.expected()
    given = from_bits(results[0][:size].reshape(expected.shape), on_card.op.dtype)
    errors = np.abs(given - expected) / np.sqrt((expected**2).mean())
    assert float(errors.max()) < case.most


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.cluster == 1])
def test_both_engines_leave_the_same_bits(name: str) -> None:
    """The engines differ in how a tile reaches shared memory, but not in the sums."""
    of_tma, of_mma = (OnCard(CASES[name], programmatic=False, engine=one).launch().get() for one in AttentionEngine)
    assert (of_tma == of_mma).all()


@pytest.mark.parametrize("engine", AttentionEngine)
@pytest.mark.parametrize("page", [-3, 1 << 30])
def test_a_page_that_is_not_there_is_told_and_not_read(page: int, engine: AttentionEngine) -> None:
    on_card = OnCard(CASES["pages of 16"], programmatic=False, engine=engine)
    on_card.kept[4][2, 8] = page
    on_card.launch()
    cupy.cuda.Device().synchronize()
    found = refused_launch(on_card.refused.get().tolist())
    assert str(found).startswith(f"sequence 2 has the page {page}:")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wait_that_never_ends_is_given_up_until_somebody_clears_the_record(fault: str) -> None:
    """The fault is built into the kernel, because a real change of a length would hit the right moment only by
    chance."""
    name, engine, change, _ = FAULTS[fault]
    faulty = OnCard(CASES[name], programmatic=False, engine=engine, changes=(change,), spin_limit_cycles=10**8)
    size = faulty.inputs.q.size
    first, second = (from_bits(faulty.launch().get()[:size], faulty.op.dtype) for _ in range(2))
    assert aborted_launch(faulty.refused.get().tolist()) is not None
    assert np.isnan(first).any()
    assert np.isnan(second).all()
