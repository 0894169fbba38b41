"""`tuner-client show` and `diff`: the contents of a pack, and the differences between two. They need no service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.client.commands.packs.making import opened
from tuner.client.delivery.output import print_json, print_table
from tuner.client.options.options import as_json
from tuner.client.terminal.pack_tables import diff_table, is_simulated, ladder_table, lines_of
from tuner.core.units import counted
from tuner.packs.read import Pack
from tuner.packs.signing import signer

_A_PACK = click.Path(exists=True, dir_okay=False, path_type=Path)
#: Facts about a whole pack, with their names in the document's provenance.
_ABOUT = {"target": "target", "L2": "l2", "least gain": "min_gain", "batch-invariant": "batch_invariant"}


def _read(path: Path) -> Pack:
    return opened(path.read_bytes(), str(path))


def kernels_of(pack: Pack) -> set[str]:
    """The digests of its kernels."""
    return set(pack.document["kernels"])


def facts_of(pack: Pack) -> dict[str, str]:
    """Facts about a whole pack, as text."""
    about = pack.document["provenance"]
    said = {word: str(about[name]) for word, name in _ABOUT.items() if name in about}
    machines = sorted(
        # A simulated card has no driver.
        {
            ", driver ".join(filter(None, (one.get("gpu"), one.get("driver"))))
            for line in lines_of(pack)
            if (one := line.answer.provenance)
        }
    )
    said |= {"measured on": "; ".join(machines)} if machines else {}
    return said | {"signed by": signer(pack.signature) or "nobody"}


@click.command()
@click.argument("path", metavar="PACK", type=_A_PACK)
@as_json
def show(path: Path, as_json: bool) -> None:
    """Prints the contents of a pack: for each shape and range of rows what runs, why, and its gain."""
    pack = _read(path)
    if as_json:
        for line in lines_of(pack):
            print_json({**line.to_json(), "simulated": is_simulated(pack)})
        return
    click.echo(f"{path}: {counted(len(kernels_of(pack)), 'kernel')}, sha256 {pack.digest}")
    for word, said in facts_of(pack).items():
        click.echo(f"{word}: {said}")
    print_table(ladder_table(pack))


@click.command()
@click.argument("before", type=_A_PACK)
@click.argument("after", type=_A_PACK)
@as_json
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Prints the differences between two packs: facts about the whole, kernels, and what each range of rows runs and
    gains."""
    packs = [_read(path) for path in (before, after)]
    facts, kernels = [facts_of(pack) for pack in packs], [kernels_of(pack) for pack in packs]
    changed: dict[str, Any] = {
        word: [one.get(word) for one in facts]
        for word in dict.fromkeys([*facts[0], *facts[1]])
        if facts[0].get(word) != facts[1].get(word)
    }
    shared = len(kernels[0] & kernels[1])
    alone = [len(one) - shared for one in kernels]
    table = diff_table(f"{before} and {after}", *packs)
    if as_json:
        ranges = [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]
        named = [dict(zip(("shape", "rows", "before", "after"), row, strict=True)) for row in ranges]
        simulated = [is_simulated(pack) for pack in packs]
        kernels_found = {"both": shared, "alone": alone}
        print_json({"changed": changed, "kernels": kernels_found, "ranges": named, "simulated": simulated})
        return
    if packs[0].digest == packs[1].digest:
        click.echo("the packs are identical, byte for byte")
        return
    for word, (old, new) in changed.items():
        click.echo(f"{word}: {old or 'not said'} before, {new or 'not said'} after")
    click.echo(f"kernels: {shared} in both, {alone[0]} only before, {alone[1]} only after")
    if table.row_count:
        print_table(table)
    else:
        click.echo("the kernels and gains of every range of rows are the same")
