"""Packs of kernels that a GPU runs, made without a service, for the GPU tests and for benchmarks."""

from __future__ import annotations

from pathlib import Path

from tests.support.on_card import problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Environment
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.shapes import Shape
from tuner.packs.write import write_pack
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.builder.prepare import prepare
from tuner.workers.builder.variants import build_variants


def kernel_on_card(
    builder: Builder,
    gpu: Gpu,
    workload: Workload,
    candidate: Candidate,
    *,
    driver: str = "",
    spin_limit_cycles: int = 0,
) -> Kernel:
    """A candidate's artifact with all its variants; `spin_limit_cycles` if the wait limit is not the default."""
    limit = {"spin_limit_cycles": spin_limit_cycles} if spin_limit_cycles else {}
    ready = prepare(workload, gpu, candidate, builder, {}, **limit)
    assert not ready.refusal, ready.refusal
    launchable = ready.work.shared
    assert launchable is not None
    variants = build_variants(launchable.plans, builder, programmatic=candidate.plan_kind.is_programmatic)
    assert all(not one.refusal for one in variants), [one.refusal for one in variants]
    here = Environment(gpu_name=gpu.name, simulated=False, driver=driver, cuda=builder.compiler_version)
    made = assemble(
        problem(workload),
        candidate,
        launchable.plans,
        ready.source,
        launchable,
        here,
        {},
        ready.work.spin_limit_cycles,
        variants,
    )
    return Kernel(files=made.files)


def pack_of(folder: Path, *kernels: Kernel) -> Path:
    """A pack of one shape's kernels; each serves the row counts above those of the previous kernel, up to its own
    maximum."""
    rungs, end = [], 0
    for kernel in kernels:
        most = kernel.manifest["rows"]["max"]
        rungs.append(Rung(m_lo=end + 1, m_hi=most, kernel=kernel))
        end = most
    path = folder / "card.tunerpack"
    write_pack([Entry(shape=Shape.of_workload(kernels[0].manifest["workload"]), rungs=tuple(rungs))], path)
    return path


def attention_on_card(builder: Builder, gpu: Gpu, workload: Workload, candidate: Candidate) -> Kernel:
    """An attention's artifact, with that of the product after it."""
    ready = prepare(workload, gpu, candidate, builder, {})
    assert not ready.refusal, ready.refusal
    work = ready.work
    made = assemble(
        problem(workload),
        candidate,
        work.plans,
        ready.source,
        work.shared,
        Environment(gpu_name=gpu.name, simulated=False, cuda=builder.compiler_version),
        {},
        work.spin_limit_cycles,
        own=own_kernels(workload, gpu, candidate, work.own),
    )
    return Kernel(files=made.files)
