"""Certificates of a cluster that are not what they should be: a sentence, before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tuner.cli import main
from tuner.dispatch.cluster.certificates import AUTHORITY, create
from tuner.dispatch.cluster.security import CA_FILE, CERT_FILE, KEY_FILE, security_for
from tuner.errors import Conflict, InvalidInput

ADDRESS = "tls://127.0.0.1:1"
NO_PAIR = rf"{CERT_FILE} and {KEY_FILE} beside it are no certificate and its key"


@pytest.fixture
def members(tmp_path: Path) -> list[Path]:
    """Folders of two members."""
    return create(tmp_path / "tls", ["one", "other"], 1)


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        (CA_FILE, lambda good, other: b"no certificate", f"{CA_FILE} is no certificate"),
        (CA_FILE, lambda good, other: b"", f"{CA_FILE} is no certificate"),
        (CERT_FILE, lambda good, other: good[: len(good) // 2], NO_PAIR),
        (KEY_FILE, lambda good, other: b"\x00\xff", NO_PAIR),
        (KEY_FILE, lambda good, other: other, NO_PAIR),
    ],
    ids=["garbled authority", "empty authority", "half a certificate", "garbled key", "another's key"],
)
def test_files_that_do_not_belong_together_are_refused_by_name(
    members: list[Path], name: str, damage: Callable[[bytes, bytes], bytes], why: str
) -> None:
    one, other = members
    assert security_for(ADDRESS, one).require_encryption
    (one / name).write_bytes(damage((one / name).read_bytes(), (other / name).read_bytes()))
    with pytest.raises(InvalidInput, match=rf"tls: .*{why}; make the folder anew with `tuner tls create`"):
        security_for(ADDRESS, one)


@pytest.mark.parametrize("command", ["scheduler", "worker", "serve"])
def test_each_command_says_so_in_a_line(members: list[Path], command: str, tmp_path: Path) -> None:
    (members[0] / CA_FILE).write_text("no certificate")
    options = {
        "scheduler": [],
        "worker": ["--scheduler", ADDRESS, "--gpu", "none"],
        "serve": ["--scheduler", ADDRESS, "--data", str(tmp_path / "data"), "--port", "0"],
    }
    result = CliRunner().invoke(main, [command, *options[command], "--tls", str(members[0])])
    assert result.exit_code == 1, result.output
    assert f"{CA_FILE} is no certificate" in result.output
    assert "Traceback" not in result.output


def test_an_authority_that_is_none_is_refused(tmp_path: Path, members: list[Path]) -> None:
    (members[0].parent / AUTHORITY / KEY_FILE).write_text("no key")
    with pytest.raises(Conflict, match=r"authority is no authority of `tuner tls create`; give an empty folder"):
        create(members[0].parent, ["third"], 1)
