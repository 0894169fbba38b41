"""A package's tile op between two products, from POST /jobs to a pack that the C runtime opens."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.toys import Toys

OPS = [
    {"name": "up", "source": "x", "n": 512, "k": 256, "activation": "silu"},
    {"op": "depthwise", "name": "conv", "source": "up", "n": 512, "length": 40, "taps": 5},
    {"name": "down", "source": "conv", "n": 256, "k": 512},
]
CHAIN = {"kind": "chain", "m": 160, "dtype": "bf16", "ops": OPS}


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    found = Toys("depthwise", folder=tmp_path_factory.mktemp("toys"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def api(toys: Toys) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=toys.url) as client:
        yield client


def post(api: httpx.Client, pair: dict[str, Any]) -> httpx.Response:
    return api.post("/jobs", json={"pair": pair, "budget": {"trials": 40, "seconds": 600}})


@pytest.fixture(scope="module")
def job(toys: Toys, api: httpx.Client) -> str:
    """The id of a job that has ended."""
    answer = post(api, CHAIN)
    assert answer.status_code == 202, answer.text
    toys.client("watch", answer.json()["id"])
    found = api.get(f"/jobs/{answer.json()['id']}").json()
    assert (found["state"], found["reason"]) == ("succeeded", "")
    return str(found["id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "field"),
    [({"taps": 4}, "pair.conv.taps"), ({"length": 33}, "pair.conv.length"), ({"n": 0}, "pair.ops.1.n")],
)
def test_what_is_wrong_of_it_is_told_by_its_field(api: httpx.Client, changed: dict[str, int], field: str) -> None:
    answer = post(api, CHAIN | {"ops": [OPS[0], OPS[1] | changed, OPS[2]]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_a_norm_of_its_output_is_refused_since_it_leaves_no_squares(api: httpx.Client) -> None:
    answer = post(api, CHAIN | {"ops": [*OPS[:2], OPS[2] | {"norm": "conv"}]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "pair.down.norm")


#: Runs trials in sequence, since in a service the state of a search depends on the machine's speed.
_SEARCH = """
from tests.support.depthwise import chain
from tests.support.depthwise_search import values_tried
print(len(values_tried(chain(m=160, length=40, n=512), 96)))
"""


@pytest.mark.slow
def test_its_own_axis_is_searched(toys: Toys) -> None:
    assert toys.python(_SEARCH) == "2\n"


@pytest.mark.slow
def test_trials_are_of_fused_and_other_launches(toys: Toys, job: str) -> None:
    trials = [json.loads(line) for line in toys.client("trials", job, "--json").splitlines()]
    measured = [one for one in trials if one["candidate"]["schedule"] and one["outcome"]["kind"] == "measured"]
    assert {"fused", "runs", "n_launches"} <= {one["candidate"]["plan_kind"] for one in measured}
    own = [one["candidate"]["schedule"]["ops"][1] for one in measured]
    assert {one["op"] for one in own} == {"depthwise"}
    assert {one.get("rows_at_once", 1) for one in own} <= {1, 2, 4}
    assert "wgmma" in {one["candidate"]["schedule"]["launch"].get("engine", "mma") for one in measured}


@pytest.mark.slow
def test_its_pages_are_there(api: httpx.Client, job: str) -> None:
    html = {"accept": "text/html"}
    page = api.get(f"/ui/jobs/{job}.json").json()
    number = page["best"]["finals"][-1]["trial_number"]
    for path in ("", f"/trials/{number}", f"/trials/{number}/source", f"/trials/{number}/timeline"):
        assert api.get(f"/ui/jobs/{job}{path}", headers=html).status_code == 200
    assert [(row["name"], row["reads"]) for row in page["ops"]] == [("up", "x"), ("conv", "up"), ("down", "conv")]
    source = api.get(f"/ui/jobs/{job}/trials/{number}/source.json").text
    assert "struct OwnTask<1>" in source


@pytest.fixture(scope="module")
def fetched(toys: Toys, job: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's kernel."""
    out = tmp_path_factory.mktemp("fetched") / "best.zip"
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    toys.client("fetch", "best", "--job", job, *whatever, "-o", str(out))
    return out


_COMPILE = """
import sys
from pathlib import Path
from tests.support.compiled import compile_source
from tuner.workers.builder.nvrtc import parse_log
source = Path(sys.argv[1]).read_text()
for arch in ("sm_90a", *(["sm_80"] if "sm_80 or later" in source else [])):
    cubin, log = compile_source(source, arch)
    assert cubin[:4] == b"\\x7fELF"
    assert parse_log(log).spill_bytes == 0
"""


def test_a_fetched_kernel_has_its_task_and_its_tensors_and_compiles(toys: Toys, fetched: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(fetched) as found:
        manifest, source = json.loads(found.read("manifest.json")), found.read("kernel.cu").decode()
    tensors = {one["name"]: (one["role"], one["shape"]) for one in manifest["tensors"]}
    assert manifest["rows"] == {"min": 160, "max": 160}, "sequences are of so many rows"
    assert tensors["conv.w"] == ("weight", [512, 5])
    assert tensors["up"] == ("intermediate", [160, 512])
    assert [op.get("op") for op in manifest["workload"]["ops"]] == [None, "depthwise", None]
    assert "#define TUNER_OWN_TASKS 2" in source
    (tmp_path / "kernel.cu").write_text(source)
    toys.python(_COMPILE, str(tmp_path / "kernel.cu"))


_OPEN = """
import sys
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.write import write_pack
import zipfile
from pathlib import Path
with zipfile.ZipFile(sys.argv[1]) as found:
    kernel = Kernel(files={name: found.read(name) for name in found.namelist()})
rung = Rung(m_lo=160, m_hi=160, kernel=kernel, speedup=1.25, interval=(1.2, 1.3))
write_pack((Entry(shape=kernel.shape, rungs=(rung,)),), Path(sys.argv[2]))
import ctypes
from tuner.runtime.binding.native import checked, library
pack, runtime = ctypes.c_void_p(), library()
checked(runtime, runtime.tuner_pack_open(sys.argv[2].encode(), ctypes.byref(pack)))
from tuner.runtime.binding.native import AttentionChoice
print([runtime.tuner_layer_find(pack, 0, rows, 0, ctypes.byref(AttentionChoice())) for rows in (160, 159)])
"""


@pytest.mark.slow
def test_a_pack_of_it_is_opened_by_the_c_runtime(toys: Toys, fetched: Path, tmp_path: Path) -> None:
    assert toys.python(_OPEN, str(fetched), str(tmp_path / "model.tunerpack")).strip() == "[0, 2]", "and no other rows"
