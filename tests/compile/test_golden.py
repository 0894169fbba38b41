"""Generated code equals the reviewed files: `make golden` renews them, and their diff shows the changes."""

from __future__ import annotations

import pytest

from tests.compile.golden import CASES, FOLDER, generated_source
from tests.support.cases import H200
from tuner.core.legal.legality import tiling_problem
from tuner.core.schedule.tiling import Engine
from tuner.workers.source.render import DEVICE_FILES, render


@pytest.mark.parametrize("name", CASES)
def test_the_generated_source_is_the_one_that_was_reviewed(name: str) -> None:
    workload, tiling = CASES[name]
    written = FOLDER / f"{name}.cu.txt"
    assert written.exists(), "run `make golden`"
    assert generated_source(render(workload, tiling)) == written.read_text(), "run `make golden`, and read the diff"


def test_every_engine_is_among_them_and_each_is_legal() -> None:
    assert {tiling.engine for _, tiling in CASES.values()} == set(Engine)
    for workload, tiling in CASES.values():
        assert tiling_problem(workload, H200, tiling) is None
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.cu.txt" for name in CASES}


def test_what_is_left_out_are_the_device_files_alone() -> None:
    workload, tiling = CASES["wgmma_decode"]
    source = render(workload, tiling)
    made = generated_source(source)
    assert [line[8:] for line in made.splitlines() if line.startswith("// ---- ")] == list(DEVICE_FILES[tiling.engine])
    assert "kNumStages = 6" in made
    assert "m64n112k16" in made
    assert len(made) < len(source) / 10
    with pytest.raises(ValueError, match=r"sync\.cuh is not in the source"):
        generated_source(source.replace("has_reached", "was_reached"))
