"""The targets of the server that runs the jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "served_targets",
        sa.Column("position", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("target_id", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("served_targets")
