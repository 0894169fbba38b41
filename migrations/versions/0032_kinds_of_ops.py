"""The kinds of a job's ops, so that a worker that lacks one of them does not get the job"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("op_kinds", sa.String(400), nullable=False, server_default=""))
    connection = op.get_bind()
    query = sa.text("select seq, spec from jobs").columns(spec=sa.JSON)
    for seq, spec in connection.execute(query).all():
        kinds = " ".join(sorted({one["op"] for one in spec["workload"]["ops"] if "op" in one}))
        if kinds:
            row = {"seq": seq, "kinds": kinds}
            connection.execute(sa.text("update jobs set op_kinds = :kinds where seq = :seq"), row)


def downgrade() -> None:
    op.drop_column("jobs", "op_kinds")
