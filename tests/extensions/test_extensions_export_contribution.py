"""`gpas export --contribute`: whoever has the record beside a paper sees its numbers; one that is not right is not
shown.
"""

import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from face import START, Face, end
from goldens import compare_command, golden_cases
from jsonschema import Draft202012Validator
from schemas import json_schema
from scored import finish_cells
from test_cli_schema import check
from test_cli_table import TABLE_2

from gpas_cli.extensions.contributions.contributed import beside
from gpas_cli.extensions.export.archive import write_members
from gpas_cli.grid.load import load
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.render import PaperTablesJson
from gpas_cli.store.journal import decoded, encode

ADA = ("--name", "Ada Lovelace")
COLUMN = "contributed by Ada Lovelace"
Files = dict[str, bytes]


@pytest.fixture
def author(face: Face, tmp_path: Path) -> Face:
    """Return a project without results that includes a paper, and has Ada's record of pre-s1 beside it."""
    face.edit("version: 1\n", "version: 1\ninclude: [./mypaper]\n")
    (face.folder / "mypaper").mkdir()
    (face.folder / "mypaper/grids.yaml").write_text("version: 1\n")
    shutil.copytree(face.folder, tmp_path / "author")
    face.ended("pre-s1", "done", 5.0)
    face("export", "--contribute", "pre-s1", *ADA)
    made = Face.__new__(Face)
    made.folder = tmp_path / "author"
    shutil.copytree(face.folder / "mypaper/results", made.folder / "mypaper/results")
    return made


def record(author: Face) -> Path:
    (path,) = (author.folder / "mypaper/results").iterdir()
    return path


def unpacked(path: Path) -> Files:
    with tarfile.open(path) as tar:
        files = {info.name.partition("/")[2]: file.read() for info in tar if (file := tar.extractfile(info))}
    del files["SHA256SUMS"]
    return files


def pack(path: Path, files: Files) -> None:
    """Write a record with these files and their right checksums."""
    with path.open("wb") as file:
        write_members(file, path.name.removesuffix(".tar.gz"), files)


def test_a_record_is_shown_beside_our_numbers_and_is_no_part_of_them(author: Face) -> None:
    author.ended("pre-s2", "done", 7.0)
    for title in golden_cases("commands/contributions"):
        compare_command("commands/contributions", title, author)
    check("table", author("table", "--paper", "--json").json)
    author("claims")
    assert author("status", "--json").json["grids"][0]["states"] == {"done": 1, "missing": 7}


def test_a_column_for_each_person_and_their_own_differences(author: Face, face: Face) -> None:
    face.ended("pre-gpas-s1", "done", 4.5)
    face.ended("pre-gpas-s1", "done", 4.0)
    folder = author.folder / "mypaper/results"
    face("export", "--contribute", "pre-gpas-s1", str(folder), *ADA)
    face("export", "--contribute", "pre-gpas-s1", str(folder), "--name", "Émilie")
    text = author("table", "small", "--paper", "--format", "markdown").out
    assert f"toy | toy, {COLUMN} | toy, contributed by Émilie |" in text
    assert "+ GPAS | missing | 4.00 (-1.00) \\[1/2 seeds] | 4.00 \\[1/2 seeds] |" in text
    pack(folder / f"{record(face).name[:16]}-again.tar.gz", unpacked(record(face)))
    said = author("table", "small", "--paper")
    assert "another file has other results of Ada Lovelace" in said.err


def test_other_text_and_runs_that_diverged_are_named(author: Face, face: Face) -> None:
    files = unpacked(record(author))
    events(files, lambda event: event.get("kind") == "data" and event.update(validation_fingerprint="dead"))
    pack(record(author), files)
    author.ended("pre-s1", "done", 5.0)
    face.ended("post-s1", "diverged")
    face("export", "--contribute", "post-s1", str(author.folder / "mypaper/results"), *ADA)
    text = author("table", "small", "--paper", "--format", "markdown").out
    assert "Ada Lovelace measured on other validation text than here: Pre-LN toy\n" in text
    assert "| Post-LN | missing | 1 diverged, 1 missing |" in text
    author.attempt("pre-s2", ("start", START), ("outcome", end("done", metrics={"mine": 3})))
    said = author("table", "small", "--paper", "--value", "mine", "--format", "markdown")
    assert "| Pre-LN | 3 \\[1/2 seeds] |\n" in said.out
    assert "the results of Ada Lovelace are not shown: no metric 'mine' is recorded" in said.err


