"""`tuner-client verify`: a pack's bytes and signature, then its kernels on this machine's card."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tuner.client.commands.packs.making import opened
from tuner.client.delivery.files import place_below
from tuner.client.delivery.output import print_json, print_table, say_if_simulated
from tuner.client.delivery.signatures import check_signed, pinned
from tuner.client.errors import NotVerified, Simulated
from tuner.client.options.options import as_json
from tuner.client.terminal import render
from tuner.client.terminal.pack_tables import is_simulated, runs_of, sizes_of, words_of
from tuner.packs.contents import Kernel
from tuner.packs.read import Pack
from tuner.packs.signing import signer
from tuner.versions import install_command

#: The program that runs the kernels. It is separate, since the client does not depend on the worker's libraries.
_PROGRAM = "tuner.workers.host.try_kernels"


@click.command()
@click.argument("path", metavar="PACK", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key", help="The public key of the required signature, as printed by `tuner key show`.")
@click.option("--bytes-only", is_flag=True, help="Run no kernels: only check digests and the signature.")
@as_json
def verify(path: Path, key: str | None, bytes_only: bool, as_json: bool) -> None:
    """Checks a pack, runs its kernels on this machine's card against a reference, and prints their gains here."""
    pack = opened(path.read_bytes(), str(path))
    named = signer(pack.signature)
    signed = "not signed"
    if (expected := pinned(key) or named) is not None:
        is_verified = check_signed(pack.sums, pack.signature, expected, is_demanded=key is not None)
        signed = f"signed by {named}" if is_verified else f"signed; the pack names the key {named}"
    click.echo(f"tuner-client: {path} is intact; {signed}", err=True)
    if bytes_only:
        say_if_simulated(is_simulated(pack), str(path))
        return
    if not kernels_of(pack):
        click.echo("tuner-client: the pack has no kernel to run: it uses the library everywhere", err=True)
        return
    found = run_kernels(pack)
    if as_json:
        for one in found.values():
            print_json(one)
    else:
        print_table(gains_table(pack, found))
    if wrong := [f"{digest[:12]}: {one['reason']}" for digest, one in found.items() if one["reason"]]:
        raise NotVerified("; ".join(wrong))


def kernels_of(pack: Pack) -> dict[str, Kernel]:
    """All kernels of a pack, by digest."""
    given = [rung.kernel for entry in pack.entries for rung in entry.rungs]
    return {kernel.digest: kernel for kernel in given if kernel is not None}


def run_kernels(pack: Pack) -> dict[str, dict[str, Any]]:
    """The result of each kernel on this machine's card, by its digest.

    Raises:
        Simulated: the kernels have no binary.
        NotVerified: this machine cannot run them, with the reason.
    """
    kernels = kernels_of(pack)
    if any(kernel.simulated for kernel in kernels.values()):
        raise Simulated("the pack is simulated: its kernels have no cubin; tune on a server with a GPU")
    with tempfile.TemporaryDirectory() as folder:
        for digest, kernel in kernels.items():
            _unpack(kernel, Path(folder) / digest)
        done = subprocess.run([sys.executable, "-m", _PROGRAM, folder], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"the program that runs the kernels ended with code {done.returncode}"
        if "ModuleNotFoundError" in why:
            why = f"{why}; run: {install_command('worker-cuda13')}"
        raise NotVerified(f"no kernel can be run here: {why}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["kernel"]: one for one in found}


def _unpack(kernel: Kernel, folder: Path) -> None:
    folder.mkdir()
    for name, content in kernel.files.items():
        place_below(folder, name).write_bytes(content)


def gains_table(pack: Pack, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """The gain of each kernel where it was tuned, and on this machine."""
    table = Table("shape", "rows", "runs", "time here", "speed-up in the pack", "speed-up here")
    for shape, rung in ((entry.shape, rung) for entry in pack.entries for rung in entry.rungs):
        if rung.kernel is None:
            continue
        here = found[rung.kernel.digest]
        words = here["reason"] or render.ratio(here["speedup"])
        time = render.microseconds(here.get("time_us"))
        table.add_row(words_of(shape), sizes_of(shape, rung), runs_of(rung), time, render.ratio(rung.speedup), words)
    return table
