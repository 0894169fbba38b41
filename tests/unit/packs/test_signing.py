"""A pack's signature covers every byte; the key is in the data folder, readable only by its owner."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tuner.errors import InvalidInput
from tuner.packs.signing import (
    KEY_FILE,
    SigningUnavailable,
    WrongSignature,
    check_key,
    rotate,
    signer,
    signing_key,
    verify,
)
from tuner.versions import install_command

DATA = b"0" * 64 + b"  pack.json\n"


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    key = signing_key(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert signing_key(tmp_path) == key
    assert check_key(key.public) == key.public
    assert os.listdir(tmp_path) == [KEY_FILE]


def test_a_signature_holds_for_its_bytes_and_its_key_alone(tmp_path: Path) -> None:
    key = signing_key(tmp_path)
    signature = key.sign(DATA)
    verify(DATA, signature, key.public)
    assert signer(signature) == key.public
    with pytest.raises(WrongSignature, match="were changed"):
        verify(DATA + b"x", signature, key.public)
    for place in range(9, len(signature) - 1):
        broken = bytearray(signature)
        broken[place] ^= 1
        with pytest.raises(WrongSignature):
            verify(DATA, bytes(broken), key.public)
    with pytest.raises(WrongSignature, match="is not signed"):
        verify(DATA, b"", key.public)


def test_a_new_key_is_another_and_what_the_old_one_signed_stays_so(tmp_path: Path) -> None:
    old = signing_key(tmp_path)
    signature = old.sign(DATA)
    new = rotate(tmp_path)
    assert signing_key(tmp_path) == new != old
    verify(DATA, signature, old.public)
    with pytest.raises(WrongSignature, match=f"signed by {old.public}, but {new.public}"):
        verify(DATA, signature, new.public)


def test_a_key_that_others_may_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    signing_key(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(SigningUnavailable, match=r"can be read by others \(mode 0644\)"):
        signing_key(tmp_path)
    (tmp_path / KEY_FILE).write_text("secret")
    (tmp_path / KEY_FILE).chmod(0o600)
    with pytest.raises(SigningUnavailable, match="is not a signing key"):
        signing_key(tmp_path)
    with pytest.raises(InvalidInput, match="not a public key"):
        check_key("A" * 64)


def test_without_the_library_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = signing_key(tmp_path)
    signature, public = key.sign(DATA), key.public
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SigningUnavailable, match=re.escape(install_command("verify"))):
        verify(DATA, signature, public)
