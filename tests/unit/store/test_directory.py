from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.engine.directory import check_local, mount_of

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/team nfs4 rw 0 0
//server/share /mnt/two\\040words cifs rw 0 0
tmpfs /mnt/team/local tmpfs rw 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
overlay /mnt/fuse fuse.fuse-overlayfs rw 0 0
"""


@pytest.mark.parametrize("path", ["/mnt/team", "/mnt/team/a/b", "/mnt/two words/x", "/mnt/ssh/data"])
def test_a_network_mount_is_refused_with_its_kind(path: str) -> None:
    with pytest.raises(StoreError, match=r"network mount \((nfs4|cifs|fuse.sshfs) at "):
        check_local(Path(path), MOUNTS)


@pytest.mark.parametrize("path", ["/", "/home/me", "/mnt/team/local/x", "/mnt/teams", "/mnt/fuse/x"])
def test_a_local_directory_is_accepted(path: str) -> None:
    check_local(Path(path), MOUNTS)


def test_a_later_mount_covers_an_earlier_one() -> None:
    assert mount_of(Path("/a/b"), "x /a nfs rw\ny /a ext4 rw\n") == ("/a", "ext4")


def test_a_second_server_is_refused_with_the_pid_of_the_first(store: Store) -> None:
    with pytest.raises(StoreError, match=rf"pid {os.getpid()}\)"):
        Store.open(store.directory)


@pytest.mark.slow
def test_a_killed_server_leaves_no_lock_behind(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from tuner.store import Store; "
    code += "Store.open(Path(sys.argv[1])); print('open', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreError, match=rf"pid {holder.pid}\)"):
            Store.open(tmp_path)
        holder.send_signal(signal.SIGKILL)
    Store.open(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="pass another --data"):
        Store.open(tmp_path / "file" / "data")
