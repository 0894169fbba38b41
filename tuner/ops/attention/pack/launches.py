"""Checks that a manifest's attentions agree with their tables: a recipe's grid, waits and workspace are compared
with the tasks and queues that the kernel will read. `runtime/src/attention_launch_check.c` does the same for an
index."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import product
from typing import Any

from tuner.core.plan.table.header import MOST_QUEUES
from tuner.packs.recipes.launches import check_spin_limit, wrong

Json = Mapping[str, Any]
#: The list in a manifest that contains the attentions.
SECTION = "attentions"
#: Bytes of a task, and of the parts of the workspace where a launch records what it refused and why it aborted.
_TASK_BYTES, _REFUSED_BYTES, _ABORT_BYTES = 8, 16, 24


def check(manifest: Json, files: Mapping[str, bytes]) -> None:
    """Checks all attentions; `files` contains their tables.

    Raises:
        InvalidInput: names the attention's field, and the value that follows from its tables.
    """
    for index, recipe in enumerate(manifest.get("attentions", ())):
        where = f"attentions[{index}]"
        values = {one["name"]: one["value"] for one in recipe["parameter"]["fields"] if "value" in one}
        if "spin_limit_cycles" in values:  # older manifests do not have it
            check_spin_limit(f"{where}.parameter.spin_limit_cycles", values["spin_limit_cycles"])
        if recipe.get("cooperative") and recipe["programmatic_dependent_launch"]:
            raise wrong(f"{where}.cooperative", True, "false: a launch cannot be both cooperative and programmatic")
        queues, tasks = files[recipe["queues"]], files[recipe["tasks"]]
        heads = _check_queues(where, recipe, queues, tasks, values)
        _check_tasks(where, tasks, values)
        first = b"".join(tasks[_TASK_BYTES * head : _TASK_BYTES * (head + 1)] for head in heads).hex()
        if not recipe["first_tasks"].startswith(first):
            raise wrong(f"{where}.first_tasks", "another", "the first task of each queue")
        _check_workspace(f"{where}.workspace", recipe, values)


def _check_queues(where: str, recipe: Json, queues: bytes, tasks: bytes, values: Json) -> tuple[int, ...]:
    """Checks where queues begin. Clusters after those with tasks only prefetch weights."""
    *heads, end = _words(queues) or (0,)
    count, cluster = len(heads), recipe["cluster"][0]
    if not 1 <= count <= MOST_QUEUES or values.get("num_queues", count) != count:
        raise wrong(f"{where}.queues", count, f"{values.get('num_queues', count)}, of 1 to {MOST_QUEUES}")
    if (
        heads[0] != 0
        or _TASK_BYTES * end != len(tasks)
        or any(a >= b for a, b in zip(heads, [*heads[1:], end], strict=True))
    ):
        raise wrong(f"{where}.queues", "another table", f"a boundary between queues, from 0 to {len(tasks) // 8}")
    grid, *others = recipe["grid"]
    if others != [1, 1] or grid % cluster or not cluster * count <= grid <= cluster * MOST_QUEUES:
        least = f"a multiple of {cluster}, at least {cluster * count} and at most {cluster * MOST_QUEUES}"
        raise wrong(f"{where}.grid", recipe["grid"], least)
    return tuple(heads)


def _check_tasks(where: str, tasks: bytes, values: Json) -> None:
    """Checks that each span of each block of columns belongs to one task."""
    sizes = (values["kv_heads"], values["num_blocks"], values["num_spans"])
    sequences, rest = divmod(len(tasks) // _TASK_BYTES, max(1, sizes[0] * sizes[1] * sizes[2]))
    if rest or values.get("sequences", sequences) != sequences:
        raise wrong(f"{where}.tasks", len(tasks) // _TASK_BYTES, f"one for each of {sizes} of each sequence")
    words = struct.iter_unpack("<2i", tasks)
    every = product(range(sequences), *map(range, sizes))
    if set(words) != {(sequence << 16 | head, block << 24 | span) for sequence, head, block, span in every}:
        raise wrong(f"{where}.tasks", "another table", "each span once")
    arrivals = 1 << (sizes[2] - 1).bit_length()
    if values["arrivals_per_launch"] != arrivals:
        raise wrong(f"{where}.parameter.arrivals_per_launch", values["arrivals_per_launch"], arrivals)
    if -(-values["max_length"] // values["span_tokens"]) != sizes[2]:
        raise wrong(f"{where}.parameter.num_spans", sizes[2], "as many as the longest context has")


def _check_workspace(where: str, recipe: Json, values: Json) -> None:
    """Checks that counters, the record of refused input and that of an abort are zeroed and do not overlap."""
    space, slots = recipe["workspace"], values.get("sequences", 1) * values["kv_heads"] * values["num_blocks"]
    parts = [
        ("arrivals", space["arrivals"], 4 * slots * recipe["cluster"][0]),
        ("refused", space["refused"], _REFUSED_BYTES),
    ]
    if record := space.get("abort_record"):
        parts.append(("abort_record.offset", record["offset"], _ABORT_BYTES))
    end = 0
    for name, offset, num_bytes in parts:
        if offset < end:
            raise wrong(f"{where}.{name}", offset, f"at least {end}")
        end = offset + num_bytes
    for name, least in (("zero_bytes", end), ("partials", space["zero_bytes"]), ("bytes", space["partials"])):
        if space[name] < least:
            raise wrong(f"{where}.{name}", space[name], f"at least {least}")


def _words(table: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(table) // 4}i", table[: len(table) // 4 * 4])
