"""Broken packs for the C reader, under AddressSanitizer: the program, and its output."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.attention_packs import made_of, make_attention, table, without_sources
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.native.recorder import compile_driver, compile_recorder
from tests.support.packs import WIDE, WIDE_MLP, ffn, ladder, make, make_for_both, mlp, without_source
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.packs.write import write_pack

SANITIZED = ("-O1", "-fno-omit-frame-pointer")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The outcome for some inputs."""

    inputs: int
    #: Packs that are still valid, since the reader does not use what changed.
    opened: int
    #: The output of a sanitizer; empty if there are no errors.
    fault: str = ""


def some_pack(folder: Path) -> Path:
    """A small pack of kernels that differ in everything that the runtime reads."""
    chain = make(PlanKind.FUSED_PDL, workload=mlp())
    small = [make(PlanKind.TWO_STREAMS), make(PlanKind.FUSED_PDL, workload=ffn(48))]
    full = [make(PlanKind.TWO_LAUNCHES_PDL, workload=ffn(16, full=True))]
    entries = [ladder(*(without_source(one.kernel) for one in made)) for made in (small, full)]
    several = between(num_behind=3)
    tables = [
        table(make_attention(), library=[(4, 9000)]),
        table(make_attention(d_out=512, engine=Engine.WGMMA)),
        table(make_attention(form={"page_tokens": 16})),
        *(table(made_of(one, candidate_of(one))) for one in (between(), several)),
    ]
    with_fallbacks = [make_for_both(PlanKind.FUSED_PDL, workload) for workload in (WIDE, WIDE_MLP)]
    chains = [ladder(without_source(one.kernel)) for one in (chain, *with_fallbacks)]
    write_pack([*entries, *map(without_sources, tables), *chains], folder / "some.tunerpack")
    return folder / "some.tunerpack"


class Fuzzer:
    """The compiled program with its pack."""

    def __init__(self, folder: Path) -> None:
        sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DTUNER_FUZZING")
        self._recorder, self._pack = compile_recorder(folder), some_pack(folder)
        self._program = compile_driver(folder, "fuzz", *SANITIZED, *sanitizers)

    def run(self, seed: int, count: int) -> Found:
        """Runs `count` inputs that are drawn from `seed`."""
        command = [self._program, self._recorder, self._pack, "fuzz", str(seed), str(count)]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        printed = re.fullmatch(r"(\d+) inputs, (\d+) opened\n", ran.stdout)
        if ran.returncode != 0 or ran.stderr or printed is None:
            return Found(inputs=count, opened=0, fault=ran.stderr[:2000] or f"exit code {ran.returncode}")
        return Found(inputs=int(printed[1]), opened=int(printed[2]))
