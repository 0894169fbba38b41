"""Packages' op kinds, epilogue parts, element types, activations and rasters, from POST /jobs to a pack that the C
runtime opens: one server has all packages, and two jobs use most of what they add."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serving import SMALL_PAIR
from tests.support.toys import Toys
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.runtime.binding import native

pytestmark = pytest.mark.slow

UP = {"name": "up", "source": "halves.rest", "n": 512, "k": 512, "activation": "toy_relu2"}
CONV = {"op": "depthwise", "name": "conv", "source": "up", "n": 512, "length": 40, "taps": 5}
DOWN = {"name": "down", "source": "front", "n": 512, "k": 512, "residual": "y"}
#: Tile ops with tensors of four dimensions, with two sources and two outputs, between products with added parts, and
#: with a tensor that is changed in place.
TILE_OPS: list[dict[str, Any]] = [
    {"op": "pool", "name": "pooled", "n": 512, "height": 4, "width": 8},
    {"op": "split", "name": "halves", "n": 512, "source": "pooled", "gate": "y"},
    {**UP, "epilogue": [{"part": "column_scale"}]},
    CONV,
    {"op": "running", "name": "front", "n": 512, "source": "conv"},
    {**DOWN, "epilogue": [{"part": "outer"}, {"part": "softcap", "cap": 30}]},
]
#: Launch ops, one with two outputs and one with a count, and a product that reads them.
LAUNCH_OPS: list[dict[str, Any]] = [
    {"op": "absmax", "name": "scaled", "n": 512},
    {"op": "tally", "name": "added", "k": 512, "source": "scaled.negated"},
    {"name": "up", "source": "added", "n": 256, "k": 512},
]
#: A schedule of an added element type, with added rasters.
LINE = "simt 4x16x256+4x16x256 s2 w4 | spiral+comb2 producer_first row-sync static 1/SM"
PAIR = ("--m", "64", "--d-in", "512", "--d-hidden", "1024", "--d-out", "512", "--activation", "toy_relu2")
#: Tensors in the manifest of the tile ops' kernel.
TENSORS = [
    ("y", "input", [160, 512], "bf16"),
    ("halves.factors", "weight", [512], "fp32"),
    ("halves.rest", "intermediate", [160, 512], "bf16"),
    ("halves", "output", [160, 512], "bf16"),
    ("up.column_scale_factors", "column_scale_factors", [512], "fp32"),
    ("conv.w", "weight", [512, 5], "bf16"),
    ("front.state", "cache", [160, 512], "fp32"),
    ("down.outer_columns", "outer_columns", [512], "fp32"),
    ("down.outer_rows", "outer_rows", [160, 1], "bf16"),
]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    found = Toys("depthwise", "strangers", "operands", "parts", "rows", folder=tmp_path_factory.mktemp("toys"))
    yield found
    found.stop()


def post(toys: Toys, ops: list[dict[str, Any]], *, m: int = 160, trials: int = 7) -> httpx.Response:
    pair = {"kind": "chain", "m": m, "dtype": "bf16", "ops": ops}
    return httpx.post(f"{toys.url}/jobs", json={"pair": pair, "budget": {"trials": trials, "seconds": 600}})


@pytest.fixture(scope="module")
def of_tile_ops(toys: Toys) -> str:
    """The id of a job that has ended."""
    answer = post(toys, TILE_OPS)
    assert answer.status_code == 202, answer.text
    toys.client("watch", answer.json()["id"])
    found = httpx.get(f"{toys.url}/jobs/{answer.json()['id']}").json()
    assert (found["state"], found["reason"]) == ("succeeded", "")
    return str(found["id"])


def submitted(toys: Toys, *arguments: str) -> str:
    """The id of a job that a client has submitted, and that has ended."""
    return str(json.loads(toys.client("submit", *arguments, "--watch", "--json"))["job_id"])


@pytest.fixture(scope="module")
def of_launch_ops(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> str:
    chain = tmp_path_factory.mktemp("asked") / "chain.json"
    chain.write_text(json.dumps({"m": 16, "ops": LAUNCH_OPS, "dtype": "fp16"}))
    return submitted(toys, "--chain", str(chain), "--trials", "5")


@pytest.fixture(scope="module")
def of_rows(toys: Toys) -> str:
    return submitted(toys, "ffn", *PAIR, "--dtype", "single", "--schedule", LINE)


@pytest.fixture(scope="module")
def fetched(
    toys: Toys, of_tile_ops: str, of_launch_ops: str, of_rows: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The kernels of each job."""
    folder = tmp_path_factory.mktemp("fetched")
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    for job in (of_tile_ops, of_launch_ops, of_rows):
        toys.client("fetch", "best", "--job", job, *whatever, "-o", str(folder / f"{job}.zip"))
    return {job: folder / f"{job}.zip" for job in (of_tile_ops, of_launch_ops, of_rows)}