def test_a_papers_own_layout_has_the_column(face: Face, tmp_path: Path) -> None:
    face.declare(TABLE_2.replace("grids:", "include: [./mine]\ngrids:"))
    (face.folder / "mine").mkdir()
    (face.folder / "mine/grids.yaml").write_text("version: 1\n")
    entry = face.entries("two")[0]
    metrics = {"perplexity": 31.0, "perplexity_reference": 30.0}
    face.recorded(entry, ("start", START), ("outcome", end("done", metrics=metrics)))
    document = face("export", "--contribute", entry.id, *ADA, "--json").json
    check("export contribution", document)
    assert document["contribution"]["deviations"][0]["paper"] == "gpas"
    shutil.rmtree(face.runs)
    made = face("table", "gpas:2", "--json").json
    Draft202012Validator(json_schema(PaperTablesJson, closed=True)).validate(made)
    assert made["tables"][0]["columns"][0]["contributors"] == ["Ada Lovelace"]
    assert (
        "| 71M ours, their average | contributed by Ada Lovelace | GPAS paper |"
        in face("table", "gpas:2", "-f", "markdown").out
    )
    assert "| LNS | missing | 30.00 \\[1/2 seeds] |" in face("table", "two", "--paper", "-f", "markdown").out


def test_scores_of_later_stages_are_shown(face: Face) -> None:
    finish_cells(face)
    shown = face("table", "scored", "--format", "csv").out.splitlines()[1].split(",")
    face.edit("version: 1\n", "version: 1\ninclude: [./mine]\n")
    (face.folder / "mine").mkdir()
    (face.folder / "mine/claims.yaml").write_text("{}\n")
    entry = face.entries("scored")[0]
    face("export", "--contribute", entry.id, *ADA)
    face.recorded(entry, ("start", START), ("outcome", end("done", metrics={"perplexity": 1.0})))
    face("export", "--contribute", "pre-s1", *ADA)  # has the same training, and another result of it
    experiments, warned = load(face.folder / "experiments.yaml"), list[str]()
    table = build([entry], {}, {}, experiments.grids["scored"].table_spec)
    beside(table, [entry, face.entry("pre-s1")], experiments, lambda known: table, warned.append)
    assert "another file has other results of Ada Lovelace for the cell or a stage of it" in "".join(warned)
    shutil.rmtree(face.runs)
    line = face("table", "scored", "--paper", "--format", "csv").out.splitlines()[1]
    assert line.split(",")[-3] == shown[4] != ""


def journal_of(files: Files) -> str:
    (name,) = (name for name in files if name.endswith("journal.jsonl"))
    return name


def events(files: Files, change: Callable[[dict[str, object]], object]) -> None:
    """Change the events of a journal, with right checksums."""
    lines = [dict(line.values) for line in decoded(files[journal_of(files)]) if line]
    for line in lines:
        change(line)
    files[journal_of(files)] = b"".join(map(encode, lines))


def edit(files: Files, ending: str, old: str, new: str) -> None:
    (name,) = (name for name in files if name.endswith(ending))
    assert old in files[name].decode()
    files[name] = files[name].replace(old.encode(), new.encode())


def trap(files: Files) -> None:
    """Make the record name a scheme of a plugin that it brings along."""
    (name,) = (name for name in files if name.endswith("attempt.json"))
    values = json.loads(files[name])
    values["cell"]["norm"] = {"scheme": "mine"}
    values["plugin"] = {"name": "mine.py", "source": "open('executed', 'w').close()"}
    files[name] = json.dumps(values).encode()


