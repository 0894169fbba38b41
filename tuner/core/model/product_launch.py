"""Properties of a launch of products for simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tuner.core.model.caches.l2 import FIRST, LAST, NORMAL
from tuner.core.model.caches.merging import merged_shares
from tuner.core.model.launch import Launch
from tuner.core.model.rates import Rates
from tuner.core.model.task_costs import OpCosts, costs_of, num_teams, runs_ahead
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.order.split_tasks import parts_of
from tuner.core.plan.table.words import Plan
from tuner.core.problem.resources import occupancy
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.cache_hints import hints_of
from tuner.core.schedule.tiling import CacheHint, PartSums

#: Polling threads if one warp does the copying.
WARP = 32
#: Eviction classes, by cache hint.
_CLASSES = {CacheHint.EVICT_FIRST: FIRST, CacheHint.NORMAL: NORMAL, CacheHint.EVICT_LAST: LAST}


def product_launch(plan: VerifiedPlan, words: Plan, rates: Rates, *, is_apart: bool = False) -> Launch:
    """Costs and kernel of a launch with the tasks of `words`; with `is_apart`, it takes SMs as they become free."""
    graph, gpu = plan.graph, plan.gpu
    tiling, hints = graph.tiling, hints_of(graph.workload, graph.tiling)
    merged = merged_shares(words, tiling, is_apart=is_apart)
    # CTAs that request together do not wait for earlier requests.
    costs = {
        op: replace(own, exposed_share=own.exposed_share * (1 - merged[op])) if op in merged else own
        for op, own in costs_of(graph, gpu, rates, has_even_parts=_has_even_parts(words, graph)).items()
    }
    return Launch(
        costs=costs,
        weight_class=_CLASSES[hints.weights],
        input_classes={op: _CLASSES[hint] for op, hint in enumerate(hints.inputs)},
        output_classes={op: _CLASSES[hint] for op, hint in enumerate(hints.outputs)},
        written_before=tuple(_written_before(graph, costs)),
        merged=merged,
        merged_inputs=_merged_inputs(words, graph, is_apart=is_apart),
        cluster_size=tiling.cluster_size,
        occupancy=occupancy(plan.resources, gpu),
        num_stages=tiling.num_stages,
        num_teams=num_teams(tiling),
        runs_ahead=runs_ahead(tiling),
        scatters_sums=tiling.part_sums is PartSums.SCATTERED,
        num_pollers=WARP if runs_ahead(tiling) else plan.resources.num_threads,
        engine=rates.of(tiling.engine),
    )


def _merged_inputs(plan: Plan, graph: TileGraph, *, is_apart: bool) -> Mapping[int, float]:
    """The merged inputs of ops that gather them; these are most of what such ops read."""
    gathering = {op for op in graph.op_indices if graph.workload.tile_ops[op].GATHERS}
    if not gathering:
        return {}
    shares = merged_shares(plan, graph.tiling, is_apart=is_apart, of_inputs=True)
    return {op: share for op, share in shares.items() if op in gathering}


def _written_before(graph: TileGraph, costs: Mapping[int, OpCosts]) -> Iterator[tuple[tuple[int, int], ...]]:
    """The output of an earlier launch of the same workload, for each op that reads some."""
    for op in graph.op_indices:
        producer = graph.workload.producer_of(op)
        if producer is not None and producer not in graph.op_indices:
            yield tuple(panel for row in costs[op].whole.a_panels for panel in row)


def _has_even_parts(plan: Plan, graph: TileGraph) -> bool:
    """Whether split tiles have the maximum parts of their op, which differ by at most one k-step."""
    tasks = plan.tasks[plan.tasks[:, 7] > 0]
    part, num_parts = tasks[:, 6], tasks[:, 7]
    first = part if plan.strided_parts else graph.all_steps[tasks[:, 0]] * part // num_parts
    return bool(np.all(num_parts == parts_of(graph)[tasks[:, 0]]) and np.all(tasks[:, 9] == first))
