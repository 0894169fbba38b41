"""Indexes for jobs with very many trials, and stored sizes, so that the data need not be read for them"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_IS_BEST = sa.text("kind = 'best'")


def upgrade() -> None:
    op.create_index("ix_trials_outcome", "trials", ["job_id", "outcome", "number", "plan_kind", "failure_kind"])
    op.create_index("ix_trials_time", "trials", ["job_id", "time_us", "number"])
    op.create_index("ix_trials_speedup", "trials", ["job_id", "speedup", "number"])
    op.create_index("ix_trials_kind", "trials", ["job_id", "plan_kind", "time_us", "speedup", "number"])
    op.create_index("ix_events_best", "events", ["job_id", "id"], sqlite_where=_IS_BEST, postgresql_where=_IS_BEST)
    op.add_column("jobs", sa.Column("samples_bytes", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("inspections", sa.Column("result_bytes", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "update jobs set samples_bytes = "
        "(select coalesce(sum(length(samples)), 0) from trials where trials.job_id = jobs.id)"
    )
    op.execute("update inspections set result_bytes = coalesce(length(result), 0)")


def downgrade() -> None:
    op.drop_column("inspections", "result_bytes")
    op.drop_column("jobs", "samples_bytes")
    op.drop_index("ix_events_best", "events")
    for name in ("kind", "speedup", "time", "outcome"):
        op.drop_index(f"ix_trials_{name}", "trials")
