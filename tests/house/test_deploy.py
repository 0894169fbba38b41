"""The deployment files of a cluster are validated against their schemas, where these exist, and read; nothing is
started."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

#: The Kubernetes version whose schema the manifests follow.
KUBERNETES = "1.31"
TLS_SECRETS = {"tuner-tls-scheduler", "tuner-tls-server", "tuner-tls-worker"}


@pytest.fixture(scope="module")
def manifests(root: Path) -> list[dict[str, Any]]:
    files = sorted((root / "deploy" / "kubernetes").glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def containers(manifests: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container, with its pod."""
    for manifest in manifests:
        pod = manifest["spec"].get("template", {}).get("spec")
        for container in pod["containers"] if pod else ():
            yield container, pod


def understood(command: list[str]) -> None:
    """Asserts that `tuner` accepts this command line."""
    from tuner.cli import main

    main.commands[command[0]].make_context(command[0], command[1:])


def test_the_manifests_keep_the_schema_of_kubernetes(manifests: list[dict[str, Any]]) -> None:
    assert len(manifests) == 7
    for manifest in manifests:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_schema_would_notice_a_misspelt_key(manifests: list[dict[str, Any]]) -> None:
    broken = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    broken = {**broken, "spec": {**broken["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_the_pods_run_as_an_ordinary_user_with_commands_that_tuner_understands(manifests: list[dict[str, Any]]) -> None:
    found = set()
    for container, pod in containers(manifests):
        understood([argument.replace("$(POD_IP)", "10.0.0.1") for argument in container["args"]])
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        claimed = {"data"} if container["args"][0] == "serve" else set()
        assert mounted == {volume["name"] for volume in pod["volumes"]} | claimed
        found |= {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert found == TLS_SECRETS


def test_services_and_policies_select_pods_that_there_are(manifests: list[dict[str, Any]]) -> None:
    labels = [m["spec"]["template"]["metadata"]["labels"] for m in manifests if "template" in m["spec"]]
    for manifest in manifests:
        spec = manifest["spec"]
        if manifest["kind"] == "Service":
            assert spec["selector"] in labels
        if manifest["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"] in labels


UNITS = {"tuner", "tuner-scheduler", "tuner-server", "tuner-worker"}


@pytest.mark.parametrize("name", sorted(UNITS))
def test_the_units_start_commands_that_tuner_understands_and_start_them_again(root: Path, name: str) -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((root / "deploy" / "systemd" / f"{name}.service").read_text())
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, *command = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/tuner")
    understood(command)
    assert unit["Service"]["Restart"] == "always"
    assert unit["Service"]["User"] == "tuner"


def test_systemd_takes_the_units(root: Path, tmp_path: Path) -> None:
    """A dummy program is placed where the units expect one; systemd then reports what it would report at the start."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("no systemd here")
    units = list((root / "deploy" / "systemd").iterdir())
    assert {path.stem for path in units if path.suffix == ".service"} == UNITS | {"tuner-backup"}
    for path in units:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/tuner/bin/tuner", "/bin/true"))
    verify = [systemd, "verify", *map(str, tmp_path.iterdir())]
    found = subprocess.run(verify, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    broken = tmp_path / "tuner.service"
    broken.write_text(broken.read_text().replace("KillMode=mixed", "KillMod=mixed"))
    assert "KillMod" in subprocess.run(verify, check=False, capture_output=True, text=True).stderr


def test_the_backup_is_written_by_a_command_that_tuner_understands(root: Path) -> None:
    text = (root / "deploy/systemd/tuner-backup.service").read_text()
    program, *command = text.partition("/bin/sh -c '")[2].partition("'")[0].split()
    assert program.endswith("/bin/tuner")
    understood(command)


def test_the_batch_script_is_a_script_whose_worker_tuner_understands(root: Path) -> None:
    script = root / "deploy" / "slurm" / "tuner-worker.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    line = text.partition("tuner worker")[2].partition("&\n")[0].replace("\\\n", " ")
    understood(["worker", "--scheduler", "tls://h:1", *shlex.split(line)])
    assert "--signal=B:TERM@30" in text


def test_the_batch_script_ends_its_worker_in_order_when_its_time_is_over(root: Path, tmp_path: Path) -> None:
    worker = tmp_path / "tuner"
    worker.write_text("#!/bin/bash\ntrap 'echo left; exit 0' TERM\necho joined\nwhile :; do sleep 0.05; done\n")
    worker.chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "TUNER_SCHEDULER": "tls://h:1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = root / "deploy" / "slurm" / "tuner-worker.sbatch"
    with subprocess.Popen(["bash", script], stdout=subprocess.PIPE, text=True, env={**os.environ, **slurm}) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "joined\n"
        job.send_signal(signal.SIGTERM)
        assert job.stdout.read() == "left\n"
    assert job.returncode == 0


WORKERS = "deploy/slurm/workers.py"


@pytest.mark.slow
def test_dask_jobqueue_writes_a_batch_script_whose_worker_tuner_understands(root: Path, tmp_path: Path) -> None:
    site = tmp_path / "jobqueue.yaml"
    site.write_text("jobqueue:\n  slurm:\n    account: physics\n    job-script-prologue: ['module load cuda']\n")
    command = [sys.executable, root / WORKERS, "--queue", "gpu", "--walltime", "00:30:00", "--show"]
    environment = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for directive in ("-p gpu", "-A physics", "--cpus-per-task=8", "-t 00:30:00", "--gpus=1", "--signal=B:TERM@30"):
        assert f"#SBATCH {directive}\n" in text
    assert text.index("#SBATCH --signal") < text.index("module load cuda") < text.index("tuner worker")
    line = text.partition("tuner worker")[2].partition("&\n")[0].replace("\\\n", " ")
    understood(["worker", "--scheduler", "tls://h:1", *shlex.split(line)])


# In CI, the next test has the script that is submitted.
@pytest.mark.soak
def test_dask_jobqueue_submits_as_many_workers_as_it_is_told_and_cancels_them(root: Path, tmp_path: Path) -> None:
    programs = {
        "sbatch": 'cp "$1" "$0.$(ls "$0"* | wc -l)"; echo "Submitted batch job $(ls "$0"* | wc -l)"',
        "scancel": 'echo "$1" >> "$0.ids"',
    }
    for name, commands in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{commands}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "TUNER_SCHEDULER": "tls://h:1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, root / WORKERS, "3", "--queue", "gpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as ran:
        assert ran.stdout is not None
        assert [ran.stdout.readline() for _ in range(3)] == [f"submitted {number}\n" for number in (2, 3, 4)]
        ran.send_signal(signal.SIGTERM)
    assert ran.returncode == 0
    assert (tmp_path / "scancel.ids").read_text().split() == ["2", "3", "4"]
    assert {path.read_text().count("tuner worker") for path in tmp_path.glob("sbatch.*")} == {1}
    nowhere = subprocess.run(
        command, capture_output=True, text=True, env={name: environment[name] for name in ("PATH", "HOME")}
    )
    assert (nowhere.returncode, "TUNER_SCHEDULER=tls://HOST:8786" in nowhere.stderr) == (2, True)
