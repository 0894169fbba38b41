"""Winners of external searches, which are priors of jobs but never results"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "imported_winners",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("target_id", sa.String(64), nullable=False),
        sa.Column("found", sa.JSON, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("imported_at", sa.Double, nullable=False),
    )
    op.create_index("ix_imported_winners_target", "imported_winners", ["target_id", "seq"])


def downgrade() -> None:
    op.drop_index("ix_imported_winners_target", "imported_winners")
    op.drop_table("imported_winners")
