"""Tokens, owners of jobs, the audit log; terms of jobs: priority, project, labels, deadline, pause"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("note", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=True),
        sa.Column("revoked_at", sa.Double, nullable=True),
    )
    op.create_table(
        "job_owners",
        sa.Column("job_seq", sa.Integer, sa.ForeignKey("jobs.seq"), primary_key=True),
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("since", sa.Double, nullable=False),
    )
    op.create_index("ix_job_owners_owner", "job_owners", ["owner", "job_seq"])
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("project", sa.String(64), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("deadline_at", sa.Double, nullable=True))
    op.add_column("jobs", sa.Column("is_paused", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.create_index("ix_jobs_project", "jobs", ["project", "seq"])
    op.create_table(
        "job_labels",
        sa.Column("job_seq", sa.Integer, sa.ForeignKey("jobs.seq"), primary_key=True),
        sa.Column("label", sa.String(64), primary_key=True),
    )
    op.create_index("ix_job_labels_label", "job_labels", ["label", "job_seq"])
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_index("ix_job_labels_label", "job_labels")
    op.drop_table("job_labels")
    op.drop_index("ix_jobs_project", "jobs")
    for name in ("is_paused", "deadline_at", "project", "priority"):
        op.drop_column("jobs", name)
    op.drop_table("audit")
    op.drop_index("ix_job_owners_owner", "job_owners")
    op.drop_table("job_owners")
    op.drop_table("tokens")
