"""How far a plan gets: one symbolic run that covers every interleaving.

Why one run is enough. A state is the task that each CTA holds, and the posts so far. There are two kinds of step: a CTA
takes its next task (from its queue, or the next ticket), and a held task whose waits are over completes. (Some of its
waits may come before later k-steps. It occupies its CTA from the first to the last of them, and posts after all of
them. So the same tasks complete as if all waits came before the task. `Progress.blocked` says how far the others get.)
The last of a tile's parts to complete posts for the tile. So the posts are a function of the set of complete tasks,
whatever their order. Signals only grow, so a step that is possible stays possible whatever else happens first. The
effect of a step does not depend on when it is made. Queues are fixed. Two CTAs may race for a ticket, but it does not
matter which of them gets it: CTAs are alike, and tickets are drawn in one order. So any two runs can be continued to
the same end (the diamond property), and every maximal run starts and completes the same tasks. With only some CTAs of a
grid resident, fewer steps are possible, never others: the started tasks are a subset.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import Plan


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a maximal run of a plan ends."""

    #: [num_tasks] whether all of the task's waits were over on some CTA.
    started: bytearray
    #: [num_signals] posts so far.
    posts: list[int]
    #: Tasks that a CTA holds and a wait blocks, in the order found, and the k-step that each has reached.
    blocked: dict[int, int]

    def reaches(self, task: int, step: int) -> bool:
        """Whether the task reaches the load of its k-step `step`."""
        return bool(self.started[task]) or self.blocked.get(task, -1) > step


class Protocol:
    """A plan's words as the lists that a run over them needs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Records are interned by content, so a plan that repeats a record for each task costs no more than one that
        # shares it.
        unique = distinct_rows(plan.waits[:, :3])
        begin, end, threshold = unique.rows.T
        #: [wait] signals of the wait's range that are still below its threshold, before the first post.
        self.open_signals: list[int] = np.where(threshold > 0, end - begin, 0).tolist()
        #: [signal] (threshold, wait) of every wait whose range holds the signal.
        self.watchers: list[list[tuple[int, int]]] = [[] for _ in range(plan.num_signals)]
        for wait, (first, last, needed) in enumerate(unique.rows.tolist()):
            if needed > 0:
                for signal in range(first, last):
                    self.watchers[signal].append((needed, wait))
        lists = distinct_rows(plan.tasks[:, 3:5])
        #: [task] the index of its list of waits.
        self.needs_of: list[int] = lists.of.tolist()
        #: [list] waits, in order, and the k-steps before which they come.
        self.waits: list[list[int]] = [unique.of[begin:end].tolist() for begin, end in lists.rows.tolist()]
        self.steps: list[list[int]] = [plan.waits[begin:end, 4].tolist() for begin, end in lists.rows.tolist()]
        #: [task] the signal that its tile posts to, or -1.
        self.post_of: list[int] = plan.tasks[:, 5].tolist()
        #: [task] the task that represents its tile.
        self.leader_of: list[int] = plan.leader.tolist()
        #: [task] number of parts of its tile, 0 if it is not split.
        self.num_parts: list[int] = plan.tasks[:, 7].tolist()

    def run(self, *, num_ctas: int, frozen: int = -1) -> Progress:
        """A maximal run on `num_ctas` CTAs; the task `frozen`, if started, never completes."""
        queues = self.plan.queues.tolist() if self.plan.assignment == STATIC else [0, self.plan.num_tasks]
        return self._run(queues, num_ctas, frozen)

    def run_wave(self) -> Progress:
        """A maximal run of only the first wave, with each task on its assigned CTA."""
        return self._run(list(range(self.plan.num_ctas + 1)), self.plan.num_ctas, -1)

    def run_apart(self, *, frozen: int) -> Progress:
        """A maximal run in which each task has its own CTA; the task `frozen` never completes."""
        return self._run([0, self.plan.num_tasks], self.plan.num_tasks, frozen)

    def _run(self, queues: list[int], num_ctas: int, frozen: int) -> Progress:
        """A maximal run in which CTA *i* takes from queue *i*, the tasks from `queues[i]` to `queues[i + 1]`; if there
        is only one queue, all CTAs take from it."""
        heads, ends = queues[:-1], queues[1:]
        board = Board(self)
        started = bytearray(self.plan.num_tasks)
        held = [-1] * num_ctas
        runnable = list(reversed(range(num_ctas)))
        while runnable:
            cta = runnable.pop()
            queue = cta if len(heads) > 1 else 0
            while True:
                task = held[cta]
                if task < 0:
                    task = heads[queue]
                    if task >= ends[queue]:
                        break
                    heads[queue] = task + 1
                    held[cta] = task
                if board.parks(cta, task):
                    break
                started[task] = 1
                if task == frozen:
                    break
                held[cta] = -1
                runnable.extend(board.complete(task))
        blocked = {held[cta]: board.next_step(held[cta]) for parked in board.parked.values() for cta in parked}
        return Progress(started=started, posts=board.posts, blocked=blocked)


class Board:
    """The signals of one run, and the CTAs that are parked until a wait is over."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._open_signals = protocol.open_signals.copy()
        #: [list of waits] how many of the list's waits are over, counted from the first.
        self._num_over = [0] * len(protocol.waits)
        self._arrived: dict[int, int] = {}
        #: [num_signals] posts so far.
        self.posts = [0] * protocol.plan.num_signals
        #: Wait -> the CTAs parked at it.
        self.parked: dict[int, list[int]] = {}

    def parks(self, cta: int, task: int, step: int | None = None) -> bool:
        """Whether some wait of the task, up to k-step `step` if given, is not over yet; the CTA is then parked at that
        wait."""
        needs = self._protocol.needs_of[task]
        waits, number = self._protocol.waits[needs], self._num_over[needs]
        end = len(waits) if step is None else bisect_right(self._protocol.steps[needs], step)
        while number < end and not self._open_signals[waits[number]]:
            number += 1
        self._num_over[needs] = max(number, self._num_over[needs])
        if number >= end:
            return False
        self.parked.setdefault(waits[number], []).append(cta)
        return True

    def next_step(self, task: int) -> int:
        """The k-step that a parked task has reached."""
        needs = self._protocol.needs_of[task]
        return self._protocol.steps[needs][self._num_over[needs]]

    def complete(self, task: int) -> list[int]:
        """Posts for the task's tile if this was its last missing part; returns the CTAs to check again."""
        woken: list[int] = []
        if self._protocol.num_parts[task]:
            is_last, tile = self.is_last(task), self._protocol.leader_of[task]
            self._arrived[tile] = self._arrived.get(tile, 0) + 1
            if not is_last:
                return woken
        signal = self._protocol.post_of[task]
        if signal >= 0:
            self.posts[signal] += 1
            for needed, wait in self._protocol.watchers[signal]:
                if self.posts[signal] == needed:
                    self._open_signals[wait] -= 1
                    if not self._open_signals[wait]:
                        woken += self.parked.pop(wait, ())
        return woken

    def is_last(self, task: int) -> bool:
        """Whether a part that completes now is the last missing one of its tile."""
        arrived = self._arrived.get(self._protocol.leader_of[task], 0)
        return arrived == self._protocol.num_parts[task] - 1
