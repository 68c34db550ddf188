import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases
from face import EXPERIMENTS, gpas
from life import Connect
from sqlalchemy import Engine, inspect, make_url, text
from users import NOBODY, drop_privileges

from gpas_cli.__main__ import main
from gpas_cli.errors import GpasError, StoreError
from gpas_cli.project import Project
from gpas_cli.store import maintenance, session
from gpas_cli.store.driver_errors import explain
from gpas_cli.store.peek import HEAD, VERSION_TABLE
from gpas_cli.store.schema import Base


def test_a_new_database_has_the_tables_and_the_version(connect: Connect, url: str) -> None:
    engine = connect(url)
    assert set(inspect(engine).get_table_names()) == {*Base.metadata.tables, VERSION_TABLE}
    with engine.connect() as connection:
        assert session.version_of(connection) == HEAD
    assert connect(url).url == engine.url


def test_sqlite_is_set_up_for_readers_beside_a_writer(connect: Connect, sqlite_url: str) -> None:
    with connect(sqlite_url, busy_seconds=7).connect() as connection:
        settings = ("journal_mode", "busy_timeout", "foreign_keys", "synchronous")
        values = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in settings]
    assert values == ["wal", 7000, 1, 1]


def test_no_shared_memory_log_on_a_network_file_system(
    connect: Connect, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    with connect(sqlite_url).connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "delete"


def test_rivals_create_the_tables_once(connect: Connect, url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: connect(url), range(4)))
    with engines[0].connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {VERSION_TABLE}")).scalar() == 1


