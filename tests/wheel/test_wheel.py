"""The wheel is complete: it works in empty environments elsewhere. Installs from PyPI."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.repository import ROOT
from tests.wheel.conftest import STRANGER, Environment, install_many, pip, serving
from tuner import __version__
from tuner.core.problem.op_kinds import op_kinds
from tuner.versions import DISTRIBUTION, install_command

pytestmark = pytest.mark.timeout(600)

SERVER_ONLY = ["alembic", "fastapi", "numpy", "optuna", "pydantic", "sqlalchemy", "uvicorn"]


@pytest.fixture(scope="module")
def address(server: Environment) -> Iterator[str]:
    """The address of a running server, started from an empty directory, that simulates an H200."""
    with serving(server) as url:
        yield url


def test_the_wheel_holds_the_device_files_the_migrations_the_pages_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for pattern in (
        r"tuner/workers/kernels/common/tools\.cu",
        r"tuner/workers/builder/manifest\.schema\.json",
        r"tuner/runtime/c/src/launch\.c",
        r"tuner/runtime/c/include/tuner/tuner\.h",
        r"tuner/runtime/c/cmake/TunerConfig\.cmake",
        r"tuner/migrations/env\.py",
        r"tuner/migrations/versions/0001_\w+\.py",
        r"tuner/api/templates/.+\.html",
        r"tuner/winners/h100\.json",
        r"tuner/winners/h200\.json",
        r"tuner/py\.typed",
        r"tuner/__init__\.pyi",
        r"tuner/api/static/.+\.css",
        r"tuner/api/static/vendor/echarts-.+\.js",
        r"tuner/api/static/vendor/echarts\.LICENSE\.txt",
        r".+\.dist-info/licenses/LICENSE",
        r".+\.dist-info/licenses/NOTICE",
    ):
        assert any(re.fullmatch(pattern, name) for name in names), pattern
    assert [name for name in names if name.endswith((".pyc", ".db", ".log"))] == []


def test_the_wheel_brings_no_package_but_its_own(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"tuner", f"{DISTRIBUTION.replace('-', '_')}-{__version__}.dist-info"}


def test_a_release_is_a_wheel_and_the_sources_that_it_is_built_from(release: Path, wheel: Path) -> None:
    """`make release` builds its wheel from its sdist; `wheel` is built from a checkout."""
    name = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
    assert {path.name for path in release.iterdir()} == {f"{name}.tar.gz", f"{name}-py3-none-any.whl"}
    contents = [
        {info.filename: info.CRC for info in zipfile.ZipFile(path).infolist()}
        for path in (release / f"{name}-py3-none-any.whl", wheel)
    ]
    assert contents[0] == contents[1]
    with tarfile.open(release / f"{name}.tar.gz") as archive:
        sources = {member.name.removeprefix(f"{name}/") for member in archive.getmembers()}
    assert {"workers/__init__.py", "tuner/__init__.py", "migrations/env.py", "LICENSE", "NOTICE"} <= sources
    links = ("tuner/workers/", "tuner/runtime/c/")
    assert [source for source in sources if f"{source}/".startswith(links)] == []
    assert "runtime/src/launch.c" in sources


def test_the_base_install_is_client_and_command_line_only(base: Environment) -> None:
    frozen = pip(base, "list", "--format=freeze").lower()
    installed = {line.split("==")[0] for line in frozen.splitlines()}
    assert installed >= {DISTRIBUTION, "httpx", "click", "rich"}
    assert installed & set(SERVER_ONLY) == set()
    for program in ("tuner", "tuner-client"):
        helped = base.run(program, "--help")
        assert helped.returncode == 0, helped.stderr
        assert "Usage" in helped.stdout


def test_a_vllm_beside_it_finds_the_plugin_and_one_that_is_none_breaks_nothing(base: Environment) -> None:
    """As vLLM does it, in an environment without vLLM."""
    finds = "from importlib.metadata import entry_points as of; (found,) = of(group='vllm.general_plugins')"
    done = base.run("python", "-c", f"{finds}; print(found.name); print(found.load()())")
    assert done.stdout.split() == ["tuner", "None"], done.stderr
    assert "the load format `tuner` is not available" in done.stderr


def test_a_kind_of_op_of_another_package_is_known_beside_it(base: Environment) -> None:
    """Installed as a user does it; the base install has no NumPy, and workloads of the op need none."""
    install_many(base, str(ROOT / "tests" / "toys" / "gather"))
    asked = {"op": "gather", "name": "embed", "m": 16, "n": 512, "table_rows": 4096}
    program = f"""
