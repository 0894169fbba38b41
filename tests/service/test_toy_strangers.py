"""Two launch ops of a package, from POST /jobs to a kernel that is fetched, and to a pack that the C runtime opens."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.toys import Toys
from tuner.runtime.binding import native

#: Of each a chain with a product behind the op, and a text of the op's kernel.
CHAINS: dict[str, tuple[dict[str, Any], str, str]] = {
    "absmax": ({"op": "absmax", "name": "front", "n": 512}, "fp16", "ScaleArgs args)"),
    "tally": ({"op": "tally", "name": "front", "k": 512}, "fp16", "TallyArgs args)"),
}
UP = {"name": "up", "source": "front", "n": 256, "k": 512}
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Toys]:
    found = Toys("strangers", tmp_path)
    yield found
    found.stop()


def test_an_op_of_a_package_is_searched_fetched_and_found_in_a_pack(server: Toys, tmp_path: Path) -> None:
    for kind, (op, dtype, text) in CHAINS.items():
        (tmp_path / "chain.json").write_text(json.dumps({"m": 16, "ops": [op, UP], "dtype": dtype}))
        server.client("submit", "--chain", str(tmp_path / "chain.json"), "--trials", "12", "--watch", "--json")
        jobs = [json.loads(line) for line in server.client("jobs", "--json").splitlines()]
        (job,) = (one for one in jobs if one["pair"]["ops"][0].get("op") == kind)
        assert (job["state"], job["pair"]["dtype"]) == ("succeeded", dtype)
        trials = [json.loads(line) for line in server.client("trials", job["id"], "--json").splitlines()]
        assert sum(trial["outcome"]["kind"] == "measured" for trial in trials) >= 6
        fetched, pack = tmp_path / f"{kind}.zip", tmp_path / f"{kind}.tunerpack"
        whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
        server.client("fetch", "best", "--job", job["id"], *whatever, "-o", str(fetched))
        with zipfile.ZipFile(fetched) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            assert text in archive.read("op0.cu").decode()
        assert manifest["simulated"] is True
        assert {recipe["op"] for recipe in manifest["own_launches"]} == {"front"}
        server.python(_PACK, str(fetched), str(pack))
        assert server.python(_OPEN, str(pack)).strip() == str([native.NONE, native.OK, native.NONE]), kind
        server.client("pack", "--job", job["id"], "-o", str(tmp_path / f"{kind}.jobs.tunerpack"))
