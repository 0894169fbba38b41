"""The header of a plan's words: what a launch must match, and how long the rest of the table must be. `words` documents
each word. Code that passes a plan to a device, possibly without NumPy, reads it with this module."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from tuner.core.problem.workload import MAX_OPS
from tuner.errors import WordError

MAGIC = int.from_bytes(b"TUNR", "little")
VERSION = 5
HEADER_WORDS = 16
TASK_WORDS = 8
WAIT_WORDS = 8
#: Words of a wait, in version 1.
_FIRST_WAIT_WORDS = 4
#: 2 was used by plans of older kernels.
STATIC, TICKET, FIRST_WAVE = 0, 1, 3
#: Maximum number of tasks, signals, waits, CTAs and slots, and of posts per signal in a launch. In signed 32-bit words,
#: the device adds two such counts, and multiplies one by the CTAs of a cluster, at most 16 on any GPU. Source: CUDA C++
#: Programming Guide, "Thread Block Clusters": 8 CTAs, or 16 if a kernel requests it.
MAX_COUNT = 2**24
MAX_CLUSTER_SIZE = 16
#: Queues whose first tasks fit in an attention's parameter; `kMostQueues` in args_attention.cuh.
MOST_QUEUES = 160
#: Maximum k-steps of a tile: a matrix has less than 2**31 columns, and a step takes 32 or more. On the device 2**29
#: means "later than any step".
MAX_STEPS = 2**26


class WordRange(NamedTuple):
    """The minimum and maximum of a word, whatever the rest of the plan is."""

    word: str
    low: int
    high: int


#: Ranges of the header's words in order. Some have further conditions, which `read_header` checks.
HEADER_RANGES = (
    WordRange("magic", MAGIC, MAGIC),
    WordRange("version", VERSION, VERSION),
    WordRange("num_tasks", 0, MAX_COUNT),
    WordRange("num_signals", 0, MAX_COUNT),
    WordRange("num_ctas", 1, MAX_COUNT),
    WordRange("assignment", STATIC, FIRST_WAVE),
    WordRange("queue_offset", 0, HEADER_WORDS),
    WordRange("task_offset", HEADER_WORDS, 2**31 - 1),
    WordRange("wait_offset", HEADER_WORDS, 2**31 - 1),
    WordRange("num_waits", 0, MAX_COUNT),
    WordRange("num_first_tasks", 0, MAX_COUNT),
    WordRange("word 11", 0, 0),
    WordRange("held_stages", 0, MAX_STEPS),
    WordRange("strided_parts", 0, 1),
    WordRange("num_split_tiles", 0, MAX_COUNT),
    WordRange("in_band_ops", 0, 2**MAX_OPS - 1),
)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The content of a plan's header."""

    num_tasks: int
    num_signals: int
    #: CTAs, or clusters, of the persistent grid.
    num_ctas: int
    #: `STATIC`, `TICKET` or `FIRST_WAVE`.
    assignment: int
    num_waits: int
    #: For a first wave, the number of CTAs; otherwise 0.
    num_first_tasks: int
    #: Stages of weights that are not requested until a task's first waits are over.
    held_stages: int
    #: Whether each of P parts takes every P-th k-step, from its first one.
    strided_parts: bool
    #: Slots for the parts of tiles.
    num_split_tiles: int
    #: Bit i: op i reads the output of another op of the launch in band.
    in_band_ops: int

    @property
    def num_queue_words(self) -> int:
        """Words of the queues if they are static, otherwise 0."""
        return self.num_ctas + 1 if self.assignment == STATIC else 0

    @property
    def needs_all_ctas(self) -> bool:
        """Whether a plan's liveness depends on every CTA being resident: tasks wait, and CTAs have different tasks."""
        return self.assignment != TICKET and self.num_signals > 0


