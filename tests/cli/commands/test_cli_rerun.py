"""`gpas retry --done`: a result is obtained again as a new attempt, and nothing is lost meanwhile."""

from face import Face

from gpas_cli.state.claim_set import run_again
from gpas_cli.state.rerun import FILE, deciding


def test_a_rerun_resumes_from_no_earlier_attempt(face: Face) -> None:
    first = face.ended("pre-s1", "done", 4.0)
    assert [attempt.number for attempt in deciding(face.runs, first.key)] == [1]
    run_again(face.runs, [first.key])
    assert deciding(face.runs, first.key) == []
    face.ended("pre-s1", "interrupted")
    assert [attempt.number for attempt in deciding(face.runs, first.key)] == [2]


def test_an_unreadable_rerun_request_changes_no_state(face: Face) -> None:
    made = face.ended("pre-s1", "done", 4.0)
    (made.path.parent / FILE).write_text('{"after": "x"}')
    assert face("status", "small", "--json").json["cells"][0]["state"] == "unknown"
