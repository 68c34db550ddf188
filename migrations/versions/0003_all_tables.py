"""All tables

Revision 0003. A database of 0001 or 0002, which earlier programs made, is made anew by `gpas db rebuild`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stage",
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("parents", sa.JSON(), nullable=False),
        sa.Column("cell", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_stage"),
    )
    op.create_table("attempt", *_attempt_columns())
    op.create_table("metric", *_point_columns("metric"))
    op.create_table("curve", *_point_columns("curve", "step"), sqlite_with_rowid=False)
    op.create_table("layer_curve", *_point_columns("layer_curve", "step", "layer"), sqlite_with_rowid=False)
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
    op.create_table(
        "gpas_project",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gpas_project"),
    )


def _attempt_columns() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("stage_key", sa.String(16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("grid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("axes", sa.JSON(), nullable=False),
        sa.Column("executor", sa.Text(), nullable=False),
        sa.Column("host", sa.Text()),
        sa.Column("device", sa.Text()),
        sa.Column("gpu", sa.Text()),
        sa.Column("threads", sa.Integer()),
        sa.Column("precision", sa.Text()),
        sa.Column("code", sa.Text()),
        sa.Column("git_commit", sa.Text()),
        sa.Column("git_dirty", sa.Boolean()),
        sa.Column("environment", sa.JSON()),
        sa.Column("created", sa.Double()),
        sa.Column("started", sa.Double()),
        sa.Column("ended", sa.Double()),
        sa.Column("outcome", sa.Text()),
        sa.Column("cause", sa.Text()),
        sa.Column("resumed_from", sa.Integer()),
        sa.Column("last_step", sa.Integer()),
        sa.Column("parameters", sa.BigInteger()),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("validation_fingerprint", sa.Text()),
        sa.Column("journal_offset", sa.BigInteger(), nullable=False),
        sa.Column("journal_events", sa.Integer(), nullable=False),
        sa.Column("journal_damaged", sa.Integer(), nullable=False),
        sa.Column("journal_mtime", sa.BigInteger()),
        sa.Column("journal_tail", sa.BigInteger()),
        sa.Column("gone", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_attempt"),
        sa.ForeignKeyConstraint(["stage_key"], ["stage.key"], name="fk_attempt_stage_key"),
        sa.UniqueConstraint("stage_key", "number", name="uq_attempt_stage_key"),
    ]


def _point_columns(table: str, *indices: str) -> list[sa.schema.SchemaItem]:
    """One number of an attempt, found by its name and integer indices."""
    return [
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        *(sa.Column(index, sa.Integer(), nullable=False) for index in indices),
        sa.Column("value", sa.Double()),
        sa.PrimaryKeyConstraint("attempt_id", "name", *indices, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=f"fk_{table}_attempt_id"),
    ]