def measured(toys: Toys, job: str) -> list[dict[str, Any]]:
    """The candidates of trials that were measured, but for the library's."""
    trials = [json.loads(line) for line in toys.client("trials", job, "--json").splitlines()]
    failed = [one["outcome"] for one in trials if one["outcome"]["kind"] != "measured"]
    assert failed == []
    return [one["candidate"] for one in trials if one["candidate"]["schedule"]]


def test_tile_ops_and_parts_are_searched_and_launched_fused_and_apart(toys: Toys, of_tile_ops: str) -> None:
    tried = measured(toys, of_tile_ops)
    assert {"fused", "n_launches"} <= {one["plan_kind"] for one in tried}
    assert {one["schedule"]["ops"][3]["op"] for one in tried} == {"depthwise"}, "the others have no axis of their own"
    assert {one["schedule"]["ops"][3].get("rows_at_once", 1) for one in tried} <= {1, 2, 4}
    ops = httpx.get(f"{toys.url}/jobs/{of_tile_ops}").json()["pair"]["ops"]
    assert ops[2]["epilogue"] == [{"part": "column_scale", "cap": None}]
    assert ops[5]["epilogue"] == [{"part": "outer", "cap": None}, {"part": "softcap", "cap": 30.0}]


def test_launch_ops_are_searched(toys: Toys, of_launch_ops: str) -> None:
    tried = measured(toys, of_launch_ops)
    assert len(tried) >= 4
    assert {one["plan_kind"] for one in tried} <= {"n_launches", "n_launches_pdl"}


def test_a_schedule_with_rasters_of_a_package_is_proven_and_timed(toys: Toys, of_rows: str) -> None:
    (ours,) = measured(toys, of_rows)
    assert "spiral+comb2" in ours["text"]
    assert "from the outside to the middle" in " ".join(ours["words"])


# In CI, tests/service/api/test_chains.py has the page of a chain.
@pytest.mark.soak
def test_the_pages_of_a_job_show_its_ops(toys: Toys, of_tile_ops: str) -> None:
    html = {"accept": "text/html"}
    with httpx.Client(base_url=toys.url) as api:
        page = api.get(f"/ui/jobs/{of_tile_ops}.json").json()
        number = page["best"]["finals"][-1]["trial_number"]
        for path in ("", f"/trials/{number}", f"/trials/{number}/source", f"/trials/{number}/timeline"):
            shown = api.get(f"/ui/jobs/{of_tile_ops}{path}", headers=html)
            assert shown.status_code == 200
            assert "halves.rest" in shown.text or path
        assert [(row["name"], row["reads"]) for row in page["ops"]][1:4] == [
            ("halves", "pooled"),
            ("up", "halves.rest"),
            ("conv", "up"),
        ]
        source = api.get(f"/ui/jobs/{of_tile_ops}/trials/{number}/source.json").text
    assert "struct OwnTask<3>" in source


_COMPILE = """
import sys
from pathlib import Path
from tests.support.compiled import compile_source
from tuner.workers.builder.nvrtc import parse_log
from tuner.workers.source.tools import tools_source
for source in (*(Path(name).read_text() for name in sys.argv[1:]), tools_source("sm_90a")):
    cubin, log = compile_source(source, "sm_90a")
    assert cubin[:4] == b"\\x7fELF"
    print(parse_log(log).spill_bytes, b"tuner_softcap_fp16" in cubin, b"tuner_column_scale_bf16" in cubin)
"""


