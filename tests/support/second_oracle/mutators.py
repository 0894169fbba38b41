"""Changes to the words of a plan, regardless of their meaning: any word may change, even to an extreme value."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

Words = list[int]

#: Limits of 32-bit arithmetic, of half a word, or of a count.
EXTREMES = (
    *(0, 1, 2, -1, -2, 255, 256, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**24 + 1, 2**26 - 1, 2**26),
    *(2**28, 2**29 - 1, 2**29, 2**30 - 1, 2**30, 2**31 - 2, 2**31 - 1, -(2**24), -(2**29), -(2**30), -(2**31)),
    *(-(2**31) + 1, 159, 160, 161, 4096),
)

#: A wait before a task's epilogue has this value instead of a k-step.
EPILOGUE = 2**26


def signed(value: int) -> int:
    """The value as a signed word."""
    return (value + 2**31) % 2**32 - 2**31


@dataclass
class Sections:
    """A plan's words by section; put together again, they have the offsets of the new sizes."""

    header: Words
    queues: Words
    tasks: list[Words]
    waits: list[Words] = field(default_factory=list)

    @classmethod
    def of(cls, words: Words) -> Sections:
        """The sections of a well-formed plan."""
        task_at, wait_at = words[7], words[8]
        queues = words[16 : 16 + words[4] + 1] if words[5] == 0 else []
        tasks = [words[at : at + 8] for at in range(task_at, wait_at, 8)]
        return cls(words[:16], queues, tasks, [words[at : at + 8] for at in range(wait_at, len(words), 8)])

    def words(self) -> Words:
        """The words, put together again."""
        head, queues = [*self.header], [*self.queues]
        filler = [0] * (-(16 + len(queues)) % 8)
        head[2], head[9] = len(self.tasks), len(self.waits)
        head[7] = 16 + len(queues) + len(filler)
        head[8] = head[7] + 8 * len(self.tasks)
        return [*head, *queues, *filler, *chain(*self.tasks, *self.waits)]


def value_for(old: int, words: Words, rng: random.Random) -> int:
    """A value near the old one, far from it, or from elsewhere in the table."""
    match rng.randrange(6):
        case 0 | 1:
            return old + rng.choice((-1, 1))
        case 2:
            return old ^ 1 << rng.randrange(32)
        case 3:
            return rng.choice(words)
        case _:
            return rng.choice(EXTREMES)


def any_word(words: Words, rng: random.Random) -> Words:
    """Changes any word of the table."""
    at = rng.randrange(len(words))
    return [*words[:at], signed(value_for(words[at], words, rng)), *words[at + 1 :]]


def header_word(words: Words, rng: random.Random) -> Words:
    """Changes a count of the header."""
    at = rng.choice((3, 4, 10, 11, 12, 13, 14, 15))
    return [*words[:at], signed(value_for(words[at], words, rng)), *words[at + 1 :]]


def task_word(words: Words, rng: random.Random) -> Words:
    """Changes a word of a task; with parts, of one part."""
    sections = Sections.of(words)
    task, at = rng.choice(sections.tasks), rng.randrange(8)
    new = value_for(task[at], words, rng)
    if at in (0, 6) and rng.random() < 0.7:
        low, width = rng.choice(((0, 16), (16, 8), (24, 8)) if at == 0 else ((0, 16), (16, 16)))
        old = task[at] >> low & (1 << width) - 1
        changed = value_for(old, words, rng) & (1 << width) - 1
        new = task[at] & ~((1 << width) - 1 << low) | changed << low
    task[at] = signed(new)
    return sections.words()


def wait_word(words: Words, rng: random.Random) -> Words:
    """Changes a word of a wait, usually one that is used."""
    sections = Sections.of(words)
    if not sections.waits:
        return any_word(words, rng)
    wait, at = rng.choice(sections.waits), rng.choice((0, 1, 2, 2, 3, 4, 4, 5, 6, 7))
    wait[at] = signed(value_for(wait[at], words, rng))
    return sections.words()


def queue_word(words: Words, rng: random.Random) -> Words:
    """Changes where a queue ends."""
    sections = Sections.of(words)
    if not sections.queues:
        return header_word(words, rng)
    at = rng.randrange(len(sections.queues))
    sections.queues[at] = signed(value_for(sections.queues[at], words, rng))
    return sections.words()


