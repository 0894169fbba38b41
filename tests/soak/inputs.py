"""Broken cursors, artifacts, plans and cluster messages: each decoder refuses them with its own error, or accepts them.

python -m tests.soak.inputs [--size 1000000] [--seed 1]

Each unit is one input to each decoder. Half of the inputs are valid ones with bytes changed, removed or repeated. The
others are well-formed but have invalid contents.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from tests.soak.program import Program, Row, Step, main, total
from tests.support.spaces import space_of
from tuner.client.delivery.artifact import FILES, open_artifact
from tuner.client.errors import ClientError
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.dispatch.cluster import messages
from tuner.errors import InvalidInput, WordError, WorkerError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.service.results.zip_files import pack_zip
from tuner.store.engine.cursors import decode_cursor, encode_cursor
from tuner.workers.simulated.evaluator import SimulatedEvaluator

STEP = 10_000
SIZE = 1_000_000

#: Values that a decoder may not expect.
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**200, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "a", "\x00", "\ud800", "9" * 40, [], [[]], {}, {"": 1}, ["a", 1],
)  # fmt: skip
ODD_WORDS = (0, 1, -1, 2**31 - 1, -(2**31), 2**24, 2**24 + 1, 15, 16, 17, 255, 65535)
LISTINGS: tuple[tuple[str, tuple[type, ...], list[Any]], ...] = (
    ("jobs {}", (int,), [12]),
    ("audit", (int,), [3]),
    ("trials of job-0 None None None by time", (float, int), [61.25, 7]),
)
TARGET = parse_target("simulated:h200")


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """The same data with some bytes changed, removed, repeated or inserted."""
    out = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(out) + 1)
        end = min(len(out), at + chance.choice((1, 2, 4, 64)))
        match chance.randrange(5):
            case 0:
                out[at:end] = chance.randbytes(end - at)
            case 1:
                del out[at : chance.choice((end, len(out)))]
            case 2:
                out[at:at] = out[at:end]
            case 3:
                out[at:at] = chance.randbytes(chance.randrange(9))
            case _ if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
    return bytes(out)


def changed_json(value: Any, chance: random.Random) -> Any:
    """The same document with one value changed, removed or duplicated."""
    if chance.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return chance.choice(ODD)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        how = chance.randrange(6)
        inner = [] if how == 0 else [value[at]] * 2 if how == 1 else [changed_json(value[at], chance)]
        return [*value[:at], *inner, *value[at + 1 :]]
    key = chance.choice(list(value))
    if chance.random() < 0.2:
        return {name: one for name, one in value.items() if name != key}
    return value | {key: changed_json(value[key], chance)}


def _text(value: Any) -> bytes:
    """Encodes the document as JSON; lone surrogates are kept, which is not valid UTF-8."""
    return json.dumps(value, ensure_ascii=True).encode()


@cache
def candidate() -> tuple[Problem, Candidate]:
    """A random problem, and a fused candidate for it."""
    workload = ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256)
    return Problem(workload=workload, objective=Objective()), fused(next(iter(space_of(workload, TARGET.gpu))))


@cache
def files() -> dict[str, bytes]:
    """The files of an artifact."""
    problem, one = candidate()
    return dict(SimulatedEvaluator(TARGET).artifact(problem, one, {}).files)


@cache
def zipped() -> bytes:
    """The artifact as downloaded."""
    return pack_zip(files())


@cache
def call() -> Any:
    """A call, decoded as JSON."""
    problem, one = candidate()
    return json.loads(messages.encode(messages.PrepareCall(target=TARGET, problem=problem, candidate=one)))


def try_cursor(chance: random.Random) -> bool:
    """Returns whether the cursor was accepted."""
    listing, shape, position = chance.choice(LISTINGS)
    if chance.random() < 0.5:
        text = changed_bytes(encode_cursor(listing, position).encode(), chance).decode("latin-1")
    else:
        wrong = changed_json([listing, position], chance)
        text = base64.urlsafe_b64encode(_text(wrong)).decode().rstrip("=")
    try:
        found = decode_cursor(listing, text, shape)
    except InvalidInput:
        return False
    assert [type(value) for value in found] == list(shape), f"{text} was taken for {found}"
    assert all(abs(value) < 2**63 for value in found if isinstance(value, int)), f"{text} is beyond a column"
    return True


def try_artifact(chance: random.Random) -> bool:
    """Returns whether the artifact was accepted."""
    if chance.random() < 0.5:
        content = changed_bytes(zipped(), chance)
    else:
        manifest = changed_json(json.loads(files()["manifest.json"]), chance)
        content = _stored(files() | {"manifest.json": _text(manifest)})
    try:
        artifact = open_artifact(content, hashlib.sha256(content).hexdigest())
    except ClientError:
        return False
    for name in ("zip", *FILES):
        with suppress(ClientError):
            assert artifact.in_format(name)
    return True


def _stored(contents: dict[str, bytes]) -> bytes:
    """An uncompressed zip, which is fast to write."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def try_plan(chance: random.Random) -> bool:
    """Returns whether the plan was accepted; checks that it is written back unchanged."""
    table = files()["plan0.bin"]
    if chance.random() < 0.5:
        table = changed_bytes(table, chance)
    else:
        words = np.frombuffer(table, dtype=np.int32).copy()
        for _ in range(chance.choice((1, 2, 3))):
            at = chance.randrange(chance.choice((16, len(words))))
            words[at] = chance.choice((*ODD_WORDS, int(words[chance.randrange(len(words))])))
        table = words.tobytes()
    try:
        plan = Plan.from_words(table)
    except WordError:
        return False
    assert plan.table == table, "an accepted plan is written differently"
    return True


def try_message(chance: random.Random) -> bool:
    """Returns whether one of a cluster's decoders accepted the message."""
    content = _text(changed_json(call(), chance))
    if chance.random() < 0.5:
        content = changed_bytes(_text(call()), chance)
    taken = False
    for decode in (
        messages.decode_call,
        messages.decode_announcement,
        lambda one: messages.decode_answer("probe", one),
    ):
        with suppress(WorkerError, InvalidInput):
            decode(content)
            taken = True
    return taken


DECODERS: dict[str, Callable[[random.Random], bool]] = {
    "cursor": try_cursor,
    "artifact": try_artifact,
    "plan": try_plan,
    "message": try_message,
}


def work(step: Step) -> list[Row]:
    """A row for each decoder; an input that raised an unexpected error is listed by its number."""
    rows = []
    for name, attempt in DECODERS.items():
        row: Row = {"decoder": name, "inputs": step.count, "taken": 0, "faults": 0, "fault": ""}
        for number in range(step.first, step.first + step.count):
            try:
                row["taken"] += attempt(random.Random(f"{step.seed}/{name}/{number}"))
            except Exception as error:
                row["faults"] += 1
                row["fault"] = row["fault"] or f"input {number} of seed {step.seed}: {type(error).__name__}: {error}"
        rows.append(row)
    return rows


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that all errors are the decoders' own, and that some inputs were accepted, so that code after the first
    check ran."""
    first = {row["decoder"]: row["fault"] for row in reversed(rows) if row["fault"]}
    sums = total(({name: value for name, value in row.items() if name != "fault"} for row in rows), "decoder")
    wrong = [f"{row['faults']} inputs to {row['decoder']}: {first[row['decoder']]}" for row in sums if row["faults"]]
    wrong += [f"no input of {row['decoder']} was accepted" for row in sums if not row["taken"]]
    return [row | {"fault": first.get(row["decoder"], "")} for row in sums], wrong


PROGRAM = Program(name="inputs", unit="inputs to each decoder", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