def test_fetched_kernels_have_the_packages_text_and_their_tensors(
    fetched: dict[str, Path], of_tile_ops: str, of_launch_ops: str, of_rows: str
) -> None:
    manifests, sources = {}, {}
    for job, path in fetched.items():
        with zipfile.ZipFile(path) as found:
            manifests[job] = json.loads(found.read("manifest.json"))
            sources[job] = found.read("op0.cu" if job == of_launch_ops else "kernel.cu").decode()
    tiles, launches, rows = (manifests[job] for job in (of_tile_ops, of_launch_ops, of_rows))
    assert tiles["rows"] == {"min": 160, "max": 160}, "sequences are of so many rows"
    given = [(one["name"], one["role"], one["shape"], one["dtype"]) for one in tiles["tensors"]]
    assert [one for one in TENSORS if one not in given] == []
    pointers = {one.get("tensor") for one in tiles["parameter"]["fields"] if one["type"] == "pointer"}
    assert {name for name, *_ in TENSORS} - {"halves", "conv.w"} <= pointers
    for text in (
        "x = Softcap{30.0f}(x, ",
        "x = ColumnScale{static_cast<const float*>(op.parts[0])}(x, ",
        "Outer{static_cast<const float*>(op.parts[0]), static_cast<const Element::Bits*>(op.parts[1])}(x",
        "#define TUNER_OWN_TASKS 27",
        "max_or_nan(x, 0.0f) * max_or_nan(x, 0.0f)",
    ):
        assert text in sources[of_tile_ops]
    assert {recipe["op"] for recipe in launches["own_launches"]} == {"scaled", "added"}
    roles = {one["name"]: one["role"] for one in launches["tensors"]}
    assert [name for name, role in roles.items() if role == "intermediate"] == ["scaled.negated", "added"]
    assert "ScaleArgs args)" in sources[of_launch_ops]
    assert {one["dtype"] for one in rows["tensors"]} == {"single"}
    assert [one["kind"] for one in rows["schedule"]["ordering"]["rasters"]] == ["spiral", "comb"]


# In CI, tests/compile/test_toys.py and test_parts.py compile kernels of packages.
@pytest.mark.soak
def test_fetched_kernels_compile(
    toys: Toys, fetched: dict[str, Path], of_tile_ops: str, of_rows: str, tmp_path: Path
) -> None:
    files = [tmp_path / f"{job}.cu" for job in (of_tile_ops, of_rows)]
    for path in files:
        with zipfile.ZipFile(fetched[path.stem]) as found:
            path.write_bytes(found.read("kernel.cu"))
    assert toys.python(_COMPILE, *map(str, files)).splitlines() == [*["0 False False"] * 2, "0 True True"]


_FIND = """
import ctypes
import sys
import zipfile
from pathlib import Path
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.packs.contents import Kernel
from tuner.packs.ladder import Found, make_entry
from tuner.packs.write import write_pack
from tuner.runtime.binding.native import AttentionChoice, Choice, Shape, checked, library
runtime = library()
def opened(path, m):
    with zipfile.ZipFile(path) as found:
        kernel = Kernel(files={name: found.read(name) for name in found.namelist()})
    measured = Found(m=m, kernel=kernel, speedup=1.5, interval=(1.4, 1.6), time_us=2.0)
    write_pack((make_entry(kernel.shape, [measured]),), Path(path + ".pack"))
    pack = ctypes.c_void_p()
    checked(runtime, runtime.tuner_pack_open((path + ".pack").encode(), ctypes.byref(pack)))
    return pack
for path, m in zip(sys.argv[1:3], (160, 16)):
    pack = opened(path, m)
    print([runtime.tuner_layer_find(pack, 0, rows, 0, ctypes.byref(AttentionChoice())) for rows in (m, m + 1)])
pack = opened(sys.argv[3], 64)
def found(dtype, activation):
    shape = Shape(dtype, activation, 512, 1024, 512, 0)
    status = runtime.tuner_ffn_find(pack, ctypes.byref(shape), 64, ctypes.byref(Choice()))
    return status if status >= 0 else runtime.tuner_error().decode()
squared, single = Activation("toy_relu2").row.number, Dtype("single").row.number
print(*(found(*one) for one in ((single, squared), (1, squared), (250, squared), (single, 250))), sep="; ")
"""


def in_c(*names: str) -> str:
    """Names of the C API in a list."""
    return ", ".join(f"TUNER_{name.upper()}" for name in names)


