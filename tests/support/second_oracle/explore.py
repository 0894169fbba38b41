"""Explores every interleaving of a small plan's CTAs, state by state.

A state is what has been drawn, which tasks each CTA has taken and not finished, and how many of them each CTA of a
cluster has stored. What a CTA has loaded is not part of it: it may have loaded everything that its waits allow, or
less, so each state is checked with all possible loads.

How far ahead a CTA takes tasks and loads depends on the engine. Two modes are explored. *In order*, as mma and simt do:
a task's loads begin when the previous task is stored, and a ticket is drawn when the waits of the current task have
passed. *Ahead*, as wgmma does: loads continue into the next tasks, and tickets are drawn at any time. A third mode is
promised by docs/proof.md: *anyhow*, every task has its own CTA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.second_oracle.device import Device
from tests.support.second_oracle.table import FIRST_WAVE, STATIC, TICKET

#: A read before its write, and a launch that never ends.
RACE, HANG = "race", "hang"


class Cta(NamedTuple):
    """A CTA, or a cluster."""

    #: Tasks that were taken, in order, and that not all of its CTAs have stored.
    tasks: tuple[int, ...]
    #: [CTAs of the cluster] how many of these tasks each has stored.
    stored: tuple[int, ...]


class State(NamedTuple):
    #: Tasks drawn.
    drawn: int
    ctas: tuple[Cta, ...]


class Exploration:
    """Everything that a number of resident CTAs can do with a plan."""

    def __init__(
        self, device: Device, num_ctas: int, *, ahead: bool, most_taken: int = 2, late_hold: bool = True
    ) -> None:
        """A CTA holds at most `most_taken` drawn tasks at a time. `late_hold`: a wait after a task's last step delays
        its store, not only the loads of the following tasks."""
        self.device, self.ahead, self.most_taken, self.late_hold = device, ahead, most_taken, late_hold
        table = device.table
        tasks = tuple(range(len(table.tasks)))
        none = (0,) * device.size
        if table.assignment == STATIC:
            self.drawn_from: tuple[int, ...] = ()
            bounds = zip(table.queues, table.queues[1:], strict=False)
            ctas = [Cta(tasks[begin:end], none) for begin, end in bounds]
        elif table.assignment == FIRST_WAVE:
            self.drawn_from = tasks[table.num_ctas :]
            ctas = [Cta((cta,), none) for cta in range(num_ctas)]
        else:
            self.drawn_from = tasks
            ctas = [Cta((), none)] * num_ctas
        self.start = State(0, tuple(ctas))

    def faults(self) -> set[str]:
        """Which of RACE and HANG can happen; the walk ends when one of each has been found."""
        found: set[str] = set()
        seen, todo = {self.start}, [self.start]
        while todo:
            state = todo.pop()
            after = list(self._after(state, found))
            if not after and any(cta.tasks for cta in state.ctas):
                found.add(HANG)
            if not after and len(self.drawn_from) > state.drawn:
                found.add(HANG)
            if len(found) == 2:
                break
            for new in after:
                if new not in seen:
                    seen.add(new)
                    todo.append(new)
        return found

    def _stored(self, state: State) -> int:
        """The units that are stored."""
        size, left = self.device.size, 0
        for cta in state.ctas:
            for rank, done in enumerate(cta.stored):
                for task in cta.tasks[done:]:
                    left |= 1 << task * size + rank
        for task in self.drawn_from[state.drawn :]:
            left |= ((1 << size) - 1) << task * size
        return self.device.all & ~left

    def _after(self, state: State, found: set[str]) -> Iterator[State]:
        stored = self._stored(state)
        posts = self.device.posts(stored)
        all_ready = [self._ready(cta, stored, posts, found) for cta in state.ctas]
        scatters = self.device.kernel.scatters
        left = stored | self._at_head(state, all_ready) if scatters else 0
        for number, (cta, ready) in enumerate(zip(state.ctas, all_ready, strict=True)):
            for rank, done in enumerate(cta.stored):
                if done == len(cta.tasks):
                    continue
                first = cta.tasks[done] * self.device.size
                peers = self.device.units[first + rank].peers
                if scatters:
                    goes_on = not peers & ~left
                else:
                    of_cluster = (other for other in range(self.device.size) if peers >> first + other & 1)
                    goes_on = all(ready[other] > done for other in of_cluster)
                if goes_on:
                    yield self._with(state, number, self._finished(cta, rank))
            yield from self._draws(state, number, ready)

    def _at_head(self, state: State, all_ready: list[list[int]]) -> int:
        """The units that are loaded and whose CTA has stored all earlier ones: for parts, those that have stored their
        sums."""
        found = 0
        for cta, ready in zip(state.ctas, all_ready, strict=True):
            for rank, done in enumerate(cta.stored):
                if done < len(cta.tasks) and ready[rank] > done:
                    found |= 1 << cta.tasks[done] * self.device.size + rank
        return found

    def _ready(self, cta: Cta, stored: int, posts: tuple[int, ...], found: set[str]) -> list[int]:
        """[CTAs of the cluster] the tasks in hand that each may have loaded completely; records reads that may have
        been too early."""
        ready = []
        for rank, done in enumerate(cta.stored):
            position = done
            while position < len(cta.tasks):
                unit = cta.tasks[position] * self.device.size + rank
                num_steps, is_past = self.device.loaded(unit, posts)
                if self.device.reads_too_early(unit, num_steps, stored):
                    found.add(RACE)
                is_loaded = num_steps == len(self.device.units[unit].reads)
                if not is_loaded or not is_past:
                    position += is_loaded and not self.late_hold
                    break
                position += 1
                if not self.ahead:
                    break
            ready.append(position)
        return ready

    def _finished(self, cta: Cta, rank: int) -> Cta:
        """The cluster after its CTA `rank` has stored its next task."""
        stored = [done + (other == rank) for other, done in enumerate(cta.stored)]
        gone = min(stored)
        return cta._replace(tasks=cta.tasks[gone:], stored=tuple(done - gone for done in stored))

    def _draws(self, state: State, number: int, ready: list[int]) -> Iterator[State]:
        cta = state.ctas[number]
        if state.drawn == len(self.drawn_from) or len(cta.tasks) >= self.most_taken:
            return
        if not self.ahead and cta.tasks and ready[0] == 0:
            return  # its task's waits have not passed
        taken = cta._replace(tasks=(*cta.tasks, self.drawn_from[state.drawn]))
        yield self._with(State(state.drawn + 1, state.ctas), number, taken)

    def _with(self, state: State, number: int, cta: Cta) -> State:
        ctas = [*state.ctas[:number], cta, *state.ctas[number + 1 :]]
        if self.device.table.assignment in (TICKET, FIRST_WAVE):  # these CTAs are interchangeable
            ctas.sort()
        return State(state.drawn, tuple(ctas))


def anyhow(device: Device) -> set[str]:
    """What can go wrong if every task has its own CTA."""
    found: set[str] = set()
    seen, todo = {0}, [0]
    while todo:
        stored = todo.pop()
        posts = device.posts(stored)
        loaded = [device.loaded(unit, posts) for unit in range(device.num_units)]
        whole = sum(1 << unit for unit, (_, is_past) in enumerate(loaded) if is_past)
        for unit in range(device.num_units):
            if stored >> unit & 1:
                continue
            if device.reads_too_early(unit, loaded[unit][0], stored):
                found.add(RACE)
            if not device.units[unit].peers & ~whole and (after := stored | 1 << unit) not in seen:
                seen.add(after)
                todo.append(after)
    return found


def gated_hangs(device: Device, first_ctas: int, num_slots: int) -> bool:
    """Whether two concurrent launches can get stuck if `num_slots` CTAs are resident at a time and no CTA of the second
    starts before all of the first have. A state is the progress of each CTA, -1 before it starts."""
    queues = list(zip(device.table.queues, device.table.queues[1:], strict=False))
    start = (-1,) * len(queues)
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        stored = sum(
            1 << task for (begin, _), done in zip(queues, state, strict=True) for task in range(begin, begin + done)
        )
        posts = device.posts(stored)
        resident = sum(0 <= done < end - begin for (begin, end), done in zip(queues, state, strict=True))
        after = []
        for cta, ((begin, end), done) in enumerate(zip(queues, state, strict=True)):
            may_start = resident < num_slots and (cta < first_ctas or -1 not in state[:first_ctas])
            goes_on = may_start if done < 0 else done < end - begin and device.loaded(begin + done, posts)[1]
            if goes_on:
                after.append((*state[:cta], done + 1, *state[cta + 1 :]))
        if not after and any(done < end - begin for (begin, end), done in zip(queues, state, strict=True)):
            return True
        new = [one for one in after if one not in seen]
        seen.update(new)
        todo += new
    return False
