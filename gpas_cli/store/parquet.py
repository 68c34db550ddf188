"""Write the tables of the database as Parquet files, for pandas, polars, DuckDB or R."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import JSON, BigInteger, Boolean, Double, Engine, Integer, String, Table, select
from sqlalchemy.types import TypeDecorator, TypeEngine

from gpas_cli.store import owner
from gpas_cli.store.maintenance import ParquetFile
from gpas_cli.store.peek import HEAD
from gpas_cli.store.schema import Base

_BATCH_ROWS = 50_000
_BOOKKEEPING = frozenset({"journal_offset", "journal_events", "journal_mtime", "journal_tail"})  # for ingest only
_TABLES = ("stage", "attempt", "metric", "score", "curve", "layer_curve")


def export_tables(engine: Engine, folder: Path) -> list[ParquetFile]:
    """Write NAME.parquet for each table into `folder`, in order of the primary key, and return the files.

    Columns with JSON become text. Every file says in its metadata which project it comes from and the revision of the
    schema. Files of these names are replaced, each once it is complete. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    project = owner.recorded(engine)
    origin = {"gpas_project": project.id if project else "", "gpas_revision": HEAD}
    return [_export(engine, Base.metadata.tables[name], folder / f"{name}.parquet", origin) for name in _TABLES]


def _export(engine: Engine, table: Table, path: Path, origin: Mapping[str, str]) -> ParquetFile:
    columns = [column for column in table.columns if column.name not in _BOOKKEEPING]
    schema = pa.schema([(column.name, _arrow(column.type)) for column in columns], metadata=dict(origin))
    texts = [isinstance(column.type, JSON) for column in columns]
    binary = "C" if engine.dialect.name == "postgresql" else "BINARY"  # the same order whatever a server's language is
    order = (key.collate(binary) if isinstance(key.type, String) else key for key in table.primary_key.columns)
    statement = select(*columns).order_by(*order)
    aside = path.with_name(f".{path.name}.partial")
    rows = 0
    try:
        with engine.connect() as connection, pq.ParquetWriter(aside, schema, compression="zstd") as writer:
            found = connection.execution_options(stream_results=True).execute(statement)
            for batch in found.partitions(_BATCH_ROWS):
                writer.write_batch(_batch(batch, texts, schema))
                rows += len(batch)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return ParquetFile(path, rows)


def _batch(rows: Sequence[Sequence[Any]], texts: Sequence[bool], schema: pa.Schema) -> pa.RecordBatch:
    columns = (_values(column, text) for column, text in zip(zip(*rows, strict=True), texts, strict=True))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(column: Iterable[Any], text: bool) -> list[Any]:
    return [json.dumps(value, sort_keys=True) if text and value is not None else value for value in column]


def _arrow(kind: TypeEngine[Any]) -> pa.DataType:
    kind = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    known = ((Boolean, pa.bool_()), (BigInteger, pa.int64()), (Integer, pa.int64()), (Double, pa.float64()))
    return next((arrow for one, arrow in known if isinstance(kind, one)), pa.string())
