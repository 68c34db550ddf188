"""What was read of each journal, which run directories are gone, and whose results these are

Revision 0002. Databases of revision 0001 remembered how many bytes of a journal they had read, and not which: the next
`gpas sync` reads their journals again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = {"journal_mtime": sa.BigInteger(), "journal_tail": sa.BigInteger(), "gone": sa.Double()}


def upgrade() -> None:
    # Without a copy of the table, which SQLite does not need to add a column.
    for name, kind in COLUMNS.items():
        op.add_column("attempt", sa.Column(name, kind))
    op.create_table(
        "gpas_project",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gpas_project"),
    )


def downgrade() -> None:
    op.drop_table("gpas_project")
    for name in COLUMNS:
        op.drop_column("attempt", name)
