"""How a trial's time was measured, and whether its rounds ended early"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("procedure", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("trials", sa.Column("truncated", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "truncated")
    op.drop_column("trials", "procedure")
