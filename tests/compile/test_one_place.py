"""Adding a built-in activation takes one row: in a copy of the tree, nothing else is edited by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT, copy_folder
from tuner.core.problem.activation import Activation

_ROW = """
    PLANTED = ActivationRow(
        name="planted",
        number=9,
        aliases=("planted_too",),
        host=lambda xp, z: xp.maximum(z, 0) ** 2,
        device="max_or_nan(x, 0.0f) * max_or_nan(x, 0.0f)",
        torch=lambda functional, z: functional.relu(z) ** 2,
        spread=lambda xp, z, error: (2 * xp.abs(z) + error) * error,
    )
"""
_ASK = """
import ctypes, json
import numpy as np
from tests.support.compiled import compile_source
from tests.support.packs import ffn, ladder, make
from dataclasses import replace
from pathlib import Path
import tuner
from tuner.client.options.pair_options import flat_options
from tuner.core.problem.activation import Activation, canonical
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.runtime.tensors.arrays import _Cupy
from tuner.core.problem.asked import asked_workloads
from tuner.wire.requests.pairs import model_of
from tuner.workers.source.tools import tools_source
planted = canonical("planted_too")
options = {option.name: option for option in flat_options()}
workload = ffn()
workload = replace(workload, ops=(replace(workload.ops[0], activation=planted), *workload.ops[1:]))
made = make(workload=workload)
pack = Path("planted.tunerpack")
write_pack((ladder(made.kernel),), pack)
runtime, opened = native.library(), ctypes.c_void_p()
native.checked(runtime, runtime.tuner_pack_open(str(pack).encode(), ctypes.byref(opened)))
shape, source = made.kernel.shape, made.kernel.files["kernel.cu"].decode()
wanted = native.Shape(0, native.ACTIVATIONS["planted"], shape.d_in, shape.d_hidden, shape.d_out, 0)
choice = native.Choice()
print(json.dumps({
    "tree": str(Path(tuner.__file__).parents[1]),
    "command line": list(options["activation"].type.choices),
    "http": model_of(asked_workloads()["ffn"]).model_json_schema()["$defs"]["Activation"]["enum"],
    "arrays": _Cupy(np).activate(np.array([-1.0, 3.0], dtype=np.float32), "planted").tolist(),
    "compiled": len(compile_source(source, "sm_90a")[0]) > 0 and "kPlanted = 9" in source,
    "library's kernels": "if (activation == 9) return max_or_nan(x, 0.0f) * max_or_nan(x, 0.0f)"
    in tools_source("sm_90a"),
    "found in C": runtime.tuner_ffn_find(opened, ctypes.byref(wanted), 1, ctypes.byref(choice)),
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in ("tuner", "workers", "runtime"):
        copy_folder(name, folder)
    path = folder / "tuner" / "core" / "problem" / "activation.py"
    before, added, after = path.read_text().partition("    locals().update(")
    path.write_text(before + _ROW.lstrip("\n") + added + after)
    return folder


def run(folder: Path, *arguments: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "TUNER_RUNTIME_CACHE": str(folder / "build"),
    }
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# In CI, tests/house/test_planted_changes.py plants a change.
@pytest.mark.soak
def test_one_row_is_known_everywhere(copy: Path) -> None:
    names = [*Activation, "planted"]
    assert json.loads(run(copy, "-c", _ASK)) == {
        "tree": str(copy),
        "command line": names,
        "http": names,
        "arrays": [0.0, 9.0],
        "compiled": True,
        "library's kernels": True,
        "found in C": 0,
    }


def test_what_is_generated_follows_by_its_command(copy: Path) -> None:
    header = copy / "runtime" / "src" / "rows.h"
    assert "PLANTED" not in header.read_text()
    run(copy, "-m", "tuner.runtime.binding.rows")
    assert " ROW(9u)\n" in header.read_text()
    assert " or TUNER_PLANTED" in header.read_text()
