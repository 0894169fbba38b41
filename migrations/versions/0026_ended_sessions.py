"""Dashboard sessions that were ended before they expired"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ended_sessions",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("ended_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("ended_sessions")
