"""The number of trials that a search knew when it chose a candidate; for older versions, all earlier trials"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default, SQLite adds a non-null column without copying the table.
    op.add_column("trials", sa.Column("num_known", sa.Integer(), nullable=False, server_default="0"))
    op.execute("update trials set num_known = number")


def downgrade() -> None:
    op.drop_column("trials", "num_known")