def test_the_c_runtime_finds_the_kernels_in_their_packs(toys: Toys, fetched: dict[str, Path]) -> None:
    tiles, launches, rows = toys.python(_FIND, *map(str, fetched.values())).splitlines()
    assert tiles == launches == str([native.OK, native.NONE])
    assert rows == (
        f"{native.OK}; {native.NONE}; dtype is 250: give {in_c(*Dtype, 'e5m2')} or TUNER_SINGLE; "
        f"activation is 250: give {in_c(*Activation)} or TUNER_TOY_RELU2"
    )


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ([*TILE_OPS[:3], CONV | {"taps": 4}, *TILE_OPS[4:]], "pair.ops.3.taps"),
        ([*TILE_OPS[:3], CONV | {"length": 33}, *TILE_OPS[4:]], "pair.ops.3.length"),
        ([*TILE_OPS[:3], CONV | {"n": 0}, *TILE_OPS[4:]], "pair.ops.3.n"),
        ([*TILE_OPS[:4], DOWN | {"source": "conv", "norm": "conv"}], "pair.ops.4.norm"),
        ([LAUNCH_OPS[0], LAUNCH_OPS[1] | {"least": 5, "most": 2}, LAUNCH_OPS[2]], "pair.added.count"),
        ([LAUNCH_OPS[0], LAUNCH_OPS[1] | {"most": 2**31}, LAUNCH_OPS[2]], "pair.added.count"),
        ([UP | {"source": "x", "epilogue": [{"part": "softcat"}]}], "softcat"),
        ([UP | {"source": "x", "epilogue": [{"part": "softcap"}]}], "pair.ops.0.epilogue.0.cap"),
        ([UP | {"source": "x", "epilogue": [{"part": "softcap", "cap": -1}]}], "has a cap of -1.0"),
        ([UP | {"source": "x", "epilogue": [{"part": "softcap", "cap": 1}] * 2}], "softcap occurs twice"),
        ([UP | {"source": "x", "epilogue": [{"part": "softcap", "cap": "much"}]}], "use a number"),
    ],
)
def test_what_is_wrong_is_told_by_its_field(toys: Toys, ops: list[dict[str, Any]], said: str) -> None:
    answer = post(toys, ops)
    assert (answer.status_code, said in answer.text) == (422, True), answer.text


def test_trials_with_more_than_a_launch_has_are_rejected(toys: Toys) -> None:
    ops = [LAUNCH_OPS[0], LAUNCH_OPS[1] | {"most": 17}, LAUNCH_OPS[2]]
    job = post(toys, ops, m=16, trials=3).json()["id"]
    toys.client("watch", job)
    trials = [json.loads(line)["outcome"] for line in toys.client("trials", job, "--json").splitlines()]
    reasons = [one["reason"] for one in trials if one["kind"] == "rejected"]
    assert reasons, trials
    assert all("added.count is 1 to 17" in one for one in reasons)


def test_a_server_without_the_packages_keeps_the_job_says_what_it_lacks_and_refuses_their_names(
    toys: Toys, of_tile_ops: str
) -> None:
    scaled = {"name": "up", "source": "x", "n": 64, "k": 64, "epilogue": [{"part": "column_scale"}]}
    with toys.removed() as url, httpx.Client(base_url=url) as api:
        found = api.get(f"/jobs/{of_tile_ops}").json()
        dtype = api.post("/jobs", json={"pair": {**SMALL_PAIR, "dtype": "e5m2"}})
        part = api.post("/jobs", json={"pair": {"kind": "chain", "m": 4, "ops": [scaled]}})
    assert (found["state"], found["pair"]["kind"]) == ("succeeded", "unknown")
    assert found["pair"]["unknown_kinds"] == [
        *("pool", "split", "epilogue:column_scale", "depthwise", "running"),
        "epilogue:outer",
    ]
    assert found["pair"]["ops"][5]["epilogue"] == [{"part": "outer"}, {"part": "softcap", "cap": 30.0}]
    assert (dtype.status_code, "e5m2" in dtype.json()["errors"][0]["remedy"]) == (422, False)
    assert part.status_code == 422
    assert "which no installed package provides" in str(part.json()["errors"])
