"""Search keys of results: digests, and the sizes for finding the nearest shape"""

import hashlib
import json
import math

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SIZES = ("first_m", "first_n", "first_k", "second_m", "second_n", "second_k")


def upgrade() -> None:
    keys = op.create_table(
        "result_keys",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("form_digest", sa.String(length=16), nullable=False),
        sa.Column("workload_digest", sa.String(length=16), nullable=False),
        sa.Column("environment_digest", sa.String(length=16), nullable=False),
        sa.Column("target_id", sa.String(length=64), nullable=False),
        sa.Column("is_simulated", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in _SIZES),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("job_id"),
    )
    op.create_index(
        "ix_result_keys_exact", "result_keys", ["workload_digest", "target_id", "environment_digest", "seq"]
    )
    op.create_index("ix_result_keys_form", "result_keys", ["form_digest", "is_simulated", "target_id", *_SIZES])
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("seq"), sa.column("id"), sa.column("target_id"), sa.column("spec", sa.JSON))
    bests = sa.table("bests", sa.column("job_id"), sa.column("environment", sa.JSON))
    query = sa.select(jobs, bests.c.environment).join(bests, bests.c.job_id == jobs.c.id)
    rows = [_row(*row) for row in connection.execute(query)]
    if rows:
        connection.execute(sa.insert(keys), rows)


def _digest(value: object) -> str:
    """The key as `tuner.store.results.result_keys` made it at the time of this migration."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row(seq: int, job_id: str, target_id: str, spec: dict, environment: dict) -> dict:
    workload = spec["workload"]
    ops = [
        {name: value for name, value in one.items() if value or name not in ("gated", "residual", "row_scale")}
        for one in workload["ops"]
    ]
    sizes = [math.log2(one[size]) for one in ops[:2] for size in "mnk"]
    return {
        "seq": seq,
        "job_id": job_id,
        "form_digest": _digest({**workload, "ops": [{**one, "m": 1, "n": 1, "k": 1} for one in ops]}),
        "workload_digest": _digest({**workload, "ops": ops}),
        "environment_digest": _digest({name: value for name, value in environment.items() if value}),
        "target_id": target_id,
        "is_simulated": target_id.startswith("simulated:"),
        **dict(zip(_SIZES, [*sizes, *[0.0] * 6], strict=False)),
    }


def downgrade() -> None:
    op.drop_table("result_keys")
