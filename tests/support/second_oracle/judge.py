"""The second oracle's verdict on the words of a plan: whether the documentation forbids them, and whether they fail on
the device."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.second_oracle.device import Device
from tests.support.second_oracle.explore import HANG, RACE, Exploration, anyhow, gated_hangs
from tests.support.second_oracle.table import (
    EPILOGUE,
    STATIC,
    TICKET,
    Kernel,
    Malformed,
    Table,
    capacity_fault,
    coverage_fault,
    out_of_turn,
    read,
    steps_of,
)

#: Numbers of launches on one workspace: the first two, and those in which a counter with 1 to 8 posts per launch is
#: about to reach 2^31, or to wrap at 2^32.
LAUNCHES = (0, 1, *(edge // posts for edge in (2**31 - 1, 2**32 - 1) for posts in (1, 2, 3, 4, 5, 6, 8)))


class Verdict(NamedTuple):
    """What is wrong with a plan."""

    #: Among words, coverage, capacity, steps: documented rules of the table that are broken.
    rules: frozenset[str] = frozenset()
    #: Among RACE, HANG: what some interleaving breaks if every task may have its own CTA, as in docs/proof.md.
    promised: frozenset[str] = frozenset()
    #: The same for an engine that runs ahead, and for one that works in order.
    ahead: frozenset[str] = frozenset()
    in_order: frozenset[str] = frozenset()
    #: Whether parts wait for each other and tiles are out of order; docs/proof.md forbids that, although it can be
    #: correct.
    is_out_of_turn: bool = False

    @property
    def faults(self) -> frozenset[str]:
        """All faults."""
        return self.rules | self.promised | self.ahead | self.in_order


def judge(raw: bytes, kernel: Kernel, *, launches: tuple[int, ...] = LAUNCHES) -> Verdict:
    """The verdict on the words `raw`, over the launches numbered `launches` on one workspace."""
    try:
        table = read(raw)
    except Malformed:
        return Verdict(rules=frozenset({"words"}))
    if coverage_fault(table, kernel):
        return Verdict(rules=frozenset({"coverage"}))
    rules = {"capacity"} if capacity_fault(table, kernel) else set()
    return _explored(table, kernel, launches, rules)


def judge_pair(first: bytes, second: bytes, kernel: Kernel, *, launches: tuple[int, ...] = LAUNCHES) -> Verdict:
    """The verdict on two concurrent launches of one op each that share signals and slots. The second begins when every
    CTA of the first has started; not all need be resident at once."""
    try:
        tables = read(first), read(second)
    except Malformed:
        return Verdict(rules=frozenset({"words"}))
    one, other = tables
    shared = [(table.num_signals, table.strided, table.num_slots) for table in tables]
    is_pair = len(kernel.launched) == 2 and shared[0] == shared[1]
    is_pair &= all(table.assignment == STATIC for table in tables)
    is_pair &= not one.in_band and not other.in_band
    is_pair &= not (kernel.scatters and any(task.num_parts for task in (*one.tasks, *other.tasks)))
    is_pair &= not any(one.waits_of(task) for task in one.tasks) and all(task.post < 0 for task in other.tasks)
    if not is_pair:
        return Verdict(rules=frozenset({"pair"}))
    for table, op in zip(tables, kernel.launched, strict=True):
        if coverage_fault(table, kernel._replace(launched=(op,))):
            return Verdict(rules=frozenset({"coverage"}))
    later = [
        task._replace(wait_begin=task.wait_begin + len(one.waits), wait_end=task.wait_end + len(one.waits))
        for task in other.tasks
    ]
    both = one._replace(
        num_ctas=one.num_ctas + other.num_ctas,
        queues=[*one.queues[:-1], *(len(one.tasks) + bound for bound in other.queues)],
        tasks=[*one.tasks, *later],
        waits=[*one.waits, *other.waits],
    )
    if coverage_fault(both, kernel):
        return Verdict(rules=frozenset({"coverage"}))
    everywhere = kernel._replace(resident=both.num_ctas)
    rules = {"capacity"} if any(capacity_fault(table, everywhere) for table in tables) else set()
    return _explored(both, kernel, launches, rules, first_ctas=one.num_ctas)


def _explored(
    table: Table,
    kernel: Kernel,
    launches: tuple[int, ...],
    rules: set[str],
    *,
    first_ctas: int = 0,
) -> Verdict:
    if rules:  # such a launch does not begin
        return Verdict(frozenset(rules))
    rules |= {"steps"} if _stand_wrong(table, kernel) else set()
    promised: set[str] = set()
    ahead: set[str] = set()
    in_order: set[str] = set()
    for device in _devices(table, kernel, launches):
        if device.wraps():
            promised.add(HANG)
        promised |= anyhow(device)
        if first_ctas and any(gated_hangs(device, first_ctas, slots) for slots in range(1, table.num_ctas)):
            promised.add(HANG)
        for late_hold in (True, False) if "steps" in rules else (True,):
            taken = 3 if device.num_units <= 6 else 2
            ahead |= _run(device, is_ahead=True, late_hold=late_hold, most_taken=taken)
            in_order |= _run(device, is_ahead=False, late_hold=late_hold, most_taken=2)
    of_turns = kernel.scatters and out_of_turn(table)
    return Verdict(frozenset(rules), frozenset(promised), frozenset(ahead), frozenset(in_order), of_turns)


def _stand_wrong(table: Table, kernel: Kernel) -> bool:
    """Whether a task's waits are not in the order of their k-steps, or one is at a step that the task does not have, or
    before an epilogue that reads nothing."""
    for task in table.tasks:
        stands = [wait.step for wait in table.waits_of(task)]
        num_steps = len(steps_of(task, kernel, strided=table.strided))
        late = [EPILOGUE] if kernel.ops[task.op].reads_late or table.reads_in_band(task) else []
        if stands != sorted(stands) or any(stand >= num_steps and stand not in late for stand in stands):
            return True
    return False


def _devices(table: Table, kernel: Kernel, launches: tuple[int, ...]) -> list[Device]:
    """The launches, without those in which every wait's test equals that of an earlier one."""
    devices: list[Device] = []
    first = Device(table, kernel)
    for launch in launches:
        device = first.at(launch)
        if all(device.tests != other.tests for other in devices):
            devices.append(device)
    return devices


def _run(device: Device, *, is_ahead: bool, late_hold: bool, most_taken: int) -> set[str]:
    """Runs the plan: with tickets, any number of CTAs may be resident; otherwise all are."""
    table = device.table
    if table.assignment != TICKET:
        resident = [table.num_ctas]
    else:
        most = 3 if device.num_units <= 6 else 2
        resident = list(range(1, min(table.num_ctas, len(table.tasks), most) + 1))
    found: set[str] = set()
    for num_ctas in resident:
        found |= Exploration(device, num_ctas, ahead=is_ahead, most_taken=most_taken, late_hold=late_hold).faults()
    return found


__all__ = ["HANG", "RACE", "Verdict", "judge", "judge_pair"]
