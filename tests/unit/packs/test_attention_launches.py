"""An attention's recipe that contradicts its tables is refused, by a pack and by programs that run one artifact."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.attention_packs import make_attention
from tuner.core.problem.asked import workload_of
from tuner.errors import InvalidInput
from tuner.ops.attention.pack.launches import check as check_attention_launches
from tuner.ops.attention.schedule import AttentionEngine
from tuner.packs.contents import Kernel
from tuner.packs.shapes import LayerShape
from tuner.runtime import RuntimeFailure
from tuner.runtime.programs.artifact import _checked_manifest

Json = dict[str, Any]
MADE = {engine: make_attention(by=engine).kernel for engine in AttentionEngine}


def put(value: Any, *path: str) -> Callable[[Json], None]:
    """Returns a change that replaces a value of the recipe, or applies a function to it."""

    def change(recipe: Json) -> None:
        at = recipe
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value(at[path[-1]]) if callable(value) else value

    return change


def field(name: str, value: int) -> Callable[[Json], None]:
    """Returns a change that replaces the value of a field of the parameter."""

    def change(recipe: Json) -> None:
        (one,) = [one for one in recipe["parameter"]["fields"] if one["name"] == name]
        one["value"] = value

    return change


#: For each: the change, and the field in the message.
WRONG: dict[str, tuple[Callable[[Json], None], str]] = {
    "no spin limit": (field("spin_limit_cycles", 0), "parameter.spin_limit_cycles: is 0"),
    "a negative one": (field("spin_limit_cycles", -1), "parameter.spin_limit_cycles: is -1"),
    "one without end": (field("spin_limit_cycles", 2**63 - 1), "parameter.spin_limit_cycles: is"),
    "more queues than tables": (field("num_queues", 10**6), "queues: is"),
    "fewer queues": (field("num_queues", 1), "queues: is"),
    "more sequences": (field("sequences", 2**31 - 1), "tasks: is"),
    "more spans": (field("num_spans", 2**31 - 1), "tasks: is"),
    "no spans": (field("num_spans", 0), "tasks: is"),
    "a longer context": (field("max_length", 2**31 - 1), "num_spans: is"),
    "other arrivals": (field("arrivals_per_launch", 3), "arrivals_per_launch: is 3"),
    "a smaller grid": (put(lambda grid: [1, 1, 1], "grid"), "grid: is"),
    "a larger grid": (put(lambda grid: [2**20, 1, 1], "grid"), "grid: is"),
    "a second dimension": (put(lambda grid: [grid[0], 2, 1], "grid"), "grid: is"),
    "both attributes": (
        lambda recipe: recipe.update(cooperative=True, programmatic_dependent_launch=True),
        "cooperative: is True",
    ),
    "another first task": (put(lambda text: "ff" + text[2:], "first_tasks"), "first_tasks: is"),
    "fewer first tasks": (put("", "first_tasks"), "first_tasks: is"),
    "the refusal record overlaps counters": (put(0, "workspace", "refused"), "workspace.refused: is 0"),
    "an abort over counters": (put(0, "workspace", "abort_record", "offset"), "abort_record.offset: is 0"),
    "an abort that is not zeroed": (put(2**20, "workspace", "abort_record", "offset"), "workspace.zero_bytes: is"),
    "counters that are not zeroed": (put(16, "workspace", "zero_bytes"), "workspace.zero_bytes: is 16"),
    "sums over counters": (put(0, "workspace", "partials"), "workspace.partials: is 0"),
    "a small workspace": (put(256, "workspace", "bytes"), "workspace.bytes: is 256"),
}


def changed(kernel: Kernel, change: Callable[[Json], None], files: dict[str, bytes] | None = None) -> Kernel:
    manifest = copy.deepcopy(json.loads(kernel.files["manifest.json"]))
    change(manifest["attentions"][0])
    for name, data in (files or {}).items():
        manifest["files"][name]["sha256"] = hashlib.sha256(data).hexdigest()
    return Kernel(files={**kernel.files, **(files or {}), "manifest.json": json.dumps(manifest).encode()})


def refused(kernel: Kernel, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        check_attention_launches(kernel.manifest, kernel.files)
    with pytest.raises(InvalidInput, match=r"attentions\[0\]\."):
        kernel.check_files("here")
    with pytest.raises(RuntimeFailure, match=r"attentions\[0\]\."):
        _checked_manifest(kernel.files, "here")


@pytest.mark.parametrize("engine", AttentionEngine)
@pytest.mark.parametrize("name", WRONG)
def test_a_recipe_that_is_not_of_its_tables_is_refused_by_its_field(name: str, engine: AttentionEngine) -> None:
    check_attention_launches(MADE[engine].manifest, MADE[engine].files)
    change, sentence = WRONG[name]
    refused(changed(MADE[engine], change), sentence)


@pytest.mark.parametrize("what", ["queues", "tasks"])
@pytest.mark.parametrize("value", [-1, 0, 2**31 - 1, -(2**31)])
def test_a_word_of_a_table_that_is_wrong_is_refused_though_its_digest_is_right(what: str, value: int) -> None:
    kernel = MADE[AttentionEngine.TMA]
    name = kernel.manifest["attentions"][0][what]
    words = list(struct.iter_unpack("<i", kernel.files[name]))
    for place in (0, 1, len(words) - 1):
        data = bytearray(kernel.files[name])
        struct.pack_into("<i", data, 4 * place, value)
        if data != kernel.files[name]:
            refused(changed(kernel, lambda recipe: None, {name: bytes(data)}), f"{what}: is|first_tasks: is")
    refused(changed(kernel, lambda recipe: None, {name: kernel.files[name][:-8]}), "queues: is|tasks: is")
    refused(changed(kernel, lambda recipe: None, {name: b""}), "queues: is|tasks: is")


def test_a_layer_is_named_by_its_ops_alone_since_an_attention_in_a_shape_has_no_sizes() -> None:
    layer = {"kind": "decoder-layer", "model": "llama3-8b", "sequences": 2, "max_length": 256}
    assert LayerShape.of_workload(workload_of(layer).to_json()).counted == ""
