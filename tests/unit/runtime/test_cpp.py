"""The C++ example is built by CMake in an empty folder, with gcc and with clang, and runs a pack over the recorder."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.attention_packs import made_of, make_attention, table
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.lanes import soak_unless
from tests.support.native.example import COMPILERS, built_example, run_command
from tests.support.native.recorder import compile_recorder
from tests.support.packs import ladder, make
from tests.support.repository import ROOT
from tuner.client.delivery.lock import Cache, Lock, LockedPack, write_lock
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack
from tuner.runtime.binding import native

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", soak_unless(lambda _, name: name == "gcc", COMPILERS))
def test_the_example_builds_without_a_warning_and_launches(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    made = make(PlanKind.FUSED_PDL).kernel
    write_pack([ladder(made)], tmp_path / "any.tunerpack")
    program = built_example(compiler, tmp_path, PACK="any.tunerpack")
    recorder = str(compile_recorder(tmp_path))
    ran = run_command(str(program), "9", TUNER_LIBCUDA=recorder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"9 rows: fused_pdl: {made.manifest['schedule_in_words']}\n"
    assert run_command(str(program), "100", TUNER_LIBCUDA=recorder).stdout == "100 rows: use the library algorithm 7\n"
    given = program.parent / "model.tunerpack"
    given.write_bytes(b"PK")
    broken = run_command(str(program), "9", TUNER_LIBCUDA=recorder)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert f"this is not a pack, as tuner-client pack makes: there is no index at byte 64 ({given})" in broken.stderr


# The objects that clang makes are made for another test of CI, too.
@pytest.mark.slow
@pytest.mark.parametrize("compiler", soak_unless(lambda _, name: name == "clang", COMPILERS))
@pytest.mark.parametrize("name", ["attention", "layer"])
def test_an_attention_and_a_layer_in_cpp_are_found_launched_and_refused(
    name: str, compiler: str, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    workload = between()
    made = make_attention() if name == "attention" else made_of(workload, candidate_of(workload))
    path = tmp_path / "model.tunerpack"
    write_pack([table(made, library=[(4, 9000)])], path)
    include = f"-I{native.FOLDER / 'include'}"
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", include, "-pthread")
    words, refused = made.kernel.manifest["schedule_in_words"], "lengths is null, and the kernel needs it\n"
    printed, refused = {
        "attention": (f"700 tokens: two_launches_pdl: {words}\n", refused),
        "layer": (f"qkv attention o_proj, 512 tokens: n_launches_pdl: {words}\n", f"attention.{refused}"),
    }[name]
    text = ROOT / "tests" / "support" / "native" / f"{name}.cpp"
    objects = compiled.runtime_objects(compiler)
    program = compiled.built(name, COMPILERS[compiler], *flags, str(text), *objects, "-ldl")
    ran = run_command(str(program), str(path), TUNER_LIBCUDA=str(compile_recorder(tmp_path)))
    assert ran.stdout == printed
    assert (ran.returncode, ran.stderr) == (0, refused)


def test_loading_a_pack_and_launching_takes_a_screenful() -> None:
    assert len((ROOT / "examples" / "cpp" / "decode.cpp").read_text().splitlines()) <= 60


def test_a_missing_file_and_a_folder_are_no_packs_and_a_lock_needs_the_client(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "cpp", tmp_path / "source")
    configure = [shutil.which("cmake") or "", "-S", str(tmp_path / "source"), "-B", str(tmp_path / "build")]
    configure += [f"-DTuner_DIR={ROOT / 'runtime' / 'cmake'}"]
    for given, words in (
        (tmp_path, f"{tmp_path} is a folder, and no pack"),
        (tmp_path / "a", f"there is no {tmp_path}/a"),
    ):
        refused = run_command(*configure, f"-DPACK={given}", cwd=tmp_path)
        assert refused.returncode != 0
        assert f"{words}: tuner-client pack makes one" in " ".join(refused.stderr.split())
    (tmp_path / "source" / "CMakeLists.txt").write_text(MADE)
    configured = run_command(*configure, cwd=tmp_path)
    assert configured.returncode == 0, configured.stderr
    (tmp_path / "source" / "CMakeLists.txt").write_text(PROJECT)
    locked(tmp_path / "source", b"a pack")
    refused = run_command(*configure, cwd=tmp_path, PATH="/usr/bin:/bin")
    assert refused.returncode != 0
    assert "tuner-client is not in PATH: install it, or give -DTUNER_CLIENT" in " ".join(refused.stderr.split())


PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(decode LANGUAGES CXX)
find_package(Tuner REQUIRED CONFIG)
add_executable(decode decode.cpp)
target_compile_features(decode PRIVATE cxx_std_17)
tuner_add_pack(decode LOCK tuner.lock NAME model.tunerpack CACHE cache OFFLINE)
"""

MADE = PROJECT.replace(
    "tuner_add_pack(decode LOCK tuner.lock", "tuner_add_pack(decode PACK ${CMAKE_CURRENT_BINARY_DIR}/made"
).replace("tuner_add_pack", "add_custom_command(OUTPUT made COMMAND make_it)\ntuner_add_pack", 1)


def locked(folder: Path, *packs: bytes) -> None:
    """Makes a project in `folder` that uses a locked pack; the last of `packs` is locked, and all are in the cache."""
    cache, lock = Cache(folder / "cache"), Lock(key=None)
    for content in packs:
        sha256 = hashlib.sha256(content).hexdigest()
        cache.put(sha256, content)
        pack = LockedPack(path="model.tunerpack", sha256=sha256, size_bytes=len(content), order={})
        lock = lock.with_pack(pack)
    write_lock(folder / "tuner.lock", lock)


# In CI, the example is built with a pack, and tests/service/client/test_packs.py follows locks.
@pytest.mark.soak
def test_a_build_brings_the_pack_that_its_lock_names_and_again_where_the_lock_changes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "cpp", tmp_path / "source")
    (tmp_path / "source" / "CMakeLists.txt").write_text(PROJECT)
    packs = []
    for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL):
        write_pack([ladder(make(kind).kernel)], tmp_path / "one.tunerpack")
        packs.append((tmp_path / "one.tunerpack").read_bytes())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    build, configure = str(tmp_path / "build"), f"-DTuner_DIR={ROOT / 'runtime' / 'cmake'}"
    locked(tmp_path / "source", packs[0])
    configured = run_command("cmake", "-S", str(tmp_path / "source"), "-B", build, configure, PATH=path)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    for content, says in ((packs[0], True), (packs[0], False), (packs[1], True)):
        if says:
            locked(tmp_path / "source", content)
        built = run_command("cmake", "--build", build, PATH=path)
        assert built.returncode == 0, built.stdout + built.stderr
        assert ("Bringing model.tunerpack" in built.stdout) == says
        assert (Path(build) / "model.tunerpack").read_bytes() == content
    (tmp_path / "source" / "CMakeLists.txt").write_text(PROJECT.replace("model.tunerpack", "other.tunerpack"))
    refused = run_command("cmake", "--build", build, PATH=path)
    assert refused.returncode != 0
    assert "tuner.lock has no pack other.tunerpack" in " ".join(refused.stderr.split())
