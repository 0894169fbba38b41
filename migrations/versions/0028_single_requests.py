"""Who requested a job individually, in addition to batches"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_FILL = """
insert into single_requests (job_seq, owner)
select jobs.seq, coalesce(job_owners.owner, '')
from jobs left join job_owners on job_owners.job_seq = jobs.seq
where jobs.batch_id is null and jobs.state in ('queued', 'searching', 'finals')
"""


def upgrade() -> None:
    op.create_table(
        "single_requests",
        sa.Column("job_seq", sa.Integer(), sa.ForeignKey("jobs.seq"), primary_key=True),
        sa.Column("owner", sa.String(64), primary_key=True),
    )
    op.execute(_FILL)


def downgrade() -> None:
    op.drop_table("single_requests")
