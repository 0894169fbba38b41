"""A manifest describes an attention's launch exactly as our own launcher makes it, byte by byte."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.support.attention_parameter import AttentionBuffers, pack_attention_args, weights_at
from tests.support.attentions import alone, attention, space_with
from tests.support.between import between
from tests.support.between_made import artifact_of, candidate_of
from tests.support.cases import H200
from tests.support.lanes import one_in, soak_unless
from tests.support.on_card import problem
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Environment
from tuner.ops.attention.append import AppendBuffers, pack_append_args
from tuner.ops.attention.artifact import CacheKernel
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.attention.source import workspace_words
from tuner.search.guesses.seeds import first_guesses
from tuner.versions import CACHES_FORMAT, ORDERED_FORMAT, PAGES_FORMAT
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.source.launchable import LaunchRefused
from tuner.workers.source.refused import REFUSED_WORDS

HERE = Environment(gpu_name="H200", simulated=True)
#: Device addresses of what a launch reads and writes.
ADDRESSES = {
    "keys": 0x7000,
    "values": 0x8000,
    "q": 0x1000,
    "out": 0x2000,
    "lengths": 0x3000,
    "tasks": 0x4000,
    "queues": 0x5000,
    "workspace": 0x10000,
}
PAGES = 0x6000
WEIGHTS = 0x70000


def made(workload: Workload, schedule: Schedule, kind: PlanKind = PlanKind.TWO_LAUNCHES_PDL) -> CacheKernel:
    (one,) = own_kernels(workload, H200, Candidate(plan_kind=kind, schedule=schedule))
    return one


def manifest_of(workload: Workload, schedule: Schedule) -> dict[str, Any]:
    from tuner.core.proof.candidate_plans import plans_for
    from tuner.workers.source.render import render

    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=schedule)
    plans = plans_for(workload, H200, candidate)
    source = render(workload, schedule.tiling) if plans else ""
    kernels = own_kernels(workload, H200, candidate)
    return assemble(problem(workload), candidate, plans, source, None, HERE, {}, 7, own=kernels).manifest


def from_recipe(recipe: dict[str, Any], maps: dict[str, bytes]) -> bytes:
    """The parameter as a program without tuner fills it in."""
    space = ADDRESSES["workspace"]
    own = {name: space + recipe["workspace"][name] for name in ("arrivals", "refused", "partials")}
    own |= {"abort": space + recipe["workspace"]["abort_record"]["offset"]}
    own |= {"trace": 0, "pages": PAGES if "pages" in recipe else 0}
    buffer = bytearray(recipe["parameter"]["size_bytes"])
    for field in recipe["parameter"]["fields"]:
        name, offset = field["name"], field["offset"]
        if name in maps:
            buffer[offset : offset + 128] = maps[name]
        elif name == "first_tasks":
            first = bytes.fromhex(recipe["first_tasks"])
            buffer[offset : offset + len(first)] = first
        elif name == "next_rows":
            struct.pack_into("<Q", buffer, offset, WEIGHTS if field["tensor"] else 0)
        elif field["type"] == "pointer":
            struct.pack_into("<Q", buffer, offset, {**ADDRESSES, **own}[name])
        else:
            letter = {"float32": "<f", "int32": "<i", "int64": "<q"}[field["type"]]
            struct.pack_into(letter, buffer, offset, field["value"])
    return bytes(buffer)


@pytest.mark.slow
@pytest.mark.parametrize("engine", one_in(4, AttentionEngine))
@pytest.mark.parametrize(
    ("d_out", "asked", "form"),
    soak_unless(
        lambda place, _: place in (0, 2, 3),
        [
            (None, 0, {}),
            (512, 0, {}),
            (512, 50, {}),
            (None, 0, {"page_tokens": 16}),
            (512, 50, {"page_tokens": 64, "heads_first": False, "window": 100}),
            (None, 0, {"window": 300, "soft_cap": 20.0}),
        ],
    ),
)
def test_a_recipe_fills_in_the_parameter_that_our_launches_have(
    d_out: int | None, asked: int, form: dict[str, Any], engine: AttentionEngine
) -> None:
    workload = attention(d_out=d_out, new_tokens=2, form=form)
    guess = next(one for one in first_guesses(space_with(workload), 0) if one.launch_ops[0].next_percent == 0)
    cluster = guess.launch_ops[0].cluster if engine is AttentionEngine.TMA else 1
    one = replace(guess.launch_ops[0], span_tokens=64 * cluster, tile_tokens=64, num_stages=4)
    one = replace(
        one, cluster=cluster, engine=engine, math_warps=8, next_percent=asked, next_early=asked > 0 and not form
    )
    schedule = guess.but(launch_ops=(one,))
    (recipe,) = manifest_of(workload, schedule)["attentions"]
    kernel = made(workload, schedule)
    maps = {"keys_map": bytes(range(128)), "values_map": bytes(range(128, 256))}
    caches = tuple(maps.values())
    if engine is AttentionEngine.MMA:
        caches = tuple(struct.pack("<Q", ADDRESSES[name]) for name in ("keys", "values"))
    assert len(recipe["tensor_maps"]) == (2 if engine is AttentionEngine.TMA else 0)
    space = ADDRESSES["workspace"]
    buffers = AttentionBuffers(
        k=caches[0],
        v=caches[1],
        **{name: ADDRESSES[name] for name in ("q", "out", "lengths", "tasks", "queues")},
        arrivals=space + recipe["workspace"]["arrivals"],
        partials=space + recipe["workspace"]["partials"],
        trace=0,
        refused=space + recipe["workspace"]["refused"],
        pages=PAGES if "page_tokens" in form else 0,
    )
    weights = weights_at(workload, 0, kernel.schedule, WEIGHTS)
    packed = pack_attention_args(kernel.plan, buffers, speculative=kernel.schedule.speculative, next_weights=weights)
    assert from_recipe(recipe, maps) == packed
    assert bool(weights.taken_bytes) == (asked > 0)


@pytest.mark.parametrize("stored", [None, *(one for one in WeightFormat if one.row.element_bits == 16)])
def test_what_is_prefetched_of_the_next_weights_lies_in_them(stored: WeightFormat | None) -> None:
    whole = attention(d_out=256, query_heads=8, kv_heads=2)
    (product,) = whole.tile_ops
    workload = replace(whole, ops=tuple(replace(op, weights=stored) if op is product else op for op in whole.ops))
    (schedule,) = alone(next_percent=100).launch_ops
    weights = weights_at(workload, 0, schedule, WEIGHTS)
    rows, bits = product.weight_rows, stored.row.bits if stored else 16
    assert (weights.num_rows, weights.row_bytes, weights.taken_bytes) == (
        rows,
        product.k * bits // 8,
        weights.row_bytes,
    )


def test_a_manifest_says_how_pages_are_given_and_how_many_there_may_be() -> None:
    workload = attention(form={"page_tokens": 32, "heads_first": False})
    manifest = manifest_of(workload, alone(span_tokens=192))
    (recipe,) = manifest["attentions"]
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    assert tensors["attention.pages"]["shape"] == [4, 22]
    assert tensors["attention.keys"]["shape"] == [88, 32, 2, 64]
    pages = recipe["pages"]
    assert (pages["tensor"], pages["num_pages"], pages["page_tokens"]) == ("attention.pages", 88, 32)
    assert all(a_map["dims"][1] == 88 * pages["rows_per_page"] for a_map in recipe["tensor_maps"])
    assert "pages" not in manifest_of(attention(), alone(span_tokens=192))["attentions"][0]
    by_mma = alone(span_tokens=192, engine=AttentionEngine.MMA)
    meanings = [
        manifest_of(workload, one)["attentions"][0]["pages"]["num_pages_meaning"]
        for one in (alone(span_tokens=192), by_mma)
    ]
    assert ["tensor maps" in meaning for meaning in meanings] == [True, False]


def test_a_manifest_of_a_product_that_writes_to_pages_has_one_table_for_it_and_the_attention() -> None:
    workload = between(pages={"page_tokens": 32})
    manifest = artifact_of(workload, candidate_of(workload))[0].manifest
    (recipe,), written = manifest["attentions"], manifest["parameter"]["pages"]
    assert manifest["format"] == PAGES_FORMAT
    assert recipe["pages"]["tensor"] == written["tensor"] == "attention.pages"
    assert written["caches"] == ["attention.keys", "attention.values"]
    assert [tensor["shape"] for tensor in manifest["tensors"] if tensor["role"] == "pages"] == [[4, 16]]
    values = {field["name"]: field.get("value") for field in manifest["parameter"]["fields"]}
    assert values[written["num_pages_field"]] == recipe["pages"]["num_pages"] == 4 * 16
    assert values["qkv.max_pages"] == 16
    refused = {tuple(launch["ops"]): launch["workspace"].get("refused") for launch in manifest["launches"]}
    assert refused[("qkv",)]["offset"] == 160
    assert refused[("o_proj",)] is None


@pytest.mark.parametrize("rotary", [True, False], ids=["turned", "queries alone"])
def test_a_manifest_with_products_in_front_says_the_order_and_has_one_cache(rotary: bool) -> None:
    workload = between(rotary=rotary)
    manifest = artifact_of(workload, candidate_of(workload))[0].manifest
    (recipe,) = manifest["attentions"]
    assert manifest["format"] == ORDERED_FORMAT
    order = [(one["list"], one["index"]) for one in manifest["launch_order"]]
    assert order == [("launches", 0), ("attentions", 0), ("launches", 1)]
    assert [launch["ops"] for launch in manifest["launches"]] == [["qkv"], ["o_proj"]]
    roles = {tensor["name"]: tensor["role"] for tensor in manifest["tensors"]}
    assert (roles["qkv"], roles["attention"]) == ("intermediate", "intermediate")
    assert {name for name, role in roles.items() if role == "cache"} == {"attention.keys", "attention.values"}
    assert [name for name, role in roles.items() if role == "lengths"] == ["attention.lengths"]
    assert ("qkv.frequencies" in roles) == rotary
    assert ("The launch of qkv writes" in recipe["cache"]) == rotary
    assert "append" not in recipe
    assert not any("append" in name for name in manifest["files"])


def test_an_attention_in_front_of_all_products_keeps_the_older_format() -> None:
    manifest = manifest_of(attention(), alone(span_tokens=192))
    assert manifest["format"] == CACHES_FORMAT
    assert "launch_order" not in manifest


def test_the_kernel_in_front_has_the_parameter_that_its_device_code_reads() -> None:
    workload = attention(new_tokens=2)
    (recipe,) = manifest_of(workload, alone(span_tokens=192))["attentions"]
    append, op = recipe["append"], workload.launch_ops[0]
    names = {"attention.qkv": "qkv", "attention.frequencies": "frequencies", "q": "q"}
    names |= {"attention.keys": "keys", "attention.values": "values", "attention.lengths": "lengths"}
    addresses = {name: 0x1000 * (index + 1) for index, name in enumerate(names.values())}
    buffer = bytearray(append["parameter"]["size_bytes"])
    for field in append["parameter"]["fields"]:
        value = field.get("value", 0)
        if field["type"] == "pointer" and field["tensor"]:  # without pages no table
            value = addresses[names[field["tensor"]]]
        struct.pack_into("<Q" if field["type"] == "pointer" else "<i", buffer, field["offset"], value)
    assert bytes(buffer) == pack_append_args(op.shape, AppendBuffers(**addresses))
    heads = op.shape.kv_heads * (op.shape.query_heads + 2)
    assert [tensor["shape"] for tensor in append["tensors"]] == [[op.m, heads * 64], [32]]
    assert append["grid"][0] * append["block"][0] * 16 >= op.m * heads * 64, "a thread for each 8 pairs"


def test_a_workspace_has_room_for_counters_and_sums() -> None:
    kernel = made(attention(), alone(span_tokens=192))
    (recipe,) = manifest_of(attention(), alone(span_tokens=192))["attentions"]
    counters, floats = workspace_words(kernel.plan, kernel.schedule)
    space = recipe["workspace"]
    assert space["refused"] >= 4 * counters
    assert space["zero_bytes"] == space["partials"] >= space["abort_record"]["offset"] + 4 * 6
    assert space["abort_record"]["offset"] >= space["refused"] + 4 * REFUSED_WORDS
    assert space["bytes"] - space["partials"] >= 4 * floats > 4 * counters
    assert space["partials"] % space["alignment_bytes"] == 0


def test_files_are_those_of_the_plan_and_of_the_source() -> None:
    kernel = made(attention(), alone(span_tokens=192))
    ends = (".cu", "_tasks.bin", "_queues.bin", "_append.cu")
    assert set(kernel.files) == {f"attention0{end}" for end in ends}
    assert len(kernel.files["attention0_tasks.bin"]) == 8 * len(kernel.plan.tasks)


def test_kernels_of_another_candidate_are_refused() -> None:
    workload, candidate = attention(), Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=alone(span_tokens=192))
    others = own_kernels(workload, H200, replace(candidate, schedule=alone()))
    with pytest.raises(LaunchRefused, match="the launch ops do not belong to"):
        assemble(problem(workload), candidate, (), "", None, HERE, {}, 7, own=others)
    (changed,) = own_kernels(workload, H200, candidate)
    forged = replace(changed, source=changed.source + " ")
    with pytest.raises(LaunchRefused, match="the source of attention does not belong to its schedule"):
        assemble(problem(workload), candidate, (), "", None, HERE, {}, 7, own=(forged,))
