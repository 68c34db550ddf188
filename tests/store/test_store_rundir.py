import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attempts import make_attempt

from gpas_cli.errors import StoreError
from gpas_cli.store import rundir
from gpas_cli.store.rundir import all_attempts, attempts, read_json, stage_dir, write_json

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_attempts_are_numbered_from_one_and_keep_their_record(tmp_path: Path) -> None:
    first = make_attempt(tmp_path, KEY, {"schema": 1, "stage": "pretrain", "number": 99})
    second = make_attempt(tmp_path, KEY, {"schema": 1, "stage": "pretrain"})
    assert first.path == tmp_path / "01" / KEY / "001"
    asked = first.read_attempt()
    assert (asked.schema, asked.stage, asked.key, asked.number) == (1, "pretrain", KEY, 1)
    assert (second.number, second.key, second.relative) == (2, KEY, f"01/{KEY}/002")
    assert attempts(tmp_path, KEY) == [first, second]


def test_numbers_sort_as_numbers_and_are_not_used_again(tmp_path: Path) -> None:
    for number in (2, 999, 1000):
        (stage_dir(tmp_path, KEY) / f"{number:03d}").mkdir(parents=True)
    assert [attempt.number for attempt in attempts(tmp_path, KEY)] == [2, 999, 1000]
    assert make_attempt(tmp_path, KEY, {}).number == 1001


def test_other_directories_are_ignored(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, KEY, {})
    for stray in ("README", "01/notes/001", f"02/{KEY}/001", f"01/{KEY}/.new-x", f"01/{KEY}/1", f"01/{KEY}/claim"):
        (tmp_path / stray).mkdir(parents=True)
    (stage_dir(tmp_path, KEY) / "002").write_text("a file")
    assert list(all_attempts(tmp_path)) == [attempt]


def test_attempts_are_listed_by_key_and_number(tmp_path: Path) -> None:
    made = [make_attempt(tmp_path, key, {}) for key in (OTHER, KEY, OTHER)]
    assert list(all_attempts(tmp_path)) == [made[1], made[0], made[2]]
    assert list(all_attempts(tmp_path / "nowhere")) == []
    assert attempts(tmp_path, "0" * 16) == []


@pytest.mark.parametrize("key", ["", "../../etc", "0123456789abcdeF", "0123456789abcdef0"])
def test_a_key_is_sixteen_hex_digits(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a content key"):
        stage_dir(tmp_path, key)


def test_concurrent_attempts_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: make_attempt(tmp_path, KEY, {"asked": n}), range(40)))
    assert sorted(attempt.number for attempt in made) == list(range(1, 41))
    assert sorted(read_json(attempt.attempt_path)["asked"] for attempt in made) == list(range(40))
    assert len(list(stage_dir(tmp_path, KEY).iterdir())) == 40


def test_an_attempt_whose_making_fails_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        make_attempt(tmp_path, KEY, {"cell": {"size": object()}})
    assert list(stage_dir(tmp_path, KEY).iterdir()) == []


def test_json_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    write_json(path, {"code": 0})
    with pytest.raises(TypeError):
        write_json(path, {"code": object()})
    assert read_json(path) == {"code": 0}
    assert [file.name for file in tmp_path.iterdir()] == ["exit.json"]


def test_invalid_json_is_reported_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    with pytest.raises(FileNotFoundError):
        read_json(path)
    for content in (b"", b'{"half": ', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"attempt\.json: not valid JSON"):
            read_json(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(StoreError, match="expected a JSON object, found list"):
        read_json(path)


def test_a_rename_that_fails_for_another_reason_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rundir._rename(tmp_path / "nothing", tmp_path / "001")
