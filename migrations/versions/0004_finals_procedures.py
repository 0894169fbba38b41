"""How a job's finals were held: the number of rounds, and the minimum tie band"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("bests", sa.Column("procedure", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("bests", "procedure")
