"""docker-compose.yml conforms to the Compose specification and publishes ports on this machine only.

The checks run without a Docker engine: the file is validated against the specification's JSON schema (vendored
by check-jsonschema) and read; no image is built.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((root / "docker-compose.yml").read_text())
    return document


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_compose_file_is_valid(root: Path) -> None:
    result = check_schema(root / "docker-compose.yml")
    assert result.returncode == 0, result.stdout


def test_the_schema_check_would_notice_a_misspelt_key(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text((root / "docker-compose.yml").read_text().replace("restart:", "restrat:"))
    assert check_schema(broken).returncode == 1


def test_the_project_is_named_where_docker_compose_1_29_takes_it_too(root: Path, compose: dict[str, Any]) -> None:
    assert "name" not in compose
    assert "COMPOSE_PROJECT_NAME=tuner" in (root / ".env").read_text().splitlines()


def test_every_port_is_published_on_the_loopback_interface_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_data_lives_in_a_named_volume_and_only_the_gpu_service_asks_for_cards(compose: dict[str, Any]) -> None:
    services = compose["services"]
    mounts = {mount for service in services.values() for mount in service["volumes"]}
    assert mounts == {"data:/data", "tls:/tls"}
    assert set(compose["volumes"]) == {"data", "tls"}
    asking = [name for name, service in services.items() if "resources" in service.get("deploy", {})]
    assert asking == ["gpu"]
    (device,) = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_the_containers_commands_are_some_that_tuner_understands(compose: dict[str, Any]) -> None:
    from tuner.cli import main

    commands = [service["command"] for service in compose["services"].values() if "command" in service]
    assert {command[0] for command in commands} == {"serve", "scheduler", "worker"}
    for name, *arguments in commands:
        main.commands[name].make_context(name, arguments)


def test_the_image_runs_as_an_ordinary_user_and_copies_all_that_the_wheel_needs(root: Path) -> None:
    lines = (root / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER tuner"]
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    ignored = (root / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