# What is changed in a record whose checksums are made right again, and the reason why it is not shown.
FORGERIES: dict[str, tuple[Callable[[Files], object], str]] = {
    "a byte of the journal": (lambda f: edit(f, "journal.jsonl", '"step":4,', '"step":3,'), "damaged line"),
    "the journal of another stage": (lambda f: events(f, lambda e: e.update(key="f" * 16)), "is of ffffffffffffffff"),
    "no outcome": (lambda f: events(f, lambda e: e.update(outcome="failed")), "results of"),
    "a number that is none": (lambda f: events(f, lambda e: e.update(metrics={"perplexity": "x"})), "damaged line"),
    "no journal": (lambda f: f.pop(journal_of(f)), "results of"),
    "another attempt": (lambda f: edit(f, "attempt.json", '"number": 1', '"number": 2'), "is of"),
    "another rate": (lambda f: edit(f, "attempt.json", '"lr": 0.001', '"lr": 0.002'), "a cell with another key"),
    "a plugin": (trap, "mine"),
    "another card": (lambda f: edit(f, "contribution.json", '"cpu"', '"H100"'), "other hardware or code"),
    "another cell": (lambda f: edit(f, "contribution.json", '"key": "', '"key": "0'), "is of the cell 0"),
    "two lines of a name": (lambda f: edit(f, "contribution.json", "Ada ", r"Ada\n"), "is no name"),
    "no name": (lambda f: edit(f, "contribution.json", "Ada Lovelace", ""), "is no name"),
    "a file of its own": (lambda f: f.update({"runs/../../../evil": b""}), "is no file of a record"),
    "another file": (lambda f: f.update({"setup.py": b""}), "setup.py' is no file of a record"),
    "nothing": (lambda f: f.clear(), "contribution.json"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_record_is_not_shown(author: Face, what: str) -> None:
    files = unpacked(record(author))
    change, reason = FORGERIES[what]
    change(files)
    pack(record(author), files)
    refused(author, reason)
    assert not (author.folder / "executed").exists()


def refused(author: Face, reason: str) -> None:
    said = author("table", "small", "--paper")
    assert f"{record(author)} is not shown: " in said.err.replace("\n", " ")
    assert reason in said.err
    assert "Ada" not in said.out


def test_a_consistent_forgery_is_shown(author: Face) -> None:
    """Checksums show that a record is whole, not that it is honest."""
    files = unpacked(record(author))
    events(files, lambda event: event.get("metrics") and event.update(metrics={"perplexity": 1.5}))
    pack(record(author), files)
    assert "| Pre-LN | missing | 1.50" in author("table", "small", "--paper", "--format", "markdown").out


def with_member(path: Path, info: tarfile.TarInfo, content: bytes = b"") -> None:
    """Add a member to the tar of a record."""
    data = io.BytesIO(gzip.decompress(path.read_bytes()))
    with tarfile.open(fileobj=data, mode="a") as tar:
        tar.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(data.getvalue()))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_no_file_is_refused(author: Face, kind: bytes) -> None:
    info = tarfile.TarInfo(f"{record(author).name.removesuffix('.tar.gz')}/runs/00/0000000000000000/001/exit.json")
    info.type, info.linkname = kind, "/etc/passwd"
    with_member(record(author), info)
    refused(author, "is no file of a record")


def test_bombs_and_bytes_that_are_no_record_are_refused(author: Face) -> None:
    path = record(author)
    whole = path.read_bytes()
    for content in (b"", b"x" * 100, whole[:500], whole[:-4] + b"xxxx", gzip.compress(b"no tar" * 1000)):
        path.write_bytes(content)
        refused(author, "")
    path.write_bytes(gzip.compress(bytes(1 << 20)) * 1024)  # unpacks to a gigabyte
    refused(author, "too large: at most 16.8 MB")
    with path.open("wb") as file:
        file.truncate(1 << 32)
    refused(author, "too large")
    path.unlink()
    os.mkfifo(path)
    refused(author, "not a regular file")
    path.unlink()
    path.symlink_to("/etc/passwd")
    refused(author, "a link, and gpas follows no link to a file here")


def test_records_that_are_swapped_or_renamed_are_not_shown(author: Face, face: Face) -> None:
    face.ended("pre-s2", "done", 6.0)
    face("export", "--contribute", "pre-s2", str(author.folder / "mypaper/results"), *ADA)
    first, second = sorted((author.folder / "mypaper/results").iterdir())
    names = first.name, second.name
    first.rename(first.with_name("aside"))
    second.rename(second.with_name(names[0]))
    first.with_name("aside").rename(second)
    said = author("table", "small", "--paper")
    assert said.err.count("is no file of a record") == 2
    assert "Ada" not in said.out
    pack(first, unpacked(first))
    said = author("table", "small", "--paper")
    assert f"contribution.json is of the cell {names[1][:16]}" in said.err


def test_what_cannot_be_contributed(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    face.ended("pre-s1", "failed", cause="no luck")
    words = ("export", "--contribute", "pre-s1", "results")
    assert "small/pre-s1 is failed" in face(*words, *ADA, expect=2).err
    face.ended("pre-s1", "done", 5.0)
    assert "name the cell and the folder" in face(*words[:-1], *ADA, expect=2).err
    assert "give one of them" in face(*words, "--archive", "x.tar.gz", expect=2).err
    assert "--name 'A\\nB' is no name" in face(*words, "--name", "A\nB", expect=2).err
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    assert "git has no user.name; give your name with --name" in face(*words, expect=2).err


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_record_is_in_the_name_that_git_knows_and_is_not_overwritten(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    face.ended("pre-s1", "done", 5.0)
    words = ("export", "--contribute", "pre-s1", "results")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "Ann")
    assert "by Ann, on cpu, code c0de" in face(*words).out
    (made,) = (face.folder / "results").iterdir()
    before = made.read_bytes()
    face(*words)
    assert made.read_bytes() == before
    face.ended("pre-s1", "done", 5.0)
    assert "is another record; delete it" in face(*words, expect=2).err


def test_values_that_may_be_secret_are_not_contributed(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = face.ended("pre-s1", "done", 5.0)
    old = json.loads(attempt.attempt_path.read_text())
    secret = {"environment": ["HF_TOKEN=S3CRETTOK"], "setup": ["A=S3CRETTOK"], "python": "/S3CRETTOK"}
    attempt.attempt_path.write_text(json.dumps({**old, "resources": {**old["resources"], **secret}}))
    (attempt.path / "log.txt").write_text("S3CRETTOK")
    monkeypatch.setenv("HF_TOKEN", "S3CRETTOK")
    face("export", "--contribute", "pre-s1", "results", *ADA)
    (made,) = (face.folder / "results").iterdir()
    files = unpacked(made)
    assert {Path(name).name for name in files} == {"contribution.json", "attempt.json", "journal.jsonl"}
    assert not [name for name, content in files.items() if b"S3CRETTOK" in content]
    assert b"HF_TOKEN=***" in b"".join(files.values())
