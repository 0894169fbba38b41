"""The kinds of a job's ops, whatever their number and the length of their names"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _change(sa.Text(), "op_kinds")


def downgrade() -> None:
    # Older versions cannot hold more characters. No worker has a kind with a truncated name, so such a job waits.
    _change(sa.String(400), "substr(op_kinds, 1, 400)")


def _change(kind: sa.types.TypeEngine, value: str) -> None:
    """Adds a new column instead of changing the type, since SQLite would have to copy the whole table, with its
    indexes."""
    op.add_column("jobs", sa.Column("needs", kind, nullable=False, server_default=""))
    op.execute(f"update jobs set needs = {value} where op_kinds <> ''")
    op.drop_column("jobs", "op_kinds")
    op.execute("alter table jobs rename column needs to op_kinds")
