"""Results are also found by objective, gain and machine, and have the library's recipe; packs"""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0010"
branch_labels = None
depends_on = None

_OLD_KEY = ["workload_digest", "target_id", "environment_digest", "seq"]
_NEW_KEY = ["workload_digest", "target_id", "objective", "sure_speedup", "num_trials", "seq"]
#: The fields of the environment that are compared.
_COMPARED = ("gpu_name", "driver", "cuda", "kernel_version")


def upgrade() -> None:
    op.add_column("bests", sa.Column("library", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "packs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("order", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["artifacts.digest"]),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.drop_index("ix_result_keys_exact", "result_keys")
    op.drop_column("result_keys", "environment_digest")
    text = {"objective": 32, "gpu_name": 100, "driver": 40, "cuda": 40, "kernel_version": 40}
    for name, length in text.items():
        op.add_column("result_keys", sa.Column(name, sa.String(length), nullable=False, server_default=""))
    op.add_column("result_keys", sa.Column("sure_speedup", sa.Double(), nullable=False, server_default="1"))
    op.add_column("result_keys", sa.Column("num_trials", sa.Integer(), nullable=False, server_default="0"))
    _update(_new_values)
    op.create_index("ix_result_keys_exact", "result_keys", _NEW_KEY)


def downgrade() -> None:
    op.drop_index("ix_result_keys_exact", "result_keys")
    for name in ("objective", *_COMPARED, "sure_speedup", "num_trials"):
        op.drop_column("result_keys", name)
    op.add_column("result_keys", sa.Column("environment_digest", sa.String(16), nullable=False, server_default=""))
    _update(_old_values)
    op.create_index("ix_result_keys_exact", "result_keys", _OLD_KEY)
    op.drop_column("bests", "library")
    op.drop_table("packs")


def _update(values) -> None:
    """Fills in the new columns of each key from its job and result."""
    connection = op.get_bind()
    query = sa.text(
        "select j.seq, j.spec, b.winner, b.finals, b.environment from jobs j join bests b on b.job_id = j.id"
    ).columns(spec=sa.JSON, finals=sa.JSON, environment=sa.JSON)
    for seq, spec, winner, finals, environment in connection.execute(query).all():
        found = values(spec, winner, finals, environment)
        assignments = ", ".join(f"{name} = :{name}" for name in found)
        connection.execute(sa.text(f"update result_keys set {assignments} where seq = :seq"), {**found, "seq": seq})


def _new_values(spec: dict, winner: str, finals: list, environment: dict) -> dict:
    objective = spec["objective"]
    return {
        "objective": f"{objective['l2']}/{objective['regime']}",
        "sure_speedup": _sure_speedup(winner, finals),
        "num_trials": spec["budget"]["trials"],
        **{name: environment.get(name, "") for name in _COMPARED},
    }


def _sure_speedup(winner: str, finals: list) -> float:
    """Equals `Best.sure_speedup` at the time of this migration."""
    rows = [row for row in finals if row["candidate"]["plan_kind"] == winner and row["time_us"] is not None]
    if winner == "library" or not rows:
        return 1.0
    row = min(rows, key=lambda row: row["time_us"])
    return row["speedup_ci95"][0] if row["speedup_ci95"] else row["speedup"] or 1.0


def _old_values(spec: dict, winner: str, finals: list, environment: dict) -> dict:
    known = {name: value for name, value in environment.items() if value}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return {"environment_digest": hashlib.sha256(text.encode()).hexdigest()[:16]}
