"""`tuner-client pack`, `update` and `fetch --lock`: packs of finished jobs, and the lock file that builds use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.client.connection.addresses import is_batch
from tuner.client.connection.http import Client
from tuner.client.delivery.files import check_places, place_below
from tuner.client.delivery.lock import Cache, Lock, LockedPack, change_lock, read_lock
from tuner.client.delivery.meaning import asked_workload, check_kernel, check_pack
from tuner.client.delivery.output import print_table, say_if_simulated, write_or_print
from tuner.client.delivery.signatures import check_signed, pinned
from tuner.client.errors import NoResult, Refused
from tuner.client.options.pack_options import lock_option, pack_options
from tuner.client.terminal.pack_tables import diff_table, ladder_table
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.trial.job import default_regime
from tuner.errors import InvalidInput
from tuner.packs.ladder import DEFAULT_MIN_GAIN
from tuner.packs.read import Pack, read_pack
from tuner.packs.shapes import AnyShape, Shape, shape_of
from tuner.packs.signing import signer

Json = dict[str, Any]


def opened(content: bytes, name: str = "the pack") -> Pack:
    """Parses and checks a pack; `name` is the file's, for messages.

    Raises:
        Refused: it is not a pack, or its bytes were changed.
    """
    try:
        return read_pack(content)
    except InvalidInput as error:
        raise Refused(f"{name} {error.problem}; {error.remedy}") from error


def order_of_jobs(jobs: Sequence[Mapping[str, Any]], min_gain: float, batch_invariant: bool = False) -> Json:
    """The order for a pack with the shapes and rows of some jobs, and their regime if it is not that of their rows.

    Raises:
        click.UsageError: a job's kernels cannot be in a pack, or the jobs differ in target or objective.
    """
    rows: dict[Shape, list[int]] = {}
    others: dict[str, list[Json]] = {}
    for job in jobs:
        pair = dict(job["pair"])
        shape = _shape_of(job["id"], pair)
        if isinstance(shape, Shape):
            rows.setdefault(shape, []).append(int(pair["m"] if "m" in pair else pair["ops"][0]["m"]))
        elif pair not in others.setdefault(shape.section, []):
            others[shape.section].append(pair)
    targets, l2s = {str(job["target"]) for job in jobs}, {str(job["objective"]["l2"]) for job in jobs}
    if len(targets) != 1 or len(l2s) != 1:
        several = ", ".join(sorted(targets | l2s))
        raise click.UsageError(f"the jobs have several targets or objectives: {several}; pass jobs that agree in both")
    shapes = [{**shape.to_json(), "rows": sorted(set(of_it))} for shape, of_it in rows.items()]
    order = {"shapes": shapes, "target": targets.pop(), "l2": l2s.pop(), "min_gain": min_gain}
    order |= others | _regime_of(jobs)
    return order | ({"batch_invariant": True} if batch_invariant else {})


def _regime_of(jobs: Sequence[Mapping[str, Any]]) -> Json:
    """The regime of the jobs as a field of an order; empty if each has the one that its rows suggest.

    Raises:
        click.UsageError: the jobs differ in it.
    """
    asked = {job["id"]: str(job["objective"]["regime"]) for job in jobs}
    by_rows = {job["id"]: str(default_regime(asked_workload(job["pair"]))) for job in jobs}
    if asked == by_rows:
        return {}
    if len(found := sorted(set(asked.values()))) > 1:
        raise click.UsageError(f"the jobs have several regimes: {', '.join(found)}; pass jobs that agree in it")
    return {"regime": found[0]}


def _shape_of(job_id: str, pair: Mapping[str, Any]) -> AnyShape:
    try:
        return shape_of(asked_workload(pair).to_json())
    except InvalidInput as error:
        raise click.UsageError(
            f"{job_id} cannot be in a pack: its workload {error.problem}. `fetch best --job {job_id} "
            "--accept-unfused` writes its artifact, which tuner.runtime.load_artifact runs"
        ) from error


def make(
    client: Client,
    order: Json,
    output: Path,
    lock_path: Path | None,
    key: str | None,
    jobs: Sequence[Mapping[str, Any]] = (),
) -> Pack:
    """Requests a pack from the service, of the given jobs if any; checks it, and writes it and the lock.

    Raises:
        Refused: it was signed by a key other than the pinned one.
    """
    lock = read_lock(lock_path) if lock_path is not None and lock_path.exists() else Lock(key=key)
    expected = key or lock.key
    content, pack = _made(client, order, expected, jobs)
    if lock_path is not None:
        Cache().put(pack.digest, content)
    write_or_print(content, output)
    say_if_simulated(str(order["target"]).startswith(SIMULATED_PREFIX), output.name)
    if lock_path is not None:
        locked = LockedPack(path=output.name, sha256=pack.digest, size_bytes=len(content), order=order)
        signed_by = expected or signer(pack.signature)

        def noted(found: Lock | None) -> Lock:
            # Another process may have added its own pack since.
            now = found or Lock(key=signed_by)
            if now.key not in (lock.key, signed_by):
                raise Refused(
                    f"{lock_path} pins {now.key} since this command began, but {signed_by} signed the pack; run again"
                )
            return replace(now, key=signed_by).with_pack(locked)

        _say_written(lock_path, change_lock(lock_path, noted))
    return pack


def _say_written(path: Path, is_changed: bool) -> None:
    click.echo(f"tuner-client: {path} {'written' if is_changed else 'is unchanged'}", err=True)


def pack_of_jobs(client: Client, job_ids: Sequence[str]) -> bytes:
    """The service's pack of some finished jobs, unchanged. If a kernel gains too little, the pack uses the library.

    Raises:
        Refused: it is not a pack, or its bytes were changed.
    """
    jobs = [client.job(job_id) for job_id in job_ids]
    content, _ = _made(client, order_of_jobs(jobs, DEFAULT_MIN_GAIN), None, jobs)
    return content


def _made(client: Client, order: Json, key: str | None, jobs: Sequence[Mapping[str, Any]] = ()) -> tuple[bytes, Pack]:
    """The pack for an order; `jobs` are the jobs that the order was made from, as reported by the service."""
    made = client.make_pack(order)
    content = client.content(made["digest"])
    pack = opened(content)
    if (expected := key or signer(pack.signature)) is not None:
        is_checked = check_signed(pack.sums, pack.signature, expected, is_demanded=key is not None)
        for job in jobs:
            _check_job(client, job, expected if is_checked else None, is_demanded=key is not None)
    check_pack(pack, order)
    return content, pack


def _check_job(client: Client, job: Mapping[str, Any], key: str | None, *, is_demanded: bool) -> None:
    """Checks that a job is what the service claims: one of its kernels belongs to it, and is signed by the key that
    signed the pack. Without a key, the signature is not verified.

    Raises:
        Refused: the kernel belongs to another job, or a signature is required and the job has no kernel.
    """
    best = client.best(job["id"])
    if best["artifact"] is None:
        if is_demanded:
            raise Refused(f"{job['id']} cannot be verified, since it has no signed kernel; leave it out")
        return
    check_kernel(
        client.artifact(best["artifact"]["digest"], key).manifest,
        job_ids=[job["id"]],
        target=job["target"],
        kinds=[row["candidate"]["plan_kind"] for row in best["finals"]],
        workload=asked_workload(job["pair"]),
        objective={name: job["objective"][name] for name in ("l2", "regime")},
    )


def _jobs_of(client: Client, some_id: str) -> list[Mapping[str, Any]]:
    """A job, or the jobs of a batch."""
    return [one["job"] for one in client.batch_jobs(some_id)] if is_batch(some_id) else [client.job(some_id)]


@click.command()
@click.argument("jobs_named", metavar="JOB...", nargs=-1)
@click.option("--job", "job_ids", multiple=True, help="A finished job or batch, as an option; may be repeated.")
@pack_options
@click.pass_obj
def pack(
    client: Client,
    jobs_named: tuple[str, ...],
    job_ids: tuple[str, ...],
    output: Path,
    lock: Path | None,
    min_gain: float,
    batch_invariant: bool,
    key: str | None,
) -> None:
    """Builds a pack from finished jobs and batches: for the shape and m of each job, the best existing result."""
    named = (*jobs_named, *job_ids)
    if not named:
        raise click.UsageError("no job was given: pass the ids of finished jobs or batches")
    jobs = [job for one in named for job in _jobs_of(client, one)]
    order = order_of_jobs(jobs, min_gain, batch_invariant)
    print_table(ladder_table(make(client, order, output, lock, pinned(key), jobs)))


@click.command()
@lock_option
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), help="Folder in which packs are cached by digest."
)
@click.option("--key", help="Pins another public key, as printed by `tuner key show`.")
@click.pass_obj
def update(client: Client, lock: Path, cache: Path | None, key: str | None) -> None:
    """Requests each locked pack again, shows the changes in speed, and writes the lock file."""
    old, kept = read_lock(lock), Cache(cache)
    signed_by, renewed = pinned(key) or old.key, list[LockedPack]()
    for locked in old.packs:
        content, after = _made(client, dict(locked.order), signed_by)
        kept.put(after.digest, content)
        renewed.append(replace(locked, sha256=after.digest, size_bytes=len(content)))
        if locked.sha256 == after.digest:
            click.echo(f"{locked.path}: nothing changed")
            continue
        known = kept.get(locked.sha256)
        before = opened(known) if known else None
        table = diff_table(locked.path, before, after)
        if table.row_count:
            print_table(table)
        else:
            click.echo(f"{locked.path}: no kernel and no speed-up changed; {_what_else_changed(before, after)}")

    def noted(found: Lock | None) -> Lock:
        now = found or old
        if now.key != old.key or any(one not in now.packs for one in old.packs):
            raise Refused(f"{lock} was changed by another process in the meantime; run the command again")
        if signed_by != old.key and len(now.packs) != len(old.packs):
            raise Refused(f"{lock} has new packs signed with its old key; run the command again")
        now = replace(now, key=signed_by)
        for one in renewed:
            now = now.with_pack(one)
        return now

    _say_written(lock, change_lock(lock, noted))


def _what_else_changed(before: Pack | None, after: Pack) -> str:
    key = signer(after.signature)
    is_newly_signed = before is not None and signer(before.signature) != key
    return f"it is now signed by {key}" if is_newly_signed else "it is now based on other jobs or figures"


def fetch_locked(
    client: Client, lock_path: Path, cache: Cache, folder: Path, *, offline: bool, key: str | None
) -> None:
    """Writes exactly the locked bytes into `folder`: all packs, or none.

    Raises:
        NoResult: a pack is not in the cache, and the service does not have it or --offline is set.
        Refused: its bytes were changed, or a pack was signed by a key other than the pinned one.
    """
    lock = read_lock(lock_path)
    found = []
    for pack in lock.packs:
        content = cache.get(pack.sha256)
        if content is None and offline:
            raise NoResult(f"{pack.path} ({pack.sha256}) is not in the cache; fetch it once without --offline")
        content = client.content(pack.sha256) if content is None else content
        if len(content) != pack.size_bytes:
            raise Refused(f"{pack.path} has {len(content)} bytes, but the lock says {pack.size_bytes}")
        if (expected := key or lock.key) is not None:
            whole = opened(content)
            check_signed(whole.sums, whole.signature, expected, is_demanded=key is not None)
        found.append((place_below(folder, pack.path), pack.sha256, content))
    try:
        check_places([place for place, _, _ in found])
    except OSError as error:
        raise click.UsageError(f"{error.filename} cannot be written: {error.strerror}; nothing was written") from error
    for place, sha256, content in found:
        cache.put(sha256, content)
        write_or_print(content, place)
    for pack in lock.packs:
        say_if_simulated(str(pack.order.get("target", "")).startswith(SIMULATED_PREFIX), pack.path)
