"""A proxy that returns validly signed data of other jobs: a client writes what it would write without the proxy, or
nothing.

python -m tests.soak.proxies [--size 1000] [--seed 1]

A step is a service with one job and several similar ones. Each unit is a client command. Some of the responses that it
gets are those of another job, as a whole or in one field.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.soak.program import Program, Row, Step, main, total
from tests.support.hostile import Rewrite, hostile_proxy
from tests.support.serving import SMALL_PAIR, body, listening, running_service, wait_until_final
from tuner.client import Client
from tuner.client.cli import main as client_main
from tuner.packs.signing import signing_key

STEP = 25
SIZE = 1000
#: With at least this many commands, some are not refused.
MANY = 10
#: The fields in which the other jobs differ.
OTHERS: tuple[dict[str, Any], ...] = (
    {"pair": {**SMALL_PAIR, "m": 2 * SMALL_PAIR["m"]}},
    {"pair": {**SMALL_PAIR, "d_hidden": 2 * SMALL_PAIR["d_hidden"]}},
    {"pair": {**SMALL_PAIR, "activation": "silu"}},
    {"pair": {**SMALL_PAIR, "dtype": "bf16"}},
    {"objective": {"l2": "warm"}},
    {"seed": 1},
)


@dataclass(frozen=True, kw_only=True)
class Stand:
    """A service with jobs that have ended."""

    url: str
    job_id: str
    other_ids: tuple[str, ...]
    #: Commands by name, without the paths that they write to.
    commands: Mapping[str, list[str]]


def stand(ends: ExitStack, folder: Path) -> Stand:
    """A service that signs its responses."""
    service = ends.enter_context(running_service(folder))
    key = signing_key(folder).public
    url = ends.enter_context(listening(service))
    with Client(url) as client:
        ids = [client.submit(body(budget={"trials": 4, "seconds": 600}, **one))["id"] for one in ({}, *OTHERS)]
    for one in ids:
        wait_until_final(service, one)
    config = folder / "config.json"
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    config.write_text(json.dumps({"model_type": "llama", "hidden_act": "silu", "dtype": "float16", **sizes}))
    pair = [word for name, value in SMALL_PAIR.items() if name != "kind" for word in (_flag(name), str(value))]
    fetch = ["fetch", "best", "--even-if-slower", "--elsewhere", "--key", key]
    tune = ["tune-model", str(config), "--m", "16", "--no-between", "--trials", "4", "--target", "simulated:h200"]
    commands = {
        "fetch of a job": [*fetch, "--job", ids[0]],
        "fetch of a pair": [*fetch, *pair, "--target", "simulated:h200"],
        "pack": ["pack", "--job", ids[0], "--key", key],
        "tune-model": [*tune, "--key", key],
    }
    return Stand(url=url, job_id=ids[0], other_ids=tuple(ids[1:]), commands=commands)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def written(stand: Stand, command: str, output: Path, url: str) -> tuple[bytes | None, str]:
    """What a command writes to `output`, if anything, and what it prints."""
    result = CliRunner().invoke(client_main, ["--url", url, *stand.commands[command], "-o", str(output)])
    fault = result.exception if not isinstance(result.exception, SystemExit) else None
    content = output.read_bytes() if output.exists() else None
    output.unlink(missing_ok=True)
    if fault is not None:
        return content, f"{type(fault).__name__}: {fault}"
    return content, "" if (content is None) == bool(result.exit_code) else f"exit code {result.exit_code}"


def liar(stand: Stand, client: Client, chance: random.Random) -> Rewrite:
    """Returns a rewrite that sometimes replaces a response with that of another job."""
    other_id = chance.choice(stand.other_ids)

    def rewrite(method: str, path: str, found: Any) -> Any:
        if chance.random() < 0.3:
            return found
        return blended(found, _of_another(client, other_id, method, path, found), chance)

    return rewrite


def _of_another(client: Client, other_id: str, method: str, path: str, found: Any) -> Any:
    """The response to the same request for another job, under the same field names."""
    job, best = client.job(other_id), client.best(other_id)
    if path.startswith("/best"):
        return {"match": "exact", "differences": [], "best": best}
    if path.startswith("/packs"):
        pair = {name: value for name, value in job["pair"].items() if name not in ("kind", "m")}
        shape = {**pair, "rows": [job["pair"]["m"]]}
        return client.make_pack({"shapes": [shape], "target": job["target"], "l2": job["objective"]["l2"]})
    if path.startswith("/batches/") and "/jobs" in path:
        return {**found, "items": [{**one, "job": job} for one in found["items"]]}
    return best if path.endswith("/best") else job if path.startswith("/jobs/") else found


def blended(found: Any, other: Any, chance: random.Random) -> Any:
    """`other` except for the ids, or `found` with one value of `other`."""
    if chance.random() < 0.4:
        kept = {name: found[name] for name in ("id", "job_id") if name in found}
        return {**other, **(kept if chance.random() < 0.5 else {})}
    return _at_one_place(found, other, chance)


def _at_one_place(found: Any, other: Any, chance: random.Random) -> Any:
    if isinstance(found, dict) and isinstance(other, dict) and (both := sorted(found.keys() & other.keys())):
        name = chance.choice(both)
        return {**found, name: _at_one_place(found[name], other[name], chance)}
    if isinstance(found, list) and isinstance(other, list) and (length := min(len(found), len(other))):
        at = chance.randrange(length)
        return [*found[:at], _at_one_place(found[at], other[at], chance), *found[at + 1 :]]
    return other


def work(step: Step) -> list[Row]:
    """A row for each command; reports the first one that failed or wrote wrong data."""
    with ExitStack() as ends, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        there = stand(ends, folder / "data")
        client = ends.enter_context(Client(there.url))
        rows = {
            command: {"command": command, "asked": 0, "refused": 0, "wrong": 0, "fault": ""}
            for command in there.commands
        }
        honest = {command: written(there, command, folder / "out", there.url) for command in there.commands}
        for number in range(step.first, step.first + step.count):
            chance = random.Random(f"{step.seed}/{number}")
            command = chance.choice(sorted(there.commands))
            with hostile_proxy(there.url, liar(there, client, chance)) as url:
                content, fault = written(there, command, folder / "out", url)
            row = rows[command]
            row["asked"] += 1
            row["refused"] += content is None
            if fault or content not in (None, honest[command][0]):
                row["wrong"] += 1
                row["fault"] = row["fault"] or f"input {number} of seed {step.seed}: {fault or 'another output'}"
    return list(rows.values())


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that only requested data was written, and that some commands did write."""
    first = {row["command"]: row["fault"] for row in reversed(rows) if row["fault"]}
    summed = total(({name: value for name, value in row.items() if name != "fault"} for row in rows), "command")
    wrong = [f"{row['wrong']} times {row['command']}: {first[row['command']]}" for row in summed if row["wrong"]]
    wrong += [f"{row['command']} was always refused" for row in summed if MANY < row["asked"] == row["refused"]]
    return summed, wrong


PROGRAM = Program(name="proxies", unit="commands", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
