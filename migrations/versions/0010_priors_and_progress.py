"""The priors of a job and the trials that tried them; trials without progress, and busy seconds of the card"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_IS_PRIOR = sa.text("prior is not null")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("priors", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("jobs", sa.Column("card_s", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("since_progress", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("prior", sa.Integer(), nullable=True))
    op.create_index(
        "ix_trials_prior", "trials", ["job_id", "prior"], sqlite_where=_IS_PRIOR, postgresql_where=_IS_PRIOR
    )


def downgrade() -> None:
    op.drop_index("ix_trials_prior", "trials")
    op.drop_column("trials", "prior")
    for name in ("since_progress", "card_s", "priors"):
        op.drop_column("jobs", name)
