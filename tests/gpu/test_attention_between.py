"""An attention between products on a GPU: results, planted faults, back-to-back runs, the library, and an artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.attention_jobs import read_late, without_torch
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.conformance.launching import OnCard
from tests.support.on_card import problem
from tuner.core.insight.traces.gantt import gantt_of_trace
from tuner.core.insight.traces.tracing import trace_from_stamps
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.outcome import Measured
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.builder.prepare import prepare

cupy = pytest.importorskip("cupy")

#: Number of back-to-back launches in a captured chain.
NUM_CHAINS = 20
#: Resolution of the global timer, with which the clocks of SMs are aligned.
TOLERANCE_NS = 2_000
WORKLOADS: dict[str, dict[str, Any]] = {
    "turned": {},
    "turned, three new tokens": {"sizes": {"new_tokens": 3}, "dtype": Dtype.BF16},
    "turned, heads of 128": {"sizes": {"head_dim": 128, "kv_heads": 1, "max_length": 700}, "dtype": Dtype.BF16},
    "pages": {"pages": {"page_tokens": 16}},
    "pages, tokens first": {
        "pages": {"page_tokens": 64, "heads_first": False},
        "sizes": {"new_tokens": 3, "max_length": 500},
        "dtype": Dtype.BF16,
    },
    "queries alone": {"rotary": False},
    "attention last": {"num_behind": 0},
    "a block behind": {"num_behind": 3},
}
NAMES = list(WORKLOADS)


@pytest.fixture(autouse=True)
def _has_kernels(on_card: OnCard) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, on_card.gpu):
        pytest.skip(reason)


def candidates(workload: Workload) -> Iterator[Candidate]:
    """Plain and programmatic launches, and a fused run after the attention if there is one."""
    if len(workload.tile_ops) == 1:
        kinds = [PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL]
    else:
        kinds = [PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL]
    for kind in kinds:
        yield candidate_of(workload, kind)
    if len(workload.tile_ops) > 2:
        yield candidate_of(workload, PlanKind.RUNS, (1,))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_right_in_each_way_to_launch(on_card: OnCard, name: str) -> None:
    workload = between(**WORKLOADS[name])
    for candidate in candidates(workload):
        outcome = on_card.measured(workload, candidate)
        assert outcome.time_us > 1
        assert outcome.rel_error > 0


@pytest.mark.parametrize(
    "name", ["turned", "turned, three new tokens", "pages", "pages, tokens first", "queries alone", "attention last"]
)
def test_the_library_is_right_and_timed(on_card: OnCard, name: str) -> None:
    workload = between(**WORKLOADS[name])
    outcome = on_card.evaluate(workload, on_card.ready(workload, LIBRARY).work)
    assert isinstance(outcome, Measured), outcome
    assert outcome.time_us > 1
    tags = {metric.tag for metric in outcome.metrics}
    assert {"library_algorithm_attention", "library_algorithm_qkv"} <= tags


@pytest.mark.parametrize("pages", [{}, {"page_tokens": 32}])
def test_without_pytorch_the_library_is_right_too(on_card: OnCard, pages: dict[str, Any]) -> None:
    workload = between(sizes={"new_tokens": 2}, pages=pages)
    on_card.session._prepared = None
    with without_torch():
        outcome = on_card.evaluate(workload, on_card.ready(workload, LIBRARY).work)
    on_card.session._prepared = None
    assert isinstance(outcome, Measured), outcome


def stale_queries(runner: Any, data: Any) -> None:
    """Makes the attention of each run read the queries of the previous run."""
    op = data.workload.launch_ops[0]
    read_late(runner._own[0], op.source, cupy.zeros((op.m, op.n), dtype=cupy.uint16))


def stale_rows(field: str) -> Callable[[Any, Any], None]:
    """Returns a fault by which the attention reads a cache without the new rows, as it was before any launch."""

    def fault(runner: Any, data: Any) -> None:
        one, name = runner._own[0], f"{data.workload.launch_ops[0].name}.{field}"
        copies = {inputs[name].data.ptr: inputs[name].copy() for inputs in data._check_inputs}
        right = one.address_of

        def old(tensor: str, ops: Any) -> int:
            address = int(right(tensor, ops))
            return int(copies[address].data.ptr) if tensor == name else address

        one.address_of = old

    return fault


def attention_first(runner: Any, data: Any) -> None:
    """Runs the attention before its inputs are written."""
    products = runner._products

    def enqueue(ops: Any, stream: int) -> None:
        runner._own[0].launch(ops, stream)
        products.enqueue(tuple(ops), stream)

    runner.enqueue = enqueue


def attention_last(runner: Any, data: Any) -> None:
    """Runs the attention after the op that reads it."""
    products = runner._products

    def enqueue(ops: Any, stream: int) -> None:
        products.enqueue(tuple(ops), stream)
        runner._own[0].launch(ops, stream)

    runner.enqueue = enqueue


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (stale_queries, "attention"),
        (stale_rows("keys"), "attention"),
        (stale_rows("values"), "attention"),
        (attention_first, "attention"),
        (attention_last, "o_proj"),
    ],
    ids=["stale queries", "stale keys", "stale values", "too early", "too late"],
)
@pytest.mark.parametrize("pages", [{}, {"page_tokens": 16}], ids=["", "pages"])
def test_a_planted_fault_is_found_out(
    on_card: OnCard, fault: Callable[[Any, Any], None], wrong: str, pages: dict[str, Any]
) -> None:
    from tuner.workers.gpu.own.runner import OwnRunner
    from tuner.workers.gpu.session import Kernels, load_runner
    from tuner.workers.gpu.tensors.check import WrongNumbers, check_numbers

    workload = between(pages=pages)
    prepared: Any = on_card.session._prepare(problem(workload))
    work, kernels = on_card.ready(workload, candidate_of(workload)).work, Kernels()
    try:
        runner = load_runner(prepared, work, kernels)
        assert isinstance(runner, OwnRunner)
        check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
        fault(runner, prepared.data)
        with pytest.raises(WrongNumbers, match=f"of {wrong} are wrong"):
            check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
        prepared.check_intact(load_runner(prepared, work, kernels))
    finally:
        kernels.unload()


def test_what_differs_in_a_second_launch_is_named_by_its_cause(on_card: OnCard) -> None:
    """The last bits of the attention change with each launch, and so do those of the product that reads it."""
    from tuner.workers.gpu.library.op_library import stream_at
    from tuner.workers.gpu.session import Kernels, load_runner
    from tuner.workers.gpu.tensors.check import WrongNumbers, check_numbers

    workload = between(rotary=False)
    prepared: Any = on_card.session._prepare(problem(workload))
    work, kernels = on_card.ready(workload, candidate_of(workload)).work, Kernels()
    runner: Any = load_runner(prepared, work, kernels)
    one, count = runner._own[0], iter(range(100))
    launch = one.launch

    def unstable(ops: Any, stream: int) -> None:
        launch(ops, stream)
        with stream_at(stream):
            at = one.address_of("attention", ops)
            out = next(o["attention"].bits for o in prepared.data.outputs if o["attention"].address == at)
            out[...] ^= next(count) % 2

    one.launch = unstable
    with pytest.raises(WrongNumbers, match="a second launch of attention computed different bits"):
        check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
    kernels.unload()


@pytest.mark.parametrize("pages", [{}, {"page_tokens": 16}, {"page_tokens": 16, "heads_first": False}])
def test_rows_that_are_written_to_another_place_are_found_out(on_card: OnCard, pages: dict[str, Any]) -> None:
    from tuner.workers.gpu.session import Kernels, load_runner
    from tuner.workers.gpu.tensors.check import WrongNumbers, check_numbers
    from tuner.workers.gpu.tensors.integrity import Overwritten

    workload = between(pages=pages)
    prepared: Any = on_card.session._prepare(problem(workload))
    work, kernels = on_card.ready(workload, candidate_of(workload)).work, Kernels()
    runner = load_runner(prepared, work, kernels)
    cache = prepared.data.caches["qkv"]
    arguments = cache.arguments
    shift = 2 * workload.launch_ops[0].shape.head_dim  # bytes of a row

    def off_by_one(inputs: Any) -> Any:
        found = arguments(inputs)
        return found | {"keys": found["keys"] - shift}

    cache.arguments = off_by_one
    with pytest.raises(WrongNumbers, match="of qkv are wrong"):
        check_numbers(prepared.data, prepared.comparer, lambda ops: prepared.run_once(runner, ops), work)
    with pytest.raises(Overwritten, match="keys, outside its new tokens"):
        prepared.check_intact(runner)
    kernels.unload()
    on_card.session._prepared = None


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("pages", -1, "has the page -1: use 0 to 127"),
        ("pages", 128, "has the page 128: use 0 to 127"),
        ("lengths", 513, "has the length 513: use 0 to 512"),
    ],
)
def test_what_a_launch_cannot_use_is_told_and_nothing_is_written_for_it(
    on_card: OnCard, field: str, value: int, says: str
) -> None:
    """Both the product and the attention after it report the fault. The other sequences are right."""
    from tuner.workers.gpu.session import Kernels, load_runner

    workload = between(pages={"page_tokens": 16}, num_behind=0)
    prepared: Any = on_card.session._prepare(problem(workload))
    kernels, data = Kernels(), prepared.data
    work = on_card.ready(workload, candidate_of(workload, PlanKind.TWO_LAUNCHES)).work
    runner: Any = load_runner(prepared, work, kernels)
    given = data._check_inputs[0][f"attention.{field}"]
    assert prepared.run_once(runner, data.check_ops(0)) is None
    right = data.written("qkv", 0).copy()
    kept = given.copy()
    data.poison()  # the rows that the reference names
    given.reshape(-1)[31 if field == "pages" else 0] = value
    assert says in str(prepared.run_once(runner, data.check_ops(0)))
    assert says in str(runner._products.plans[0].refused())
    given[...] = kept
    found, queries = data.written("qkv", 0), workload.tile_ops[0].c_columns
    assert bool((found[1:] == right[1:]).all())
    assert bool((found[0, queries:] == 0x7FFF).all()), "its row was not written"
    prepared.check_intact(runner)
    kernels.unload()
    on_card.session._prepared = None


@pytest.mark.parametrize("pages", [{}, {"page_tokens": 64}], ids=["", "pages"])
def test_a_cache_that_does_not_fit_is_refused_before_anything_is_allocated(
    on_card: OnCard, pages: dict[str, Any]
) -> None:
    from tuner.core.trial.outcome import Failed, FailureKind

    sizes = {"kv_heads": 8, "head_dim": 128, "max_length": 2**14}
    _, total_bytes = cupy.cuda.runtime.memGetInfo()
    workload = between(sequences=total_bytes // 5 // 2**26, sizes=sizes, pages=pages)
    on_card.session._prepared = None
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    outcome = on_card.session.evaluate(problem(workload), on_card.ready(workload, LIBRARY).work).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.OUT_OF_MEMORY
    assert "the caches of its checks" in outcome.reason
    assert pool.total_bytes() - before < 2**26, "less than a sequence's cache"


@pytest.mark.parametrize("name", ["turned", "pages", "a block behind", "attention last"])
def test_runs_without_a_pause_leave_what_each_leaves_alone(on_card: OnCard, name: str) -> None:
    """A launch that overwrote or read queries still in use by another launch would be detected here."""
    from tuner.workers.gpu.session import Kernels, load_runner

    workload = between(**WORKLOADS[name])
    prepared: Any = on_card.session._prepare(problem(workload))
    kind = PlanKind.TWO_LAUNCHES_PDL if len(workload.tile_ops) == 1 else PlanKind.N_LAUNCHES_PDL
    kernels, data = Kernels(), prepared.data
    runner = load_runner(prepared, on_card.ready(workload, candidate_of(workload, kind)).work, kernels)
    leaving = [name for name in data.outputs[0] if workload.leaves(workload.op_named(name))]
    assert leaving
    assert data.num_slots > 1
    alone = []
    for slot in range(data.num_slots):
        assert prepared.run_once(runner, data.slot_ops(slot)) is None
        alone.append({name: data.outputs[slot][name].bits.copy() for name in leaving})
    graph = prepared.timer.capture(runner)
    for _ in range(NUM_CHAINS):
        for outputs in data.outputs:
            for name in leaving:
                outputs[name].poison()
        cupy.cuda.Device().synchronize()
        graph.launch(prepared.stream)
        prepared.stream.synchronize()
        for outputs, wanted in zip(data.outputs, alone, strict=True):
            assert all(bool((outputs[name].bits == wanted[name]).all()) for name in leaving)
    assert runner.abort_record() is None
    prepared.check_intact(runner)
    kernels.unload()


@pytest.mark.parametrize(
    ("name", "kind", "launches"),
    [
        ("turned", PlanKind.N_LAUNCHES_PDL, [[0], [2], [1]]),
        ("attention last", PlanKind.TWO_LAUNCHES_PDL, [[0], [1]]),
        ("a block behind", PlanKind.RUNS, [[0], [4], [1, 2, 3]]),
    ],
)
def test_a_trace_has_the_attention_where_it_runs(
    on_card: OnCard, name: str, kind: PlanKind, launches: list[list[int]]
) -> None:
    workload = between(**WORKLOADS[name])
    candidate = candidate_of(workload, kind, (1,) if kind.is_in_runs else ())
    made = prepare(workload, on_card.gpu, candidate, on_card.builder, {}, traced=True)
    answer = on_card.session.trace(problem(workload), made.work)
    assert answer.reason == ""
    attentions = [one.plan for one in made.work.own]
    trace = trace_from_stamps(workload, attentions, made.plans, answer.stamps)
    assert trace.reason == ""
    gantt = gantt_of_trace(trace, made.plans, on_card.gpu.num_sms)
    of_launch = [gantt.tasks[gantt.tasks[:, 0] == launch] for launch in range(len(gantt.num_ctas))]
    assert [sorted(set(rows[:, 1].tolist())) for rows in of_launch] == launches
    ends = [int(rows[:, 10].max()) for rows in of_launch]
    late = [later > earlier - TOLERANCE_NS for earlier, later in pairwise(ends)]
    assert all(late), "a launch ended before the previous one"


@pytest.mark.parametrize(
    "name", ["turned", "pages", "pages, tokens first", "queries alone", "attention last", "a block behind"]
)
def test_the_runtime_runs_an_artifact_in_the_same_order(on_card: OnCard, name: str) -> None:
    from tuner.runtime import Artifact
    from tuner.workers.gpu.session import Kernels, load_runner

    workload = between(**WORKLOADS[name])
    prepared: Any = on_card.session._prepare(problem(workload))
    candidate, kernels, data = next(reversed([*candidates(workload)])), Kernels(), prepared.data
    made = on_card.ready(workload, candidate)
    assert prepared.run_once(load_runner(prepared, made.work, kernels), data.check_ops(0)) is None
    last = workload.ops[-1].name
    wanted = data.outputs[0][last].bits.copy()
    files = assemble(
        problem(workload), candidate, made.plans, made.source, made.work.shared,
        Environment(gpu_name=on_card.gpu.name, simulated=False), {}, made.work.spin_limit_cycles,
        own=own_kernels(workload, on_card.gpu, candidate, made.work.own),
    ).files  # fmt: skip
    out = cupy.full(wanted.shape, 0x7FFF, dtype=cupy.uint16)
    given = dict(data._check_inputs[0]) | {last: out}
    given |= {f"{op.name}.w": data._weights[0][index] for index, op in enumerate(workload.tile_ops)}
    given |= {f"{name}.frequencies": cache.frequencies for name, cache in data.caches.items()}
    data.poison()
    cupy.cuda.Device().synchronize()
    artifact = Artifact(files)
    launches = artifact.bind(given)
    for _ in range(3):
        launches.enqueue(prepared.stream.ptr)
    prepared.stream.synchronize()
    assert artifact.refused() == ""
    assert not artifact.aborted()
    assert bool((out == wanted).all())
    kernels.unload()
