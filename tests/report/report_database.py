"""Attempts in a database, filled by hand."""

from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from gpas_cli.spec.cell import Cell
from gpas_cli.store.schema import AttemptRow, CurveRow, LayerCurveRow, MetricRow, StageRow


def add(
    engine: Engine, cell: Cell, number: int, outcome: str | None, perplexity: float | None = None, **more: Any
) -> str:
    """Add one attempt at the cell's pretraining; of two attempts the later has the smaller id."""
    key = cell.stages[0].key
    curves, layers, spikes = more.pop("curves", {}), more.pop("layers", {}), more.pop("spikes", {})
    facts = {"grid": "demo", "name": "a", "axes": {}, "executor": "local", "precision": "fp32", "device": "cpu", **more}
    with Session(engine) as session:
        session.merge(StageRow(key=key, kind="pretrain", parents=[], cell=cell.to_mapping()))
        place = {"stage_key": key, "number": number, "directory": f"{key[:2]}/{key}/{number:03}"}
        attempt = AttemptRow(id=1000 * (cell.seed + 1) - number, outcome=outcome, **place, **facts)
        session.add(attempt)
        session.flush()
        if perplexity is not None:
            session.add(MetricRow(attempt_id=attempt.id, name="perplexity", value=perplexity))
        session.add_all(CurveRow(attempt_id=attempt.id, name="loss", step=s, value=v) for s, v in curves.items())
        session.add_all(
            CurveRow(attempt_id=attempt.id, name=of, step=s, value=9) for of, at in spikes.items() for s in at
        )
        session.add_all(
            LayerCurveRow(attempt_id=attempt.id, name="gate", step=s, layer=i, value=v)
            for s, values in layers.items()
            for i, v in enumerate(values)
        )
        session.commit()
    return key
