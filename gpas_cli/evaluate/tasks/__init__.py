"""Tasks that are scored without lm-evaluation-harness.

Task          name; questions()
├── EmbeddedTask   made from the held-out half of the standard library     local.py
├── LocalTask      a file of the project, NAME@DIGEST                      local.py
├── RecallTask     names in that half, which the network completes         local.py
├── HubGenerated   TriviaQA and others, whose answers are generated        generated.py
└── HubSquad       SQuAD v1.1, whose answers are parts of a passage        squad.py
forms.py      the documents of known tasks -> questions, with the prompts of lm-evaluation-harness
adapters.py   the records of LLM-Adapters -> documents
"""

from __future__ import annotations

from pathlib import Path

from gpas_cli.evaluate.tasks.generated import HubGenerated
from gpas_cli.evaluate.tasks.local import EmbeddedTask, LocalTask, RecallTask, local_task
from gpas_cli.evaluate.tasks.squad import HubSquad
from gpas_cli.spec.downstream import KNOWN_TASKS, RECALL, SQUAD, WRITTEN, is_local

MultipleChoice = EmbeddedTask | LocalTask
GeneratedTask = LocalTask | HubGenerated | RecallTask
Task = MultipleChoice | GeneratedTask | HubSquad


def direct_task(name: str, root: Path) -> Task | None:
    """Return the task called `name`, None if only lm-evaluation-harness provides it.

    `root`: the folder of experiments.yaml. Raises TaskUnavailable if the file of a local task is missing or changed.
    """
    if is_local(name):
        return local_task(name, root)
    if name == SQUAD:
        return HubSquad()
    if name in WRITTEN:
        return HubGenerated(name)
    if name == RECALL:
        return RecallTask()
    return EmbeddedTask(name) if KNOWN_TASKS[name].embedded else None
