"""Inspections of trials: counters and traces"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "inspections",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("is_urgent", sa.Boolean(), nullable=False),
        sa.Column("num_attempts", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("refusal", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("figures", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "trial_number"],
            ["trials.job_id", "trials.number"],
        ),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_inspections_trial", "inspections", ["job_id", "trial_number", "kind"], unique=False)
    op.create_index("ix_inspections_state", "inspections", ["state"], unique=False)


def downgrade() -> None:
    op.drop_table("inspections")
