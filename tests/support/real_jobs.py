"""Jobs that an H200 ran: a backup of a server's tables, cut down to a few jobs, and one kernel.

python -m tests.support.real_jobs FOLDER makes the files in `tests/pages/h200` from the folder of the server that ran
them. The tables keep the revision in which they were written, so each later version must migrate them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection, MetaData, Table, create_engine, delete, select

from tuner.store.admin.backups import back_up, restore
from tuner.store.admin.opening import locked_engine
from tuner.store.results.artifacts import ArtifactFolder

FOLDER = Path(__file__).parents[1] / "pages" / "h200"

#: Four ops at one row. Its finalists have counters and traces; the others only have traces, since the run ended.
CHAIN = "job-d5fab33587a6"
#: Four ops at 16 rows, where one programmatic fused launch wins.
FUSED_WINS = "job-574098772d9f"
#: Two ops at 16 rows.
TWO_OPS = "job-02ada5a88a3a"
JOBS = (CHAIN, FUSED_WINS, TWO_OPS)
#: The chain's trials with counters and a trace: the best with one programmatic fused launch, and the winner.
INSPECTED_TRIAL = 58
WINNING_TRIAL = 30


def load(data: Path) -> None:
    """Fills an empty data folder with the jobs."""
    data.mkdir(parents=True)
    with locked_engine(data, None, 5.0) as engine:
        restore(engine, FOLDER / "jobs.zip")
    for path in FOLDER.glob("*.artifact"):
        ArtifactFolder(data / "artifacts").put(path.read_bytes())


def make(source: Path) -> None:
    """Rewrites the files from a server's data folder."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tuner.db"
        shutil.copy(source / "tuner.db", path)
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            digest = _keep_only(connection, JOBS)
        back_up(engine, FOLDER / "jobs.zip")
        engine.dispose()
    shutil.copy(source / "artifacts" / digest[:2] / digest, FOLDER / f"{digest[:12]}.artifact")


def _keep_only(connection: Connection, kept: Collection[str]) -> str:
    """Deletes all other jobs and their records, and inspections that never ran; returns the digest of the chain's
    kernel."""
    metadata = MetaData()
    metadata.reflect(connection)
    tables: dict[str, Table] = dict(metadata.tables)
    digests = dict(connection.execute(select(tables["bests"].c.job_id, tables["bests"].c.artifact_digest)).all())
    for table in reversed(metadata.sorted_tables):
        if "job_id" in table.c:
            connection.execute(delete(table).where(table.c.job_id.not_in(kept)))
    connection.execute(delete(tables["inspections"]).where(tables["inspections"].c.state == "pending"))
    connection.execute(delete(tables["jobs"]).where(tables["jobs"].c.id.not_in(kept)))
    connection.execute(delete(tables["audit"]).where(tables["audit"].c.subject.not_in(kept)))
    artifacts = tables["artifacts"]
    connection.execute(delete(artifacts).where(artifacts.c.digest.not_in([digests[job_id] for job_id in kept])))
    return str(digests[CHAIN])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="data folder of the server that ran the jobs")
    make(parser.parse_args().source)
