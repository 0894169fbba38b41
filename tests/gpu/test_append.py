"""The kernel that appends to the cache before an attention, on a GPU: it writes the new rows, paged or not, and nothing
else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.attentions import alone, attention
from tests.support.conformance.launching import OnCard
from tests.support.emulated.append import EmulatedAppend
from tests.support.emulated.chain import from_bits
from tests.support.on_card import problem
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.own_artifact import own_kernels

cupy = pytest.importorskip("cupy")

#: The longest context, one whose last page is not full, an empty one, and one that is a token too long.
LENGTHS = (700, 133, 0, 701)
#: Tolerance for keys and values of about 1 to 4: one rounding in bf16, and the error of an angle's sine.
MOST = 0.03


@pytest.mark.parametrize(
    "form",
    [{}, {"page_tokens": 16}, {"page_tokens": 64, "heads_first": False}],
    ids=["contiguous", "pages", "tokens first"],
)
def test_new_rows_are_turned_and_appended_and_no_other_row_is_written(on_card: OnCard, form: dict[str, Any]) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, on_card.gpu):
        pytest.skip(reason)
    from tuner.runtime import Artifact

    workload = attention(new_tokens=2, form=form)
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=alone(span_tokens=192, cluster=1))
    made, op = on_card.ready(workload, candidate), workload.launch_ops[0]
    files = assemble(
        problem(workload), candidate, (), "", None, Environment(gpu_name=on_card.gpu.name, simulated=False), {}, 55,
        own=own_kernels(
            workload, on_card.gpu, candidate, made.work.own,
            lambda source: on_card.builder.build(source, on_card.gpu.arch),
        ),
    ).files  # fmt: skip
    case = EmulatedAppend(op=op.shape, lengths=LENGTHS, paged=op.form.paged)
    given = {
        "q": cupy.zeros((op.m, op.n), dtype=cupy.uint16),
        "attention": cupy.zeros((op.m, op.n), dtype=cupy.uint16),
        "attention.qkv": cupy.asarray(case.qkv),
        "attention.frequencies": cupy.asarray(case.frequencies),
        "attention.lengths": cupy.asarray(np.array(LENGTHS, np.int32)),
    }
    caches = {f"attention.{name}": cupy.asarray(held) for name, held in zip(("keys", "values"), case.held, strict=True)}
    given |= caches | ({"attention.pages": cupy.asarray(case.pages)} if form else {})
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    artifact = Artifact(files)
    artifact.bind(given).enqueue(stream.ptr)
    stream.synchronize()
    for held, cache in zip(case.held, caches.values(), strict=True):
        held[...] = cache.get()
    queries, keys, values = case.expected()
    assert np.abs(from_bits(given["q"].get().reshape(queries.shape), op.shape.dtype) - queries).max() < MOST
    for found, wanted in ((case.keys, keys), (case.values, values)):
        rows = from_bits(found, op.shape.dtype)
        is_new = ~np.isnan(wanted)
        assert (np.isnan(rows) == ~is_new).all(), "a wrong row was written, or a new row was not"
        assert np.abs(rows[is_new] - wanted[is_new]).max() < MOST
    assert artifact.refused() == "sequence 3 has the length 701: use 0 to 700"
