"""Deletion of jobs in the background, records of deleted jobs, and webhooks"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("deleted_at", sa.Double, nullable=True))
    is_deleted = sa.text("deleted_at is not null")
    op.create_index("ix_jobs_deleted", "jobs", ["seq"], sqlite_where=is_deleted, postgresql_where=is_deleted)
    op.create_index("ix_jobs_finished", "jobs", ["finished_at"])
    op.create_table(
        "deleted_jobs",
        sa.Column("job_id", sa.String(32), primary_key=True),
        sa.Column("deleted_at", sa.Double, nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
    )
    op.create_table(
        "webhooks",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("url", sa.String(500), nullable=False),
        sa.Column("host", sa.String(500), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("num_attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Double, nullable=True),
        sa.Column("ended_at", sa.Double, nullable=True),
        sa.Column("reason", sa.String(255), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhooks_job", "webhooks", ["job_id", "owner", "url"], unique=True)
    is_due = sa.text("due_at is not null")
    op.create_index("ix_webhooks_due", "webhooks", ["due_at"], sqlite_where=is_due, postgresql_where=is_due)


def downgrade() -> None:
    op.drop_index("ix_webhooks_due", "webhooks")
    op.drop_index("ix_webhooks_job", "webhooks")
    op.drop_table("webhooks")
    op.drop_table("deleted_jobs")
    op.drop_index("ix_jobs_finished", "jobs")
    op.drop_index("ix_jobs_deleted", "jobs")
    op.drop_column("jobs", "deleted_at")