from tuner.core.problem.op_kinds import broken_kinds, op_kinds
from tuner.core.problem.workload import Workload
one = Workload.from_json({{"kind": "chain", "ops": [{asked!r}], "dtype": "bf16"}})
print(sorted(op_kinds()), dict(broken_kinds()), one.describe())
"""
    said = base.run("python", "-c", program)
    pip(base, "uninstall", "--yes", "toy-gather")
    described = "gather bf16 gather of 16 from 4096 x 512"
    kinds = sorted({*op_kinds(), "gather"})
    assert (said.stdout.strip(), said.stderr) == (f"{kinds} {{}} {described}", "")


def test_an_estimate_from_the_base_install_says_what_to_install(base: Environment) -> None:
    config = ROOT / "tests" / "unit" / "client" / "configs" / "llama_3_8b.json"
    refused = base.run("tuner-client", "estimate", str(config), "--m", "16")
    assert refused.returncode == 3
    assert install_command("server") in refused.stderr


def test_the_base_install_says_where_cmake_finds_the_runtime_and_compiles_it(base: Environment) -> None:
    folder = Path(base.run("tuner-client", "cmake-dir").stdout.strip())
    assert (folder / "TunerConfig.cmake").is_file()
    assert (folder.parent / "include" / "tuner" / "tuner.hpp").is_file()
    built = "native.build(pathlib.Path('cache').resolve())"
    code = f"import pathlib; from tuner.runtime.binding import native; native.bind({built})"
    compiled = base.run("python", "-c", f"{code}; import sys; assert 'numpy' not in sys.modules")
    assert compiled.returncode == 0, compiled.stderr


def test_serving_from_the_base_install_says_what_to_install(base: Environment, wheel: Path) -> None:
    refused = base.run("tuner", "serve")
    assert refused.returncode != 0
    assert install_command("server") in refused.stderr
    assert f"./{wheel.name}[server]" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_another_projects_workers_and_ours_do_not_meet(server: Environment) -> None:
    printed = server.run("python", "-c", "import workers, tuner.workers as ours; print(workers.WHOSE, ours.__file__)")
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith(STRANGER)
    assert printed.stdout.strip().endswith("tuner/workers/__init__.py")


def test_the_installed_worker_renders_a_source(server: Environment) -> None:
    program = (
        "from tuner.core.schedule.tiling import Tile, Tiling\n"
        "from tuner.ops.gemm.pairs import ffn_pair\n"
        "from tuner.workers.source.render import render\n"
        "tile = Tile(m=64, n=64, k=32)\n"
        "print(render(ffn_pair(m=64, d_in=64, d_hidden=64, d_out=64),"
        " Tiling(tiles=(tile, tile), num_stages=3, num_warps=4)))"
    )
    rendered = server.run("python", "-c", program)
    assert rendered.returncode == 0, rendered.stderr
    assert "__global__" in rendered.stdout


def test_a_job_runs_to_its_end_and_the_base_installs_client_fetches_the_result(
    server: Environment, base: Environment, address: str
) -> None:
    pair = {"kind": "ffn", "m": 64, "d_in": 256, "d_hidden": 512, "d_out": 256}
    posted = httpx.post(f"{address}/jobs", json={"pair": pair, "budget": {"trials": 6}})
    assert posted.status_code == 202, posted.text
    job = posted.json()
    watched = base.run("tuner-client", "watch", job["id"], TUNER_URL=address)
    assert watched.returncode == 0, watched.stderr
    best = httpx.get(f"{address}/jobs/{job['id']}/best").json()
    assert best["simulated"] is True
    assert (server.directory / "data").is_dir()
    command = ["tuner-client", "fetch", "best", "--job", job["id"], "--even-if-slower", "-o", "best.zip"]
    fetched = base.run(*command, TUNER_URL=address)
    assert fetched.returncode == 0, fetched.stderr
    assert "manifest.json" in zipfile.ZipFile(base.directory / "best.zip").namelist()


def test_the_dashboard_renders_and_says_simulated(address: str) -> None:
    page = httpx.get(f"{address}/", follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "simulated" in page.text
