"""The artifacts of a decoder layer of Llama-3-8B, without a service: shipped winners of its block in bf16, and
attentions.

An artifact of either is one that a job leaves, too. Of a block these are the fastest winners of each programmatic
plan kind. An attention has the schedules that pairs were fastest with (docs/findings/attention-pair.md), for a longer
context.

python -m benchmarks.runtime.layer_kernels --batch 1,16 --out FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.support.presets import decoder_attention, decoder_layer
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.levels import NO_ORDERING, NO_TILING
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
from tuner.core.trial.evaluator import Environment, Problem
from tuner.core.trial.job import Objective
from tuner.errors import TunerError
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.search.guesses.adapting import adapt
from tuner.winners.shipped import ShippedWinners
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.builder.prepare import prepare

MODEL = "llama3-8b"
#: Kinds of a block that let the launch behind begin early.
BLOCK_KINDS = (PlanKind.FUSED_PDL, PlanKind.RUNS, PlanKind.N_LAUNCHES_PDL)
#: Stages of weights, and how many of the next op's may be under way before its signals; 0 for all.
OTHER_RINGS = ((4, 0), (5, 0), (6, 2))
#: Whose winners are taken where a GPU has none of the chain.
MEASURED = "h200"
_BUILD_CACHE = Path("build/bench-cache")
_NUM_PROCESSES = 8


def block_of(batch: int, length: int) -> Workload:
    """From o_proj to the next layer's qkv, which writes to a cache of that `length`, tokens."""
    layer = decoder_layer(MODEL, sequences=batch, max_length=length, dtype=Dtype.BF16)
    return replace(layer, ops=layer.tile_ops)


def attention_of(batch: int, length: int) -> Workload:
    """Attention alone; `length`: tokens of the longest context."""
    return decoder_attention(MODEL, sequences=batch, max_length=length, projection=False, dtype=Dtype.BF16)


def block_candidates(target_id: str, batch: int, length: int) -> Iterator[tuple[str, Candidate]]:
    """The fastest shipped winner of each kind, by name, adapted: that search was in fp16, and its qkv wrote to no
    cache."""
    space = any_space_of(block_of(batch, length), CATALOGUE[target_id])
    name, kinds = f"shipped chains/{MODEL}/m{batch}", list(BLOCK_KINDS)
    shipped = ShippedWinners()
    chains = [one for one in shipped.of(target_id) if one.source == name] or shipped.of(MEASURED)
    for found in sorted(chains, key=lambda one: one.time_us):
        if found.source == name and found.candidate.plan_kind in kinds:
            candidate = adapt(space, found)
            if candidate is None:
                continue
            kinds.remove(candidate.plan_kind)
            yield str(candidate.plan_kind), candidate
            if candidate.plan_kind is PlanKind.FUSED_PDL:
                yield from _other_rings(candidate)


def without_qkv(workload: Workload, candidate: Candidate) -> tuple[Workload, Candidate]:
    """The last layer's block, whose qkv nobody reads, in the same schedule."""
    assert candidate.schedule is not None
    *ops, _ = workload.tile_ops
    schedule = candidate.schedule
    assert schedule.order is not None
    starts = tuple(start for start in schedule.order.run_starts if start < len(ops))
    fewer = replace(schedule, ops=schedule.ops[:-1], order=replace(schedule.order, run_starts=starts))
    return replace(workload, ops=tuple(ops)), replace(candidate, schedule=fewer)


def _other_rings(candidate: Candidate) -> Iterator[tuple[str, Candidate]]:
    """The same schedule with shorter rings, which leave room for CTAs of the attention, and with the longest."""
    schedule = candidate.schedule
    assert schedule is not None
    for stages, window in OTHER_RINGS:
        inputs = min(stages, schedule.tiling.input_stages)
        tiling = replace(schedule.tiling, num_stages=stages, input_stages=inputs, ahead_window=window)
        if tiling != schedule.tiling:
            name = f"fused_pdl s{stages} i{inputs} ahead{window}"
            yield name, replace(candidate, schedule=schedule.but(tiling=tiling))