def test_opening_does_not_import_alembic_or_torch(connect: Connect, sqlite_url: str) -> None:
    connect(sqlite_url)
    code = (
        "import sys; from gpas_cli.store.session import connect; connect(sys.argv[1]).dispose()\n"
        "print(sorted({'alembic', 'torch', 'psutil'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code, sqlite_url], text=True).strip() == "[]"


def test_no_database_is_created_unless_requested(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no database yet; `gpas run`"):
        session.connect(sqlite_url, create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "gpas.db").touch()
    with pytest.raises(StoreError, match="there are no results yet"):
        session.connect(sqlite_url, create=False)
    assert (tmp_path / "gpas.db").stat().st_size == 0


@cases("store/cases.yaml")
def test_a_url_that_cannot_be_used(bad: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        session.connect(bad)


@pytest.mark.parametrize("name", ["q?mark", "x%41y", "a b", "h#sh", "c:d", "ü", "file:x", "q?mode=ro"])
def test_the_database_lies_in_the_project_whatever_its_name(connect: Connect, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "inner"
    folder.mkdir(parents=True)
    (folder / "experiments.yaml").write_text("grids: {}\n")
    project = Project.find(folder / "experiments.yaml", environ={})
    engine = connect(project.database)
    assert "stage" in inspect(engine).get_table_names()
    assert (folder / "gpas.db").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert session.name_of(project.database) == str(folder / "gpas.db")
    engine.dispose()
    assert maintenance.check(project.database, project.runs) == []
    assert maintenance.rebuild(project.database, project.runs).attempts == 0
    assert [path.name for path in (tmp_path / name).iterdir()] == ["inner"]


@cases("store/cases.yaml")
def test_a_damaged_url_is_no_file_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    (tmp_path / "experiments.yaml").write_text("version: 1\ngrids: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPAS_DB", damaged)
    for words in (["db", "sync"], ["db", "check"], ["db", "rebuild", "--yes"], ["db", "backup"]):
        monkeypatch.setattr(sys, "argv", ["gpas", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "secret" not in out + err
        assert (out + err).count("database URL") == 1
        assert ended.value.code == 2, words
        assert "not a database URL" in err
    assert [path.name for path in tmp_path.iterdir()] == ["experiments.yaml"]


@pytest.mark.parametrize("name", ["GPAS_CONFIG", "GPAS_RUNS_DIR", "GPAS_CACHE", "GPAS_DB"])
def test_a_path_that_is_not_utf_8_is_one_message(tmp_path: Path, name: str) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    (tmp_path / "experiments.yaml").write_text("grids: {}\n")
    folder.mkdir()
    (folder / "experiments.yaml").write_text("grids: {}\n")
    environ = {"GPAS_CONFIG": str(tmp_path / "experiments.yaml"), name: str(folder / "experiments.yaml")}
    with pytest.raises(GpasError, match=r"\\udcff\\udcfe.* is not UTF-8; rename the folder"):
        Project.find(environ=environ)


def test_a_folder_that_is_not_utf_8_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text(EXPERIMENTS)
    said = gpas(tmp_path, "init", os.fsdecode(b"\xff"), expect=2)
    assert "is not UTF-8; rename the folder" in said.err
    assert not (tmp_path / os.fsdecode(b"\xff")).exists()


def test_a_missing_driver_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"postgresql\+psycopg is not installed; pip install 'gpas-cli\[postgres\]'"):
        session.connect("postgresql://user:secret@host/name")


def test_an_unreachable_server_is_reported_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="nothing is lost") as caught:
        session.connect("postgresql://user:secret@127.0.0.1:1/name", busy_seconds=2)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_a_database(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "gpas.db").write_bytes(b"a thesis " * 1000)
    with pytest.raises(StoreError, match=r"gpas\.db: the file is not an SQLite database; move it away"):
        session.connect(sqlite_url)
    assert (tmp_path / "gpas.db").read_bytes() == b"a thesis " * 1000


def of_another_program(url: str, table: str) -> None:
    """Make a database with a table that gpas did not make."""
    engine = session.open_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (version_num TEXT)"))
    engine.dispose()


def test_a_database_of_another_program(url: str) -> None:
    of_another_program(url, "metric")
    with pytest.raises(StoreError, match="has a table 'metric' that gpas did not make"):
        session.connect(url)


def test_other_tables_may_live_beside_ours(connect: Connect, url: str) -> None:
    of_another_program(url, "alembic_version")
    assert {"alembic_version", "stage"} <= set(inspect(connect(url)).get_table_names())


@pytest.fixture
def exclusively(connect: Connect, sqlite_url: str, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another process's connection that holds the database for itself."""
    connect(sqlite_url).dispose()
    other = sqlite3.connect(tmp_path / "gpas.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    yield other
    other.close()


def test_a_locked_database_is_waited_for_and_then_reported(sqlite_url: str, exclusively: sqlite3.Connection) -> None:
    before = time.monotonic()
    with pytest.raises(StoreError, match=r"held the lock for 0\.3 s; nothing is lost.*no locks: set GPAS_DB"):
        session.connect(sqlite_url, busy_seconds=0.3)
    assert time.monotonic() - before > 0.2


def test_a_file_system_that_gives_sqlite_no_locks_is_not_a_failing_disk() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_LOCK"  # where fcntl fails with anything but ENOLCK or EACCES
    assert "has no locks: set GPAS_DB" in str(explain(make_url("sqlite:///gpas.db"), error, 1))
    error.sqlite_errorname = "SQLITE_IOERR_READ"
    assert "the disk failed" in str(explain(make_url("sqlite:///gpas.db"), error, 1))


def test_a_read_only_file_can_be_read_and_a_write_is_explained(connect: Connect, unprivileged: Path) -> None:
    path = unprivileged / "gpas.db"
    connect(f"sqlite:///{path}").dispose()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA journal_mode = DELETE")
    raw.close()
    path.chmod(0o444)
    drop_privileges()
    engine = connect(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM attempt")).scalar() == 0
    with engine.connect() as connection, pytest.raises(StoreError, match="you cannot write to it"):
        connection.execute(text("DELETE FROM attempt"))


def beside(path: Path) -> set[str]:
    return {found.name for found in path.parent.iterdir()}


@pytest.mark.parametrize("mode", [0o755, 0o777], ids=["in a folder of the owner's", "in a folder of all"])
def test_a_second_user_reads_and_leaves_nothing_behind(connect: Connect, unprivileged: Path, mode: int) -> None:
    unprivileged.chmod(mode)
    path = unprivileged / "gpas.db"
    owner = connect(f"sqlite:///{path}")
    insert_stage(owner, "a")
    owner.dispose()
    path.chmod(0o444)  # of the owner's own; root is bound by nothing
    before = beside(path)
    drop_privileges()
    engine = connect(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT key FROM stage")).scalars().all() == ["a"]
        assert beside(path) == before
    with pytest.raises(StoreError, match="you cannot write to it"), session.writing(engine) as connection:
        connection.execute(text("DELETE FROM stage"))
    engine.dispose()
    assert beside(path) == before
    os.seteuid(os.getuid())
    path.chmod(0o644)
    insert_stage(connect(f"sqlite:///{path}"), "b")


def insert_stage(engine: Engine, key: str) -> None:
    with session.writing(engine) as connection:
        connection.execute(text("INSERT INTO stage VALUES (:key, 'pretrain', '[]', '{}')"), {"key": key})


def test_a_second_user_sees_current_results_of_the_owner(connect: Connect, unprivileged: Path) -> None:
    """What is in the owner's log and not yet in the file."""
    path = unprivileged / "gpas.db"
    owner = connect(f"sqlite:///{path}")
    insert_stage(owner, "a")
    assert {"gpas.db-wal", "gpas.db-shm"} <= beside(path)
    path.chmod(0o444)
    drop_privileges()
    with connect(f"sqlite:///{path}").connect() as connection:
        assert connection.execute(text("SELECT key FROM stage")).scalars().all() == ["a"]
    os.seteuid(os.getuid())
    path.chmod(0o644)
    with session.writing(owner) as connection:
        connection.execute(text("DELETE FROM stage"))


def test_a_group_that_may_write_can(connect: Connect, unprivileged: Path) -> None:
    """The file is made with what the umask leaves, and its log gets its mode."""
    path = unprivileged / "gpas.db"
    before = os.umask(0o002)
    try:
        insert_stage(connect(f"sqlite:///{path}"), "a")
        modes = {found.name: found.stat().st_mode & 0o777 for found in unprivileged.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("gpas.db", "gpas.db-wal", "gpas.db-shm"), 0o664)


def test_the_log_of_a_second_writer_belongs_to_the_files_group(connect: Connect, unprivileged: Path) -> None:
    """Else the first one, who is not in the second one's own group, could not write any more."""
    if os.getuid() != 0:
        pytest.skip("only root can be a second user")
    unprivileged.chmod(0o777)
    path = unprivileged / "gpas.db"
    shared = 54321
    groups = os.getgroups()
    connect(f"sqlite:///{path}").dispose()
    os.chown(path, -1, shared)
    path.chmod(0o664)
    os.setgroups([shared])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        insert_stage(connect(f"sqlite:///{path}"), "a")
        found = {each.name: (each.stat().st_gid, each.stat().st_mode & 0o777) for each in unprivileged.iterdir()}
    finally:
        os.seteuid(0)
        os.setegid(os.getgid())
        os.setgroups(groups)
    assert found == dict.fromkeys(("gpas.db", "gpas.db-wal", "gpas.db-shm"), (shared, 0o664))


def test_a_folder_that_cannot_be_written(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    drop_privileges()
    with pytest.raises(StoreError, match="it cannot be opened; the folder must exist and"):
        session.connect(f"sqlite:///{unprivileged / 'gpas.db'}")


def test_a_programming_error_is_not_disguised(connect: Connect, url: str) -> None:
    from sqlalchemy.exc import DBAPIError

    with connect(url).connect() as connection, pytest.raises(DBAPIError, match="nowhere"):
        connection.execute(text("SELECT * FROM nowhere"))
