"""Every interleaving of roles that wait at barriers and arrive at them.

Barriers distinguish phases by parity alone, as on the device: a wait for phase k ends when the last completed phase has
k's parity. So a role that may be two phases away from a barrier passes too early, or never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

WAIT, ARRIVE = "wait", "arrive"
#: The action, the name and number of its object, and the phase to wait for.
Action = tuple[str, tuple[str, int], int]
#: Why the action is not possible now, given how often each was done.
Rule = Callable[[Action, Callable[[tuple[str, int]], int]], str | None]


def first_problem(roles: Sequence[Sequence[Action]], arrivals: Mapping[str, int], rule: Rule) -> str | None:
    """What goes wrong in some interleaving, if anything does; `arrivals` has the arrivals that complete a phase of the
    named barriers, by default one."""
    #: [role][completed actions] how often it has performed each action other than a wait.
    counts = [
        [Counter(thing for what, thing, _ in role[:done] if what != WAIT) for done in range(len(role) + 1)]
        for role in roles
    ]
    stack = [(0,) * len(roles)]
    seen = set(stack)
    while stack:
        state = stack.pop()

        def count(thing: tuple[str, int], state: tuple[int, ...] = state) -> int:
            return sum(of_role[done][thing] for of_role, done in zip(counts, state, strict=True))

        goes_on = False
        for index, role in enumerate(roles):
            if state[index] == len(role):
                continue
            what, thing, phase = action = role[state[index]]
            if what == WAIT:
                ended = count(thing) // arrivals.get(thing[0], 1)
                if (ended - 1 - phase) % 2:
                    continue
                if ended <= phase:
                    return f"{thing[0]}: passes in phase {ended}, waiting for the end of phase {phase}"
            if found := rule(action, count):
                return found
            goes_on = True
            then = (*state[:index], state[index] + 1, *state[index + 1 :])
            if then not in seen:
                seen.add(then)
                stack.append(then)
        if not goes_on and any(done < len(role) for role, done in zip(roles, state, strict=True)):
            return "nobody can go on"
    return None