def tasks_swapped(words: Words, rng: random.Random) -> Words:
    """Two tasks, or some of their words, are exchanged."""
    sections = Sections.of(words)
    one, other = rng.choice(sections.tasks), rng.choice(sections.tasks)
    whole = rng.random() < 0.5
    for at in range(8) if whole else rng.sample(range(8), rng.randint(1, 3)):
        one[at], other[at] = other[at], one[at]
    return sections.words()


def task_moved(words: Words, rng: random.Random) -> Words:
    """A task is moved in the table, and maybe to another queue."""
    sections = Sections.of(words)
    sections.tasks.insert(rng.randrange(len(sections.tasks)), sections.tasks.pop(rng.randrange(len(sections.tasks))))
    return sections.words()


def task_lost_or_doubled(words: Words, rng: random.Random) -> Words:
    """A task is removed or duplicated; the last queue ends with the table."""
    sections = Sections.of(words)
    at = rng.randrange(len(sections.tasks))
    sections.tasks[at : at + 1] = [] if rng.random() < 0.5 else [[*sections.tasks[at]], [*sections.tasks[at]]]
    end = len(sections.tasks)
    sections.queues = [*(min(bound, end) for bound in sections.queues[:-1]), end] if sections.queues else []
    return sections.words()


def part_less(words: Words, rng: random.Random) -> Words:
    """A tile of three or more parts loses one, and the others take its k-steps."""
    sections = Sections.of(words)
    tiles: dict[tuple[int, int, int], list[int]] = {}
    for at, task in enumerate(sections.tasks):
        if task[0] % 2**32 >> 24 >= 3:
            tiles.setdefault((task[0] & 0xFFFF, task[1], task[2]), []).append(at)
    if not tiles:
        return sections.words()
    *left, gone = sorted(rng.choice(list(tiles.values())), key=lambda at: sections.tasks[at][0] >> 16 & 255)
    num_steps = sum(sections.tasks[at][6] % 2**32 >> 16 for at in (*left, gone))
    begin = 0
    for part, at in enumerate(left):
        stride = len(left) if words[13] else 1
        is_last = part == len(left) - 1
        count = (num_steps - part + stride - 1) // stride if words[13] else sections.tasks[at][6] % 2**32 >> 16
        count = num_steps - begin if is_last and not words[13] else count
        op = sections.tasks[at][0] & 0xFFFF
        sections.tasks[at][0] = signed(op | part << 16 | len(left) << 24)
        sections.tasks[at][6] = signed((part if words[13] else begin) | count << 16)
        begin += count
    del sections.tasks[gone]
    sections.queues = [bound - (bound > gone) for bound in sections.queues]
    return sections.words()


def wait_in_front(words: Words, rng: random.Random) -> Words:
    """A task waits for something else before all its waits."""
    sections = Sections.of(words)
    task = rng.choice([task for task in sections.tasks if task[4] > task[3]] or sections.tasks)
    own = [[*wait] for wait in sections.waits[task[3] : task[4]]]
    first = [*own[0]] if own else [0, 1, 1, 1, 0, 0, 0, 0]
    first[2] = signed(value_for(first[2], words, rng))
    if rng.random() < 0.3:
        first[4] = 0
    task[3], task[4] = len(sections.waits), len(sections.waits) + 1 + len(own)
    sections.waits += [first, *own]
    return sections.words()


def waits_narrowed(words: Words, rng: random.Random) -> Words:
    """A task loses its first or its last wait, or gets its own copy of one, slightly changed."""
    sections = Sections.of(words)
    waiting = [task for task in sections.tasks if task[4] > task[3]]
    if not waiting:
        return task_word(words, rng)
    task = rng.choice(waiting)
    if rng.random() < 0.5:
        at, step = rng.choice(((3, 1), (4, -1)))
        task[at] += step
        return sections.words()
    own = [[*wait] for wait in sections.waits[task[3] : task[4]]]
    if not own:  # the change refers to waits that do not exist
        return task_word(words, rng)
    wait, at = rng.choice(own), rng.choice((0, 1, 2, 2, 3, 4, 4))
    wait[at] += rng.choice((-1, 1))
    task[3], task[4] = len(sections.waits), len(sections.waits) + len(own)
    sections.waits += own
    return sections.words()


