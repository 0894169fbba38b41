"""The duration of a job's finals"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("finals_s", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "finals_s")
