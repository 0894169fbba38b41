"""Runs a plan of decode attention on NumPy arrays, task by task, in a random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.ops.attention.plans.tasks import AttentionPlan

Array = np.ndarray[Any, Any]
#: What the counters of a task depend on: plan, span, length.
Arrivals = Callable[[AttentionPlan, int, int], int]


class Interpreter:
    """Slots and counters of a plan, shared by its launches."""

    def __init__(self, plan: AttentionPlan, first_count: int = 0) -> None:
        self.plan = plan
        #: Modulo 2^32, as on the device.
        self.counters = np.full(plan.num_slots, first_count, dtype=np.uint64)
        shape = (plan.num_slots, plan.num_spans)
        self.sums = np.full((*shape, plan.op.columns, plan.op.head_dim), np.nan)
        self.stats = np.full((*shape, plan.op.columns, 2), np.nan)
        #: Slots whose result this launch has stored.
        self.combined: set[int] = set()

    def launch(
        self,
        tensors: tuple[Array, Array, Array],
        lengths: Sequence[int],
        rng: random.Random,
        arrivals: Arrivals = AttentionPlan.arrivals,
        skipped: Callable[[int], bool] = lambda _: False,
    ) -> Array:
        """The result of one launch: NaN where nothing, or more than one value, was stored."""
        out = np.full(tensors[0].shape, np.nan)
        for _ in self.steps(out, tensors, lengths, rng, arrivals, skipped):
            pass
        return out

    def steps(
        self,
        out: Array,
        tensors: tuple[Array, Array, Array],
        lengths: Sequence[int],
        rng: random.Random,
        arrivals: Arrivals = AttentionPlan.arrivals,
        skipped: Callable[[int], bool] = lambda _: False,
    ) -> Iterator[None]:
        """Runs a launch task by task. Each CTA runs its queue; the next CTA is drawn at random."""
        plan, op = self.plan, self.plan.op
        self.sums[:], self.stats[:], self.combined = np.nan, np.nan, set()
        tasks, queues = plan.run_at(lengths)
        places = [list(range(begin, end)) for begin, end in pairwise(queues)]
        while any(places):
            place = rng.choice([queue for queue in places if queue]).pop(0)
            sequence, head = divmod(int(tasks[place, 0]), 1 << 16)
            block, span = divmod(int(tasks[place, 1]), 1 << 24)
            if skipped(place) or span not in plan.live_spans(lengths[sequence]):
                continue
            slot = (sequence * op.kv_heads + head) * plan.num_blocks + block
            self._attend(tensors, lengths[sequence], (sequence, head, block, span), slot)
            added = arrivals(plan, span, lengths[sequence])
            self.counters[slot] = (int(self.counters[slot]) + added) % 2**32
            if int(self.counters[slot]) % plan.arrivals_per_launch == 0:
                self._combine(out, lengths[sequence], (sequence, head, block), slot)
            yield

    def _columns(self, block: int) -> range:
        return range(block * self.plan.columns, min((block + 1) * self.plan.columns, self.plan.op.columns))

    def _attend(
        self, tensors: tuple[Array, Array, Array], length: int, task: tuple[int, int, int, int], slot: int
    ) -> None:
        (q, k, v), op, (sequence, head, block, span) = tensors, self.plan.op, task
        for column in self._columns(block):
            token, query = divmod(column, op.query_heads)
            seen = length - op.new_tokens + 1 + token
            begin = span * self.plan.span_tokens
            end = min(begin + self.plan.span_tokens, seen)
            if self.plan.form.window is not None:
                begin = max(begin, seen - self.plan.form.window)
            self.sums[slot, span, column], self.stats[slot, span, column] = 0, (-np.inf, 0)
            if end <= begin:
                continue
            scores = op.score_scale * k[sequence, head, begin:end] @ q[sequence, token, head * op.query_heads + query]
            weights = np.exp(scores - scores.max())
            self.sums[slot, span, column] = weights @ v[sequence, head, begin:end]
            self.stats[slot, span, column] = scores.max(), weights.sum()

    def _combine(self, out: Array, length: int, task: tuple[int, int, int], slot: int) -> None:
        op, (sequence, head, block) = self.plan.op, task
        live = list(self.plan.live_spans(length))
        if slot in self.combined:
            self.stats[slot] = np.nan
        self.combined.add(slot)
        for column in self._columns(block):
            token, query = divmod(column, op.query_heads)
            maxima, normalisers = self.stats[slot, live, column].T
            most = maxima.max()
            weights = np.exp(maxima - (most if most > -np.inf else 0))
            normaliser = weights @ normalisers
            sums = weights @ self.sums[slot, live, column]
            out[sequence, token, head * op.query_heads + query] = sums / normaliser if normaliser else sums
