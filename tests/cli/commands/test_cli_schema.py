"""With --json a command prints what its JSON Schema says, and nothing else on standard output."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import pytest
from cases import cases
from command_list import COMMANDS
from face import START, Face, alive, step
from jsonschema import Draft202012Validator
from saving import save
from schemas import document_of, documents, json_schema

from gpas_cli.errors import Exit
from gpas_cli.state.claim_set import ClaimSet

WITHOUT_JSON = {"gpas init", "gpas report"}
CHANGING = ("run", "train", "retry", "cancel", "data", "db")
LOCAL = "--executor local --yes --json"
ONE = "--where norm=post --where gate=gpas --where seed=2"


@cache
def validator(name: str, *, closed: bool) -> Draft202012Validator:
    """Return what checks a command's documents, once its schema is checked, which takes longer."""
    schema = json_schema(document_of(name), closed=closed)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check(name: str, document: Any, *, closed: bool = True) -> None:
    """Raise for a document that is not as declared; a `closed` one has no field that is not declared."""
    validator(name, closed=closed).validate(document)


def filled(face: Face) -> AbstractContextManager[None]:
    """Give the project a result, a failure, a running cell and a database."""
    face.ended("pre-s1", "done", 4.5)
    face.ended("pre-gpas-s1", "done", 4.25)
    face("db", "sync")
    face.ended("pre-s2", "failed", cause="no luck")  # which the database does not have yet
    running = face.attempt("post-s1", ("start", START), ("step", step(1)), ("step", step(2, loss="nan")))
    return alive(running)


@pytest.fixture
def made(face: Face) -> Iterator[Face]:
    """Yield a filled project."""
    with filled(face):
        yield face


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """Yield a filled project for commands that change nothing."""
    face = Face(tmp_path_factory.mktemp("read") / "project")
    with filled(face):
        yield face


@cases("cli/cases.yaml")
def test_the_output_is_as_declared(
    request: pytest.FixtureRequest, read: Face, name: str, words: str, code: str
) -> None:
    """The rows have the commands whose document does not need more than the project of `made`."""
    words = words.replace("ONE", ONE).replace("LOCAL", LOCAL)
    made = request.getfixturevalue("made") if name.split()[0] in CHANGING else read
    if name in ("data check", "data status"):
        made("data", "prepare", "--workers", "1")
    if name == "run grid" and "--where" not in words:  # the running cell would be waited for
        made.edit("norm: [pre, post]", "norm: [pre]")
    said = made(*words.split(), *(["--json"] if "--json" not in words else []), expect=Exit[code.upper()])
    check(name, said.json)


def test_several_tables_are_one_document(read: Face) -> None:
    document = read("table", "small", "shares", "--json").json
    assert [table["title"] for table in document["tables"]] == ["Small", "Cells of small, and two of its own"]
    for table in document["tables"]:
        check("table", table)


def test_a_dry_run_prints_the_plan(read: Face) -> None:
    check("plan", read("run", "small", "--dry-run", "--json").json)


def test_queued_cells_are_as_declared(face: Face) -> None:
    face.runs.mkdir()
    with ClaimSet(face.runs) as claims:
        claims.take([face.entry("pre-s1").key])
        check("status", face("status", "--json").json)
        check("cancel", face("cancel", "pre-s1", "--yes", "--json").json)


def test_events_are_as_declared(read: Face) -> None:
    for text in read("logs", "pre-s1", "--json").out.splitlines():
        check("logs", json.loads(text), closed=False)


def test_a_rebuilt_database_is_as_declared(face: Face) -> None:
    face.ended("pre-s1", "done", 4.5)
    check("db rebuild", face("db", "rebuild", "--yes", "--json").json)


def test_a_figure_is_as_declared(made: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    said = made("figure", "small", "--what", "loss", "--json", "-o", "a", "-o", "b.pdf")
    check("figure curves", said.json)
    assert said.json["files"] == ["a.svg", "a.png", "b.pdf"]
    assert said.json["series"][0]["points"]


def test_figures_of_papers_are_as_declared(read: Face) -> None:
    said = read("figure", "paper", "gpas-2", "--grid", "small", "--json")
    check("figure paper", said.json)
    (figure,) = said.json["figures"]
    assert (figure["name"], figure["number"], figure["grid"]) == ("gpas-2", "2", "small")
    assert figure["panels"][0]["series"]
    check("figure scaling", read("figure", "scaling", "small", "--json").json)


@pytest.mark.long
def test_a_measurement_is_as_declared(face: Face) -> None:
    check("bench", face("bench", "small", *ONE.split(), "--seconds", "0.1", "--json").json)


def test_an_export_is_as_declared(face: Face) -> None:
    pytest.importorskip("transformers", reason="the extra `export` is not installed")
    from gpas_cli.model.llama import build
    from gpas_cli.train.checkpoint import Position
    from gpas_cli.train.optim import make_adam

    cell = face.entry("pre-gpas-s1").cell
    network = build(cell.model)
    folder = face.ended("pre-gpas-s1", "done", 4.5).checkpoints
    save(folder, cell.key, network, make_adam(network, cell.optim), Position(step=4))
    check("export", face("export", "pre-gpas-s1", "out", "--json").json)


@pytest.mark.whole
def test_every_command_that_reads_or_runs_has_a_document() -> None:
    def has(command: Any) -> bool:
        return any("--json" in getattr(parameter, "opts", ()) for parameter in command.params)

    speaking = {path for path, command in COMMANDS if has(command)}
    assert {path for path, _ in COMMANDS} - speaking == WITHOUT_JSON
    # With these options, commands print documents of their own: `gpas status --usage`.
    own = {"gpas status usage", "gpas export archive", "gpas export contribution"}
    assert speaking == {f"gpas {name}" for name in documents()} - own


def test_the_check_can_fail(read: Face) -> None:
    document = read("status", "small", "--json").json
    document["cells"][0].update(surplus=1)
    assert not validator("status", closed=True).is_valid(document)
