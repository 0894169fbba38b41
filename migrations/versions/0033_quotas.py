"""Quotas of owners and projects"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("scope", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("open_jobs", sa.Integer),
        sa.Column("card_hours_per_day", sa.Double),
    )


def downgrade() -> None:
    op.drop_table("quotas")
