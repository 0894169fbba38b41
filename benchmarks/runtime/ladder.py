"""A pack's ladder on a card: an op's time beside that of the finals, and beside the library's at every captured m."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common.report import at_least_row, check_row, failed_row
from benchmarks.runtime.chosen import Chosen, at_rows
from benchmarks.runtime.costs import NUM_ROUNDS, cold_graph, copies_of, graph_us
from tests.support.on_card import problem
from tests.support.packs_on_card import kernel_on_card
from tuner.client.tune_model import VLLM_ROWS
from tuner.core.schedule.candidate import LIBRARY
from tuner.core.trial.stats import median
from tuner.packs.contents import Entry, Shape
from tuner.packs.ladder import DEFAULT_MIN_GAIN, Found, make_entry
from tuner.packs.write import write_pack
from tuner.runtime import Pack
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.host.try_kernels import try_one
from tuner.workers.protocol.messages import Work

#: Of an op's time over the finals' of its kernel, and of the library's over the op's at any m.
FINALS_BAR, LIBRARY_BAR = 1.02, 0.99

Row = dict[str, Any]


def ladder_rows(supervisor: GpuSupervisor, builder: Builder, folder: Path, chosen: Sequence[Chosen]) -> list[Row]:
    """Makes a pack of one pair's winners, as the service does, and times every captured m of it."""
    results, finals_us, rows = [], {}, []
    for one in chosen:
        m, kernel = one.workload.ops[0].m, kernel_on_card(builder, supervisor.target.gpu, one.workload, one.candidate)
        answer = try_one(supervisor, kernel.files)
        if answer["reason"]:
            rows.append(failed_row(f"ladder: m = {m}", answer["reason"]))
            continue
        finals_us[m] = answer["time_us"]
        times = {name: answer[name] for name in ("time_us", "library_us")}
        results.append(Found(m=m, kernel=kernel, speedup=answer["speedup"], interval=None, **times))
    entry = make_entry(Shape.of_workload(chosen[-1].workload.to_json()), results, min_gain=DEFAULT_MIN_GAIN)
    write_pack([entry], folder / "ladder.tunerpack")
    with closing(Pack(folder / "ladder.tunerpack")) as pack:
        ops_us = op_times(pack, entry, chosen[-1])
    libraries_us = {m: library_us(supervisor, chosen[-1], m) for m in ops_us}
    return [*rows, *judge(str(entry.shape), ops_us, finals_us, libraries_us)]


def op_times(pack: Pack, entry: Entry, chosen: Chosen) -> dict[int, float]:
    """Microseconds of the op, cold, at each captured m at which a kernel of the pack runs."""
    import cupy

    copies, stream, found = copies_of(chosen.workload), cupy.cuda.Stream(non_blocking=True), {}
    for m in VLLM_ROWS:
        rung = entry.at(m)
        if rung is not None and rung.kernel is not None:
            y = copies[0].output(m)
            graph = cold_graph(pack, copies, y, stream)
            found[m] = median([graph_us(stream, graph) for _ in range(NUM_ROUNDS + 3)][3:])
    return found


def library_us(supervisor: GpuSupervisor, chosen: Chosen, m: int) -> float | None:
    """The library's own at m rows, by the procedure of the finals; None where it came to no time."""
    answer = supervisor.time_together(problem(at_rows(chosen, m)), (Work(plan_kind=LIBRARY.plan_kind),), NUM_ROUNDS)
    (times,) = answer.times_us
    return None if times is None else median(times)


def judge(
    shape: str, ops_us: dict[int, float], finals_us: dict[int, float], libraries_us: dict[int, float | None]
) -> list[Row]:
    """The worst of each, with the figures of all."""
    timed = sorted(m for m in ops_us if m in finals_us)
    compared = sorted(m for m in ops_us if libraries_us.get(m))
    names = f"ladder, {shape}: op over the finals", f"ladder, {shape}: library over op"
    rows = []
    if timed:
        ratios = {m: round(ops_us[m] / finals_us[m], 4) for m in timed}
        rows.append(check_row(names[0], max(ratios.values()), FINALS_BAR, by_m=ratios))
    else:
        rows.append(failed_row(names[0], "no kernel wins at an m of the ladder"))
    if compared:
        gains = {m: round((libraries_us[m] or 0.0) / ops_us[m], 4) for m in compared}
        missing = sorted(set(ops_us) - set(compared))
        rows.append(at_least_row(names[1], min(gains.values()), LIBRARY_BAR, by_m=gains, not_measured=missing))
    else:
        rows.append(failed_row(names[1], "the library came to no time"))
    return rows
