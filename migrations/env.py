"""What Alembic runs to migrate a database; `gpas_cli.store.session` hands it an open connection.

There is no alembic.ini: `gpas db upgrade` is how databases are migrated. To draft the next revision after a change of
`gpas_cli/store/schema.py`, with a database at the present head:

    from alembic import command
    from gpas_cli.store import session
    with session.open_engine("sqlite:///scratch.db").begin() as connection:
        command.revision(session.alembic_config(connection), "what changed", autogenerate=True, rev_id="0004")

then edit the script, and set HEAD in `gpas_cli/store/schema.py`.
"""

from __future__ import annotations

from alembic import context

from gpas_cli.store.peek import VERSION_TABLE
from gpas_cli.store.schema import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through `gpas db upgrade`, which opens the connection")

context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    # SQLite cannot alter a table: Alembic copies it.
    render_as_batch=connection.dialect.name == "sqlite",
    # A shared database holds the tables of others, which are not ours to drop.
    include_name=lambda name, kind, parents: kind != "table" or name in Base.metadata.tables,
)
with context.begin_transaction():
    context.run_migrations()
