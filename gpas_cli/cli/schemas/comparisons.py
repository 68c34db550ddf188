"""Documents about two cells."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from gpas_cli.cli.schemas.common import DocumentJson, NumberJson


class ChangeJson(TypedDict):
    """A setting, or a fact of the environment, that differs; null where it does not exist."""

    setting: str
    a: Any
    b: Any


class PairJson(TypedDict):
    """A number of both; null where it is not recorded."""

    a: NumberJson | None
    b: NumberJson | None


class PointPairJson(PairJson):
    """A point of two curves."""

    step: int


class CurvePairJson(TypedDict):
    """A curve of both, at the updates that both have."""

    name: str
    common: Annotated[int, "updates that both have"]
    points: Annotated[list[int], "the points of A and of B"]
    first: Annotated[PointPairJson | None, "where they first differ; null if they are equal"]
    largest: Annotated[PointPairJson | None, "where they differ most"]
    last: Annotated[PointPairJson | None, "the last common update"]


class ComparedAttemptJson(TypedDict):
    """The attempt of one of the two that is compared."""

    key: Annotated[str, "content key of the stage"]
    attempt: int
    outcome: Annotated[str | None, "null while it is running, or without an outcome"]
    code: Annotated[str, "version of the code"]
    commit: str


class ComparedStageJson(TypedDict):
    """A stage that both have been tried at."""

    stage: str
    a: ComparedAttemptJson
    b: ComparedAttemptJson
    metrics: dict[str, PairJson]
    curves: list[CurvePairJson]
    environment: Annotated[list[ChangeJson], "what differs of machine, text and versions of libraries"]


class ChangedFileJson(TypedDict):
    """A file of the package that differs."""

    path: str
    added: Annotated[int, "lines"]
    removed: Annotated[int, "lines"]


class ChangedCodeJson(TypedDict):
    """Two versions of the code."""

    a: str
    b: str
    files: Annotated[list[ChangedFileJson] | None, "null if a copy is gone"]


class UntriedJson(TypedDict):
    """A stage that only one of the two has been tried at."""

    stage: str
    only: str


class ComparisonJson(DocumentJson):
    """`gpas diff --json`."""

    a: str
    b: str
    settings: list[ChangeJson]
    stages: list[ComparedStageJson]
    code: Annotated[list[ChangedCodeJson], "empty if the versions are the same"]
    untried: list[UntriedJson]
    complete: Annotated[bool, "whether both have a result"]
