"""A package's element types and activation, from POST /jobs to a pack that the C runtime opens."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.toys import Toys, run
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype

DTYPES = ("e5m2", "single")
PAIR = ("--m", "2", "--d-in", "512", "--d-hidden", "1024", "--d-out", "512", "--activation", "toy_relu2")

_COMPILE = """
import sys
from pathlib import Path
from tests.support.compiled import compile_source
from tuner.workers.builder.nvrtc import parse_log
for name in sys.argv[1:]:
    cubin, log = compile_source(Path(name).read_text(), "sm_90a")
    assert cubin[:4] == b"\\x7fELF"
    assert parse_log(log).spill_bytes == 0
"""
_PACK = """
import sys
import zipfile
from pathlib import Path
from tests.support.packs import ladder
from tuner.packs.contents import Kernel
from tuner.packs.write import write_pack
out, *zips = map(Path, sys.argv[1:])
kernels = []
for path in zips:
    with zipfile.ZipFile(path) as found:
        kernels.append(Kernel(files={name: found.read(name) for name in found.namelist()}))
write_pack(tuple(ladder(kernel) for kernel in kernels), out)
"""
_OPEN = """
import sys
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.runtime.binding.native import Choice, Shape, checked, library
import ctypes
pack, runtime = ctypes.c_void_p(), library()
checked(runtime, runtime.tuner_pack_open(sys.argv[1].encode(), ctypes.byref(pack)))
def found(dtype, activation):
    shape, choice = Shape(dtype, activation, 512, 1024, 512, 0), Choice()
    status = runtime.tuner_ffn_find(pack, ctypes.byref(shape), 2, ctypes.byref(choice))
    return status if status >= 0 else runtime.tuner_error().decode()
squared = Activation("toy_relu2").row.number
print([found(Dtype(name).row.number, squared) for name in sys.argv[2:]])
print(found(Dtype.FP16.row.number, squared), found(250, squared), found(Dtype.FP16.row.number, 250), sep="; ")
"""


def in_c(*names: str) -> str:
    """Names of the C API in a list."""
    return ", ".join(f"TUNER_{name.upper()}" for name in names)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    found = Toys("rows", folder=tmp_path_factory.mktemp("toys"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def jobs(toys: Toys) -> dict[str, str]:
    """A job of each element type that has ended, by id."""
    for dtype in DTYPES:
        toys.client("submit", *PAIR, "--dtype", dtype, "--trials", "12", "--watch", "--json")
    listed = [json.loads(line) for line in toys.client("jobs", "--json").splitlines()]
    return {job["pair"]["dtype"]: job["id"] for job in listed if job["state"] == "succeeded"}


@pytest.mark.slow
def test_jobs_of_added_rows_are_searched_proven_and_end(toys: Toys, jobs: dict[str, str]) -> None:
    assert set(jobs) == set(DTYPES)
    for job in jobs.values():
        trials = [json.loads(line) for line in toys.client("trials", job, "--json").splitlines()]
        ours = [trial for trial in trials if trial["candidate"]["schedule"] and trial["outcome"]["kind"] == "measured"]
        assert len(ours) >= 6
        assert all(trial["candidate"]["schedule"]["tiling"]["engine"] == "simt" for trial in ours), (
            "no tensor core multiplies them"
        )


@pytest.mark.slow
def test_a_schedule_with_rasters_of_a_package_is_proven_timed_and_fetched(toys: Toys, tmp_path: Path) -> None:
    line = "mma 16x64x64+16x64x64 s3 w4 | spiral+comb2 producer_first row-sync static 1/SM"
    sizes = ("--m", "64", "--d-in", "512", "--d-hidden", "1024", "--d-out", "512")
    toys.client("submit", "ffn", *sizes, "--schedule", line, "--watch", "--json")
    listed = [json.loads(one) for one in toys.client("jobs", "--json").splitlines()]
    (job,) = [one["id"] for one in listed if one["pair"]["m"] == 64]
    trials = [json.loads(one) for one in toys.client("trials", job, "--json").splitlines()]
    (ours,) = [one for one in trials if one["candidate"]["schedule"]]
    assert ours["outcome"]["kind"] == "measured"
    assert "spiral+comb2" in ours["candidate"]["text"]
    assert "from the outside to the middle" in " ".join(ours["candidate"]["words"])
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    toys.client("fetch", "best", "--job", job, *whatever, "-o", str(tmp_path / "best.zip"))
    with zipfile.ZipFile(tmp_path / "best.zip") as found:
        manifest = json.loads(found.read("manifest.json"))
    assert [one["kind"] for one in manifest["schedule"]["ordering"]["rasters"]] == ["spiral", "comb"]


@pytest.fixture(scope="module")
def fetched(toys: Toys, jobs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The kernel of each job."""
    folder = tmp_path_factory.mktemp("fetched")
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    for dtype, job in jobs.items():
        toys.client("fetch", "best", "--job", job, *whatever, "-o", str(folder / f"{dtype}.zip"))
    return {dtype: folder / f"{dtype}.zip" for dtype in jobs}


def test_a_fetched_kernel_has_the_rows_text_and_compiles(toys: Toys, fetched: dict[str, Path], tmp_path: Path) -> None:
    sources = []
    for dtype, kept in fetched.items():
        with zipfile.ZipFile(kept) as found:
            manifest, source = json.loads(found.read("manifest.json")), found.read("kernel.cu").decode()
        assert manifest["workload"]["dtype"] == dtype
        assert {one["dtype"] for one in manifest["tensors"]} == {dtype}
        assert "max_or_nan(x, 0.0f) * max_or_nan(x, 0.0f)" in source
        sources.append(tmp_path / f"{dtype}.cu")
        sources[-1].write_text(source)
    toys.python(_COMPILE, *map(str, sources))


@pytest.mark.slow
def test_a_pack_of_jobs_of_added_rows_is_opened_by_the_c_runtime(
    toys: Toys, jobs: dict[str, str], tmp_path: Path
) -> None:
    """For such small products, the library wins."""
    pack = tmp_path / "model.tunerpack"
    toys.client("pack", *[part for job in jobs.values() for part in ("--job", job)], "-o", str(pack))
    assert toys.python(_OPEN, str(pack), *DTYPES).splitlines()[0] == "[1, 1]"


def test_kernels_of_added_rows_are_found_by_the_c_runtime(toys: Toys, fetched: dict[str, Path], tmp_path: Path) -> None:
    pack = tmp_path / "model.tunerpack"
    toys.python(_PACK, str(pack), *map(str, fetched.values()))
    found, others = toys.python(_OPEN, str(pack), *DTYPES).splitlines()
    assert found == "[0, 0]"
    assert others == (
        f"2; dtype is 250: give {in_c(*Dtype, 'e5m2')} or TUNER_SINGLE; "
        f"activation is 250: give {in_c(*Activation)} or TUNER_TOY_RELU2"
    )


def test_a_server_without_the_package_refuses_its_names() -> None:
    program = """
from tuner.wire.base.fields import DtypeName
from pydantic import TypeAdapter, ValidationError
try:
    TypeAdapter(DtypeName).validate_python("e5m2")
except ValidationError as error:
    print(error.errors()[0]["msg"])
"""
    said = run(program).strip()
    assert said.startswith("Input should be 'fp16', ")
    assert "e5m2" not in said
