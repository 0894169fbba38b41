"""The winners to run on a GPU, from the built-in results."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.gemm.pairs import ffn_pair
from tuner.winners.shipped import ShippedWinners, found_in

#: Rows up to which the host's time and the guard's cost matter most.
MAX_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A winner of the search."""

    name: str
    workload: Workload
    candidate: Candidate


def winners(target_id: str, count: int) -> list[Chosen]:
    """The best fused programmatic winners of up to `count` rows, spread over the suites, without options that need
    operands."""
    found: dict[str, Chosen] = {}
    rows = json.loads(ShippedWinners().path(target_id).read_text())
    for name, row in rows.items():
        for one in found_in(name, row):
            ops = one.workload.tile_ops
            is_plain = one.workload.kind is WorkloadKind.FFN and not any(
                op.bias or op.residual or op.row_scale for op in ops
            )
            if one.candidate.plan_kind is PlanKind.FUSED_PDL and is_plain and ops[0].m <= MAX_ROWS:
                found.setdefault(name, Chosen(name=name, workload=one.workload, candidate=one.candidate))
    step = max(1, len(found) // count)
    return list(found.values())[::step][:count]


def ladder(target_id: str, pair: tuple[int, int, int], dtype: Dtype, most: int = 256) -> list[Chosen]:
    """For one gated pair (d_in, d_hidden, d_out): the fastest winner of any kind at each m up to `most`, converted to
    `dtype`."""
    fastest: dict[int, tuple[float, Chosen]] = {}
    for name, row in json.loads(ShippedWinners().path(target_id).read_text()).items():
        for one in found_in(name, row):
            up, down = one.workload.tile_ops[0], one.workload.tile_ops[-1]
            is_asked = one.workload.kind is WorkloadKind.FFN and up.gated and (up.k, up.n, down.n) == pair
            if is_asked and up.m <= most and (up.m not in fastest or one.time_us < fastest[up.m][0]):
                workload = replace(one.workload, dtype=dtype)
                fastest[up.m] = one.time_us, Chosen(name=name, workload=workload, candidate=one.candidate)
    return [chosen for _, (_, chosen) in sorted(fastest.items())]


def at_rows(chosen: Chosen, m: int) -> Workload:
    """The pair at another m."""
    up, down = chosen.workload.tile_ops
    return ffn_pair(
        m=m,
        d_in=up.k,
        d_hidden=up.n,
        d_out=down.n,
        dtype=chosen.workload.dtype,
        activation=up.activation,
        gated=up.gated,
    )
