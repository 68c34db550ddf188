"""The scores of attempts at downstream tasks

Revision 0003. No earlier version scored tasks, so that there is nothing to convert.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "score",
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("stderr", sa.Double(), nullable=True),
        sa.Column("examples", sa.Integer(), nullable=False),
        sa.Column("shots", sa.Integer(), nullable=False),
        sa.Column("task_version", sa.Text(), nullable=False),
        sa.Column("harness", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_score_attempt_id"),
        sa.PrimaryKeyConstraint("attempt_id", "task", "metric", name="pk_score"),
    )


def downgrade() -> None:
    op.drop_table("score")
