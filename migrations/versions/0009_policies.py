"""Each policy's time with the kernel of a job's best fused schedule"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("bests", sa.Column("policies", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("bests", "policies")
