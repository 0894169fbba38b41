"""A launch op of another package on a GPU: results, planted faults, the library, and its artifact. The package runs in
another process, so no test here has its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import toys

pytest.importorskip("cupy")

_PREPARED = """
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
import cupy
import numpy as np
from tests.support.conformance.launching import OnCard
from tests.support.on_card import problem
from tuner.core.problem.gpu import gpu_from_live
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.joint import any_space_of
from tuner.core.trial.outcome import Failed, Measured
from tuner.search.guesses.seeds import first_guesses
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.gpu.child import live_facts
from tuner.workers.gpu.session import Session
from tuner.workers.host.cards import usable_gpus
from tuner.workers.source.tools import tools_source
card = usable_gpus()[0]
gpu = gpu_from_live(live_facts(card.uuid))
builder = Builder(Path(tempfile.mkdtemp()))
on_card = OnCard(session=Session(builder.build(tools_source(gpu.arch), gpu.arch).cubin), builder=builder, gpu=gpu)
def ready(workload, kind):
    schedule = next(iter(first_guesses(any_space_of(workload, gpu), 0)))
    return Candidate(plan_kind=kind, schedule=schedule)
def chain(*ops, dtype="bf16"):
    return Workload.from_json({"kind": "chain", "ops": list(ops), "dtype": dtype})
"""
_GATHER = """
GATHER = {"op": "gather", "name": "embed", "m": 16, "n": 512, "table_rows": 4096}
UP = {"name": "up", "source": "embed", "m": 16, "n": 256, "k": 512, "activation": "identity", "bias": False}
"""
_STRANGERS = """
ABSMAX = {"op": "absmax", "name": "scaled", "m": 16, "n": 512}
TALLY = {"op": "tally", "name": "kept", "m": 16, "k": 512}
BEHIND = {"op": "tally", "name": "kept", "m": 16, "k": 512, "source": "scaled.negated"}
"""
_NUMBERS = """
for dtype in ("bf16", "fp16"):
    for workload in (CHAINS):
        for kind in (PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL):
            outcome = on_card.measured(workload, ready(workload, kind))
            assert outcome.time_us > 0.5, outcome
        library = on_card.evaluate(workload, on_card.ready(workload, LIBRARY).work)
        assert isinstance(library, Measured), library
print("right")
"""
_PLANTED = """
from tuner.workers.builder import kernels, tie
workload = chain(OPS)
candidate = ready(workload, PlanKind.TWO_LAUNCHES)
work = on_card.ready(workload, candidate).work
(own,) = work.own
numbers = part_of(own.op.KIND, "numbers")
for what, source in numbers.planted(own.op, own.schedule, workload.dtype).items():
    built = builder.build(source, gpu.arch)
    from tuner.workers.source.launchable import cubin_digest
    forged = replace(own, cubin=built.cubin, ties=replace(own.ties, build=built.key, cubin=cubin_digest(built.cubin)))
    launchables = tuple(forged if one is own else one for one in work.launchables)
    outcome = on_card.session.evaluate(problem(workload), replace(work, launchables=launchables)).outcome
    print(what, "|", getattr(outcome, "kind", outcome), "|", getattr(outcome, "reason", "")[:60])
"""
_ARTIFACT = """
from tests.support.packs_on_card import attention_on_card
from tuner.runtime import Artifact
workload = chain(GATHER, UP)
kernel = attention_on_card(builder, gpu, workload, ready(workload, PlanKind.TWO_LAUNCHES))
artifact = Artifact(kernel.files)
random = np.random.default_rng(1)
def bf16(*shape):
    return (cupy.asarray(random.standard_normal(shape, dtype=np.float32)).view(cupy.uint32) >> 16).astype(cupy.uint16)
def wide(bits):
    return (bits.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)
for count in (16, 5, 0):
    given = {
        "x": bf16(16, 512), "embed.table": bf16(4096, 512), "up.w": bf16(256, 512), "up": bf16(16, 256),
        "embed.rows": cupy.asarray(random.integers(0, 4096, 16, dtype=np.int32)),
        "embed.count": cupy.asarray([count], dtype=cupy.int32),
    }
    launches = artifact.bind(given)
    launches.enqueue(cupy.cuda.Stream.null.ptr)
    cupy.cuda.Device().synchronize()
    sums = wide(given["x"]) + wide(given["embed.table"])[given["embed.rows"]]
    sums[count:] = 0
    wanted = sums @ wide(given["up.w"]).T
    off = float(cupy.linalg.norm(wide(given["up"]) - wanted)) / max(1.0, float(cupy.linalg.norm(wanted)))
    assert off < 1.6e-2, (count, off)
print("right")
"""


@pytest.fixture(scope="module")
def gather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.install("gather", tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.install("strangers", tmp_path_factory.mktemp("strangers"))


def run(program: str, site: Path) -> str:
    return toys.run(_PREPARED + program, site, timeout_s=300.0, warnings="default")


def test_numbers_are_right_in_each_way_to_launch_and_so_are_the_librarys(gather: Path) -> None:
    chains = "chain(GATHER, dtype=dtype), chain(GATHER, UP, dtype=dtype)"
    assert run(_GATHER + _NUMBERS.replace("CHAINS", chains), gather) == "right\n"


def test_several_launches_and_outputs_and_what_is_changed_in_place_are_right(strangers: Path) -> None:
    chains = "chain(ABSMAX, dtype=dtype), chain(TALLY, dtype=dtype), chain(ABSMAX, BEHIND, dtype=dtype)"
    assert run(_STRANGERS + _NUMBERS.replace("CHAINS", chains), strangers) == "right\n"


def planted(program: str, site: Path) -> list[list[str]]:
    return [line.split(" | ") for line in run(program, site).splitlines()]


def test_a_planted_fault_is_found_out(gather: Path, strangers: Path) -> None:
    lines = planted(_GATHER + _PLANTED.replace("OPS", "GATHER, UP"), gather)
    for op in ("ABSMAX", "TALLY"):
        lines += planted(_STRANGERS + _PLANTED.replace("OPS", op), strangers)
    assert len(lines) == 10
    assert {kind for _, kind, _ in lines} == {"wrong_numbers"}, lines


def test_an_artifact_gives_the_same_for_any_count(gather: Path) -> None:
    assert run(_GATHER + _ARTIFACT, gather) == "right\n"
