"""Variants of the device code beside each other, on schedules of chains: what happens at the boundaries between ops.

python -m benchmarks.chains.variants --builds build/chain-variants --make [--processes 2]
python -m benchmarks.chains.variants --builds build/chain-variants --out FILE [--row llama3-8b/m64] [--seconds 150]

The first makes every cubin, without a GPU. The second checks numbers, times all variants of a row with the library in
the same rounds, and traces those that ask for it. It builds nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.chains.boundaries import boundaries_of
from benchmarks.chains.rows import ChainRow
from benchmarks.chains.variant_list import EXPERIMENTS, ROW_OF, Experiment, words_layout
from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.trial.stats import median, paired_ratios
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.source.launchable import Launchable, Ties, cubin_digest
from tuner.workers.source.render import render

NUM_ROUNDS = 20


def source_of(one: Experiment, *, traced: bool) -> str:
    """The source of a schedule with the experiment's constants."""
    text = render(ROW_OF[one.row].workload, one.candidate.schedule.tiling, traced=traced)
    if one.readers:
        before = one.candidate.schedule.tiling.num_threads // 32
        count = f"constexpr int kNumWarps = {before};"
        assert count in text
        text = text.replace(count, f"constexpr int kNumWarps = {before + one.readers};")
    return one.constants + text


def path_of(folder: Path, one: Experiment, *, traced: bool) -> Path:
    """Where its cubin is kept."""
    said = f"{one.row} {one.label} {one.candidate.schedule} {traced}"
    return folder / f"{hashlib.sha256(said.encode()).hexdigest()[:24]}.cubin"


def make(job: tuple[Path, str, str]) -> str:
    """Compiles one source, unless it is there."""
    path, name, source = job
    kept, digest = path.with_suffix(".source"), hashlib.sha256(source.encode()).hexdigest()
    if path.exists() and kept.read_text() == digest:
        return f"{name}: there"
    begin = time.perf_counter()
    try:
        cubin, log = compile_source(source, "sm_90a")
    except Exception as error:
        return f"{name}: FAILED {[line for line in str(error).splitlines() if 'error' in line][:3]}"
    used = parse_log(log)
    path.write_bytes(cubin)
    kept.write_text(digest)
    spilled = f", {used.spill_bytes} BYTES SPILLED" if used.spill_bytes else ""
    return f"{name}: {time.perf_counter() - begin:.1f} s, {used.registers_per_thread} registers{spilled}"


def make_all(folder: Path, num_processes: int, chosen: str) -> None:
    """Every cubin of every experiment; proves each schedule first."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs: dict[Path, tuple[Path, str, str]] = {}
    for one in EXPERIMENTS:
        if chosen not in f"{one.row} {one.label}":
            continue
        plans_for(ROW_OF[one.row].workload, CATALOGUE["h200"], one.candidate)
        for traced in (False, True) if one.traced else (False,):
            path = path_of(folder, one, traced=traced)
            jobs[path] = (path, f"{one.row} {one.label}", source_of(one, traced=traced))
    for old in set(folder.glob("*.cubin")) - set(jobs) if not chosen else ():
        old.unlink()
        old.with_suffix(".source").unlink()
    print(f"{len(EXPERIMENTS)} experiments, {len(jobs)} builds", flush=True)
    with ProcessPoolExecutor(num_processes) as pool:
        for said in pool.map(make, jobs.values()):
            if not said.endswith("there"):
                print(said, flush=True)
    print(f"{sum(path.stat().st_size for path in jobs) / 2**20:.1f} MiB")


def launchable_of(folder: Path, one: Experiment, *, traced: bool) -> Launchable:
    """Proven plans and the cubin, tied by hand: `tie` knows no constants of experiments."""
    workload = ROW_OF[one.row].workload
    plans = plans_for(workload, CATALOGUE["h200"], one.candidate)
    cubin = path_of(folder, one, traced=traced).read_bytes()
    ties = Ties(
        workload=workload.digest,
        proofs=tuple(plan.digest for plan in plans),
        build=cubin_digest(cubin),
        cubin=cubin_digest(cubin),
    )
    smem = dynamic_smem_bytes(workload, one.candidate.schedule.tiling)
    return WithReaders(plans=plans, cubin=cubin, smem_bytes=smem, ties=ties, readers=one.readers)


@dataclass(frozen=True, kw_only=True)
class WithReaders(Launchable):
    """Of more warps than its tiling says."""

    readers: int

    @property
    def num_threads(self) -> int:
        return self.tiling.num_threads + 32 * self.readers


@contextmanager
def room_for_words(one: Experiment) -> Iterator[None]:
    """Workspaces made meanwhile have room for an experiment's words, which stays zero when sums are poisoned."""
    from tuner.workers.gpu import launch

    plain = launch.workspace_layout
    if one.readers:
        end = words_layout(one.row, one.candidate)[1]
        launch.workspace_layout = lambda plan: plain(plan) | {"bytes": end}
    try:
        yield
    finally:
        launch.workspace_layout = plain


