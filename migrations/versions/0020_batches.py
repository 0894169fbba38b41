"""Batches: jobs that are submitted together, and their ladders"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("target_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("num_ladders", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("cancelled_at", sa.Double, nullable=True),
        sa.Column("idempotency_key", sa.String(255), nullable=True, unique=True),
        sa.Column("body_digest", sa.String(64), nullable=False),
    )
    op.create_index("ix_batches_digest", "batches", ["digest", "seq"])
    op.create_index("ix_batches_owner", "batches", ["owner", "seq"])
    op.create_table(
        "batch_jobs",
        sa.Column("batch_seq", sa.Integer, sa.ForeignKey("batches.seq"), primary_key=True),
        sa.Column("job_seq", sa.Integer, sa.ForeignKey("jobs.seq"), primary_key=True),
        sa.Column("ladder", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_index("ix_batch_jobs_job", "batch_jobs", ["job_seq"])
    op.create_table(
        "batch_ladders",
        sa.Column("batch_seq", sa.Integer, sa.ForeignKey("batches.seq"), primary_key=True),
        sa.Column("ladder", sa.Integer, primary_key=True),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("has_rungs", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "batch_kernels",
        sa.Column("batch_seq", sa.Integer, sa.ForeignKey("batches.seq"), primary_key=True),
        sa.Column("digest", sa.String(64), sa.ForeignKey("artifacts.digest"), primary_key=True),
    )
    op.add_column("jobs", sa.Column("batch_id", sa.String(32), nullable=True))
    op.add_column("jobs", sa.Column("batch_step", sa.Integer, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "batch_step")
    op.drop_column("jobs", "batch_id")
    op.drop_table("batch_kernels")
    op.drop_table("batch_ladders")
    op.drop_index("ix_batch_jobs_job", "batch_jobs")
    op.drop_table("batch_jobs")
    op.drop_index("ix_batches_owner", "batches")
    op.drop_index("ix_batches_digest", "batches")
    op.drop_table("batches")
