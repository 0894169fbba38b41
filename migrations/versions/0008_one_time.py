"""A successful job shows the times of its finals"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("id"), sa.column("best_us"), sa.column("library_us"))
    bests = sa.table("bests", sa.column("job_id"), sa.column("finals", sa.JSON))
    for job_id, finals in connection.execute(sa.select(bests)).all():
        timed = [row for row in finals if row["time_us"] is not None]
        for name, is_library in (("best_us", False), ("library_us", True)):
            times = [row["time_us"] for row in timed if (row["candidate"]["plan_kind"] == "library") is is_library]
            if times:
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values({name: min(times)}))


def downgrade() -> None:
    """Does nothing: the trials still have the times of the search."""