def poison_sums(plan: Any) -> None:
    """NaN where parts of tiles leave their sums, and not where words are."""
    from tuner.workers.gpu.launch import FP32_NAN
    from tuner.workers.source.launch_args import workspace_layout

    layout = workspace_layout(plan.plan)
    plan._workspace.words[layout["slots"] // 4 : layout["bytes"] // 4].fill(FP32_NAN)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What runs on the card share."""

    tools: Any
    lt: Any
    folder: Path


def measure_row(card: Card, row: ChainRow, experiments: list[Experiment]) -> list[dict[str, Any]]:
    """Figures of a row's experiments, in rounds with the library."""
    from tuner.workers.gpu.baselines import runner_of
    from tuner.workers.gpu.check import check_after_timing, check_numbers
    from tuner.workers.gpu.launch import Kernel
    from tuner.workers.gpu.measure import time_together
    from tuner.workers.gpu.problem_on_card import ProblemOnCard
    from tuner.workers.protocol.messages import Work

    prepared = ProblemOnCard(row.problem, card.tools, card.lt, None)
    found: list[dict[str, Any]] = []
    graphs, kept = [prepared.library_graph], []
    for one in experiments:
        said: dict[str, Any] = {"row": row.name, "label": one.label, "schedule": str(one.candidate.schedule)}
        said["kind"] = str(one.candidate.plan_kind)
        found.append(said)
        try:
            work = Work(plan_kind=one.candidate.plan_kind, launchable=launchable_of(card.folder, one, traced=False))
            kernel = Kernel(work.launchable)
            with room_for_words(one):
                runner = runner_of(work, kernel, input_squares=None if one.staged else prepared.input_squares)
            said["rel_error"] = check_numbers(prepared.data, lambda ops, r=runner: prepared.run_once(r, ops), work)
            prepared.check_intact(runner)
            graphs.append(prepared.timer.capture(runner))
            kept.append((one, said, work, runner, kernel))
        except Exception as error:
            said["failed"] = f"{type(error).__name__}: {error}"[:300]
            print(row.name, one.label, said["failed"], flush=True)
            if "cuda" in said["failed"].lower():
                sys.exit(f"the context is lost: {row.name} {one.label}")
    times, dropped = time_together(prepared, graphs, NUM_ROUNDS)
    library = times[0]
    for (one, said, work, runner, _), own in zip(kept, times[1:], strict=True):
        said |= {"us": round(median(own), 2), "library_us": round(median(library), 2), "dropped": dropped}
        said["ratio"] = round(median(paired_ratios(own, library)), 4)
        said["over_floor"] = round(median(own) / row.reference_us, 3)
        spread = sorted(own)
        said["quartiles_us"] = [round(spread[len(spread) // 4], 2), round(spread[3 * len(spread) // 4], 2)]
        try:
            check_after_timing(prepared.data, lambda ops, r=runner: prepared.run_once(r, ops), work)
            said["abort"] = runner.abort_record()
            if one.traced:
                said["boundaries"] = trace(card, prepared, one, row)
        except Exception as error:
            said["failed"] = f"{type(error).__name__}: {error}"[:300]
        print(row.name, one.label, json.dumps({k: v for k, v in said.items() if k not in ("row", "label")}), flush=True)
    return found


def trace(card: Card, prepared: Any, one: Experiment, row: ChainRow) -> Any:
    """Boundaries by the medians of some traces."""
    from tuner.core.insight.tracing import spans_from_stamps
    from tuner.workers.gpu.launch import Kernel
    from tuner.workers.gpu.trace_run import trace_once
    from tuner.workers.protocol.messages import Work

    work = Work(plan_kind=one.candidate.plan_kind, launchable=launchable_of(card.folder, one, traced=True))
    names = tuple(op.name for op in row.workload.ops)
    several = []
    for _ in range(5):
        with room_for_words(one):
            answer = trace_once(prepared, Kernel(work.launchable), work)
        if answer.reason:
            return answer.reason
        spans = spans_from_stamps([plan.plan for plan in work.plans], answer.stamps)
        several.append(boundaries_of(SimpleNamespace(op_names=names, spans=spans)))
    rows = []
    for same in zip(*several, strict=True):
        middle = {key: same[0][key] for key in same[0] if key == "op"}
        middle |= {key: round(median([one[key] for one in same]), 2) for key in same[0] if key != "op"}
        rows.append(middle)
    return rows


def main() -> None:
    """Makes the builds, or runs them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=Path, required=True)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--chosen", default="", help="make those whose row and label have this in them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--skip", default="\0", help="leave those out whose label has this in it")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.make:
        make_all(arguments.builds, arguments.processes, arguments.chosen)
        return
    import cupy

    from tuner.workers.gpu import launch
    from tuner.workers.gpu.cublaslt import CublasLt
    from tuner.workers.source.render import device_text

    begin = time.monotonic()
    launch.PlanOnDevice.poison_sums = poison_sums  # type: ignore[method-assign]
    tools = cupy.cuda.function.Module()
    tools.load(compile_source(device_text("tools.cu"), f"sm_{cupy.cuda.Device().compute_capability}")[0])
    card = Card(tools=tools, lt=CublasLt(), folder=arguments.builds)
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(one.row for one in EXPERIMENTS):
        if arguments.row and name not in arguments.row:
            continue
        if time.monotonic() - begin > arguments.seconds:
            print(f"the time is up: {name} and those behind it are left")
            break
        found += measure_row(
            card, ROW_OF[name], [one for one in EXPERIMENTS if one.row == name and arguments.skip not in one.label]
        )
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"seconds": time.monotonic() - begin, "rows": found}, indent=1) + "\n")
        cupy.get_default_memory_pool().free_all_blocks()
    print(f"{time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