def read_header(table: bytes) -> Header:
    """The header of a plan's binary form, which determines its length.

    Raises:
        WordError: the table is not a plan; the message names the wrong word, and what would be valid.
    """
    if len(table) % 4:
        raise WordError("not a plan", f"the table has {len(table)} bytes; it must be whole words of 4 bytes")
    if len(table) < 4 * HEADER_WORDS or struct.unpack_from("<2i", table) != (MAGIC, VERSION):
        raise WordError("not a plan", f"the table must start with {MAGIC}, {VERSION} and contain a 16-word header")
    words = struct.unpack_from(f"<{HEADER_WORDS}i", table)
    for value, (word, low, high) in zip(words, HEADER_RANGES, strict=True):
        if not low <= value <= high:
            raise wrong_word(word, value, f"be {low} to {high}" if low < high else f"be {low}")
    num_tasks, num_signals, num_ctas, assignment, *offsets = words[2:9]
    num_waits, num_first_tasks, _, held, strided, num_split_tiles, in_band_ops = words[9:]
    _check_assignment(assignment, num_tasks, num_ctas, num_first_tasks)
    header = Header(
        num_tasks=num_tasks,
        num_signals=num_signals,
        num_ctas=num_ctas,
        assignment=assignment,
        num_waits=num_waits,
        num_first_tasks=num_first_tasks,
        held_stages=held,
        strided_parts=bool(strided),
        num_split_tiles=num_split_tiles,
        in_band_ops=in_band_ops,
    )
    *places, size = layout(header.num_queue_words, num_tasks, num_waits)
    for name, offset, right in zip(("queue", "task", "wait"), offsets, places, strict=True):
        if offset != right:
            raise wrong_word(f"{name}_offset", offset, f"be {right}, given the counts of CTAs, tasks and waits")
    if len(table) != 4 * size:
        raise WordError(
            "not a plan", f"the table has {len(table) // 4} words; according to its header it must have {size}"
        )
    return header


def is_of_older_version(table: bytes) -> bool:
    """Whether a table is a plan from an older program, most of whose words are known only to its own kernel."""
    magic, version = struct.unpack_from("<2i", table) if len(table) >= 4 * HEADER_WORDS else (0, 0)
    return bool(magic == MAGIC and 0 < version < VERSION)


@dataclass(frozen=True, kw_only=True)
class OlderHeader:
    """The parts of the header that have had the same position since the first version."""

    num_signals: int
    #: CTAs of the persistent grid, or its clusters.
    num_ctas: int
    #: `STATIC`, `TICKET`, `FIRST_WAVE`, or 2 for a removed assignment in which CTAs stole tasks from each other.
    assignment: int

    @property
    def needs_all_ctas(self) -> bool:
        """Whether the plan's liveness is known to depend on every CTA being resident."""
        return self.assignment in (STATIC, FIRST_WAVE) and self.num_signals > 0


def read_older_header(table: bytes) -> OlderHeader:
    """The header of a plan `is_of_older_version`, whose counts must match the table's length.

    Raises:
        WordError: a count is out of range, or does not match the table's length.
    """
    version, *words = struct.unpack_from("<9i", table, 4)
    for value, (word, low, high) in zip(words, HEADER_RANGES[2:10], strict=True):
        if not low <= value <= high:
            raise wrong_word(word, value, f"be {low} to {high}")
    num_tasks, num_signals, num_ctas, assignment, _, task_offset, wait_offset, num_waits = words
    size = wait_offset + num_waits * (_FIRST_WAIT_WORDS if version == 1 else WAIT_WORDS)
    if wait_offset != task_offset + num_tasks * TASK_WORDS or len(table) != 4 * size:
        raise WordError("not a plan", f"the table has {len(table) / 4:g} words, but its header counts {size}")
    return OlderHeader(num_signals=num_signals, num_ctas=num_ctas, assignment=assignment)


def layout(num_queue_words: int, num_tasks: int, num_waits: int) -> tuple[int, int, int, int]:
    """Offsets of queues (0 if there are none), tasks and waits, and the size of the table; in words."""
    task_offset = HEADER_WORDS + num_queue_words
    task_offset += -task_offset % 8  # tasks and waits are 32 bytes, a sector each
    wait_offset = task_offset + num_tasks * TASK_WORDS
    return HEADER_WORDS if num_queue_words else 0, task_offset, wait_offset, wait_offset + num_waits * WAIT_WORDS


def wrong_word(word: str, value: int, right: str) -> WordError:
    """The error for a word out of range."""
    return WordError("a word of the plan is out of range", f"{word} is {value}; it must {right}")


def _check_assignment(assignment: int, num_tasks: int, num_ctas: int, num_first_tasks: int) -> None:
    """Checks the assignment of tasks in the header, and the tasks of the first wave."""
    if assignment not in (STATIC, TICKET, FIRST_WAVE):
        raise wrong_word("assignment", assignment, f"be {STATIC}, {TICKET} or {FIRST_WAVE}")
    if assignment == FIRST_WAVE and not num_first_tasks == num_ctas <= num_tasks:
        wave = f"be the {num_ctas} CTAs, of {num_tasks} tasks: a first wave has a task for each CTA"
        raise wrong_word("num_first_tasks", num_first_tasks, wave)
    if assignment != FIRST_WAVE and num_first_tasks:
        raise wrong_word("num_first_tasks", num_first_tasks, "be 0: there is no first wave")
