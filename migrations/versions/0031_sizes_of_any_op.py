"""The sizes of a result as a list, since not every op has three"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_OLD = ("first_m", "first_n", "first_k", "second_m", "second_n", "second_k")
_INDEX = "ix_result_keys_form"


def upgrade() -> None:
    op.add_column("result_keys", sa.Column("sizes", sa.Text(), nullable=False, server_default="[]"))
    connection = op.get_bind()
    names = ", ".join(f"k.{name}" for name in _OLD)
    query = sa.text(f"select k.seq, j.spec, {names} from result_keys k join jobs j on j.seq = k.seq")
    for seq, spec, *sizes in connection.execute(query.columns(spec=sa.JSON)).all():
        own = sizes if len(spec["workload"]["ops"]) > 1 else sizes[:3]
        _set(connection, seq, {"sizes": json.dumps([float(size) for size in own])})
    op.drop_index(_INDEX, "result_keys")
    for name in _OLD:
        op.drop_column("result_keys", name)
    op.create_index(_INDEX, "result_keys", ["form_digest", "is_simulated", "target_id", "sizes"])


def downgrade() -> None:
    op.drop_index(_INDEX, "result_keys")
    for name in _OLD:
        op.add_column("result_keys", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    connection = op.get_bind()
    for seq, text in connection.execute(sa.text("select seq, sizes from result_keys")).all():
        sizes = [*json.loads(text), *[0.0] * len(_OLD)]
        _set(connection, seq, dict(zip(_OLD, sizes, strict=False)))
    op.drop_column("result_keys", "sizes")
    op.create_index(_INDEX, "result_keys", ["form_digest", "is_simulated", "target_id", *_OLD])


def _set(connection: sa.Connection, seq: int, found: dict) -> None:
    assignments = ", ".join(f"{name} = :{name}" for name in found)
    connection.execute(sa.text(f"update result_keys set {assignments} where seq = :seq"), {**found, "seq": seq})
