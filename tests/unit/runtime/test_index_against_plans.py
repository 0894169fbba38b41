"""An index that contradicts its plans is refused, in C and in Python, even if its digests are right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.attention_packs import make_attention, table
from tests.support.broken_packs import Broken, refusal_by_c
from tests.support.cases import wgmma
from tests.support.native.recorder import Recorder
from tests.support.packs import TILINGS, Made, ffn, ladder, make
from tests.unit.runtime.prepared_layer import make_layer
from tuner.core.schedule.ordering import ASSIGNMENTS
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Epilogue
from tuner.errors import InvalidInput
from tuner.ops.attention.schedule import AttentionEngine
from tuner.packs.read import read_pack
from tuner.packs.write import pack_bytes

#: Positions of the changes in records, as packed by tuner/packs/index.py and attention_index.py.
GRID, FLAGS, GATE, SPACE, SPACE_BYTES, ZERO_BYTES, WORDS, FIRST_TASKS = 0, 4, 8, 12, 16, 24, 32, 80
SPIN, KERNEL_ROWS, KERNEL_MAPS, KERNEL_FLAGS = 32, 100, 124, 132
MAP_TYPE, MAP_DIMS, MAP_STRIDES = 12, 24, 64
#: Index of the first op's weights among the tensor maps.
WEIGHTS = 2
PART_GRID, PART_FLAGS, PART_DEPENDENT, PART_ABORT, PART_PARAMETER = 4, 20, 24, 48, 104
NEEDS_ALL, READS_EARLY, IS_SECOND, SIDE, COOPERATIVE, PROGRAMMATIC, WHEN_PLAIN = 1, 2, 4, 8, 16, 32, 64

Change = Callable[[Broken], None]


def put(offset: int, value: int, *, of: str = "launches", index: int = 0, kind: str = "I") -> Change:
    return lambda pack: pack.put(of, index, offset, value, kind)


def add(offset: int, value: int, *, of: str = "launches", index: int = 0) -> Change:
    return lambda pack: pack.put(of, index, offset, pack.get(of, index, offset) + value)


def without(flag: int, *, of: str = "launches", at: int = FLAGS, index: int = 0) -> Change:
    return lambda pack: pack.put(of, index, at, pack.get(of, index, at) & ~flag)


def flipped(flag: int, *, of: str = "launches", at: int = FLAGS, index: int = 0) -> Change:
    return lambda pack: pack.put(of, index, at, pack.get(of, index, at) ^ flag)


def word(place: int, value: int) -> Change:
    return lambda pack: pack.put_in_blob("launches", 0, WORDS, 4 * place, value)


FUSED = make(PlanKind.FUSED)
FUSED_PDL = make(PlanKind.FUSED_PDL)
IN_BAND = make(PlanKind.FUSED_PDL, wgmma((16, 64, 64), in_band=True), workload=ffn(8))
PAIR = make(PlanKind.TWO_STREAMS, TILINGS[Engine.MMA])
TWO = make(PlanKind.TWO_LAUNCHES)
KINDS = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)]

#: For each: the change, and the C reader's message.
WRONG: dict[str, tuple[Made, Change, str]] = {
    "one CTA more": (FUSED, add(GRID, 1), "its grid does not match its plan"),
    "one CTA less": (FUSED_PDL, add(GRID, -1), "its grid does not match its plan"),
    "residency unsaid": (FUSED, without(NEEDS_ALL), "needs all CTAs resident at once, but the index does not say so"),
    "residency unsaid, programmatic": (FUSED_PDL, without(NEEDS_ALL), "but the index does not say so"),
    "a plain launch": (FUSED, without(COOPERATIVE), "must be cooperative where it is not programmatic"),
    "plain where not programmatic": (
        FUSED_PDL,
        without(WHEN_PLAIN),
        "must be cooperative where it is not programmatic",
    ),
    "both attributes": (FUSED_PDL, flipped(COOPERATIVE), "a launch cannot be both cooperative and programmatic"),
    "early weights unsaid": (FUSED_PDL, without(READS_EARLY), "reads weights before it waits"),
    "no room for signals": (FUSED, put(ZERO_BYTES, 256, kind="Q"), "its workspace is smaller than its plan needs"),
    "a small workspace": (
        FUSED,
        lambda pack: [pack.put("launches", 0, at, 256, "Q") for at in (SPACE_BYTES, ZERO_BYTES)] and None,
        "its workspace is smaller than its plan needs",
    ),
    "no spin limit": (FUSED, put(SPIN, 0, of="kernels", kind="q"), "its spin limit must be 1 to 10^12 cycles"),
    "a negative one": (FUSED, put(SPIN, -1, of="kernels", kind="q"), "its spin limit must be 1 to 10^12 cycles"),
    "one without end": (FUSED, put(SPIN, 2**62, of="kernels", kind="q"), "its spin limit must be"),
    "another magic": (FUSED, word(0, 0x524E5555), "its plan has an unknown format or version"),
    "another version": (FUSED, word(1, 6), "its plan has an unknown format or version"),
    "signals without number": (FUSED, word(3, 2**30), "a value in its plan's header is out of range"),
    "more signals than room": (FUSED, word(3, 2**20), "its workspace is smaller than its plan needs"),
    "a plan of no CTA": (FUSED, word(4, 0), "a value in its plan's header is out of range"),
    "a plan of more CTAs": (FUSED, word(4, 99), "the size of its plan does not match its header"),
    "no such assignment": (FUSED, word(5, 2), "its plan has an unknown assignment"),
    "tasks elsewhere": (FUSED, word(7, 8), "the size of its plan does not match its header"),
    "more tasks": (FUSED, word(2, 10_000), "the size of its plan does not match its header"),
    "more waits": (FUSED, word(9, 10_000), "the size of its plan does not match its header"),
    "more split tiles": (FUSED, word(14, 1000), "its workspace is smaller than its plan needs"),
    "an op that is not read in band": (FUSED, word(15, 2**9), "a value in its plan's header is out of range"),
    "in band without mailboxes": (TWO, word(15, 2), "its workspace is smaller than its plan needs"),
    "in band with smaller ones": (
        IN_BAND,
        lambda pack: pack.put("launches", 0, ZERO_BYTES, pack.get("launches", 0, ZERO_BYTES, "Q") - 256, "Q"),
        "its workspace is smaller than its plan needs",
    ),
    "a plan that was cut": (
        FUSED,
        lambda pack: pack.shorten_blob("launches", 0, WORDS, 32),
        "does not match its header",
    ),
    "fewer first tasks": (
        FUSED,
        lambda pack: pack.shorten_blob("launches", 0, FIRST_TASKS, 16),
        "its first tasks do not",
    ),
    "the other launch's plan": (TWO, lambda pack: pack.copy_blob("launches", 0, WORDS, 1), ""),
    "one workspace for both": (TWO, put(SPACE, 0, index=1), "have the wrong streams, workspaces or start gates"),
    "a side stream": (TWO, flipped(SIDE, index=1), "have the wrong streams, workspaces or start gates"),
    "a second one": (FUSED, flipped(IS_SECOND), "have the wrong streams, workspaces or start gates"),
    "no gate": (PAIR, put(GATE, 0, index=1), "have the wrong streams, workspaces or start gates"),
    "a gate of fewer CTAs": (PAIR, add(GATE, -1, index=1), "have the wrong streams, workspaces or start gates"),
    "both on one stream": (PAIR, without(SIDE, index=1), "have the wrong streams, workspaces or start gates"),
    "more rows than tasks": (FUSED, add(KERNEL_ROWS, 1, of="kernels"), "its rows differ from those of its op"),
    "rows without end": (FUSED, put(KERNEL_ROWS, 2**31 - 1, of="kernels"), "its rows differ from those of its op"),
    "rows have another width": (FUSED, add(MAP_STRIDES, 16, of="maps"), "its rows differ from those of its op"),
    "columns beyond": (FUSED, add(MAP_DIMS, 64, of="maps"), "it is outside its tensor"),
    "panels beyond": (FUSED, put(MAP_DIMS + 16, 2**32 - 1, of="maps", kind="Q"), "it is outside its tensor"),
    "weights beyond": (FUSED, add(MAP_DIMS + 8, 1, of="maps", index=WEIGHTS), "it is outside its tensor"),
    "a step that overflows": (
        FUSED,
        put(MAP_STRIDES, 2**63, of="maps", kind="Q", index=WEIGHTS),
        "outside its tensor",
    ),
    "another element type": (FUSED, put(MAP_TYPE, 9, of="maps"), "its kernel is for another element type"),
    "no element type": (FUSED, put(MAP_TYPE, 7, of="maps"), "its element type is unknown"),
    "a shape of another type": (FUSED, put(0, 1, of="shapes"), "its kernel is for another element type"),
    "an activation of the second op": (FUSED, put(16, 3, of="ops", index=1), "its kernel is for another shape"),
    "fewer maps": (FUSED, add(KERNEL_MAPS, -1, of="kernels"), "its tensor maps do not fit the parameter"),
    "no pair": (PAIR, without(4, of="kernels", at=KERNEL_FLAGS), ""),
    "a pair of one": (FUSED, flipped(4, of="kernels", at=KERNEL_FLAGS), "it must have two launches"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_is_not_of_its_plans_is_refused(recorder: Recorder, tmp_path: Path, name: str) -> None:
    made, change, sentence = WRONG[name]
    data = pack_bytes([ladder(made.kernel)])
    path = tmp_path / "one.tunerpack"
    assert refusal_by_c(recorder, data, path) == ""
    broken = Broken(data)
    assert broken.bytes() == data
    change(broken)
    assert (found := refusal_by_c(recorder, broken.bytes(), path)) != ""
    assert sentence in found
    with pytest.raises(InvalidInput, match=r"pack: |kernel: "):
        read_pack(broken.summed())


OF_PARTS: dict[str, tuple[Change, str]] = {
    "one CTA more": (add(PART_GRID, 1, of="parts"), "its grid does not match its plan"),
    "both attributes": (flipped(COOPERATIVE, of="parts", at=PART_FLAGS), "a launch cannot be both"),
    "another header": (lambda pack: pack.put_in_blob("parts", 0, PART_PARAMETER, 40, 1), "another plan's header"),
    "other tasks": (lambda pack: pack.put_in_blob("parts", 2, PART_PARAMETER, 48, 1), "another plan's header"),
    "no spin limit": (lambda pack: pack.put_in_blob("parts", 0, PART_PARAMETER, 20, 2**31), "its spin limit must be"),
    "no word with its dependency": (
        put(PART_DEPENDENT, 2**32 - 1, of="parts"),
        "no workspace with an abort record",
    ),
    "another word": (put(PART_DEPENDENT, 28, of="parts"), "no workspace with an abort record"),
    "columns of a map beyond": (add(MAP_DIMS, 2**20, of="maps"), "it is outside its tensor"),
    "rows of a map beyond": (add(MAP_DIMS + 8, 2**20, of="maps"), "it is outside its tensor"),
    "a step that overflows": (put(MAP_STRIDES, 2**63, of="maps", kind="Q"), "it is outside its tensor"),
    "no element type": (put(MAP_TYPE, 8, of="maps"), "its element type is unknown"),
    "another element type": (put(MAP_TYPE, 9, of="maps"), "its element type differs from its operand's"),
    "no abort's record": (put(PART_ABORT, 2**64 - 1, of="parts", kind="Q"), "no workspace with an abort record"),
    "another abort's record": (put(PART_ABORT, 0, of="parts", kind="Q", index=2), "no workspace with an abort"),
}


@pytest.mark.parametrize("name", OF_PARTS)
def test_a_layers_launch_that_is_not_of_its_plan_is_refused(recorder: Recorder, tmp_path: Path, name: str) -> None:
    change, sentence = OF_PARTS[name]
    data = pack_bytes([table(make_layer())])
    path = tmp_path / "layer.tunerpack"
    assert refusal_by_c(recorder, data, path) == ""
    broken = Broken(data)
    change(broken)
    assert sentence in refusal_by_c(recorder, broken.bytes(), path)
    with pytest.raises(InvalidInput, match="pack: "):
        read_pack(broken.summed())


#: Bytes of an attention's parameter before the values: two maps, or two addresses.
CACHES = {AttentionEngine.TMA: 256, AttentionEngine.MMA: 16}


def by_value(place: int, value: int) -> Callable[[int], Change]:
    """Returns a change that replaces a word of an attention's parameter, after its caches."""
    return lambda caches: lambda pack: pack.put_in_blob("parts", 0, PART_PARAMETER, caches + place, value)


