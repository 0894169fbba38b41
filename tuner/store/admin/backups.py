"""Backups of a database: before its tables are migrated, and on request.

A backup is a zip of JSON lines, one file per table, with the revision of the tables. Backups of SQLite and PostgreSQL
can be restored into either. Artifacts are separate files and not included.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, LargeBinary, MetaData, Table, func, insert, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.sqltypes import JSON

from tuner.errors import StoreError
from tuner.private import make_private_folder
from tuner.store.admin import migrate
from tuner.store.admin.removal import compact
from tuner.store.engine.faults import words_of

#: The name of the format inside a backup.
FORMAT = 1
_MANIFEST = "backup.json"
_VERSION_TABLE = "alembic_version"
_REMEDY = "pass a file that `tuner db backup` wrote"
#: Number of rows written at a time.
_SLICE = 1000


def upgrade_with_backup(engine: Engine, directory: Path) -> Path | None:
    """Migrates the tables to this version. If they were older, first writes a backup to the folder ``backups`` of
    `directory`. Returns the backup's path, if one was written.

    Raises:
        StoreError: the database was written by a newer version.
    """
    found = migrate.revision_of(engine)
    backup: Path | None = None
    if found is not None and migrate.is_known(engine) and not migrate.is_current(engine):
        backup = directory / "backups" / f"{found}-before-{migrate.head()}-{time.strftime('%Y%m%dT%H%M%S')}.zip"
        back_up(engine, backup)
    migrate.upgrade(engine)
    if backup is not None and engine.dialect.name == "sqlite":
        compact(engine)  # from now on, free pages can be released one by one
    return backup


def back_up(engine: Engine, path: Path) -> dict[str, int]:
    """Writes a backup to `path`, from one consistent state; returns the number of rows by table.

    Raises:
        StoreError: the database is empty.
    """
    revision = migrate.revision_of(engine)
    if revision is None:
        raise StoreError(f"the database at {engine.url!r} has no tables, so there is nothing to back up")
    counts: dict[str, int] = {}
    make_private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive,
        ):
            _write_tables(engine, archive, counts)
            manifest = {"format": FORMAT, "revision": revision, "rows": counts}
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return counts


def _write_tables(engine: Engine, archive: zipfile.ZipFile, counts: dict[str, int]) -> None:
    tables = _tables(engine)
    with engine.connect().execution_options(yield_per=_SLICE) as connection:
        for table in tables:
            counts[table.name] = 0
            with archive.open(f"{table.name}.jsonl", "w", force_zip64=True) as lines:
                for row in connection.execute(select(table)):
                    lines.write(_line(table, row) + b"\n")
                    counts[table.name] += 1


def restore(engine: Engine, path: Path) -> dict[str, int]:
    """Fills an empty database from a backup, and migrates it to this version; returns the number of rows by table.

    Raises:
        StoreError: the file is not a backup, is damaged or of a newer version, or the database is not empty.
    """
    if set(inspect(engine).get_table_names()) - {_VERSION_TABLE}:
        raise StoreError(f"the database at {engine.url!r} is not empty; pass an empty one, or move it away")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(archive, path)
            if manifest["format"] != FORMAT:
                raise StoreError(
                    f"{path} is a backup of format {manifest['format']}, but this version reads format {FORMAT}"
                )
            if str(manifest["revision"]) not in migrate.revisions():
                raise StoreError(
                    f"{path} is of revision {manifest['revision']}, but this version's tables only go up to "
                    f"{migrate.head()}"
                )
            migrate.upgrade(engine, manifest["revision"])
            try:
                counts = _fill(engine, archive, path)
                if counts != manifest["rows"]:
                    listed = manifest["rows"]
                    names = ", ".join(name for name in {**listed, **counts} if counts.get(name) != listed.get(name))
                    raise StoreError(
                        f"{path} is damaged: the numbers of rows in {_MANIFEST} are different for {names}; {_REMEDY}"
                    )
            except BaseException:
                migrate.downgrade(engine)
                raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"{path} cannot be restored: {words_of(error)}; {_REMEDY}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted, or too new
        raise StoreError(
            f"{path} cannot be restored, since it is not an intact zip file: {error}; {_REMEDY}"
        ) from error
    migrate.upgrade(engine)
    return counts


def _manifest(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    """The manifest of a backup.

    Raises:
        StoreError: something is missing, with its name.
    """
    try:
        found = json.loads(archive.read(_MANIFEST))
    except (KeyError, ValueError) as error:
        raise StoreError(f"{path} has no readable {_MANIFEST}; {_REMEDY}") from error
    for name, kind in (("format", int), ("revision", str), ("rows", dict)):
        if not isinstance(found, dict) or not isinstance(found.get(name), kind):
            raise StoreError(f"{path} has no {name} in its {_MANIFEST}; {_REMEDY}")
    return dict(found)


def _fill(engine: Engine, archive: zipfile.ZipFile, path: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    with engine.begin() as connection:
        for table in _tables(engine):
            counts[table.name] = 0
            if f"{table.name}.jsonl" not in archive.namelist():
                raise StoreError(f"{path} is damaged: it has no {table.name}.jsonl; {_REMEDY}")
            with archive.open(f"{table.name}.jsonl") as lines:
                for rows in _slices(_rows(table, lines, path)):
                    connection.execute(insert(table), rows)
                    counts[table.name] += len(rows)
            if engine.dialect.name == "postgresql":
                _set_sequence(connection, table)
    return counts


def _set_sequence(connection: Any, table: Table) -> None:
    """Makes PostgreSQL's next row number larger than all existing ones."""
    for column in table.primary_key:
        named = text("select pg_get_serial_sequence(:table, :column)")
        sequence = connection.execute(named, {"table": table.name, "column": column.name}).scalar()
        if sequence is not None:
            last = connection.execute(select(func.max(column))).scalar()
            if last is not None:
                connection.execute(text("select setval(:sequence, :last)"), {"sequence": sequence, "last": last})


def _tables(engine: Engine) -> list[Table]:
    """The existing tables, each after the tables that it refers to."""
    metadata = MetaData()
    metadata.reflect(engine)
    for table in metadata.tables.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return [table for table in metadata.sorted_tables if table.name != _VERSION_TABLE]


def _line(table: Table, row: Any) -> bytes:
    values = {
        column.name: base64.b64encode(value).decode() if isinstance(column.type, LargeBinary) and value else value
        for column, value in zip(table.columns, row, strict=True)
    }
    return json.dumps(values).encode()


def _rows(table: Table, lines: Iterable[bytes], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            yield _row(table, line)
        except (ValueError, KeyError, TypeError) as error:
            where = f"line {number} of {table.name}.jsonl"
            raise StoreError(f"{path} is damaged: {where} is not a row of that table; {_REMEDY}") from error


def _row(table: Table, line: bytes) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(line)
    for column in table.columns:
        value = values[column.name]
        if isinstance(column.type, LargeBinary) and value is not None:
            values[column.name] = base64.b64decode(value)
    return values


def _slices(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append(row)
        if len(some) == _SLICE:
            yield some
            some = []
    if some:
        yield some
