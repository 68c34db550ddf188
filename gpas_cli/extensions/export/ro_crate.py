"""What an archive says of itself to machines: `ro-crate-metadata.json`, an RO-Crate 1.2 with the profile Workflow Run
Crate 0.5 (https://w3id.org/ro/crate/1.2, https://w3id.org/ro/wfrun/workflow/0.5).

The declared grids are the workflow. Each attempt is a run of it: its times and outcome, the text and the code that it
read, and its folder as the result. Texts are not in the archive; each has its licence, the checksums of its tokens and
the day when an attempt first read it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpas_cli import __version__
from gpas_cli.events import Outcome, TextFacts, Verified
from gpas_cli.store.journal import stretches
from gpas_cli.store.rundir import AttemptDir, read_json

NAME = "ro-crate-metadata.json"
_ASSETS = Path(__file__).parent / "assets"
_UNKNOWN = "not stated; ask the authors"

_Entity = dict[str, Any]


def metadata(files: Iterable[str], grids: Sequence[str], attempts: Sequence[AttemptDir], codes: Iterable[str]) -> bytes:
    """Return the description of an archive with these files, outside its runs, and these attempts and copies of code.

    Raises OSError if a journal cannot be read.
    """
    runs = sorted(map(_Run, attempts), key=lambda run: run.began)
    parts = [_file(name) for name in sorted({*files, "README.md", "SHA256SUMS"})]
    parts += [{"@id": f"runs/.code/{code}/", "@type": "Dataset", "name": f"gpas_cli, code {code}"} for code in codes]
    parts += [run.folder for run in runs]
    read = {one["@id"]: one for run in reversed(runs) for one in run.read}  # as the first attempt read it
    made: _Entity = json.loads((_ASSETS / "ro-crate.json").read_text("utf-8"))
    root, language, *_ = made["@graph"]
    language["version"] = __version__
    root["name"] = f"Results of {', '.join(grids)}"
    root["datePublished"] = _time(max(run.ended for run in runs))[:10]
    root["hasPart"] = [{"@id": part["@id"]} for part in parts]
    root["mentions"] = [{"@id": run.action["@id"]} for run in runs]
    made["@graph"] += [*parts, *(run.action for run in runs), *read.values()]
    return (json.dumps(made, indent=1, ensure_ascii=False) + "\n").encode()


class _Run:
    """An attempt as a run of the workflow. `read`: its texts, and the shards of their tokens."""

    def __init__(self, attempt: AttemptDir):
        place, record = f"runs/{attempt.relative}/", read_json(attempt.attempt_path)
        self.began = self.ended = float(record.get("created", 0))
        self.read: list[_Entity] = []
        outcome: Outcome | None = None
        for number, line in enumerate(line for lines, _, _ in stretches(attempt.journal_path) for line in lines):
            self.began, self.ended = self.began if number else line.t, line.t
            if isinstance(line.event, TextFacts):
                self.read += texts(record["cell"]["data"], line.event, line.t)
            elif isinstance(line.event, Verified):
                self.read += _shards(self.read, line.event)
            elif isinstance(line.event, Outcome):
                outcome = line.event
        ended = outcome or Outcome("interrupted", cause="no outcome was recorded")
        done = ended.outcome in ("done", "diverged")
        self.folder: _Entity = {"@id": place, "@type": "Dataset", "name": f"{record['stage']} of {record['key']}"}
        self.action = {
            "@id": f"#{attempt.relative}", "@type": "CreateAction", "name": f"attempt {attempt.relative}",
            "instrument": {"@id": "experiments.yaml"}, "result": {"@id": place},
            "object": [{"@id": one["@id"]} for one in self.read if one["@type"] == "Dataset"],
            "startTime": _time(self.began), "endTime": _time(self.ended),
            "actionStatus": f"http://schema.org/{'Completed' if done else 'Failed'}ActionStatus",
            **({} if done else {"error": ended.cause}),
        }  # fmt: skip


def texts(data: _Entity, facts: TextFacts, time: float) -> Iterator[_Entity]:
    """Yield the training and validation texts that an attempt read at `time`, with their licence if it is known."""
    known = _licences().get(data["source"], {}) or _licences().get(str(data["path"]).partition(":")[0], {})
    facts_of = {"license": _UNKNOWN, "name": data["path"] or data["source"], **known}
    for split, digest in (("train", facts.fingerprint), ("validation", facts.validation_fingerprint)):
        if digest:
            about = f"Read first on {_time(time)[:10]}; `identifier` is the digest of its documents"
            names = {"name": f"{split}: {facts_of['name']}", "identifier": digest, "description": about}
            version = {"version": facts.commit} if facts.commit else {}
            yield {"@id": f"#text-{digest}", "@type": "Dataset", **facts_of, **names, **version}


def _shards(known: Sequence[_Entity], found: Verified) -> list[_Entity]:
    own = [
        {"@id": f"#{digest}", "@type": "CreativeWork", "name": f"tokens {found.split}/{name}", "sha256": digest}
        for name, digest in found.shards.items()
    ]
    for text in known:
        if text["name"].startswith(f"{found.split}:"):
            text["hasPart"] = [{"@id": shard["@id"]} for shard in own]
    return own


@cache
def _licences() -> dict[str, _Entity]:
    found: dict[str, _Entity] = yaml.safe_load((_ASSETS / "licences.yaml").read_text("utf-8"))
    return found


def _file(name: str) -> _Entity:
    if name != "experiments.yaml":
        return {"@id": name, "@type": "File", "name": name}
    kinds = ["File", "SoftwareSourceCode", "ComputationalWorkflow"]
    return {"@id": name, "@type": kinds, "name": name, "programmingLanguage": {"@id": "#gpas"}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