def attention_candidates(batch: int, length: int) -> Iterator[tuple[str, Candidate]]:
    """Of one sequence a cluster for each KV head, or many CTAs that merge what they have; of more a CTA for each
    head."""

    def spread(cluster: int, tile: int, stages: int, warps: int, span: int | None = None) -> tuple[str, Candidate]:
        teams = max(1, warps * 16 // tile)
        share = cluster * tile
        own_tiles = -(-length // share)
        one = AttentionSchedule(
            tile_tokens=tile,
            num_stages=max(min(stages, own_tiles), teams),
            math_warps=max(warps, tile // 16),
            cluster=cluster,
            span_tokens=span or own_tiles * share,
            speculative=True,
        )
        candidate = Candidate(
            plan_kind=PlanKind.TWO_LAUNCHES_PDL,
            schedule=Schedule.of(tiling=NO_TILING, ordering=NO_ORDERING, launch_ops=(one,)),
        )
        return f"cluster{cluster} {tile}x{one.num_stages} w{one.math_warps} span{one.span_tokens}", candidate

    if batch == 1:
        yield spread(8, 64, 1, 4)
        yield spread(8, 64, 2, 4)
        yield spread(4, 64, 2, 4)
        yield spread(1, 64, 1, 4, span=64)
    else:
        yield spread(1, 64, 1, 4)
        yield spread(1, 64, 2, 4)
        yield spread(1, 64, 6, 8)


def make(
    workload: Workload, gpu: Gpu, candidate: Candidate, builder: Builder, folder: Path, source: str, driver: str = ""
) -> Path | str:
    """Writes an artifact's files into `folder`, or says why there is none. `source`: where the schedule comes from."""
    try:
        ready = prepare(workload, gpu, candidate, builder, {})
        if ready.refusal:
            return ready.refusal
        own = own_kernels(workload, gpu, candidate, ready.work.own, lambda source: builder.build(source, gpu.arch))
        made = assemble(
            Problem(workload=workload, objective=Objective()),
            candidate,
            ready.plans,
            ready.source,
            ready.work.shared,
            Environment(gpu_name=gpu.name, simulated=False, driver=driver, cuda=builder.compiler_version),
            {"provenance": {"source": source}},
            ready.work.spin_limit_cycles,
            own=own,
        )
    except TunerError as error:
        return str(error)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in made.files.items():
        (folder / name).write_bytes(data)
    return folder


def make_all(batches: Sequence[int], length: int, out: Path, target_id: str = MEASURED) -> dict[str, Path | str]:
    """All artifacts of these batches, by `<block, last or attention>/<batch>/<name>`: folders, or why there is none."""
    gpu, wanted = CATALOGUE[target_id], {}
    for batch in batches:
        for name, candidate in block_candidates(target_id, batch, length):
            source = f"shipped chains/{MODEL}/m{batch}"
            wanted[f"block/{batch}/{name}"] = block_of(batch, length), candidate, source
            wanted[f"last/{batch}/{name}"] = (*without_qkv(block_of(batch, length), candidate), source)
        for name, candidate in attention_candidates(batch, length):
            by_hand = "named by hand, as docs/findings/attention-pair.md found"
            wanted[f"attention/{batch}/{name}"] = attention_of(batch, length), candidate, by_hand
    with closing(Builder(_BUILD_CACHE, num_processes=_NUM_PROCESSES)) as builder, ThreadPoolExecutor(8) as threads:
        made = {
            name: threads.submit(make, workload, gpu, candidate, builder, out / name.replace(" ", "-"), source)
            for name, (workload, candidate, source) in wanted.items()
        }
        return {name: one.result() for name, one in made.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the longest context")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name, found in make_all([int(one) for one in options.batch.split(",")], options.length, options.out).items():
        print(f"{name}: {found}")


if __name__ == "__main__":
    main()
