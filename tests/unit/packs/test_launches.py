"""A manifest whose launches contradict its plans is refused, by a pack and by programs that run one artifact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.packs import TILINGS, Made, ffn, ladder, make
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.errors import InvalidInput
from tuner.packs.contents import Kernel
from tuner.packs.recipes.launches import check_launches
from tuner.packs.write import pack_bytes

Json = dict[str, Any]
FUSED, FUSED_PDL = make(PlanKind.FUSED), make(PlanKind.FUSED_PDL)
PAIR = make(PlanKind.TWO_STREAMS, TILINGS[Engine.MMA])
TWO = make(PlanKind.TWO_LAUNCHES)


def put(value: Any, *path: str, launch: int = 0) -> Callable[[Json], None]:
    """Returns a change that replaces a value of a launch."""

    def change(manifest: Json) -> None:
        at = manifest["launches"][launch]
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value

    return change


def put_limit(value: int) -> Callable[[Json], None]:
    return lambda manifest: manifest["parameter"].update(spin_limit_cycles=value)


#: For each: the change, and the field in the message.
WRONG: dict[str, tuple[Made, Callable[[Json], None], str]] = {
    "a larger grid": (
        FUSED,
        put([200, 1, 1], "grid"),
        r"grid: is \[200, 1, 1\], but according to its plan it must be",
    ),
    "a second dimension": (FUSED, put([12, 2, 1], "grid"), r"launches\[0\].grid"),
    "residency unsaid": (FUSED, put(False, "needs_all_ctas"), r"launches\[0\].needs_all_ctas: is False"),
    "neither attribute": (FUSED, put(False, "cooperative"), r"launches\[0\].cooperative: is False"),
    "both attributes": (FUSED_PDL, put(True, "cooperative"), r"launches\[0\].cooperative: is True"),
    "plainly neither": (FUSED_PDL, put({"cooperative": False}, "plain"), r"launches\[0\].plain.cooperative: is False"),
    "early weights unsaid": (FUSED_PDL, put(False, "reads_weights_before_wait"), "reads_weights_before_wait: is False"),
    "no room for signals": (FUSED, put(256, "workspace", "zero_bytes"), r"workspace.zero_bytes: is 256"),
    "a small workspace": (FUSED, put(256, "workspace", "bytes"), r"workspace.bytes: is 256"),
    "another abort's record": (FUSED, put(0, "workspace", "abort_record", "offset"), "abort_record.offset: is 0"),
    "the other's workspace": (TWO, put(0, "workspace", "index", launch=1), r"launches\[1\].workspace.index: is 0"),
    "a second one": (FUSED, put(True, "workspace", "is_second"), r"launches\[0\].workspace.index"),
    "fewer first tasks": (FUSED, put("00" * 16, "first_tasks"), r"launches\[0\].first_tasks: is 32 digits"),
    "no gate": (PAIR, put(None, "start_gate", launch=1), r"launches\[1\].start_gate: is None"),
    "a gate of fewer CTAs": (PAIR, put({"num_ctas": 1}, "start_gate", launch=1), r"launches\[1\].start_gate: is 1"),
    "both on a side stream": (PAIR, put(1, "stream"), "launches: is"),
    "no pair": (FUSED, put(1, "stream"), "launches: is"),
    "no spin limit": (FUSED, put_limit(0), "parameter.spin_limit_cycles: is 0"),
    "a negative one": (FUSED, put_limit(-1), "parameter.spin_limit_cycles: is -1"),
    "one without end": (FUSED, put_limit(2**62), "parameter.spin_limit_cycles: is"),
}


def with_manifest(made: Made, change: Callable[[Json], None]) -> Kernel:
    manifest = json.loads(made.kernel.files["manifest.json"])
    change(manifest)
    return Kernel(files={**made.kernel.files, "manifest.json": json.dumps(manifest).encode()})


@pytest.mark.parametrize("name", WRONG)
def test_a_recipe_that_is_not_its_plans_is_refused_by_its_field(name: str) -> None:
    made, change, sentence = WRONG[name]
    kernel = with_manifest(made, change)
    with pytest.raises(InvalidInput, match=sentence):
        check_launches(kernel.manifest, kernel.files)
    with pytest.raises(InvalidInput, match=sentence):
        pack_bytes([ladder(kernel)])


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5, 7, 8, 9])
def test_a_plan_of_another_header_is_refused_though_its_digest_is_right(place: int) -> None:
    words = bytearray(FUSED.kernel.files["plan0.bin"])
    words[4 * place : 4 * place + 4] = (-2).to_bytes(4, "little", signed=True)
    manifest = json.loads(FUSED.kernel.files["manifest.json"])
    manifest["files"]["plan0.bin"]["sha256"] = hashlib.sha256(words).hexdigest()
    kernel = Kernel(
        files={**FUSED.kernel.files, "plan0.bin": bytes(words), "manifest.json": json.dumps(manifest).encode()}
    )
    with pytest.raises(InvalidInput, match=r"kernel: .*launches\[0\]\.plan"):
        pack_bytes([ladder(kernel)])


def test_a_manifest_that_says_less_is_held_against_what_it_says() -> None:
    """Manifests of older programs lack residency, weights and the zeroed memory."""
    manifest = json.loads(make(PlanKind.FUSED_PDL, workload=ffn(48)).kernel.files["manifest.json"])
    files = make(PlanKind.FUSED_PDL, workload=ffn(48)).kernel.files
    launch = manifest["launches"][0]
    for name in ("needs_all_ctas", "reads_weights_before_wait", "plain"):
        del launch[name]
    del launch["workspace"]["zero_bytes"]
    check_launches(manifest, files)
    launch["grid"][0] += 1
    with pytest.raises(InvalidInput, match="grid"):
        check_launches(manifest, files)
