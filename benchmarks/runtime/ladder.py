"""A pack's ladder on a card: at every captured m with a kernel, the op compared with the library, and at the m of a
winner with the kernel as its finals launch it. All three alternate in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.report import at_least_row, check_row, failed_row
from benchmarks.runtime.chosen import Chosen, at_rows
from benchmarks.runtime.kernels import Kernels
from benchmarks.runtime.rounds import PackRunner, Rounds, times_us
from tests.support.packs_on_card import pack_of
from tuner.client.options.vllm_rows import captured_rows
from tuner.core.problem.gpu import Gpu
from tuner.core.trial.stats import median, paired_ratios
from tuner.packs.contents import Kernel
from tuner.packs.ladder import DEFAULT_MIN_GAIN, Found, make_entry
from tuner.packs.shapes import Shape
from tuner.packs.write import write_pack
from tuner.runtime import Pack
from tuner.workers.host.try_kernels import work_of

#: Targets for an op's time over its kernel's in the finals, and for the library's time over the op's at any m.
FINALS_BAR, LIBRARY_BAR = 1.02, 0.99
NUM_ROUNDS = 30

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AtRows:
    """The results at one number of rows: medians in microseconds, and ratios of samples of the same round."""

    op_us: float
    library_us: float
    library_over_op: float
    #: The time of the kernel as the worker launches it; None unless m is a winner's own.
    finals_us: float | None = None
    library_over_finals: float = 0.0
    op_over_finals: float = 0.0


def ladder_rows(rounds: Rounds, kernels: Kernels, folder: Path, chosen: Sequence[Chosen]) -> list[Row]:
    """Makes a pack of one pair's winners, as the service does, and times every captured m that a kernel serves."""
    found: dict[int, AtRows] = {}
    results = []
    for one in chosen:
        m, kernel = one.workload.tile_ops[0].m, kernels.get(one)
        with closing(Pack(pack_of(folder, kernel))) as pack:
            found[m] = measured = at_winner(rounds, pack, one, kernel, kernels.gpu)
        results.append(
            Found(
                m=m, kernel=kernel, speedup=measured.library_over_finals, interval=None,
                time_us=measured.finals_us, library_us=measured.library_us,
            )
        )  # fmt: skip
    entry = make_entry(Shape.of_workload(chosen[-1].workload.to_json()), results, min_gain=DEFAULT_MIN_GAIN)
    served = [m for m in captured_rows() if (rung := entry.at(m)) is not None and rung.kernel is not None]
    write_pack([entry], folder / "ladder.tunerpack")
    own = {result.m: result.kernel for result in results}
    with closing(Pack(folder / "ladder.tunerpack")) as pack:
        for m in served:
            rung = entry.at(m)
            if rung is not None and rung.kernel is not own.get(m):
                found[m] = between_winners(rounds, pack, chosen[-1], m)
    return judge(str(entry.shape), {m: found[m] for m in served})


def at_winner(rounds: Rounds, pack: Pack, one: Chosen, kernel: Kernel, gpu: Gpu) -> AtRows:
    """At a winner's own m: the library, the kernel as its finals launch it, and the op."""
    from tuner.workers.gpu.launching.launch import Kernel as Loaded
    from tuner.workers.gpu.library.runners import runner_of

    work, prepared = work_of(kernel.files, gpu), rounds.problem(one.workload)
    assert work.shared is not None
    loaded = Loaded(work.shared)
    with closing(PackRunner(pack, one.workload.tile_ops[0].m)) as op:
        library_us, finals_us, op_us = times_us(prepared, [prepared.library, runner_of(work, loaded), op], NUM_ROUNDS)
    loaded.unload()
    return AtRows(
        op_us=median(op_us),
        library_us=median(library_us),
        library_over_op=median(paired_ratios(library_us, op_us)),
        finals_us=median(finals_us),
        library_over_finals=median(paired_ratios(library_us, finals_us)),
        op_over_finals=median(paired_ratios(op_us, finals_us)),
    )


def between_winners(rounds: Rounds, pack: Pack, one: Chosen, m: int) -> AtRows:
    """Times of the library and of the op at another m for which the pack has a kernel."""
    prepared = rounds.problem(at_rows(one, m))
    with closing(PackRunner(pack, m)) as op:
        library_us, op_us = times_us(prepared, [prepared.library, op], NUM_ROUNDS)
    ratio = median(paired_ratios(library_us, op_us))
    return AtRows(op_us=median(op_us), library_us=median(library_us), library_over_op=ratio)


def judge(shape: str, found: Mapping[int, AtRows]) -> list[Row]:
    """The worst ratio of each kind, with the figures of all m that have a kernel."""
    names = f"ladder, {shape}: op over the finals", f"ladder, {shape}: library over op"
    if not found:
        return [failed_row(name, "no kernel wins at an m of the ladder") for name in names]
    of_finals = {m: round(one.op_over_finals, 4) for m, one in sorted(found.items()) if one.finals_us is not None}
    gains = {m: round(one.library_over_op, 4) for m, one in sorted(found.items())}
    op_us = {m: round(one.op_us, 2) for m, one in sorted(found.items())}
    return [
        check_row(names[0], max(of_finals.values()), FINALS_BAR, by_m=of_finals),
        at_least_row(names[1], min(gains.values()), LIBRARY_BAR, by_m=gains, op_us=op_us),
    ]
