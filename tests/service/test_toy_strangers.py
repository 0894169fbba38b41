"""Ops of packages, from POST /jobs to a fetched kernel and a pack that the C runtime opens: launch ops, and tile ops
with two outputs, with a tensor updated in place, and with four-dimensional tensors."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.compiled import compile_source
from tests.support.toys import Toys
from tuner.runtime.binding import native

pytestmark = pytest.mark.slow

#: For each op: a chain with a product after it, the output that the product reads, and a text in the op's kernel.
CHAINS: dict[str, tuple[dict[str, Any], str, str]] = {
    "absmax": ({"op": "absmax", "name": "front", "n": 512}, "front.negated", "ScaleArgs args)"),
    "tally": ({"op": "tally", "name": "front", "k": 512}, "front", "TallyArgs args)"),
}
UP = {"name": "up", "source": "front", "n": 256, "k": 512}
#: Tile ops with tensors of four dimensions, with two sources and two outputs, and with one that is changed in place.
TILE_OPS = [
    {"op": "pool", "name": "pooled", "n": 512, "height": 4, "width": 8},
    {"op": "split", "name": "halves", "n": 512, "source": "pooled", "gate": "y"},
    {"op": "running", "name": "front", "n": 512, "source": "halves.rest"},
]
#: Tensors in the manifest of their kernels.
TENSORS = [
    ("y", "input", [16, 512], "fp16"),
    ("halves.factors", "weight", [512], "fp32"),
    ("halves.rest", "intermediate", [16, 512], "fp16"),
    ("halves", "output", [16, 512], "fp16"),
    ("front.state", "cache", [16, 512], "fp32"),
]
_OPEN = """
import ctypes
import sys
from tuner.runtime.binding.native import AttentionChoice, checked, library
pack, runtime, choice = ctypes.c_void_p(), library(), AttentionChoice()
checked(runtime, runtime.tuner_pack_open(sys.argv[1].encode(), ctypes.byref(pack)))
print([runtime.tuner_layer_find(pack, 0, rows, 0, ctypes.byref(choice)) for rows in (15, 16, 17)])
"""
_PACK = """
import sys
import zipfile
from pathlib import Path
from tuner.packs.contents import Kernel
from tuner.packs.ladder import Found, make_entry
from tuner.packs.write import write_pack
with zipfile.ZipFile(sys.argv[1]) as found:
    kernel = Kernel(files={name: found.read(name) for name in found.namelist()})
found = Found(m=16, kernel=kernel, speedup=1.5, interval=(1.4, 1.6), time_us=2.0)
write_pack((make_entry(kernel.shape, [found]),), Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    found = Toys("strangers", "operands", folder=tmp_path_factory.mktemp("toys"))
    yield found
    found.stop()


def fetched(server: Toys, folder: Path, ops: list[dict[str, Any]], dtype: str = "fp16") -> tuple[Path, dict[str, Any]]:
    """The best kernel of a job that has ended, and the job."""
    (folder / "chain.json").write_text(json.dumps({"m": 16, "ops": ops, "dtype": dtype}))
    server.client("submit", "--chain", str(folder / "chain.json"), "--trials", "8", "--watch", "--json")
    jobs = [json.loads(line) for line in server.client("jobs", "--json").splitlines()]
    (job,) = (one for one in jobs if one["pair"]["ops"][0].get("op") == ops[0]["op"])
    assert (job["state"], job["pair"]["dtype"]) == ("succeeded", dtype)
    trials = [json.loads(line) for line in server.client("trials", job["id"], "--json").splitlines()]
    assert sum(trial["outcome"]["kind"] == "measured" for trial in trials) >= 4
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    out = folder / f"{ops[0]['op']}.zip"
    server.client("fetch", "best", "--job", job["id"], *whatever, "-o", str(out))
    return out, job


def test_an_op_of_a_package_is_searched_fetched_and_found_in_a_pack(server: Toys, tmp_path: Path) -> None:
    for kind, (op, read, text) in CHAINS.items():
        found, job = fetched(server, tmp_path, [op, UP | {"source": read}])
        pack = tmp_path / f"{kind}.tunerpack"
        with zipfile.ZipFile(found) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            assert text in archive.read("op0.cu").decode()
        assert manifest["simulated"] is True
        assert {recipe["op"] for recipe in manifest["own_launches"]} == {"front"}
        roles = {one["name"]: one["role"] for one in manifest["tensors"]}
        assert [name for name, role in roles.items() if role == "intermediate"] == [read]
        server.python(_PACK, str(found), str(pack))
        assert server.python(_OPEN, str(pack)).strip() == str([native.NONE, native.OK, native.NONE]), kind
        server.client("pack", "--job", job["id"], "-o", str(tmp_path / f"{kind}.jobs.tunerpack"))


def test_tile_ops_with_other_tensors_are_searched_fetched_and_found_in_a_pack(server: Toys, tmp_path: Path) -> None:
    found, job = fetched(server, tmp_path, [*TILE_OPS, UP])
    with zipfile.ZipFile(found) as archive:
        manifest, source = json.loads(archive.read("manifest.json")), archive.read("kernel.cu").decode()
    given = [(one["name"], one["role"], one["shape"], one["dtype"]) for one in manifest["tensors"]]
    assert [one for one in TENSORS if one not in given] == []
    pointers = {one.get("tensor") for one in manifest["parameter"]["fields"] if one["type"] == "pointer"}
    assert {name for name, *_ in TENSORS} - {"halves"} <= pointers
    assert compile_source(source, "sm_90a")[0][:4] == b"\x7fELF"
    pack = tmp_path / "tiles.tunerpack"
    server.python(_PACK, str(found), str(pack))
    assert server.python(_OPEN, str(pack)).strip() == str([native.NONE, native.OK, native.NONE])
    page = httpx.get(f"{server.url}/ui/jobs/{job['id']}", headers={"accept": "text/html"})
    assert (page.status_code, "halves.rest" in page.text) == (200, True)


def test_a_count_with_a_wrong_range_is_refused(server: Toys) -> None:
    def posted(**counts: int) -> httpx.Response:
        ops = [{"op": "tally", "name": "front", "k": 512, **counts}, UP]
        pair = {"kind": "chain", "m": 16, "dtype": "fp16", "ops": ops}
        return httpx.post(f"{server.url}/jobs", json={"pair": pair, "budget": {"trials": 3, "seconds": 60}})

    for counts in ({"least": 5, "most": 2}, {"most": 2**31}):
        refused = posted(**counts)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "pair.front.count"), refused.text
    beyond = posted(most=17).json()["id"]
    server.client("watch", beyond)
    trials = [json.loads(line)["outcome"] for line in server.client("trials", beyond, "--json").splitlines()]
    reasons = [one["reason"] for one in trials if one["kind"] == "rejected"]
    assert reasons, trials
    assert all("front.count is 1 to 17" in one for one in reasons)