def post_changed(words: Words, rng: random.Random) -> Words:
    """A tile posts to another signal; half the time, every wait is updated to the new counts."""
    sections = Sections.of(words)
    task, signal = rng.choice(sections.tasks), rng.randrange(-1, max(1, words[3]))
    for other in sections.tasks:
        if (other[0] & 0xFFFF, other[1:3]) == (task[0] & 0xFFFF, task[1:3]):
            other[5] = signal
    return _counted(sections).words() if rng.random() < 0.5 else sections.words()


def _counted(sections: Sections) -> Sections:
    """For each wait whose signals get equal numbers of posts: sets its posts per launch to that number, and its
    threshold to at most that."""
    tiles = {(task[0] & 0xFFFF, *task[1:3]): task[5] for task in sections.tasks}
    for wait in sections.waits:
        totals = {sum(post == signal for post in tiles.values()) for signal in range(wait[0], wait[1])}
        if len(totals) == 1:
            wait[3] = totals.pop()
            wait[2] = min(wait[2], wait[3])
    return sections


def epilogue_wait_lost(words: Words, rng: random.Random) -> Words:
    """A task loses its last wait, if possible one for its epilogue."""
    sections = Sections.of(words)
    waiting = [task for task in sections.tasks if task[4] > task[3]]
    late = [task for task in waiting if sections.waits[task[4] - 1][4] == EPILOGUE]
    if waiting:
        rng.choice(late or waiting)[4] -= 1
    return sections.words()


def share_missing(words: Words, rng: random.Random) -> Words:
    """A task gets its own copy of its last wait, which requires one post or one signal fewer."""
    sections = Sections.of(words)
    waiting = [task for task in sections.tasks if task[4] > task[3]]
    if not waiting:
        return sections.words()
    task = rng.choice(waiting)
    own = [[*wait] for wait in sections.waits[task[3] : task[4]]]
    at = 1 if own[-1][1] - own[-1][0] > 1 and rng.random() < 0.5 else 2
    own[-1][at] -= own[-1][at] > 0
    task[3], task[4] = len(sections.waits), len(sections.waits) + len(own)
    sections.waits += own
    return sections.words()


def tiles_exchanged(words: Words, rng: random.Random) -> Words:
    """Two tasks of an op compute each other's tile but keep their signals, so squares are written to the other's
    slot."""
    sections = Sections.of(words)
    tasks = sections.tasks
    pairs = [
        (one, other)
        for one in tasks
        for other in tasks
        if one[0] & 0xFFFF == other[0] & 0xFFFF and one[1:3] != other[1:3]
    ]
    if pairs:
        one, other = rng.choice(pairs)
        for at in (1, 2, *((3, 4) if rng.random() < 0.5 else ())):
            one[at], other[at] = other[at], one[at]
    return sections.words()


def wait_changes_sides(words: Words, rng: random.Random) -> Words:
    """A wait for the inputs is moved to the epilogue, or one for the epilogue to the first k-step."""
    sections = Sections.of(words)
    if sections.waits:
        wait = rng.choice(sections.waits)
        wait[4] = 0 if wait[4] == EPILOGUE else EPILOGUE
    return sections.words()


#: Mutations for plans whose tasks read something in their epilogues.
OF_EPILOGUES: dict[str, Callable[[Words, random.Random], Words]] = {
    "an epilogue's wait lost": epilogue_wait_lost,
    "a share missing": share_missing,
    "tiles exchanged": tiles_exchanged,
    "a wait changes sides": wait_changes_sides,
}
MUTATORS: dict[str, Callable[[Words, random.Random], Words]] = {
    "any word": any_word,
    "a word of the header": header_word,
    "a word of a task": task_word,
    "a word of a wait": wait_word,
    "a word of the queues": queue_word,
    "tasks swapped": tasks_swapped,
    "a task moved": task_moved,
    "a task lost or doubled": task_lost_or_doubled,
    "a wait in front": wait_in_front,
    "waits of a task changed": waits_narrowed,
    "a post changed": post_changed,
    "a part less": part_less,
}
