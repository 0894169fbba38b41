"""Packages with op kinds and element types, installed with the wheel: each from POST /jobs to the C runtime."""

from __future__ import annotations

import json
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import toys
from tests.support.compiled import compile_source
from tests.support.lanes import soak_unless
from tests.wheel.conftest import Environment, empty, pip_install, serving
from tuner.runtime.binding import native

pytestmark = pytest.mark.timeout(300)

UP = {"name": "up", "source": "x", "n": 512, "k": 256, "activation": "silu"}
DEPTHWISE = {"op": "depthwise", "name": "conv", "source": "up", "n": 512, "length": 40, "taps": 5}
DOWN = {"name": "down", "source": "conv", "n": 256, "k": 512}
PAIRS = {"op": "pairs", "name": "halves", "n": 512}
GATHER = {"op": "gather", "name": "embed", "n": 512, "table_rows": 4096}
BEHIND = {"name": "up", "source": "embed", "n": 256, "k": 512}
FFN = {"kind": "ffn", "m": 2, "d_in": 512, "d_hidden": 1024, "d_out": 512}
#: For each kind of toy: the request, what its page must show, and what the C runtime finds in its pack for the same
#: rows and for one more: a kernel, the library or nothing.
ASKED: dict[str, tuple[dict[str, Any], str, list[int]]] = {
    "a tile op between two products": (
        {"kind": "chain", "m": 160, "dtype": "bf16", "ops": [UP, DEPTHWISE, DOWN]},
        "conv",
        [native.OK, native.NONE],
    ),
    "a tile op without weights in front": (
        {"kind": "chain", "m": 64, "dtype": "fp16", "ops": [PAIRS, DOWN | {"source": "halves"}]},
        "halves",
        [native.OK, native.NONE],
    ),
    "a launch op with a count": (
        {"kind": "chain", "m": 16, "dtype": "bf16", "ops": [GATHER, BEHIND]},
        "gather of 16 from 4096 x 512",
        [native.OK, native.NONE],
    ),
    "an element type and an activation": (
        {**FFN, "dtype": "e5m2", "activation": "toy_relu2"},
        "toy_relu2",
        [native.OK, native.LIBRARY],
    ),
}
_FIND = """
import ctypes
import json
import sys
import zipfile
from pathlib import Path
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.packs.contents import Kernel
from tuner.packs.ladder import Found, make_entry
from tuner.packs.write import write_pack
from tuner.runtime.binding.native import AttentionChoice, Choice, Shape, checked, library
fetched, pack, pair = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
with zipfile.ZipFile(fetched) as found:
    kernel = Kernel(files={name: found.read(name) for name in found.namelist()})
measured = Found(m=pair["m"], kernel=kernel, speedup=1.5, interval=(1.4, 1.6), time_us=2.0)
write_pack((make_entry(kernel.shape, [measured]),), pack)
opened, runtime = ctypes.c_void_p(), library()
checked(runtime, runtime.tuner_pack_open(str(pack).encode(), ctypes.byref(opened)))
def found(m):
    if pair["kind"] == "chain":
        return runtime.tuner_layer_find(opened, 0, m, 0, ctypes.byref(AttentionChoice()))
    numbers = Dtype(pair["dtype"]).row.number, Activation(pair["activation"]).row.number
    shape = Shape(*numbers, pair["d_in"], pair["d_hidden"], pair["d_out"], 0)
    return runtime.tuner_ffn_find(opened, ctypes.byref(shape), m, ctypes.byref(Choice()))
print([found(m) for m in (pair["m"], pair["m"] + 1)])
"""


@pytest.fixture(scope="module")
def beside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with the wheel and packages; its requirements come from this one."""
    environment = empty(tmp_path_factory.mktemp("toys"))
    printed = environment.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    site = Path(printed.stdout.strip())
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip_install(environment, "--no-deps", str(wheel))
    for name in ("depthwise", "gather", "pairs", "rows"):
        toys.install(name, site)
    return environment


@pytest.fixture(scope="module")
def address(beside: Environment) -> Iterator[str]:
    with serving(beside) as url:
        yield url


#: Kinds that tests of the service do not follow from a request to the C runtime; `make soak` runs all.
IN_CI = ("an element type and an activation",)


@pytest.mark.parametrize("sort", soak_unless(lambda _, sort: sort in IN_CI, ASKED))
def test_a_package_beside_the_wheel_goes_from_a_request_to_the_c_runtime(
    beside: Environment, address: str, sort: str
) -> None:
    pair, said, wanted = ASKED[sort]
    posted = httpx.post(f"{address}/jobs", json={"pair": pair, "budget": {"trials": 16, "seconds": 120}})
    assert posted.status_code == 202, posted.text
    job = posted.json()["id"]
    watched = beside.run("tuner-client", "watch", job, TUNER_URL=address)
    assert watched.returncode == 0, watched.stderr
    trials = httpx.get(f"{address}/jobs/{job}/trials").json()["items"]
    kinds = {one["candidate"]["plan_kind"] for one in trials if one["outcome"]["kind"] == "measured"}
    assert {"library", *(["fused"] if "launch" not in sort else ["two_launches"])} <= kinds
    number = httpx.get(f"{address}/jobs/{job}/best").json()["finals"][-1]["trial_number"]
    for path in ("", f"/trials/{number}", f"/trials/{number}/source", f"/trials/{number}/timeline"):
        page = httpx.get(f"{address}/ui/jobs/{job}{path}", headers={"accept": "text/html"}, follow_redirects=True)
        assert (path, page.status_code) == (path, 200)
        assert said in page.text or path
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    fetched, pack = (beside.directory / f"{job}{ending}" for ending in (".zip", ".tunerpack"))
    command = ["tuner-client", "fetch", "best", "--job", job, *whatever, "-o", str(fetched)]
    assert beside.run(*command, TUNER_URL=address).returncode == 0
    with zipfile.ZipFile(fetched) as archive:
        sources = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".cu")]
    assert all(compile_source(source, "sm_90a")[0][:4] == b"\x7fELF" for source in sources)
    arguments = (str(fetched), str(pack), json.dumps(pair))
    found = beside.run("python", "-c", _FIND, *arguments, TUNER_RUNTIME_CACHE=str(beside.directory / "runtime"))
    assert found.stdout.strip() == str(wanted), found.stderr
    packed = beside.run("tuner-client", "pack", "--job", job, "-o", str(pack.with_suffix(".jobs")), TUNER_URL=address)
    assert packed.returncode == 0, packed.stderr


def test_the_environment_has_no_program_but_the_wheels(beside: Environment) -> None:
    said = beside.run("python", "-c", "import tuner, toy_gather; print(tuner.__file__); print(toy_gather.__file__)")
    assert all(line.startswith(str(beside.bin.parent)) for line in said.stdout.split()), said.stdout + said.stderr
