"""PyTorch's time, in addition to those of the finals"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("bests", sa.Column("torch", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("bests", "torch")
