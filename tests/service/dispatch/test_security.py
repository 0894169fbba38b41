"""Unusable certificates are refused when a member starts, with the name of the faulty file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from tuner.cli import main
from tuner.dispatch.cluster.certificates import create
from tuner.dispatch.cluster.security import security_for
from tuner.errors import Conflict, InvalidInput

ADDRESS = "tls://127.0.0.1:1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return create(tmp_path_factory.mktemp("tls") / "tls", ["one", "other"], 1)


@pytest.fixture
def ours(made: list[Path], tmp_path: Path) -> Path:
    """A folder of valid certificates, for tests to damage."""
    return Path(shutil.copytree(made[0], tmp_path / "ours"))


def refusal(tls: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        security_for(ADDRESS, tls)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("content", [b"", b"no PEM", bytes(range(256)), b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("ca.pem", "not a certificate"), ("cert.pem", "not a certificate"), ("key.pem", "not a private key")],
)
def test_a_garbled_file_is_named(ours: Path, name: str, words: str, content: bytes) -> None:
    security_for(ADDRESS, ours)
    (ours / name).write_bytes(content)
    assert f"tls: {ours / name} is {words} in PEM format" in refusal(ours)


def test_a_file_that_is_missing_is_named(ours: Path) -> None:
    (ours / "key.pem").unlink()
    assert f"tls: {ours} lacks key.pem; create it" in refusal(ours)


def test_the_key_of_another_certificate_is_refused(ours: Path, made: list[Path]) -> None:
    shutil.copy(made[1] / "key.pem", ours)
    assert f"{ours / 'key.pem'} is not the key that belongs to cert.pem" in refusal(ours)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(ours: Path) -> None:
    key = serialization.load_pem_private_key((ours / "key.pem").read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption(b"secret")
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (ours / "key.pem").write_bytes(text)
    assert "is not a private key in PEM format without a password" in refusal(ours)


@pytest.mark.parametrize("command", ["scheduler --port 0", f"worker --gpu none --scheduler {ADDRESS}"])
def test_a_member_with_bad_certificates_ends_with_one_line(ours: Path, command: str) -> None:
    (ours / "cert.pem").write_text("no PEM")
    result = CliRunner().invoke(main, [*command.split(), "--tls", str(ours)])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(
        f"Error: tls: {ours / 'cert.pem'} is not a certificate in PEM format"
    )


@pytest.mark.parametrize("name", ["ca.pem", "key.pem"])
def test_a_damaged_authority_signs_nothing_and_is_named(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "tls"
    create(folder, ["one"], 1)
    path = folder / "authority" / name
    path.write_text("no PEM")
    with pytest.raises(Conflict, match=f"{path} is not as `tuner tls create` wrote it"):
        create(folder, ["two"], 1)
    path.unlink()
    with pytest.raises(Conflict, match=f"{path} cannot be read: No such file"):
        create(folder, ["two"], 1)
    assert not (folder / "two").exists()