def of_table(fill: int, place: int, value: int) -> Callable[[int], Change]:
    """Returns a change that replaces a word of an attention's tasks or queues, which are in memory after its
    workspace."""
    return lambda caches: lambda pack: pack.put_in_blob("fills", fill, FILL_BLOB, place, value)


def both(*changes: Callable[[int], Change]) -> Callable[[int], Change]:
    return lambda caches: lambda pack: [change(caches)(pack) for change in changes] and None


def always(change: Change) -> Callable[[int], Change]:
    return lambda caches: change


FILL_ZEROS, FILL_BLOB, PROGRAM_REFUSED = 8, 16, 88
OF_ATTENTIONS: dict[str, tuple[Callable[[int], Change], str]] = {
    "a negative spin limit": (by_value(92, 2**32 - 1), "its spin limit must be 1 to 10^12 cycles"),
    "a spin limit of almost 0": (by_value(92, 2**31 - 1), "its spin limit must be 1 to 10^12 cycles"),
    "more queues": (by_value(200, 160), "its number of queues does not match its queue table"),
    "no queue": (by_value(200, 0), "its number of queues does not match its queue table"),
    "queues without end": (by_value(200, 2**32 - 1), "its number of queues does not match its queue table"),
    "more sequences": (by_value(204, 2**31 - 1), "it has too many or too few sequences, heads, blocks or spans"),
    "another sequence": (by_value(204, 5), "it does not have one task per span"),
    "heads, blocks and spans that overflow": (by_value(120, 2**24 - 1), "it does not have one task per span"),
    "other arrivals": (by_value(148, 3), "its number of arrivals does not match its spans"),
    "another first task": (by_value(208, 2**31), "its first tasks differ from those of its queues"),
    "a task of no sequence": (
        both(of_table(1, 8 * 5, 2**31), by_value(208 + 8 * 5, 2**31)),
        "a task's sequence, head, block or span",
    ),
    "a task of no span": (
        both(of_table(1, 4, 2**24 - 1), by_value(208 + 4, 2**24 - 1)),
        "a task's sequence, head, block or span",
    ),
    "a queue that ends before": (of_table(2, 4, 0), "its queues are not consecutive"),
    "a queue beyond the tasks": (of_table(2, 4, 2**31 - 1), "its queues are not consecutive"),
    "a grid of one": (always(put(PART_GRID, 1, of="parts")), "its grid does not match its queues"),
    "a grid of all": (always(put(PART_GRID, 2**20, of="parts")), "its grid does not match its queues"),
    "an abort elsewhere": (
        always(put(PART_ABORT, 0, of="parts", kind="Q")),
        "its abort record is not where the index says, or not zeroed",
    ),
    "a refusal elsewhere": (
        always(put(PROGRAM_REFUSED, 0, of="programs", kind="Q")),
        "its refusal record is not where the index says, or not zeroed",
    ),
    "counters that are not zeroed": (always(put(FILL_ZEROS, 0, of="fills", kind="Q")), "its counters are not zeroed"),
    "an abort that is not zeroed": (
        always(lambda pack: pack.put("fills", 0, FILL_ZEROS, pack.get("programs", 0, PROGRAM_REFUSED, "Q") + 16, "Q")),
        "its abort record is not where the index says, or not zeroed",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", AttentionEngine)
@pytest.mark.parametrize("name", OF_ATTENTIONS)
def test_an_attentions_launch_that_is_not_of_its_tables_is_refused(
    recorder: Recorder, tmp_path: Path, name: str, engine: AttentionEngine
) -> None:
    change, sentence = OF_ATTENTIONS[name]
    data = pack_bytes([table(make_attention(by=engine))])
    path = tmp_path / "attention.tunerpack"
    assert refusal_by_c(recorder, data, path) == ""
    broken = Broken(data)
    change(CACHES[engine])(broken)
    assert sentence in refusal_by_c(recorder, broken.bytes(), path)
    with pytest.raises(InvalidInput, match=r"pack: |kernel: "):
        read_pack(broken.summed())


def test_a_layers_residency_and_workspace_are_held_against_its_plans(recorder: Recorder, tmp_path: Path) -> None:
    made = make_layer(PlanKind.RUNS, (1,), num_behind=3)
    data, path = pack_bytes([table(made)]), tmp_path / "layer.tunerpack"
    order = made.kernel.manifest["launch_order"]
    (index,) = [
        place
        for place, one in enumerate(order)
        if one["list"] == "launches" and made.kernel.manifest["launches"][one["index"]]["needs_all_ctas"]
    ]
    broken = Broken(data)
    without(NEEDS_ALL, of="parts", at=PART_FLAGS, index=index)(broken)
    assert "but the index does not say so" in refusal_by_c(recorder, broken.bytes(), path)
    behind = range(1, broken.count("fills"))  # of what an attention counts in
    fills = [fill for fill in behind if Broken(data).get("fills", fill, 8, "Q") > 256]
    broken = Broken(data)
    for fill in fills:
        broken.put("fills", fill, 8, 256, "Q")
    assert "its workspace is smaller than its plan needs" in refusal_by_c(recorder, broken.bytes(), path)


MANY = wgmma((16, 64, 64), epilogue=Epilogue.TMA)
#: In addition to every kind and engine: variations of the header from that of the plainest plans.
MADE: dict[str, Callable[[], Made]] = {
    **{f"{kind} {one}": partial(make, kind, TILINGS[one], workload=ffn(4)) for kind in KINDS for one in Engine},
    **{str(one): partial(make, PlanKind.FUSED_PDL, MANY, workload=ffn(640), assignment=one) for one in ASSIGNMENTS},
    "parts": partial(make, PlanKind.FUSED, wgmma((16, 64, 64), split_k=(1, 2))),
    "in band": partial(make, PlanKind.FUSED_PDL, wgmma((16, 64, 64), in_band=True), workload=ffn(8)),
    "clusters": partial(make, PlanKind.FUSED_PDL, wgmma((64, 64, 64), cluster_m=2), workload=ffn(160)),
}


@pytest.mark.parametrize("name", MADE)
def test_what_the_builder_makes_is_opened_by_both(recorder: Recorder, tmp_path: Path, name: str) -> None:
    data = pack_bytes([ladder(MADE[name]().kernel)])
    assert refusal_by_c(recorder, data, tmp_path / "one.tunerpack") == ""
    assert len(read_pack(data).entries) == 1
