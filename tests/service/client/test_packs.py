"""From a model's config to a pack, and from a lock file to exactly the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.service.client.conftest import Run
from tests.service.client.test_cli import PAIR
from tests.support.packs import ladder, make
from tests.support.repository import ROOT
from tests.support.serving import Server, body
from tuner.client import Client, ExitCode
from tuner.client.delivery.lock import read_lock, write_lock
from tuner.packs.read import read_pack
from tuner.packs.signing import KEY_FILE, rotate, signer, signing_key, verify
from tuner.packs.write import pack_bytes

pytestmark = pytest.mark.slow

#: A model that a simulated H200 tunes in a second.
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "torch_dtype": "float16",
}
#: The server's default, which tune-model uses only if it is named, since it is simulated.
TARGET = ("--target", "simulated:h200")


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the packs of tests out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The model's config.json."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def locked(run: Run, job_id: str, tmp_path: Path) -> Path:
    """A lock with one pack, which is in the cache `tmp_path / "cache"`."""
    lock = tmp_path / "tuner.lock"
    made = run("pack", "--job", job_id, "-o", str(tmp_path / "model.tunerpack"), "--lock", str(lock))
    assert made.exit_code == 0, made.stderr
    first = run(*fetching(lock, tmp_path / "first"))
    assert first.exit_code == 0
    assert "model.tunerpack is simulated: it never ran on a card" in first.stderr
    return lock


def fetching(lock: Path, into: Path, *more: str) -> list[str]:
    return ["fetch", "--lock", str(lock), "--cache", str(lock.parent / "cache"), "--into", str(into), *more]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_models_config_becomes_a_pack_and_run_again_takes_what_has_finished(
    run: Run, client: Client, config: Path, tmp_path: Path
) -> None:
    output = tmp_path / "model.tunerpack"
    command = ["tune-model", str(config), "--tp", "2", "--m", "4,1", "--trials", "3", *TARGET, "-o", str(output)]
    first = run(*command)
    assert first.exit_code == 0, first.stderr
    assert "fp16 256 -> 256 -> 256 silu gated: 2 layers, 3 row counts" in first.stderr
    assert all(
        said in first.stderr for said in ("also measured at m = 2, unless --no-between is given", "trials; 3 of 3 jobs")
    )
    assert "model.tunerpack is simulated: it never ran on a card" in first.stderr
    num_jobs, content = len(list(client.jobs())), output.read_bytes()
    unnamed = run(*(one for one in command if one not in TARGET))
    assert (unnamed.exit_code, f"without {' '.join(TARGET)}" in unnamed.stderr) == (ExitCode.SIMULATED, True)
    [entry] = read_pack(content).entries
    assert {rung.provenance["job"] for rung in entry.rungs if rung.provenance} <= {job["id"] for job in client.jobs()}
    assert all(entry.at(m) for m in range(1, 601))
    assert run(*command).exit_code == 0
    assert (len(list(client.jobs())), output.read_bytes()) == (num_jobs, content)


# In CI, tests/unit/client/test_tune_model.py has what is asked for.
@pytest.mark.soak
def test_a_models_jobs_are_found_again_by_its_name_project_and_labels(
    run: Run, client: Client, config: Path, tmp_path: Path
) -> None:
    options = ["--m", "2", "--trials", "3", "--project", "chat", "--label", "nightly", "--anew"]
    made = run("tune-model", str(config), *options, *TARGET, "-o", str(tmp_path / "model.tunerpack"))
    assert made.exit_code == 0, made.stderr
    [job] = [job for job in client.jobs() if job["project"] == "chat"]
    assert job["labels"] == ["nightly", tmp_path.name]


# In CI, tests/unit/packs chooses kernels of one order, and tests/unit/client/test_pack_orders.py asks for them.
@pytest.mark.soak
def test_a_batch_invariant_pack_has_kernels_of_one_order_and_says_what_that_costs(
    run: Run, config: Path, tmp_path: Path
) -> None:
    output, lock = tmp_path / "model.tunerpack", tmp_path / "tuner.lock"
    command = ["tune-model", str(config), "--m", "8,2,1", "--trials", "4", "--batch-invariant", *TARGET]
    made = run(*command, "-o", str(output), "--lock", str(lock))
    assert made.exit_code == 0, made.stderr
    assert "without the" in made.stdout
    [entry] = read_pack(output.read_bytes()).entries
    assert entry.invariant_rows == 8
    rungs = [entry.at(m) for m in range(1, 9)]
    [order] = {rung.kernel.order_of_sums for rung in rungs if rung and rung.kernel}
    assert order
    assert all(rung and rung.kernel for rung in rungs)
    above = entry.at(9)
    assert above is not None
    assert above.kernel is None
    again = run("update", "--lock", str(lock))
    assert "is unchanged" in again.stderr
    assert "nothing changed" in again.stdout
    assert run(*fetching(lock, tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out" / "model.tunerpack").read_bytes() == output.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"num_local_experts": 8}, "of experts"), ({"quantization_config": {"quant_method": "x"}}, "is x")],
)
def test_a_model_that_has_no_shape_here_is_a_usage_error_before_anything_is_submitted(
    run: Run, client: Client, config: Path, changes: dict[str, object], words: str
) -> None:
    before = len(list(client.jobs()))
    config.write_text(json.dumps({**CONFIG, **changes}))
    result = run("tune-model", str(config), "-o", "model.tunerpack")
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
    assert len(list(client.jobs())) == before


@pytest.mark.parametrize("rows", ["0", "1,,2", "vllm,1", "-4"])
def test_rows_that_are_none_are_refused(run: Run, config: Path, rows: str) -> None:
    assert run("tune-model", str(config), "-o", "x", "--m", rows).exit_code == ExitCode.USAGE


def test_a_pack_of_a_job_is_signed_by_the_service_and_keeps_the_library_where_the_gain_is_too_small(
    run: Run, server: Server, client: Client, job_id: str, tmp_path: Path
) -> None:
    output, key = tmp_path / "model.tunerpack", signing_key(server.log.with_suffix("")).public
    result = run("pack", "--job", job_id, "-o", str(output), "--min-gain", "50", "--key", key)
    assert result.exit_code == 0, result.stderr
    pack = read_pack(output.read_bytes())
    verify(pack.sums, pack.signature, key)
    assert [(rung.m_lo, rung.m_hi, rung.kernel) for rung in pack.entries[0].rungs] == [
        (1, 8, None),
        (9, 16, None),
        (17, 2**31 - 1, None),
    ]
    best = client.best(job_id)
    assert pack.entries[0].rungs[1].speedup == best["finals"][best["winner_row"]]["speedup"]


def test_another_key_than_the_pinned_one_is_refused_and_nothing_is_written(
    run: Run, job_id: str, tmp_path: Path
) -> None:
    output = tmp_path / "model.tunerpack"
    result = run("pack", "--job", job_id, "-o", str(output), "--key", "0" * 64)
    assert (result.exit_code, output.exists()) == (ExitCode.REFUSED, False)
    assert "is pinned" in result.stderr
    assert run("pack", "--job", job_id, "-o", str(output), "--key", "abc").exit_code == ExitCode.USAGE


def test_a_job_without_a_result_gives_no_pack(run: Run, tmp_path: Path) -> None:
    assert run("pack", "--job", "job-0", "-o", str(tmp_path / "x")).exit_code == ExitCode.NO_RESULT


def test_the_same_lock_twice_offline_gives_the_same_trees(run: Run, locked: Path, tmp_path: Path) -> None:
    for name in ("second", "third"):
        result = run(*fetching(locked, tmp_path / name, "--offline"), url="http://127.0.0.1:1")
        assert result.exit_code == 0, result.stderr
    assert tree(tmp_path / "first") == tree(tmp_path / "second") == tree(tmp_path / "third")
    [(name, content)] = tree(tmp_path / "first").items()
    assert name == "model.tunerpack"
    assert hashlib.sha256(content).hexdigest() in locked.read_text()


# In CI, test_fetch.py brings each format, and the first test a pack.
@pytest.mark.soak
def test_the_recipes_for_make_of_the_documentation_bring_kernel_and_pack(
    server: Server, locked: Path, tmp_path: Path
) -> None:
    [recipes] = re.findall(r"```make\n(.*?)```", (ROOT / "docs" / "builds.md").read_text(), re.DOTALL)
    recipes = recipes.replace("--m 16 --d-in 4096 --d-hidden 14336 --d-out 4096", " ".join(PAIR))
    recipes = recipes.replace("--target h200 --accept-unfused", "--target simulated:h200 --even-if-slower")
    (tmp_path / "Makefile").write_text(recipes)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def make_target(name: str) -> str:
        command, variables = ["make", name], {**os.environ, "PATH": path, "TUNER_URL": server.url}
        made = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        return made.stdout

    for name in ("kernel.zip", "packs/model.tunerpack"):
        assert "tuner-client fetch" in make_target(name)
        assert "is up to date" in make_target(name)
    assert (tmp_path / "packs/model.tunerpack").read_bytes() == (tmp_path / "model.tunerpack").read_bytes()
    newer_ns = (tmp_path / "packs/model.tunerpack").stat().st_mtime_ns + 1  # even if the clock changes meanwhile
    os.utime(locked, ns=(newer_ns, newer_ns))
    assert "touch packs/model.tunerpack" in make_target("packs/model.tunerpack")
    assert "is up to date" in make_target("packs/model.tunerpack"), "an unchanged file is not rebuilt again and again"


def test_a_pack_that_is_nowhere_is_no_result_and_nothing_is_written(run: Run, locked: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.unlink()
    result = run(*fetching(locked, tmp_path / "out", "--offline"))
    assert (result.exit_code, (tmp_path / "out").exists()) == (ExitCode.NO_RESULT, False)
    assert "fetch it once without --offline" in result.stderr


def test_a_pack_that_the_service_has_not_is_no_result_and_nothing_is_written(
    run: Run, locked: Path, tmp_path: Path
) -> None:
    lock = read_lock(locked)
    elsewhere = replace(lock.packs[0], path="b.tunerpack", sha256="0" * 64)
    write_lock(locked, replace(lock, packs=(*lock.packs, elsewhere)))
    result = run(*fetching(locked, tmp_path / "out"))
    assert (result.exit_code, (tmp_path / "out").exists()) == (ExitCode.NO_RESULT, False), result.stderr


def test_any_byte_that_is_flipped_is_refused_and_nothing_is_written(run: Run, locked: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    [cached] = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    for path, count in ((cached, 3), (locked, 3)):
        content = path.read_bytes()
        for _ in range(count):
            broken = bytearray(content)
            broken[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(broken)
            result = run(*fetching(locked, tmp_path / "out", "--offline"))
            assert (result.exit_code, (tmp_path / "out").exists()) == (ExitCode.REFUSED, False), result.stderr
        path.write_bytes(content)
    assert run(*fetching(locked, tmp_path / "out", "--offline")).exit_code == ExitCode.OK


def test_a_place_that_cannot_be_written_is_named(run: Run, locked: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(*fetching(locked, tmp_path / "file" / "out"))
    assert (result.exit_code, "Traceback" in result.output) == (ExitCode.USAGE, False)
    assert "file/out/model.tunerpack cannot be written: Not a directory" in result.stderr


def test_a_lock_that_leads_out_of_its_folder_is_refused(run: Run, locked: Path, tmp_path: Path) -> None:
    lock = read_lock(locked)
    for path in ("../model.tunerpack", "/tmp/model.tunerpack"):
        write_lock(locked, replace(lock, packs=(replace(lock.packs[0], path=path),)))
        result = run(*fetching(locked, tmp_path / "out", "--offline"))
        assert (result.exit_code, (tmp_path / "out").exists()) == (ExitCode.REFUSED, False)


# In CI, tests/unit/client/test_pack_orders.py updates a lock.
@pytest.mark.soak
def test_update_changes_the_lock_where_a_newer_job_answers_and_says_so_where_the_library_stays(
    run: Run, client: Client, tmp_path: Path
) -> None:
    lock, pair = tmp_path / "tuner.lock", {**body()["pair"], "d_out": 512}

    def tune(trials: int) -> str:
        job = client.submit(body(pair=pair, budget={"trials": trials, "seconds": 60}))
        list(client.events(job["id"], timeout_s=120))
        return str(job["id"])

    first = tune(2)
    assert run("pack", "--job", first, "-o", str(tmp_path / "a.tunerpack"), "--lock", str(lock)).exit_code == 0
    old = lock.read_text()
    assert "is unchanged" in run("update", "--lock", str(lock)).stderr
    assert lock.read_text() == old
    second = tune(12)
    result = run("update", "--lock", str(lock))
    assert result.exit_code == 0, result.stderr
    assert "a.tunerpack: no kernel and no speed-up changed; it is now based on other jobs or figures" in result.stdout
    assert lock.read_text() != old
    assert run(*fetching(lock, tmp_path / "out")).exit_code == 0
    [entry] = read_pack((tmp_path / "out" / "a.tunerpack").read_bytes()).entries
    rung = entry.at(16)
    assert rung is not None
    assert rung.provenance["job"] == second


def test_a_lock_pins_the_first_key_and_a_new_one_is_taken_by_name_alone(run: Run, server: Server, locked: Path) -> None:
    data = server.log.with_suffix("")
    old = (data / KEY_FILE).read_bytes()
    try:
        new = rotate(data).public
        refused = run("update", "--lock", str(locked))
        assert refused.exit_code == ExitCode.REFUSED
        assert f"signed by {new}" in refused.stderr
        updated = run("update", "--lock", str(locked), "--key", new)
        assert updated.exit_code == ExitCode.OK
        assert updated.stdout == f"model.tunerpack: no kernel and no speed-up changed; it is now signed by {new}\n"
    finally:
        (data / KEY_FILE).write_bytes(old)
    [pack] = json.loads(locked.read_text())["packs"]
    assert json.loads(locked.read_text())["key"] == new
    assert pack["path"] == "model.tunerpack"


def test_fetch_without_a_lock_or_a_command_says_what_is_missing(run: Run) -> None:
    result = run("fetch")
    assert result.exit_code == ExitCode.USAGE
    assert "--lock" in result.stderr


def test_the_signature_names_its_key(run: Run, job_id: str, server: Server, tmp_path: Path) -> None:
    output = tmp_path / "model.tunerpack"
    assert run("pack", "--job", job_id, "-o", str(output)).exit_code == 0
    assert signer(read_pack(output.read_bytes()).signature) == signing_key(server.log.with_suffix("")).public


@pytest.fixture(scope="module")
def forged() -> bytes:
    """A pack whose kernel has an invalid cubin."""
    return pack_bytes([ladder(make().kernel)])


def test_a_pack_is_verified_byte_by_byte(run: Run, forged: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tunerpack"
    path.write_bytes(forged)
    result = run("verify", str(path), "--bytes-only")
    assert result.exit_code == 0, result.stderr
    assert "is intact; not signed" in result.stderr
    assert run("verify", str(path), "--bytes-only", "--key", "0" * 64).exit_code == ExitCode.REFUSED
    path.write_bytes(forged.replace(b"ELF measured", b"ELF Measured"))
    assert run("verify", str(path), "--bytes-only").exit_code == ExitCode.REFUSED


def test_without_cryptography_a_pack_is_made_and_its_signature_is_not_verified(
    run: Run, job_id: str, locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    path = str(tmp_path / "unverified.tunerpack")
    made = run("pack", "--job", job_id, "-o", path)
    assert made.exit_code == 0, made.stderr
    assert "the signature was not verified: cryptography is not installed; run: pip install" in made.stderr
    result = run("verify", path, "--bytes-only")
    assert result.exit_code == 0, result.stderr
    assert "is intact; signed; the pack names the key" in result.stderr
    assert run(*fetching(locked, tmp_path / "out")).exit_code == 0
    assert run("update", "--lock", str(locked)).exit_code == ExitCode.USAGE


def test_a_simulated_pack_has_nothing_to_run(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.tunerpack"
    path.write_bytes(pack_bytes([ladder(make(simulated=True).kernel)]))
    assert run("verify", str(path)).exit_code == ExitCode.SIMULATED


def test_a_kernel_that_does_not_run_here_is_not_verified(run: Run, forged: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tunerpack"
    path.write_bytes(forged)
    result = run("verify", str(path))
    assert result.exit_code == ExitCode.NOT_VERIFIED, result.stderr
