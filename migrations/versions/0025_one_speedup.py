"""A job's speed-up belongs to the trial that is shown as our best"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("best_speedup", sa.Double(), nullable=True))
    connection = op.get_bind()
    jobs = sa.table("jobs", *map(sa.column, ("id", "best_us", "library_us", "best_speedup")))
    has_both = jobs.c.best_us.is_not(None) & jobs.c.library_us.is_not(None)
    connection.execute(sa.update(jobs).where(has_both).values(best_speedup=jobs.c.library_us / jobs.c.best_us))
    bests = sa.table("bests", sa.column("job_id"), sa.column("finals", sa.JSON))
    for job_id, finals in connection.execute(sa.select(bests)).all():
        ours = [row for row in finals if row["time_us"] is not None and row["candidate"]["plan_kind"] != "library"]
        if ours:
            speedup = min(ours, key=lambda row: row["time_us"])["speedup"]
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(best_speedup=speedup))


def downgrade() -> None:
    op.drop_column("jobs", "best_speedup")
