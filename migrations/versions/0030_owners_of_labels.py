"""Which owner gave a job a label"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_labels", sa.Column("owner", sa.String(64), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("job_labels") as table:
        table.drop_column("owner")
