import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dumps import dump
from life import Connect, Life
from sqlalchemy import Engine
from users import ordinary

from gpas_cli.errors import StoreError
from gpas_cli.store import maintenance, owner, peek
from gpas_cli.store.ingest import sync
from gpas_cli.store.owner import _Owner


def test_the_first_sync_names_the_project_and_the_database_remembers_it(engine: Engine, life: Life) -> None:
    assert owner.recorded(engine) is None
    life.whole()
    sync(engine, life.runs)
    found = owner.recorded(engine)
    assert found == owner.of(life.runs)
    assert found is not None
    assert len(found.id) == 16
    assert found.runs == str(life.runs)
    assert [path.name for path in life.runs.iterdir() if path.name.startswith(".")] == [peek.PROJECT_FILE]
    sync(engine, life.runs)
    assert owner.recorded(engine) == found


def test_no_database_is_created_without_run_directories(connect: Connect, url: str, life: Life) -> None:
    sync(connect(url), life.runs)
    assert not life.runs.exists()


def test_another_projects_results_are_neither_overwritten_nor_shown(
    connect: Connect, url: str, life: Life, tmp_path: Path
) -> None:
    engine = connect(url)
    other = type(life)(tmp_path / "other/runs")
    life.whole()
    other.whole()
    sync(engine, life.runs)
    before = dump(engine)
    for refused in (sync, owner.refuse_other):
        with pytest.raises(StoreError, match=f"another project, .*{life.runs}, not those of {other.runs}; name"):
            refused(engine, other.runs)
    assert dump(engine) == before
    assert not (other.runs / peek.PROJECT_FILE).exists()


def test_the_id_moves_with_the_run_directories(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    engine = connect(url)
    life.whole()
    sync(engine, life.runs)
    first = owner.of(life.runs).id
    moved = life.runs.rename(tmp_path / "moved")
    sync(engine, moved)
    assert owner.recorded(engine) == owner.of(moved)
    maintenance.rebuild(url, moved)
    again = owner.recorded(connect(url))
    assert again is not None
    assert (again.id, again.runs) == (first, str(moved))
    new = f"sqlite:///{tmp_path / 'new.db'}"
    maintenance.rebuild(new, moved)
    assert owner.of(moved).id == first
    assert owner.recorded(connect(new)) == again


def test_run_directories_that_begin_anew_in_the_same_place_keep_their_database(
    connect: Connect, url: str, life: Life
) -> None:
    engine = connect(url)
    life.whole()
    sync(engine, life.runs)
    before = owner.recorded(engine)
    shutil.rmtree(life.runs)
    life.whole("fe" * 8)
    assert sync(engine, life.runs).gone == 1
    assert owner.recorded(engine) == before == owner.of(life.runs)


@pytest.mark.parametrize(
    ("one", "other", "across_hosts", "same"),
    [
        (_Owner("a", "h", "/x"), _Owner("a", "i", "/y"), True, True),
        (_Owner("a", "h", "/x"), _Owner("b", "h", "/x"), False, False),
        (_Owner("a", "h", "/x"), _Owner("", "h", "/x"), True, True),
        (_Owner("a", "h", "/x"), _Owner("", "i", "/x"), True, False),
        (_Owner("a", "h", "/x"), _Owner("", "i", "/x"), False, True),
        (_Owner("", "h", "/x"), _Owner("", "h", "/y"), False, False),
    ],
)
def test_projects_are_distinguished(one: _Owner, other: _Owner, across_hosts: bool, same: bool) -> None:
    assert one.is_same(other, across_hosts=across_hosts) is same
    assert other.is_same(one, across_hosts=across_hosts) is same


def test_rivals_agree_on_one_id(connect: Connect, life: Life, tmp_path: Path) -> None:
    life.whole()
    engines = [connect(f"sqlite:///{tmp_path / name}.db") for name in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda engine: sync(engine, life.runs), engines))
    assert len({owner.recorded(engine) for engine in engines}) == 1
    assert [path.name for path in life.runs.iterdir() if path.name.startswith(".")] == [peek.PROJECT_FILE]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id"'])
def test_an_id_that_cannot_be_read_is_one_message(connect: Connect, url: str, life: Life, content: str) -> None:
    life.whole()
    (life.runs / peek.PROJECT_FILE).write_text(content)
    with pytest.raises(StoreError, match=r"\.project\.json"):
        sync(connect(url), life.runs)


def test_run_directories_that_may_only_be_read_are_known_by_their_place(
    connect: Connect, unprivileged: Path, life: Life
) -> None:
    """A colleague's runs, read into a database of one's own."""
    life.runs = unprivileged / "runs"
    life.whole()
    life.runs.chmod(0o555)
    engine = connect("sqlite://")
    with ordinary():
        assert sync(engine, life.runs).attempts == 1
        assert sync(engine, life.runs).attempts == 0
    life.runs.chmod(0o755)
    found = owner.recorded(engine)
    assert found is not None
    assert (found.id, found.runs) == ("", str(life.runs))
    sync(engine, life.runs)
    assert json.loads((life.runs / peek.PROJECT_FILE).read_text())["id"] == owner.of(life.runs).id != ""
